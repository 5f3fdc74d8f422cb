//! The words of the command, and what follows from them.

use super::*;
use clap::Parser;

#[derive(Parser)]
struct ScanLine {
    #[command(flatten)]
    args: Args,
}

fn parse(line: &str) -> Result<Args, String> {
    let words = std::iter::once("scan").chain(line.split_whitespace());
    ScanLine::try_parse_from(words).map(|line| line.args).map_err(|e| e.to_string())
}

#[test]
fn wrong_use_is_told_in_its_first_line() {
    for (line, part) in [
        ("--files 0", "0 is not in 1.."),
        ("--rounds 0", "0 is not in 1.."),
        ("--memory 1M", "it must be 64M at least, or off"),
        ("--memory much", "`much` is not a size"),
        ("--patience 0", "0 is not in 1.."),
        ("--report x", "--experiment"),
        ("--experiment lustre-2012", "invalid value 'lustre-2012'"),
    ] {
        let why = parse(line).err().unwrap_or_default();
        let first: Vec<_> = why.lines().take(3).collect();
        assert!(first.join(" ").contains(part), "{line}: {why}");
    }
}

#[test]
fn an_experiment_is_all_of_it() {
    let setting = |line| ScanSetting::of(&parse(line).ok().unwrap());
    let few = setting("--files 1000");
    assert_eq!(few.phases, [ScanPhase::Warm]);
    assert_eq!(few.sides, [ScanSide::Glint(0), ScanSide::Local, ScanSide::Unlimited]);
    assert_eq!(few.memory, Some(memory_for(1000)));
    assert_eq!(few.amounts.streamed, 4 * memory_for(1000));
    let streams = setting("--streams --memory off");
    assert_eq!(streams.phases, [ScanPhase::Warm, ScanPhase::Streamed]);
    assert_eq!((streams.memory, streams.client_memory), (None, None));
    assert_eq!(streams.sides, [ScanSide::Glint(0), ScanSide::Local]);
    assert_eq!(streams.amounts.streamed, STREAMED_BYTES);
    let all = setting("--experiment lustre-2011 --memory 1G");
    assert_eq!(all.phases, ScanPhase::ALL);
    assert_eq!(all.sides.len(), VARIANTS.len() + 2);
    assert!(all.seconds() > few.seconds() * 10.0);
}

#[test]
fn the_command_of_a_report_does_the_same_again() {
    for (line, again) in [
        (
            "--files 9",
            "glint bench scan --files 9 --rounds 3 --client-memory 536870912 --patience 300",
        ),
        (
            "--experiment lustre-2011 --files 9 --memory 1G --client-memory off --plain \
             --stream-rate 5M --stream-bytes 1G --patience 9 --rounds 1",
            "glint bench scan --experiment lustre-2011 --files 9 --rounds 1 --memory 1073741824 \
             --client-memory off --plain --stream-rate 5242880 --stream-bytes 1073741824 \
             --patience 9",
        ),
        (
            "--streams --restarts --memory off --files 9",
            "glint bench scan --files 9 --rounds 3 --memory off --client-memory 536870912 \
             --streams --restarts --patience 300",
        ),
    ] {
        let args = parse(line).ok().unwrap();
        assert_eq!(super::again(&args), again);
        let twice = parse(again.trim_start_matches("glint bench scan")).ok().unwrap();
        assert_eq!(super::again(&twice), again);
    }
}
