//! Copies of objects: which members of a chain have them, and whether they are the same.
//!
//! What a member that lags behind lacks, and the index says so, is no damage: heal copies it. Nor are
//! differences in what was changed last before a crash, which the next head decides: what the logs say,
//! and after a loss of power all that has no checksums, as the next start finds it. Anything else is
//! named. A copy that is surely wrong is put right as servers do it: the index of the members that
//! serve gets the object, its own member lags behind from then on, and heal copies it. Where no member
//! that serves is right, one that lags behind may be ([`lagging`]).
//!
//! A copy is surely wrong if it is damaged or missing, and no other is. Of copies that differ in more
//! than is excused, each with right checksums, nothing says which one is right, also where one lags
//! behind: its member lacks nothing there. Then nothing is copied: not over one of them, nor to a member
//! without a right copy, as the one that was copied would outvote the other from then on. Nor is the
//! file cut to the size of one of them.

mod lagging;

use super::servers::Servers;
use super::{Check, Outcome, Progress};
use futures_lite::future::block_on;
use glint_kv::Kv;
use glint_mds::{ChainTable, Extent};
use glint_ost::ObjectStore;
use glint_proto::chain::{Chain, ChainId, Member, MemberState};
use glint_proto::{FsResult, Ino, ObjectId};
use glint_server::{RecordsError, StoppedLogs, note_missing};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::io;

/// The copies that are here.
pub(super) struct Copies<'a> {
    servers: &'a Servers,
    table: ChainTable,
    logs: StoppedLogs,
    skip_data: bool,
    found: BTreeMap<ObjectId, Found>,
    /// Objects by what they say of the sizes of their files; files of which that is not known.
    pub(super) sizes: Vec<(ObjectId, u64)>,
    pub(super) unsure: HashSet<Ino>,
    counts: Counts,
    wrong: Vec<Wrong>,
    lost: Vec<lagging::LostByAll>,
}

/// An object: where it is, and the size of each copy.
struct Found {
    target: u16,
    sizes: BTreeMap<u16, u64>,
}

/// Number of objects with copies, and of copies.
#[derive(Default)]
struct Counts {
    objects: u64,
    copies: u64,
    /// Copies at servers whose directories were not named.
    elsewhere: u64,
    /// Objects that each OST lacks, at least in parts, as the index says.
    outstanding: BTreeMap<u16, u64>,
    /// Copies that differ in what was changed last.
    in_doubt: u64,
    /// Objects that were changed not long before a loss of power, by their checksums.
    unsealed: u64,
}

/// A copy.
struct Copy {
    size: u64,
    sums: Option<Vec<u8>>,
    /// Why it is called damaged.
    damage: Option<String>,
}

/// A copy that is surely wrong.
struct Wrong {
    target: u16,
    ost: u16,
    object: ObjectId,
    what: String,
    /// OSTs with copies that are right, one at least.
    right: Vec<u16>,
}

/// What is to be done about a copy.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Judgment {
    /// Nothing, or heal copies another one over it.
    Decided,
    /// The next head makes it equal.
    InDoubt,
    /// Nothing says whether it is the right one.
    Undecided,
}

/// How a copy differs from another one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Difference {
    None,
    /// In nothing but what is excused.
    Excused,
    Missing,
    /// In size: bytes that it has.
    Size(u64),
    /// From this byte on.
    Byte(u64),
}

/// Members that have all that was acknowledged, the head first.
fn with_all(row: &Chain) -> Vec<u16> {
    let serving: Vec<u16> = row.readable().collect();
    if !serving.is_empty() {
        return serving;
    }
    let last = row.members.iter().filter(|member| member.state == MemberState::LastServing);
    last.map(|member| member.ost).collect()
}

impl<'a> Copies<'a> {
    /// Reads the table of chains, and the logs of the servers that are here.
    pub(super) fn read(
        kv: &impl Kv,
        servers: &'a Servers,
        skip_data: bool,
    ) -> Result<FsResult<Copies<'a>>, RecordsError> {
        let mut logs = StoppedLogs::default();
        servers.all().iter().try_for_each(|data| logs.read(data))?;
        let copies = |table| Copies {
            servers,
            table,
            logs,
            skip_data,
            found: BTreeMap::new(),
            sizes: Vec::new(),
            unsure: HashSet::new(),
            counts: Counts::default(),
            wrong: Vec::new(),
            lost: Vec::new(),
        };
        Ok(block_on(ChainTable::load(kv)).map(copies))
    }

    /// Takes up a copy of an object that lies on a target. Returns whether it is one.
    pub(super) fn add(&mut self, target: u16, object: ObjectId, (ost, size): (u16, u64)) -> bool {
        let row = self.table.get(target);
        let is_member = row.is_some_and(|row| row.state_of(ost).is_some());
        if is_member {
            let empty = Found { target, sizes: BTreeMap::new() };
            self.found.entry(object).or_insert(empty).sizes.insert(ost, size);
        }
        is_member
    }

    /// Whether what lies on a target is here, in a copy that has everything at least.
    pub(super) fn is_here(&self, target: u16) -> bool {
        match (ChainId::of_target(target), self.table.get(target)) {
            (Some(_), Some(row)) => with_all(&row).into_iter().any(|ost| self.has(ost)),
            (Some(_), None) => false,
            (None, _) => self.has(target),
        }
    }

    fn has(&self, ost: u16) -> bool {
        self.servers.store(ost).is_some()
    }

    /// Looks at all copies.
    pub(super) fn compare(&mut self, check: &mut Check, progress: &mut Progress) {
        let found = std::mem::take(&mut self.found);
        for (done, (object, Found { target, sizes })) in found.iter().enumerate() {
            progress.show("copies", done, found.len());
            if let Some(row) = self.table.get(*target) {
                self.object(check, *object, &row, sizes);
            }
        }
        progress.end();
    }

    /// Looks at the copies of one object.
    fn object(
        &mut self,
        check: &mut Check,
        object: ObjectId,
        row: &Chain,
        sizes: &BTreeMap<u16, u64>,
    ) {
        let mut copies: BTreeMap<u16, Copy> = BTreeMap::new();
        for (ost, size) in sizes {
            let Some(store) = self.servers.store(*ost) else { continue };
            let (sums, damage) = match self.skip_data {
                true => (None, None),
                false => match store.check(object) {
                    Ok(sums) => (sums, None),
                    Err(error) => (None, Some(error.to_string())),
                },
            };
            check.checked += u64::from(sums.is_some());
            copies.insert(*ost, Copy { size: *size, sums, damage });
        }
        self.counts.objects += 1;
        self.counts.copies += copies.len() as u64;
        let (here, elsewhere): (Vec<Member>, Vec<Member>) =
            row.members.iter().copied().partition(|member| self.has(member.ost));
        self.counts.elsewhere += elsewhere.len() as u64;

        let have_all = with_all(row);
        let is_right = |ost: &&u16| copies.get(*ost).is_some_and(|copy| copy.damage.is_none());
        let Some(right) = have_all.iter().find(is_right).copied() else {
            self.unsure.insert(object.ino);
            return self.without_right(check, object, (row, &have_all), &copies);
        };
        let mut recent = self.logs.recent(row.id.target(), object);
        let is_unsealed =
            |ost: &u16| copies.contains_key(ost) && self.servers.is_unsealed(*ost, object);
        if have_all.iter().any(is_unsealed) {
            self.counts.unsealed += 1;
            recent.push((0, u64::MAX));
        }
        // What it has may be put together with what a member has that lags behind.
        let is_begun = self.logs.is_begun(row.id.target(), object);
        // A head that is not here may decide otherwise.
        let mut is_in_doubt = is_begun
            || !recent.is_empty() && elsewhere.iter().any(|member| have_all.contains(&member.ost));
        let mut is_undecided = false;
        let (first, mut are_right) = (self.wrong.len(), vec![right]);
        for member in here.into_iter().filter(|member| member.ost != right) {
            let (ost, has_all) = (member.ost, have_all.contains(&member.ost));
            let mut excused = recent.clone();
            if member.state == MemberState::Emptied || is_begun && !has_all {
                excused.push((0, u64::MAX));
            } else if !has_all {
                excused.extend(self.logs.pending(row.id.target(), ost, object));
                if copies.contains_key(&ost) && self.servers.is_unsealed(ost, object) {
                    excused.push((0, u64::MAX));
                }
            }
            match self.difference(object, &copies, (right, ost), &excused) {
                Err(error) => {
                    let what = format!(
                        "object {object}: comparing its copies on OST {right} and OST {ost}: {error}"
                    );
                    check.find(what, Outcome::Left);
                }
                Ok(difference) => {
                    let damage = copies.get(&ost).and_then(|copy| copy.damage.as_deref());
                    if has_all && damage.is_none() && difference == Difference::None {
                        are_right.push(ost);
                    }
                    let verdict = Verdict { object, row, right, ost, has_all, damage };
                    match self.judge(check, &verdict, difference) {
                        Judgment::Decided => {}
                        Judgment::InDoubt => is_in_doubt = true,
                        Judgment::Undecided => is_undecided = true,
                    }
                }
            }
        }
        if is_undecided {
            for Wrong { what, .. } in self.wrong.drain(first..) {
                check.find(format!("{what}; its other copies differ"), Outcome::Left);
            }
        }
        self.wrong[first..].iter_mut().for_each(|wrong| wrong.right.clone_from(&are_right));
        match copies.get(&right) {
            Some(copy) if !is_in_doubt && !is_undecided => self.sizes.push((object, copy.size)),
            _ => _ = self.unsure.insert(object.ino),
        }
    }

    /// How the copy of an object on an OST differs from the one that is right, outside of extents.
    fn difference(
        &self,
        object: ObjectId,
        copies: &BTreeMap<u16, Copy>,
        (right, ost): (u16, u16),
        excused: &[(u64, u64)],
    ) -> io::Result<Difference> {
        let (Some(one), Some(other)) = (self.servers.store(right), self.servers.store(ost)) else {
            return Ok(Difference::None);
        };
        let (sums, size) =
            copies.get(&right).map_or((None, 0), |copy| (copy.sums.as_ref(), copy.size));
        let first = |excused: &[(u64, u64)]| match self.skip_data {
            true => Ok(None),
            false => ObjectStore::first_difference(one, other, object, excused),
        };
        let Some(copy) = copies.get(&ost) else {
            return Ok(match excused {
                _ if size == 0 => Difference::None,
                [] => Difference::Missing,
                _ if first(excused)?.is_none() => Difference::Excused,
                _ => Difference::Missing,
            });
        };
        if sums.is_some() && sums == copy.sums.as_ref() {
            return Ok(Difference::None);
        }
        if excused.is_empty() && copy.size != size {
            return Ok(Difference::Size(copy.size));
        }
        Ok(match first(&[])? {
            None if copy.size == size => Difference::None,
            None => Difference::Excused,
            Some(byte) if excused.is_empty() => Difference::Byte(byte),
            Some(_) => first(excused)?.map_or(Difference::Excused, Difference::Byte),
        })
    }

    /// Decides about a copy.
    fn judge(
        &mut self,
        check: &mut Check,
        verdict: &Verdict<'_>,
        difference: Difference,
    ) -> Judgment {
        let Verdict { object, right, ost, has_all, damage, .. } = *verdict;
        let what = match (difference, damage) {
            // Checksums are off before a byte changes: no crash leaves others.
            (_, Some(damage)) if has_all => format!("object {object} on OST {ost}: {damage}"),
            (Difference::None, None) => return Judgment::Decided,
            (Difference::Excused, _) if !has_all => {
                *self.counts.outstanding.entry(ost).or_default() += 1;
                return Judgment::Decided;
            }
            (Difference::Excused, _) => {
                self.counts.in_doubt += 1;
                return Judgment::InDoubt;
            }
            (_, Some(damage)) => format!("object {object} on OST {ost}: {damage}"),
            (Difference::Missing, None) => {
                format!("object {object} is missing on OST {ost}; OST {right} has it")
            }
            (Difference::Size(size), None) => {
                format!("object {object} on OST {ost} has {size} bytes, unlike on OST {right}")
            }
            (Difference::Byte(byte), None) => format!(
                "object {object} on OST {ost} differs from its copy on OST {right} at byte {byte}"
            ),
        };
        if damage.is_some() || difference == Difference::Missing {
            let target = verdict.row.id.target();
            self.wrong.push(Wrong { target, ost, object, what, right: vec![right] });
            return Judgment::Decided;
        }
        check.find(format!("{what}; nothing says which one is right"), Outcome::Left);
        Judgment::Undecided
    }

    /// Says what is wrong, and has it copied by heal if that is wanted.
    pub(super) fn put_right(&mut self, check: &mut Check, kv: &impl Kv, repair: bool) -> Repaired {
        self.restore(check, repair);
        let wrong = std::mem::take(&mut self.wrong);
        let has_all = |target: u16, ost: u16| {
            self.table.get(target).is_some_and(|row| with_all(&row).contains(&ost))
        };
        let outdated: BTreeSet<(u16, u16)> = wrong
            .iter()
            .map(|one| (one.target, one.ost))
            .filter(|one| has_all(one.0, one.1))
            .collect();
        // All that serve from then on must have it in their index, and for each object that is wrong
        // one of them must be right: heal copies from none that lags behind.
        let are_here = |row: &Chain| with_all(row).into_iter().all(|ost| self.has(ost));
        let has_right = |row: &Chain, wrong: &Wrong| {
            with_all(row).into_iter().any(|ost| wrong.right.contains(&ost))
        };
        let mut rows = self.table.without_outdated(&outdated);
        rows.retain(are_here);
        rows.retain(|row| {
            let mut of_row = wrong.iter().filter(|one| one.target == row.id.target());
            of_row.all(|one| has_right(row, one))
        });
        let rows: HashMap<u16, Chain> =
            rows.into_iter().map(|row| (row.id.target(), row)).collect();
        let mut notes: BTreeMap<usize, Vec<(u16, u16, ObjectId)>> = BTreeMap::new();
        let mut said = Vec::new();
        for Wrong { target, ost, object, what, right } in wrong {
            let Some(row) = rows.get(&target).cloned().or_else(|| self.table.get(target)) else {
                continue;
            };
            let absent =
                with_all(&row).into_iter().filter(|other| *other != ost && !self.has(*other));
            let absent: Vec<String> = absent.map(|ost| format!("OST {ost}")).collect();
            if !absent.is_empty() {
                let absent = absent.join(", ");
                let how =
                    format!("--repair needs the directory of the server of {absent}, too (--oss)");
                said.push((format!("{what}; {how}"), Outcome::Left));
            } else if with_all(&row).contains(&ost) {
                let how = "its OST has what others of its chain lack: --repair leaves them all";
                said.push((format!("{what}; {how}"), Outcome::Left));
            } else {
                let servers =
                    with_all(&row).into_iter().filter_map(|ost| self.servers.server_of(ost));
                for server in servers.collect::<BTreeSet<usize>>() {
                    notes.entry(server).or_default().push((target, ost, object));
                }
                let serve = with_all(&row);
                let from = right.iter().find(|ost| serve.contains(ost)).unwrap_or(&right[0]);
                let how = match repair {
                    true => format!("heal copies it from OST {from} when the servers run"),
                    false => format!("--repair has heal copy it from OST {from}"),
                };
                said.push((format!("{what}; {how}"), Outcome::Repairable));
            }
        }
        let stored =
            if repair { self.store(kv, &notes, rows.into_values().collect()) } else { Ok(()) };
        let is_stored = repair && stored.is_ok();
        for (what, outcome) in said {
            let is_put_right = is_stored && outcome == Outcome::Repairable;
            check.find(what, if is_put_right { Outcome::Repaired } else { outcome });
        }
        stored
    }

    /// Stores what is missing, and then which members lag behind.
    fn store(
        &self,
        kv: &impl Kv,
        notes: &BTreeMap<usize, Vec<(u16, u16, ObjectId)>>,
        rows: Vec<Chain>,
    ) -> Repaired {
        for (server, missing) in notes {
            note_missing(&self.servers.all()[*server], missing)?;
        }
        let left_out = block_on(self.table.leave_out(kv, rows));
        left_out.map_err(|errno| format!("storing which copies lag behind: {errno}").into())
    }

    /// Counts for programs.
    pub(super) fn summary(&self) -> Value {
        let Counts { objects, copies, elsewhere, outstanding, in_doubt, unsealed } = &self.counts;
        let row = |(ost, objects): (&u16, &u64)| json!({ "ost": ost, "objects": objects });
        let outstanding: Vec<Value> = outstanding.iter().map(row).collect();
        json!({ "objects": objects, "copies": copies, "elsewhere": elsewhere,
            "outstanding": outstanding, "in_doubt": in_doubt, "unsealed": unsealed })
    }
}

/// Result of storing what is to be healed.
type Repaired = Result<(), Box<dyn std::error::Error>>;

/// A copy that is judged.
struct Verdict<'a> {
    object: ObjectId,
    row: &'a Chain,
    right: u16,
    ost: u16,
    /// Its member has all that was acknowledged.
    has_all: bool,
    damage: Option<&'a str>,
}

/// Lines about copies, for people, of what [`Copies::summary`] returned.
pub(super) fn lines(summary: &Value) -> Vec<String> {
    let number = |key: &str| summary[key].as_u64().unwrap_or(0);
    let mut lines = Vec::new();
    for row in summary["outstanding"].as_array().into_iter().flatten() {
        lines
            .push(format!("OST {}: healing outstanding of {} objects", row["ost"], row["objects"]));
    }
    if number("in_doubt") > 0 {
        let in_doubt = number("in_doubt");
        lines.push(format!(
            "{in_doubt} copies differ in what was changed last; the next start makes them equal"
        ));
    }
    if number("unsealed") > 0 {
        let unsealed = number("unsealed");
        lines.push(format!(
            "{unsealed} objects were changed before power was lost: their copies may differ until the \
             next start"
        ));
    }
    if number("objects") > 0 {
        let (objects, copies, elsewhere) =
            (number("objects"), number("copies"), number("elsewhere"));
        let elsewhere = match elsewhere {
            0 => String::new(),
            some => format!("; {some} on other servers were not looked at (--oss)"),
        };
        lines.push(format!("{objects} objects with {copies} copies{elsewhere}"));
    }
    lines
}

/// Size that an object gives its file.
pub(super) fn size_of_file(extent: &Extent, object: ObjectId, size: u64) -> u64 {
    let stripe = extent.layout.stripe_of(object);
    stripe.map_or(0, |stripe| extent.layout.file_size(stripe, size))
}
