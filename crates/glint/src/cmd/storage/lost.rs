//! `glint ost lost`: gives up an OST that does not exist any more.

use super::order::{WhichOst, ask, pages};
use crate::CommandResult;
use crate::output::counted;
use crate::target::Target;
use glint_proto::message::{GiveUp, GiveUpStep};
use serde_json::{Value, json};
use std::io::{IsTerminal, Write, stderr, stdin};
use std::process::ExitCode;

/// Chains and files of one kind that are named, where not all are asked for.
const NAMED: usize = 8;

/// Give up an OST that does not exist any more, at the server with the MDS.
///
/// For an OST whose host is lost with its data directory. Says first what is lost with it, and gives
/// it up only if that is so still:
///
/// Chains of copies in which other members have everything lose nothing.
///
/// Chains in which it was the last that served go on with what another member has, as soon as that
/// is heard of. Changes that were acknowledged while that one was away are lost; those that were not
/// on stable storage, clients that live send again. Which files had such changes the lost OST alone
/// knew: all that have data there are named, and a file that was last changed before (`changed` of
/// --json) loses nothing. If no other member has anything, all is lost.
///
/// Files without copies lose what was on it.
///
/// If its server is heard of again, with its old disk or a new one (`glint ost replace`), it gets
/// everything from the others. Administrators only.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    which: WhichOst,
    /// Only say what is lost, with the names of all files.
    #[arg(long)]
    dry_run: bool,
    /// Do not ask.
    #[arg(long, conflicts_with = "dry_run")]
    yes: bool,
    /// Print JSON, one object a line: a row for each chain, a row for each file that loses something,
    /// and what was done.
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> CommandResult {
    let (ost, target) = (args.which.ost, args.which.target()?);
    let losses = Losses::ask(&target, ost)?;
    if args.json {
        losses.rows().for_each(|row| crate::say!("{row}"));
    } else {
        losses.show(args.dry_run);
    }
    if args.dry_run {
        return Ok(ExitCode::SUCCESS);
    }
    if !args.yes && !is_confirmed(ost)? {
        return Err("nothing was done".into());
    }
    let answer = ask(&target, &GiveUp { ost, step: GiveUpStep::Confirmed(losses.number) })?;
    match args.json {
        true => crate::say!("{}", json!({ "given_up": ost, "chains": answer["chains"] })),
        false => {
            let chains = counted(answer["chains"].as_u64().unwrap_or(0), "chain");
            crate::say!("OST {ost} is given up in {chains}");
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Whether whoever sits at the terminal wants it.
fn is_confirmed(ost: u16) -> Result<bool, String> {
    if !stdin().is_terminal() {
        return Err("say --yes to give it up, or --dry-run to see the names of all files".into());
    }
    // Whoever sees no question types nothing.
    let _ = write!(stderr(), "Give up OST {ost}? This cannot be undone. Type yes: ");
    let mut said = String::new();
    stdin().read_line(&mut said).map_err(|error| error.to_string())?;
    Ok(said.trim() == "yes")
}

/// Everything that is lost with an OST.
#[derive(Default)]
struct Losses {
    ost: u16,
    silent_ms: u64,
    /// Stands for the losses of the chains.
    number: u64,
    chains: Vec<Value>,
    files: Vec<Value>,
}

impl Losses {
    fn ask(target: &Target, ost: u16) -> Result<Losses, Box<dyn std::error::Error>> {
        let mut losses = Losses { ost, ..Losses::default() };
        let request = |from| GiveUp { ost, step: GiveUpStep::Preview(from) };
        for (n, page) in pages(target, request).enumerate() {
            let mut page = page?;
            // If chains change while files are asked for, the OST is not given up.
            if n == 0 {
                let (silent_ms, number) = (page["silent_ms"].as_u64(), page["number"].as_u64());
                let Value::Array(chains) = page["chains"].take() else {
                    return Err("the server cannot say what is lost".into());
                };
                losses.silent_ms = silent_ms.unwrap_or(0);
                losses.number = number.ok_or("the server cannot say what is lost")?;
                losses.chains = chains;
            }
            if let Value::Array(files) = page["files"].take() {
                losses.files.extend(files);
            }
        }
        Ok(losses)
    }

    /// Rows for programs.
    fn rows(&self) -> impl Iterator<Item = &Value> {
        self.chains.iter().chain(&self.files)
    }

    fn show(&self, with_all_names: bool) {
        let (ost, seconds) = (self.ost, self.silent_ms / 1000);
        match seconds {
            0..3 => crate::say!("OST {ost} is heard of. If it is lost, and given up:"),
            _ => crate::say!("OST {ost} was not heard of for {seconds} s. If it is given up:"),
        }
        if self.chains.is_empty() {
            crate::say!("  it has nothing of any chain");
        }
        for (loses, what) in [
            ("nothing", "nothing is lost, because other members have everything"),
            (
                "changes",
                "another member goes on with what it has, because this was the last that served",
            ),
            ("everything", "all is lost, because no other member has it"),
        ] {
            let of_it = |chain: &&Value| chain["loses"] == loses;
            let chains: Vec<&Value> = self.chains.iter().filter(of_it).collect();
            if chains.is_empty() {
                continue;
            }
            crate::say!("  {}: {what}", counted(chains.len() as u64, "chain"));
            let named: Vec<String> = chains.iter().filter_map(|chain| of_chain(chain)).collect();
            named.iter().take(NAMED).for_each(|line| crate::say!("    {line}"));
            if named.len() > NAMED {
                crate::say!("    and {} more", named.len() - NAMED);
            }
        }
        for (loses, what) in [
            ("data", "data is lost, because there are no copies, or no other copy has anything"),
            (
                "changes",
                "changes may be lost that were made while the other copies were away; a file that was \
                 not changed since then loses nothing",
            ),
        ] {
            let files: Vec<&Value> =
                self.files.iter().filter(|file| file["loses"] == loses).collect();
            if files.is_empty() {
                continue;
            }
            crate::say!("  {}: {what}", counted(files.len() as u64, "file"));
            let named = if with_all_names { files.len() } else { NAMED };
            files.iter().take(named).for_each(|file| crate::say!("    {}", name(file)));
            if files.len() > named {
                crate::say!("    and {} more; --dry-run names all", files.len() - named);
            }
        }
        if self.files.is_empty() {
            crate::say!("  no file loses anything");
        }
    }
}

/// What becomes of a chain, if that has to be said of each.
fn of_chain(chain: &Value) -> Option<String> {
    let osts = |key: &str| -> Vec<u64> {
        chain[key].as_array().into_iter().flatten().filter_map(Value::as_u64).collect()
    };
    let named = |osts: &[u64]| {
        let names: Vec<String> = osts.iter().map(|ost| format!("OST {ost}")).collect();
        names.join(", ")
    };
    let (others, heard) = (osts("others"), osts("heard"));
    let next = match heard.first() {
        Some(next) => format!("OST {next}"),
        None => format!("the first of {} that is heard of", named(&others)),
    };
    // Members come in the order of how much they have.
    let more: Vec<u64> = others.iter().copied().take_while(|ost| !heard.contains(ost)).collect();
    let more = match heard.is_empty() || more.is_empty() {
        true => String::new(),
        false => format!(" (not heard of, but has more: {})", named(&more)),
    };
    let what = match chain["loses"].as_str().unwrap_or("?") {
        "nothing" if heard.is_empty() => format!("waits for {next}"),
        "nothing" => return None,
        "changes" => format!("with {next}{more}"),
        _ if others.is_empty() => "begins with nothing".into(),
        _ => format!("with {next}, which was emptied and has got a part since{more}"),
    };
    Some(format!("{}: {what}", chain["chain"].as_str().unwrap_or("?")))
}

fn name(file: &Value) -> String {
    match file["path"].as_str() {
        Some(path) => path.to_owned(),
        None => format!("inode {} (its name was not found)", file["ino"]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chains_say_who_goes_on() {
        let row = |loses: &str, others: &[u16], heard: &[u16]| {
            of_chain(&json!({ "chain": "3x1", "loses": loses, "others": others, "heard": heard }))
        };
        assert_eq!(row("nothing", &[1, 2], &[2]), None);
        let waits = "3x1: waits for the first of OST 1 that is heard of";
        assert_eq!(row("nothing", &[1], &[]).unwrap(), waits);
        assert_eq!(row("changes", &[2, 0], &[2]).unwrap(), "3x1: with OST 2");
        let more = "3x1: with OST 0 (not heard of, but has more: OST 2)";
        assert_eq!(row("changes", &[2, 0], &[0]).unwrap(), more);
        let first = "3x1: with the first of OST 2, OST 0 that is heard of";
        assert_eq!(row("changes", &[2, 0], &[]).unwrap(), first);
        assert_eq!(row("everything", &[], &[]).unwrap(), "3x1: begins with nothing");
        let part = "3x1: with OST 0, which was emptied and has got a part since";
        assert_eq!(row("everything", &[0], &[0]).unwrap(), part);
        assert_eq!(name(&json!({ "ino": 7, "path": null })), "inode 7 (its name was not found)");
    }
}
