//! Requests of a client that are under way: whether an answer may still come that was on its way
//! at a moment.

use std::collections::BTreeMap;

/// Requests under way, to know when all that were sent before a moment are answered.
#[derive(Default, Debug)]
pub struct Flight {
    generation: u64,
    counts: BTreeMap<u64, u32>,
}

impl Flight {
    /// A request is sent. Returns what ends it.
    pub fn begin(&mut self) -> u64 {
        *self.counts.entry(self.generation).or_default() += 1;
        self.generation
    }

    /// A request is answered, and what the answer says is known.
    pub fn end(&mut self, generation: u64) {
        if let Some(count) = self.counts.get_mut(&generation) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&generation);
            }
        }
    }

    /// Names this moment.
    pub fn sent_mark(&mut self) -> u64 {
        self.generation += 1;
        self.generation
    }

    /// Whether all requests sent before a mark are answered.
    pub fn is_past(&self, sent_mark: u64) -> bool {
        self.counts.first_key_value().is_none_or(|(oldest, _)| *oldest >= sent_mark)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_past_when_all_before_it_are_answered() {
        let mut flight = Flight::default();
        let (a, b) = (flight.begin(), flight.begin());
        let sent_mark = flight.sent_mark();
        let later = flight.begin();
        assert!(!flight.is_past(sent_mark));
        flight.end(b);
        assert!(!flight.is_past(sent_mark));
        flight.end(a);
        assert!(flight.is_past(sent_mark));
        assert!(!flight.is_past(later + 1));
    }
}
