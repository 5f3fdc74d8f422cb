//! Figures as a table, as JSON, and as a report.

use super::measure::{RowFigures, WorkFigures};
use super::rows::{Unit, WorkRow};
use super::switches::Switcher;
use crate::experiments::report::{Plot, Report, aligned};
use crate::sample::ratio;
use serde_json::{Map, Value, json};
use std::fmt::Write;
use std::ops::Range;

/// A row of one setup.
struct Line<'a> {
    row: &'static WorkRow,
    /// The least ratio that is aimed at.
    reach: Option<f64>,
    local: f64,
    /// Of the null mount, if it was done there.
    null: Option<f64>,
    own: &'a RowFigures,
}

impl Line<'_> {
    fn ratio(&self) -> f64 {
        ratio(self.own.per_s(), self.local)
    }

    fn to_null(&self) -> Option<f64> {
        self.null.map(|null| ratio(self.own.per_s(), null))
    }

    /// Requests for each unit and what is aimed at, if both are known.
    fn requests(&self) -> Option<(f64, f64)> {
        Some((self.own.requests()?, self.row.requests?))
    }

    /// Context switches of all for each unit, voluntary and involuntary.
    fn switches(&self) -> [f64; 2] {
        let each = self.own.switches();
        [0, 1].map(|kind| each.values().map(|both| both[kind]).sum())
    }

    /// Whether it is, if anything is aimed at.
    fn is_reached(&self) -> Option<bool> {
        let few = self.requests().is_none_or(|(requests, reach)| requests <= reach);
        self.reach.map(|reach| few && self.ratio() >= reach)
    }

    fn cells(&self) -> Vec<String> {
        let unit = self.row.job.unit();
        let requests = match self.own.requests() {
            Some(requests) => format!("{requests:.3} a {}", unit.each()),
            None => "-".into(),
        };
        let [voluntary, involuntary] = self.switches();
        vec![
            self.row.name.into(),
            self.row.title.into(),
            format!("{:.0} {}", self.local, unit.rate()),
            format!("{:.0}", self.own.per_s()),
            format!("{:.2}", self.ratio()),
            self.reach.map_or("-".into(), |reach| format!(">= {reach:.2}")),
            self.null.map_or("-".into(), |null| format!("{null:.0}")),
            self.to_null().map_or("-".into(), |ratio| format!("{ratio:.2}")),
            requests,
            self.requests().map_or("-".into(), |(_, reach)| format!("<= {reach}")),
            format!("{voluntary:.2}"),
            format!("{involuntary:.2}"),
            self.is_reached().map_or("-", |reached| if reached { "yes" } else { "no" }).into(),
        ]
    }

    fn json(&self, setup: &str, rounds: u64) -> Value {
        let unit = self.row.job.unit();
        let switches = self.own.switches().into_iter().map(|(who, both)| {
            let [voluntary, involuntary] = both.map(rounded);
            let both = json!({"voluntary": voluntary, "involuntary": involuntary});
            (who.name().to_owned(), both)
        });
        let switches: Map<String, Value> = switches.collect();
        json!({
            "bench": "work", "row": self.row.name, "options": setup, "rounds": rounds,
            "unit": unit.rate(), "per_s": self.own.per_s().round(),
            "local_per_s": self.local.round(), "ratio": self.ratio(),
            "ratio_reach": self.reach,
            "null_mount_per_s": self.null.map(f64::round), "to_null_mount": self.to_null(),
            "requests": self.own.requests().map(rounded),
            "requests_each": unit.each(), "requests_reach": self.row.requests,
            "requests_by_op": self.own.by_op, "switches": switches, "is_reached": self.is_reached(),
        })
    }
}

/// As JSON has them: with four decimals.
fn rounded(value: f64) -> f64 {
    (value * 1e4).round() / 1e4
}

const TITLES: [&str; 13] = [
    "row",
    "what",
    "local",
    "mounted",
    "ratio",
    "reach",
    "null mount",
    "to null",
    "requests",
    "reach",
    "voluntary",
    "involuntary",
    "reached",
];

/// The columns that are there with a null mount only.
const NULL_COLUMNS: Range<usize> = 6..8;

/// Figures, and the rows that they are of.
pub(super) struct Described<'a> {
    /// Rows.
    pub rows: &'a [&'static WorkRow],
    /// Their figures.
    pub figures: &'a WorkFigures,
    /// Rounds that count.
    pub rounds: u64,
    /// Whether it is all in one process.
    pub is_up: bool,
}

impl Described<'_> {
    fn lines(&self, setup: usize) -> Vec<Line<'_>> {
        let own = &self.figures.mounted[setup];
        let options = &self.figures.setups[setup];
        let line = |(index, own): (usize, _)| {
            let row = self.rows[index];
            let reach = row.reach(self.is_up, options);
            let null = self.figures.null.as_ref().and_then(|null| null[index].per_s_if_done());
            Line { row, reach, local: self.figures.local[index].per_s(), null, own }
        };
        own.iter().enumerate().map(line).collect()
    }

    /// The setups, with what their tables are called.
    fn setups(&self) -> impl Iterator<Item = (usize, String)> {
        self.figures.setups.iter().enumerate().map(|(index, options)| {
            let name = match options.as_str() {
                "" => "As it is".into(),
                options => format!("With `-o {options}`"),
            };
            (index, name)
        })
    }

    fn table(&self, setup: usize) -> Vec<Vec<String>> {
        let titles = TITLES.iter().map(|title| (*title).to_owned()).collect();
        let lines = self.lines(setup);
        let mut table: Vec<Vec<_>> =
            std::iter::once(titles).chain(lines.iter().map(Line::cells)).collect();
        if self.figures.null.is_none() {
            table.iter_mut().for_each(|cells| drop(cells.drain(NULL_COLUMNS)));
        }
        table
    }

    /// Lines of JSON.
    pub(super) fn json(&self) -> Vec<Value> {
        let setups = self.figures.setups.iter().enumerate();
        let of = |(index, options): (usize, &String)| {
            let lines = self.lines(index);
            lines.iter().map(|line| line.json(options, self.rounds)).collect::<Vec<_>>()
        };
        setups.flat_map(of).collect()
    }

    /// Tables for a terminal.
    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        for (setup, name) in self.setups() {
            if self.figures.setups.len() > 1 {
                let _ = writeln!(text, "{name}:");
            }
            text += &aligned(&self.table(setup));
        }
        text
    }

    /// The report.
    pub(super) fn report(&self, command: &str) -> Report {
        let name = if self.is_up { "work-up" } else { "work" };
        let mut out = Report::new(name, "Work on trees that somebody else made");
        let how = if self.is_up { "Server and mount are one process, `glint up`. " } else { "" };
        let null = match self.figures.null {
            Some(_) => {
                "*null mount* has it, too: mounted afresh as well, it answers from memory, with \
                 the same names and sizes and zeros as data; *to null* is the ratio of *mounted* \
                 to it. "
            }
            None => "",
        };
        let cores = std::thread::available_parallelism().map_or(0, usize::from);
        let kernel = rustix::system::uname().release().to_string_lossy().into_owned();
        out.say(&format!(
            "What users do with trees that another client made: each row after a fresh mount, in \
             turns with the local file system, whose caches are warm, as those of the server are. \
             Medians of {} measured rounds. {how}*mounted* has the unit of *local*. {null}Requests \
             are those that the server received from the start of the work to the end of the \
             mount; voluntary and involuntary context switches are those of programs, mount and \
             server from the start of the work to its end, for each file, 4 MiB or read, too. \
             {cores} cores, Linux {kernel}. Again with `{command}`.",
            self.rounds
        ));
        for (setup, name) in self.setups() {
            if self.figures.setups.len() > 1 {
                out.say(&format!("## {name}"));
            }
            out.table(&self.table(setup));
            let lines = self.lines(setup);
            for (suffix, title, is_files) in [
                ("files", "files in a second, to local; red: reach", true),
                ("data", "reads of one large file, to local; red: reach", false),
            ] {
                let of =
                    lines.iter().filter(|line| (line.row.job.unit() == Unit::Files) == is_files);
                let plot = Plot {
                    title: title.into(),
                    bars: of.clone().map(|line| (line.row.name.into(), line.ratio())).collect(),
                    marks: of.map(|line| line.reach).collect(),
                };
                if !plot.bars.is_empty() {
                    let number = if setup > 0 { format!("-{}", setup + 1) } else { String::new() };
                    out.plot(&format!("{suffix}{number}"), plot);
                }
            }
            requests(&mut out, &lines);
            switches(&mut out, &lines);
        }
        out
    }
}

/// Context switches of each kind of process.
fn switches(out: &mut Report, lines: &[Line<'_>]) {
    let titles = std::iter::once("row").chain(Switcher::ALL.map(Switcher::name));
    let mut table = vec![titles.map(str::to_owned).collect::<Vec<_>>()];
    for line in lines {
        let each = line.own.switches();
        let cell = |who: Switcher| match each.get(&who) {
            Some([voluntary, involuntary]) => format!("{voluntary:.2} + {involuntary:.2}"),
            None => "-".into(),
        };
        let cells = Switcher::ALL.map(cell);
        table.push(std::iter::once(line.row.name.to_owned()).chain(cells).collect());
    }
    out.say("Context switches for each unit, voluntary + involuntary:");
    out.table(&table);
}

/// Requests of the last round, by operation.
fn requests(out: &mut Report, lines: &[Line<'_>]) {
    let mut table = vec![vec!["row".to_owned(), "requests, by operation".into()]];
    for line in lines.iter().filter(|line| !line.own.by_op.is_empty()) {
        let mut counts: Vec<_> = line.own.by_op.iter().collect();
        counts.sort_by_key(|(op, count)| (std::cmp::Reverse(**count), (*op).clone()));
        let counts: Vec<_> = counts.iter().map(|(op, count)| format!("{op} {count}")).collect();
        table.push(vec![line.row.name.into(), counts.join(", ")]);
    }
    if table.len() > 1 {
        out.say("Requests of all of a row, in its last round:");
        out.table(&table);
    }
}
