//! The table of chains, as far as the server shows it: where a file over several of them may go.
//!
//! Invariant: either all chains are known, or none.

use serde_json::Value;
use std::collections::BTreeMap;

/// Bytes of a file by OSTs.
pub(super) type BytesByOst = BTreeMap<u16, u64>;

/// Chains, by the number of their members, in their order.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) struct ShownChains(BTreeMap<u64, Vec<ShownChain>>);

#[derive(Clone, PartialEq, Eq, Debug)]
struct ShownChain {
    osts: Vec<u16>,
    /// New files avoid it.
    is_avoided: bool,
}

impl ShownChain {
    /// Of a row of the table: members, position, and the chain.
    fn of(row: &Value) -> Option<(u64, u64, ShownChain)> {
        let (copies, index) = row["id"].as_str()?.split_once('x')?;
        let ost = |member: &Value| member["ost"].as_u64()?.try_into().ok();
        let osts = row["members"].as_array()?.iter().map(ost).collect::<Option<Vec<u16>>>()?;
        let chain = ShownChain { osts, is_avoided: row["avoided"] == true };
        Some((copies.parse().ok()?, index.parse().ok()?, chain))
    }
}

impl ShownChains {
    /// Of the state of the server. It shows some rows of a large table only.
    pub(super) fn of(status: &Value) -> ShownChains {
        let rows = status["chains"]["rows"].as_array().map_or(&[][..], Vec::as_slice);
        let mut chains = BTreeMap::<u64, BTreeMap<u64, ShownChain>>::new();
        for row in rows {
            let Some((copies, index, chain)) = ShownChain::of(row) else { continue };
            chains.entry(copies).or_default().insert(index, chain);
        }
        let known: usize = chains.values().map(BTreeMap::len).sum();
        if status["chains"]["count"] != known {
            return ShownChains::default();
        }
        let in_order =
            |(copies, its): (u64, BTreeMap<u64, ShownChain>)| (copies, its.into_values().collect());
        ShownChains(chains.into_iter().map(in_order).collect())
    }

    /// Bytes that OSTs get of a file over so many chains that follow each other, of which each member
    /// gets `each`: from each first one on. None where new files avoid one of them.
    pub(super) fn runs(&self, copies: u64, stripes: u64, each: u64) -> Vec<Option<BytesByOst>> {
        let chains = self.0.get(&copies).map_or(&[][..], Vec::as_slice);
        let stripes = usize::try_from(stripes).unwrap_or(usize::MAX);
        let run = |first: usize| {
            let mut gets = BytesByOst::new();
            for chain in chains.iter().cycle().skip(first).take(stripes) {
                if chain.is_avoided {
                    return None;
                }
                chain.osts.iter().for_each(|ost| *gets.entry(*ost).or_default() += each);
            }
            Some(gets)
        };
        match stripes <= chains.len() {
            true => (0..chains.len()).map(run).collect(),
            false => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn runs_of_chains_are_known_if_all_chains_are() {
        let row = |id: &str, osts: [u16; 2], avoided: bool| {
            let members = osts.map(|ost| json!({ "ost": ost, "state": "serving" }));
            json!({ "id": id, "members": members, "avoided": avoided })
        };
        let rows = [
            row("2x2", [2, 0], false),
            row("2x0", [0, 1], false),
            row("3x0", [0, 1], false),
            row("2x1", [1, 2], false),
            row("2x3", [0, 2], true),
        ];
        let status = |count: usize| json!({ "chains": { "count": count, "rows": rows } });
        assert_eq!(ShownChains::of(&status(6)), ShownChains::default());
        let chains = ShownChains::of(&status(5));
        let runs = chains.runs(2, 2, 5);
        let expected = [[(0, 5), (1, 10), (2, 5)], [(0, 5), (1, 5), (2, 10)]];
        assert_eq!(runs[..2], expected.map(|run| Some(BytesByOst::from(run))));
        assert_eq!(runs[2..], [None, None], "one of them is avoided");
        assert!(chains.runs(2, 5, 1).is_empty() && chains.runs(4, 1, 1).is_empty());
        // A server that does not say it avoids none.
        let members = json!([{ "ost": 0 }, { "ost": 1 }]);
        let rows = json!([{ "id": "2x0", "members": members }]);
        let silent = ShownChains::of(&json!({ "chains": { "count": 1, "rows": rows } }));
        assert_eq!(silent.runs(2, 1, 5), [Some(BytesByOst::from([(0, 5), (1, 5)]))]);
    }
}
