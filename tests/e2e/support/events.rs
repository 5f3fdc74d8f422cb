//! Events in the logs of processes, by the names that `glint_telemetry::event` lists: a name that is
//! misspelt does not compile, and sentences can be reworded.

use super::Process;
use std::fs;
use std::path::Path;

/// How often a log has an event. Those that a log leaves out, because they repeat, come after the
/// first twenty.
pub fn count(log: &str, event: &str) -> usize {
    assert!(glint_telemetry::event::ALL.contains(&event), "no event is called {event:?}");
    log.matches(&format!("event=\"{event}\"")).count()
}

/// Whether a log in a file has an event.
pub fn is_in(log: &Path, event: &str) -> bool {
    count(&fs::read_to_string(log).unwrap_or_default(), event) > 0
}

impl Process {
    /// How often it logged an event.
    pub fn events(&self, event: &str) -> usize {
        count(&self.log(), event)
    }

    /// Whether it logged an event.
    pub fn has_event(&self, event: &str) -> bool {
        self.events(event) > 0
    }

    /// Fails if it logged an event.
    pub fn assert_no(&self, event: &str) {
        assert!(!self.has_event(event), "{event}: {}", self.log());
    }

    /// Waits until it logs an event.
    pub fn wait_for_event(&self, event: &str) {
        self.wait_until_logged(event, |log| count(log, event) > 0);
    }
}
