//! Which test is next: the first one, unless it keeps a core busy and as many as there are cores do
//! so already. What waits runs beside them instead, and none of them is late because of others.

use crate::plan::Plan;

/// Tests that have not begun, in their order.
pub(crate) struct TestQueue<'a> {
    left: Vec<&'a str>,
    /// How many that run keep a core busy, and how many are to.
    busy: usize,
    busy_max: usize,
}

impl<'a> TestQueue<'a> {
    pub(crate) fn new(names: impl Iterator<Item = &'a String>, busy_max: usize) -> TestQueue<'a> {
        TestQueue { left: names.map(String::as_str).collect(), busy: 0, busy_max }
    }

    /// Takes the next one, if there is one left.
    pub(crate) fn begin(&mut self, plan: &Plan) -> Option<&'a str> {
        if self.left.is_empty() {
            return None;
        }
        let may = |name: &&str| self.busy < self.busy_max || !plan.is_busy(name);
        // Nobody waits where only busy ones are left.
        let name = self.left.remove(self.left.iter().position(may).unwrap_or(0));
        self.busy += usize::from(plan.is_busy(name));
        Some(name)
    }

    /// One of them has ended.
    pub(crate) fn end(&mut self, plan: &Plan, name: &str) {
        self.busy -= usize::from(plan.is_busy(name));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_are_busy_than_there_are_cores_while_others_are_left() {
        let plan = Plan::parse("a 9 busy\nb 8 busy\nc 7 busy\nd 6\n").unwrap();
        let names = ["a", "b", "c", "d", "e"].map(str::to_owned);
        let mut queue = TestQueue::new(names.iter(), 2);
        let next =
            |queue: &mut TestQueue| queue.begin(&plan).map(str::to_owned).unwrap_or_default();
        assert_eq!([(); 3].map(|()| next(&mut queue)), ["a", "b", "d"]);
        queue.end(&plan, "d");
        assert_eq!(next(&mut queue), "e");
        queue.end(&plan, "a");
        assert_eq!(next(&mut queue), "c");
        assert_eq!(next(&mut queue), "");
        let mut queue = TestQueue::new(names[..3].iter(), 1);
        assert_eq!([(); 3].map(|()| next(&mut queue)), ["a", "b", "c"]);
    }
}
