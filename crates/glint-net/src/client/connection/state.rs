//! The states of a client's connection to a server, the steps of recovery in their order, and what
//! of them the session has behind it. Nothing here sends, receives or waits: the
//! [keeper](crate::client::connection::keeper) does what the state says, and says here what came of
//! it.
//!
//! | event | connecting | recovering | active | evicted | closed |
//! |---|---|---|---|---|---|
//! | `on_welcome`: hello was answered | recovering, first step | | | | |
//! | `on_step_taken` | | recovering, next step | | | |
//! | `on_active`: what had no answer is queued | | active, if this was the last step | | | |
//! | `on_evictions`: more than at hello | | evicted | evicted | | |
//! | `on_broken`: it failed, or the pause begins | | connecting | connecting | connecting | |
//! | `on_closed`: its keeper ends | closed | closed | closed | closed | |
//!
//! Where nothing stands the state stays.
//!
//! Invariants:
//! - Requests are written to a connection only while it is active: nobody else has its writer.
//! - A connection that was welcomed in a session that is over never becomes active, and what comes
//!   on it is not believed.
//! - The steps that a session needs are taken in their order, by one connection at a time; one that
//!   was taken in a generation is not taken in it again.

/// A run of a server, and how often it had evicted this client before: what the server was told in
/// one generation it does not know in the next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Generation {
    pub(crate) boot_verifier: u64,
    pub(crate) evictions: u64,
}

/// Step on a new connection between the answer to hello and the first new request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RecoveryStep {
    /// Locks are forgotten with what is cached under them, before the server gives new ones.
    ForgetLocks,
    /// Open files are opened again; locks, delegations and data to be written are reclaimed.
    Reclaim,
    /// Requests that were answered and did not survive are sent again.
    Replay,
    /// The server hears that this was all, waits for nothing more and takes nothing more.
    SayRecovered,
    /// Requests that had no answer are sent again, under their old identity. The only step of each
    /// connection; those before it are the session's.
    SendAgain,
}

impl RecoveryStep {
    /// All, in their order.
    pub(crate) const ORDER: [RecoveryStep; 5] = [
        RecoveryStep::ForgetLocks,
        RecoveryStep::Reclaim,
        RecoveryStep::Replay,
        RecoveryStep::SayRecovered,
        RecoveryStep::SendAgain,
    ];

    /// The one after this; the last one stays.
    fn next(self) -> RecoveryStep {
        let after = RecoveryStep::ORDER.into_iter().skip_while(|step| *step != self).nth(1);
        after.unwrap_or(RecoveryStep::SendAgain)
    }
}

/// How far a session is with its server, whichever of its connections took the steps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RecoveryProgress {
    /// Generation in which the server was told everything: it may go on without waiting for more.
    told: Generation,
    /// Generation in which the server has answered that it knows.
    recovered: Generation,
}

impl RecoveryProgress {
    /// A session that has nothing to tell in this generation.
    pub(crate) fn new(now: Generation) -> RecoveryProgress {
        RecoveryProgress { told: now, recovered: now }
    }

    /// First step of a connection that was welcomed in this generation.
    pub(crate) fn first_step(&self, now: Generation) -> RecoveryStep {
        match (self.recovered == now, self.told == now) {
            (true, _) => RecoveryStep::SendAgain,
            (false, true) => RecoveryStep::SayRecovered,
            (false, false) => RecoveryStep::ForgetLocks,
        }
    }

    /// Whether the server has answered that it knows everything, in this generation.
    pub(crate) fn has_recovered(&self, now: Generation) -> bool {
        self.recovered == now
    }

    /// Whether the client was evicted since it recovered last.
    pub(crate) fn is_evicted(&self, now: Generation) -> bool {
        self.recovered.evictions != now.evictions
    }

    /// A step was taken.
    pub(crate) fn on_step_taken(&mut self, step: RecoveryStep, now: Generation) {
        match step {
            RecoveryStep::Replay => self.told = now,
            RecoveryStep::SayRecovered => self.recovered = now,
            _ => {}
        }
    }
}

/// State of a connection. `W` writes to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ConnectionState<W> {
    /// Not there: it is being made, or a pause is kept before that.
    Connecting,
    /// Hello was answered; the server is told what it does not know.
    Recovering { now: Generation, step: RecoveryStep },
    /// Requests go and answers come.
    Active { now: Generation, writer: W },
    /// The session in which it was welcomed is over; another connection has to be made.
    Evicted,
    /// Ended, with its keeper.
    Closed,
}

impl<W> ConnectionState<W> {
    /// Hello was answered in this generation, in which the session begins with that step.
    pub(crate) fn on_welcome(&mut self, now: Generation, step: RecoveryStep) {
        if let ConnectionState::Connecting = self {
            *self = ConnectionState::Recovering { now, step };
        }
    }

    /// The step that is to be taken; `None` if the connection is not recovering.
    pub(crate) fn step(&self) -> Option<RecoveryStep> {
        match self {
            ConnectionState::Recovering { step, .. } => Some(*step),
            _ => None,
        }
    }

    /// The current step was taken.
    pub(crate) fn on_step_taken(&mut self) {
        if let ConnectionState::Recovering { step, .. } = self {
            *step = step.next();
        }
    }

    /// The last step was taken: from now on requests go to this writer.
    pub(crate) fn on_active(&mut self, writer: W) {
        if let ConnectionState::Recovering { now, step: RecoveryStep::SendAgain } = *self {
            *self = ConnectionState::Active { now, writer };
        }
    }

    /// The client was evicted so often by now. Returns the writer if that is news to an active
    /// connection: the server must be told again what is open.
    pub(crate) fn on_evictions(&mut self, evictions: u64) -> Option<W> {
        match self {
            ConnectionState::Recovering { now, .. } | ConnectionState::Active { now, .. }
                if now.evictions != evictions =>
            {
                std::mem::replace(self, ConnectionState::Evicted).into_writer()
            }
            _ => None,
        }
    }

    /// The connection has failed, or is left. Returns the writer of an active one, in which somebody
    /// may still wait.
    pub(crate) fn on_broken(&mut self) -> Option<W> {
        match self.is_closed() {
            true => None,
            false => std::mem::replace(self, ConnectionState::Connecting).into_writer(),
        }
    }

    /// The end of its keeper. Returns the writer of an active connection.
    pub(crate) fn on_closed(&mut self) -> Option<W> {
        std::mem::replace(self, ConnectionState::Closed).into_writer()
    }

    /// Writer of requests; `None` if they have to wait.
    pub(crate) fn writer(&self) -> Option<&W> {
        match self {
            ConnectionState::Active { writer, .. } => Some(writer),
            _ => None,
        }
    }

    /// Whether answers on it are believed, after so many evictions.
    pub(crate) fn is_active_after(&self, evictions: u64) -> bool {
        matches!(self, ConnectionState::Active { now, .. } if now.evictions == evictions)
    }

    /// Whether it has ended.
    pub(crate) fn is_closed(&self) -> bool {
        matches!(self, ConnectionState::Closed)
    }

    fn into_writer(self) -> Option<W> {
        match self {
            ConnectionState::Active { writer, .. } => Some(writer),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ConnectionState::{Active, Closed, Connecting, Evicted, Recovering};

    type TestState = ConnectionState<&'static str>;

    const NOW: Generation = Generation { boot_verifier: 5, evictions: 2 };
    const FORGETTING: TestState = Recovering { now: NOW, step: RecoveryStep::ForgetLocks };
    const RECLAIMING: TestState = Recovering { now: NOW, step: RecoveryStep::Reclaim };
    const SENDING: TestState = Recovering { now: NOW, step: RecoveryStep::SendAgain };
    const ACTIVE: TestState = Active { now: NOW, writer: "writer" };

    /// An event, and the states after it for each of the states before it.
    type Row = (&'static str, fn(&mut TestState), [TestState; 6]);

    #[test]
    fn each_event_leads_from_each_state_where_the_table_says() {
        let before = [Connecting, FORGETTING, SENDING, ACTIVE, Evicted, Closed];
        let rows: [Row; 7] = [
            (
                "welcomed",
                |state| state.on_welcome(NOW, RecoveryStep::ForgetLocks),
                [FORGETTING, FORGETTING, SENDING, ACTIVE, Evicted, Closed],
            ),
            (
                "step taken",
                TestState::on_step_taken,
                [Connecting, RECLAIMING, SENDING, ACTIVE, Evicted, Closed],
            ),
            (
                "activated",
                |state| state.on_active("writer"),
                [Connecting, FORGETTING, ACTIVE, ACTIVE, Evicted, Closed],
            ),
            (
                "no more evictions",
                |state| assert_eq!(state.on_evictions(2), None),
                [Connecting, FORGETTING, SENDING, ACTIVE, Evicted, Closed],
            ),
            (
                "evicted",
                |state| assert_eq!(state.writer().copied(), state.on_evictions(3)),
                [Connecting, Evicted, Evicted, Evicted, Evicted, Closed],
            ),
            (
                "broken",
                |state| _ = state.on_broken(),
                [Connecting, Connecting, Connecting, Connecting, Connecting, Closed],
            ),
            (
                "closed",
                |state| assert_eq!(state.writer().copied(), state.on_closed()),
                [Closed, Closed, Closed, Closed, Closed, Closed],
            ),
        ];
        for (event, take, after) in rows {
            for (mut state, after) in before.into_iter().zip(after) {
                let what = format!("{event} when {state:?}");
                take(&mut state);
                assert_eq!(state, after, "{what}");
            }
        }
    }

    #[test]
    fn only_an_active_connection_is_written_to_and_believed() {
        for state in [Connecting, FORGETTING, SENDING, Evicted, Closed] {
            assert!(state.writer().is_none() && !state.is_active_after(2), "{state:?}");
            assert_eq!(state.is_closed(), state == Closed);
        }
        assert_eq!(ACTIVE.writer(), Some(&"writer"));
        assert!(ACTIVE.is_active_after(2) && !ACTIVE.is_active_after(3));
    }

    /// Takes the steps of a connection. Returns them.
    fn recover(
        progress: &mut RecoveryProgress,
        now: Generation,
        fails_at: usize,
    ) -> Vec<RecoveryStep> {
        let mut state = TestState::Connecting;
        state.on_welcome(now, progress.first_step(now));
        let mut steps = Vec::new();
        while let Some(step) = state.step() {
            if steps.len() == fails_at {
                state.on_broken();
                continue;
            }
            steps.push(step);
            if step == RecoveryStep::SendAgain {
                state.on_active("writer");
                continue;
            }
            progress.on_step_taken(step, now);
            state.on_step_taken();
        }
        steps
    }

    #[test]
    fn one_connection_takes_the_steps_of_its_session() {
        let mut progress = RecoveryProgress::new(NOW);
        assert_eq!(recover(&mut progress, NOW, 9), RecoveryStep::ORDER[4..]);
        let restarted = Generation { boot_verifier: 6, ..NOW };
        // The connection fails before all is replayed: the next one begins anew.
        assert_eq!(recover(&mut progress, restarted, 2), RecoveryStep::ORDER[..2]);
        assert_eq!(recover(&mut progress, restarted, 3), RecoveryStep::ORDER[..3]);
        // Everything is told; whether the server has heard that this was all nobody knows.
        assert!(!progress.has_recovered(restarted));
        assert_eq!(recover(&mut progress, restarted, 9), RecoveryStep::ORDER[3..]);
        assert!(progress.has_recovered(restarted));
        assert_eq!(recover(&mut progress, restarted, 9), RecoveryStep::ORDER[4..]);
        let evicted = Generation { evictions: 3, ..restarted };
        assert!(progress.is_evicted(evicted) && !progress.is_evicted(restarted));
        assert_eq!(recover(&mut progress, evicted, 9), RecoveryStep::ORDER);
        assert!(!progress.is_evicted(evicted));
    }
}
