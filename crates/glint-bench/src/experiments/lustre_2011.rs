//! The report of the experiment of Lustre in production (lustre-discuss, January to May 2011):
//! streams pushed inodes and directory entries out of the memory of its servers, and a scan of the
//! file system went from hours to days. `glint bench scan` measures it.

use super::report::{Plot, Report};
use crate::scan::ScanResults;

/// Phases that have a plot, with its title.
const PLOTS: [(&str, &str); 4] = [
    ("warm", "files in a second, warm servers, no streams"),
    ("streamed", "beside streams, to warm; red: reach"),
    ("restarted", "after a restart, to warm; red: reach"),
    ("restarted-streamed", "after a restart, beside streams, to warm"),
];

/// Describes what was measured.
pub(crate) fn report(results: &ScanResults) -> Report {
    let mut out = Report::new("lustre-2011", "Scans of all files while streams want the memory");
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let kernel = rustix::system::uname().release().to_string_lossy().into_owned();
    out.say(&format!(
        "{} {cores} cores, Linux {kernel}. Medians of the rounds, in which all sides take turns. \
         Again with `{}`.",
        results.conditions(),
        results.again()
    ));
    out.say(
        "Lustre in production, before and after inodes and directory entries were kept in the memory \
         of its servers: a scan of the file system took more than 30 hours and 3; `ls -lR` of a home \
         directory on a client without caches saw fewer than 100 files in a second, and 2 000 to \
         4 000. Its data cache was then limited to objects of 8 MB or less.",
    );
    out.say(&results.variants());
    out.say("## Files in a second");
    out.say(
        "*to local* is against find(1), ls(1) or du(1) on the local file system with warm caches, \
         without a limit if there is one for servers. *(cut)*: the scan was ended because it took \
         too long; the rate is that of what it had seen, or with *>=* of what it had printed, which is \
         less: programs keep some of their output. There is no ratio of that.",
    );
    out.table(&results.rates());
    for (phase, title) in PLOTS {
        let bars = results.bars(phase);
        if bars.is_empty() {
            continue;
        }
        let marks = bars.iter().map(|(_, _, reach)| *reach).collect();
        let bars = bars.into_iter().map(|(label, value, _)| (label, value)).collect();
        out.plot(phase, Plot { title: title.into(), bars, marks });
    }
    out.say("## One call");
    out.say(
        "Of a walk that stats each file through a mount at its limit of memory, or locally: what a \
         user waits at most. Streams: what they moved meanwhile.",
    );
    out.table(&results.calls());
    out.say("## Memory");
    out.say(
        "The most that processes had: MDS and OST are one, *server*. What the kernel caches for them \
         comes on top, up to the limit.",
    );
    out.table(&results.memory());
    out.say("## What is aimed at");
    out.table(&results.reaches());
    out
}
