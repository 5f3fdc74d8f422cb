//! Transitions of a chain: when a member is lost, comes back or has been synced.
//!
//! Invariants, of every row that a transition leaves:
//! - At least one member has every write that was acknowledged: it serves, or it is one of the last
//!   that did, all of which were lost at once, and the chain waits for one of them. No transition
//!   drops the last of these but one that an administrator asks for ([`emptied`]).
//! - Nobody serves beside members that were the last: by a row without a head nothing is
//!   acknowledged, so each of them has everything.
//! - Where an administrator has given up the last one, nobody is chosen in its place before it is
//!   heard of ([`watched`]), and the one chosen gives what it has to all others.
//! - Members that serve come first, then those that lag, in the order in which they were lost: the
//!   first of them has most. Emptied ones are last. At most one is synced. Where all serve, they are
//!   in the order in which the chain was laid out, which spreads heads over OSTs.
//! - A member serves again only after it was synced; one that was emptied is not even synced before
//!   somebody says that the others know all that it lacks ([`indexed`]).
//! - An OST takes the place of another one only while somebody serves, and as an emptied one
//!   ([`replaced`]): nobody takes it for one that has something.
//! - A member that is searched after a loss of power, or whose OST has failed, is not chosen of
//!   several that were the last, and keeps no other one from being synced.
//! - The version from which on a chain is intact rises when it goes on with members that have
//!   restarted since they served: clients send again what they were told before it.
//! - The version rises by one with each change, and only then.

use glint_proto::chain::{Chain, ChainId, Member, MemberEvent, MemberState};
use std::cmp::Reverse;

/// A chain in which all serve.
pub(crate) fn new(id: ChainId, osts: impl IntoIterator<Item = u16>) -> Chain {
    let founders: Vec<u16> = osts.into_iter().collect();
    let serving = |ost: &u16| Member { ost: *ost, state: MemberState::Serving };
    Chain {
        id,
        version: 1,
        members: founders.iter().map(serving).collect(),
        founders,
        intact_since: 1,
    }
}

/// The row after `event` happened to `ost`; `None` if that changes nothing.
pub(crate) fn after(chain: &Chain, ost: u16, event: MemberEvent) -> Option<Chain> {
    use MemberState::{Emptied, LastServing, Offline, Serving, Syncing, Waiting};
    let now = chain.state_of(ost)?;
    let others_serve = chain.readable().any(|other| other != ost);
    let others_were_last = was_last(chain).any(|other| other != ost);
    let next = match (event, now) {
        (MemberEvent::Lost, Serving) if others_serve => Offline,
        (MemberEvent::Lost, Serving) => LastServing,
        (MemberEvent::Lost, Syncing | Waiting) => Offline,
        (MemberEvent::Lost, Offline | LastServing) => return None,
        // Another one is synced meanwhile. Who serves is waited for.
        (MemberEvent::NotReady, Syncing | Waiting) => Offline,
        (MemberEvent::NotReady, Serving | Offline | LastServing) => return None,
        // It is looked first whether one of the others has lost less.
        (MemberEvent::ReturnedWithout, LastServing) if others_were_last => return None,
        // Nobody has written anything meanwhile. What it had on its disk is all that there is.
        (MemberEvent::Returned | MemberEvent::ReturnedWithout, LastServing) => Serving,
        (MemberEvent::Returned | MemberEvent::ReturnedWithout, Offline) => Waiting,
        // A member that was away for so short a time that nobody has missed it.
        (MemberEvent::Returned, Serving | Syncing | Waiting) => return None,
        (MemberEvent::ReturnedWithout, Serving) if others_serve => Waiting,
        (MemberEvent::ReturnedWithout, Syncing) => Waiting,
        (MemberEvent::ReturnedWithout, Serving | Waiting) => return None,
        (MemberEvent::Synced, Syncing) => Serving,
        (MemberEvent::Synced, _) | (_, Emptied) => return None,
    };
    let mut changed = chain.clone();
    if next == Serving && now == LastServing {
        go_on(&mut changed, &[ost]);
    } else {
        set(&mut changed, next, |member| member.ost == ost);
    }
    let mut changed = settled(changed);
    if (event, now) == (MemberEvent::ReturnedWithout, LastServing) {
        changed.intact_since = changed.version;
    }
    Some(changed)
}

/// The row after the server of `ost` has started again, of which nobody has heard before this. As one
/// that is lost; but if no other member that serves is there ([`Seen::Here`]), nothing says that one
/// of them goes on: all were lost at once.
pub(crate) fn restarted(chain: &Chain, ost: u16, seen: impl Fn(u16) -> Seen) -> Option<Chain> {
    let is_there = |other: u16| other != ost && seen(other).is_heard();
    match chain.state_of(ost) {
        Some(MemberState::Serving) if !chain.readable().any(is_there) => Some(all_lost(chain)),
        _ => after(chain, ost, MemberEvent::Lost),
    }
}

/// State of the server of a member, as the MDS sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Seen {
    /// Heard of just now.
    Here,
    /// Heard of, but others could not reach it just now.
    Suspect,
    /// Heard of, but it takes part in nothing before it was searched: power was lost.
    Searched,
    /// Heard of, but the OST has failed, for as long as its server runs.
    Failed,
    /// Not heard of for a moment: nothing is decided on it.
    Doubtful,
    /// Not heard of for so long that nobody waits for it.
    Lost,
}

impl Seen {
    /// Whether the server was heard of just now.
    fn is_heard(self) -> bool {
        !matches!(self, Seen::Doubtful | Seen::Lost)
    }
}

/// The row after somebody has looked who is lost and who is back; `None` if that changes nothing.
/// `has_restarted` says of members that were the last whether they have lost their memory since.
pub(crate) fn watched(
    chain: &Chain,
    seen: impl Fn(u16) -> Seen,
    has_restarted: impl Fn(u16) -> bool,
) -> Option<Chain> {
    use MemberState::{Offline, Serving, Syncing, Waiting};
    let is_there = |ost: u16| seen(ost).is_heard();
    let is_lost = |ost: u16| seen(ost) == Seen::Lost;
    let is_as_it_was = |member: &Member| match member.state {
        Serving => !is_lost(member.ost),
        _ => false,
    };
    if chain.members.iter().all(is_as_it_was) {
        return None;
    }
    let mut changed = chain.clone();
    let mut restarts = false;
    if chain.head().is_some() {
        if chain.readable().all(is_lost) {
            changed = with_all_lost(changed);
        } else if chain.readable().any(is_there) {
            set(&mut changed, Offline, |member| member.state == Serving && is_lost(member.ost));
        }
        // Else it is waited until one of them is heard, or all are lost.
    } else if was_last(chain).next().is_some() {
        if let Some((chosen, have_restarted)) = first_back(chain, &seen, has_restarted) {
            go_on(&mut changed, &chosen);
            restarts = have_restarted;
        }
    } else if let Some(chosen) = successor(chain, &seen) {
        set(&mut changed, MemberState::Emptied, |_| true);
        set(&mut changed, Serving, |member| member.ost == chosen);
        restarts = true;
    }
    for (member, before) in std::iter::zip(&mut changed.members, &chain.members) {
        if member.state != before.state {
            continue;
        }
        member.state = match member.state {
            Syncing | Waiting
                if matches!(seen(member.ost), Seen::Lost | Seen::Searched | Seen::Failed) =>
            {
                Offline
            }
            Offline if seen(member.ost) == Seen::Here => Waiting,
            state => state,
        };
    }
    if changed.members == chain.members {
        return None;
    }
    let mut changed = settled(changed);
    if restarts {
        changed.intact_since = changed.version;
    }
    Some(changed)
}

/// Members that were the last that served.
fn was_last(chain: &Chain) -> impl Iterator<Item = u16> {
    let last = chain.members.iter().filter(|member| member.state == MemberState::LastServing);
    last.map(|member| member.ost)
}

/// Of members that were the last, those that the chain goes on with, and whether these have
/// restarted: all that are back as they were, or else the first that is back. None while one of
/// them may be heard the next moment. Of several, one that is searched is passed over until that
/// has ended, and one that has failed for good: another one may come back. A single one is the only one
/// that can go on, and its server ends if it cannot.
fn first_back(
    chain: &Chain,
    seen: impl Fn(u16) -> Seen,
    has_restarted: impl Fn(u16) -> bool,
) -> Option<(Vec<u16>, bool)> {
    if was_last(chain).any(|ost| seen(ost) == Seen::Doubtful) {
        return None;
    }
    let back = |state, restarted| -> Vec<u16> {
        let is_meant = |ost: &u16| seen(*ost) == state && has_restarted(*ost) == restarted;
        was_last(chain).filter(is_meant).collect()
    };
    let is_single = was_last(chain).count() == 1;
    let usable = [Seen::Here, Seen::Suspect, Seen::Searched, Seen::Failed];
    let usable = if is_single { &usable[..] } else { &usable[..2] };
    let ways = [false, true].into_iter();
    for (state, restarted) in ways.flat_map(|way| usable.iter().map(move |state| (*state, way))) {
        let mut chosen = back(state, restarted);
        if restarted {
            // What they had not brought to stable storage differs.
            chosen.truncate(1);
        }
        if !chosen.is_empty() {
            return Some((chosen, restarted));
        }
    }
    None
}

/// Where the last one was given up, the member that goes on: the first that is there of those that
/// have something, or, if nobody has anything, of all. None while one before it may be heard the
/// next moment, or is searched.
fn successor(chain: &Chain, seen: impl Fn(u16) -> Seen) -> Option<u16> {
    let candidates = candidates(chain);
    let may_go_on = |ost: &&u16| !matches!(seen(**ost), Seen::Lost | Seen::Failed);
    let first = candidates.iter().find(may_go_on)?;
    matches!(seen(*first), Seen::Here | Seen::Suspect).then_some(*first)
}

/// Members that may go on where the last one was given up, those first that have most.
fn candidates(chain: &Chain) -> Vec<u16> {
    let having = |has: bool| -> Vec<u16> {
        let is_meant = |member: &&Member| (member.state != MemberState::Emptied) == has;
        chain.members.iter().filter(is_meant).map(|member| member.ost).collect()
    };
    match having(true) {
        none if none.is_empty() => having(false),
        some => some,
    }
}

/// Members of a chain that waits go on serving, of which the others may miss changes from now on.
fn go_on(chain: &mut Chain, chosen: &[u16]) {
    for member in &mut chain.members {
        if chosen.contains(&member.ost) {
            member.state = MemberState::Serving;
        } else if member.state == MemberState::LastServing {
            member.state = MemberState::Offline;
        }
    }
}

/// The row after all members that serve were lost at once.
fn all_lost(chain: &Chain) -> Chain {
    settled(with_all_lost(chain.clone()))
}

fn with_all_lost(mut chain: Chain) -> Chain {
    set(&mut chain, MemberState::LastServing, |member| member.state == MemberState::Serving);
    chain
}

fn set(chain: &mut Chain, state: MemberState, is_meant: impl Fn(&Member) -> bool) {
    chain.members.iter_mut().filter(|member| is_meant(member)).for_each(|m| m.state = state);
}

/// The member that lost everything is the last one that served.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LastCopy;

/// The row after `ost` has lost everything; `None` if that is known. Of the last one that served it
/// is refused, but with `lose_last`: then the chain goes on with another member as soon as one is
/// heard of ([`watched`]).
pub(crate) fn emptied(chain: &Chain, ost: u16, lose_last: bool) -> Result<Option<Chain>, LastCopy> {
    use MemberState::Emptied;
    if chain.state_of(ost).is_none_or(|now| now == Emptied) {
        return Ok(None);
    }
    if is_last(chain, ost) && !lose_last {
        return Err(LastCopy);
    }
    let mut changed = chain.clone();
    set(&mut changed, Emptied, |member| member.ost == ost);
    let mut changed = settled(changed);
    // Members that were the last with it may have restarted since, and an MDS that starts now knows
    // that of the last one of several only.
    if chain.state_of(ost) == Some(MemberState::LastServing) {
        changed.intact_since = changed.version;
    }
    Ok(Some(changed))
}

/// Whether no other member has everything; where the last one was given up, whether no other has
/// anything.
fn is_last(chain: &Chain, ost: u16) -> bool {
    let has_all = |other: u16| chain.readable().chain(was_last(chain)).any(|one| one == other);
    let mut others = chain.members.iter().filter(|member| member.ost != ost);
    match has_all(ost) || chain.members.iter().any(|member| has_all(member.ost)) {
        true => has_all(ost) && !others.any(|other| has_all(other.ost)),
        false => others.all(|other| other.state == MemberState::Emptied),
    }
}

/// Loss of a chain of which a member is given up.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Loss {
    /// None: other members have everything.
    Nothing,
    /// Changes that the member missed that goes on.
    Changes,
    /// All data, but for what the member that goes on was given while it was filled.
    Everything,
}

/// Loss of a chain if a member is given up, and the members that it can go on with.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ChainLoss {
    /// The chain.
    pub chain: ChainId,
    /// Its loss.
    pub loss: Loss,
    /// Members that have everything, or, if there are none, those that have something, those first
    /// that have most. The chain goes on with the first that is heard of.
    pub others: Vec<u16>,
    /// Those of them that are heard of.
    pub heard: Vec<u16>,
}

/// Loss of a chain if `ost` is given up while some members are heard of; `None` if it has nothing of
/// it. Members that are `unfilled` were emptied, and have only a part since.
pub(crate) fn loss(
    chain: &Chain,
    ost: u16,
    is_heard: impl Fn(u16) -> bool,
    is_unfilled: impl Fn(u16) -> bool,
) -> Option<ChainLoss> {
    let given_up = emptied(chain, ost, true).ok()??;
    let have_all: Vec<u16> = given_up.readable().chain(was_last(&given_up)).collect();
    let have_some = given_up.members.iter().filter(|member| member.state != MemberState::Emptied);
    let have_some = have_some.map(|member| member.ost).collect();
    let others: Vec<u16> = if have_all.is_empty() { have_some } else { have_all };
    let heard: Vec<u16> = others.iter().copied().filter(|other| is_heard(*other)).collect();
    let loss = match heard.first().or(others.first()) {
        _ if !is_last(chain, ost) => Loss::Nothing,
        Some(next) if !is_unfilled(*next) => Loss::Changes,
        _ => Loss::Everything,
    };
    Some(ChainLoss { chain: chain.id, loss, others, heard })
}

/// The row after all members that serve know everything that an emptied one lacks; `None` if nobody
/// serves, so that one without anything is not taken for one that has something.
pub(crate) fn indexed(chain: &Chain, ost: u16) -> Option<Chain> {
    if chain.state_of(ost) != Some(MemberState::Emptied) || chain.head().is_none() {
        return None;
    }
    let mut changed = chain.clone();
    set(&mut changed, MemberState::Offline, |member| member.ost == ost);
    Some(settled(changed))
}

/// The row after `ost`, which has nothing of the chain, has taken the place of `gone`, which was given
/// up; `None` if the place is not to be had, or nobody serves who could give it anything.
pub(crate) fn replaced(chain: &Chain, gone: u16, ost: u16) -> Option<Chain> {
    let is_free = chain.state_of(gone) == Some(MemberState::Emptied);
    if !is_free || chain.state_of(ost).is_some() || chain.head().is_none() {
        return None;
    }
    let mut changed = chain.clone();
    let members = changed.members.iter_mut().map(|member| &mut member.ost);
    let places = members.chain(&mut changed.founders).filter(|place| **place == gone);
    places.for_each(|place| *place = ost);
    Some(settled(changed))
}

/// The row after something wrong was found at `ost` while nothing is served, which the index of all
/// others that serve names; `None` if it is known to lag, or if no other has everything.
pub(crate) fn outdated(chain: &Chain, ost: u16) -> Option<Chain> {
    use MemberState::{LastServing, Offline, Serving};
    let now = chain.state_of(ost).filter(|now| matches!(now, Serving | LastServing))?;
    if is_last(chain, ost) {
        return None;
    }
    let mut changed = chain.clone();
    set(&mut changed, Offline, |member| member.ost == ost);
    let mut changed = settled(changed);
    // As where one of several that were the last is emptied.
    if now == LastServing {
        changed.intact_since = changed.version;
    }
    Some(changed)
}

/// Brings the members into their order, lets the first that waits be synced, and counts.
fn settled(mut chain: Chain) -> Chain {
    use MemberState::{Emptied, LastServing, Offline, Serving, Syncing, Waiting};
    // A stable sort: who served longest stays first, until all serve. Then heads are spread again.
    if chain.members.iter().all(|member| member.state == Serving) {
        let founders = std::mem::take(&mut chain.founders);
        chain.members.sort_by_key(|member| founders.iter().position(|ost| *ost == member.ost));
        chain.founders = founders;
    }
    chain.members.sort_by_key(|member| {
        Reverse(match member.state {
            Serving | LastServing => 2,
            Syncing | Waiting | Offline => 1,
            Emptied => 0,
        })
    });
    let has = |chain: &Chain, state| chain.members.iter().any(|member| member.state == state);
    // Members that lag may serve nobody: all wait for the last one that had everything.
    if has(&chain, Serving) && !has(&chain, Syncing) {
        let first = chain.members.iter_mut().find(|member| member.state == Waiting);
        first.into_iter().for_each(|member| member.state = Syncing);
    } else if !has(&chain, Serving) {
        set(&mut chain, Waiting, |member| member.state == Syncing);
    }
    chain.version += 1;
    chain
}

#[cfg(test)]
mod ends;
#[cfg(test)]
mod tests;
