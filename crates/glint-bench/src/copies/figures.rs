//! Figures of files with copies, with what is aimed at, as a table and as JSON.

use crate::experiments::report::aligned;
use serde_json::{Map, Value, json};

/// What a figure is to be.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum CopiesReach {
    /// No less than this.
    AtLeast(f64),
    /// No more than this.
    AtMost(f64),
}

impl CopiesReach {
    fn is_reached(self, value: f64) -> bool {
        match self {
            CopiesReach::AtLeast(least) => value >= least,
            CopiesReach::AtMost(most) => value <= most,
        }
    }

    fn text(self) -> String {
        match self {
            CopiesReach::AtLeast(least) => format!(">= {least}"),
            CopiesReach::AtMost(most) => format!("<= {most}"),
        }
    }
}

/// One figure of a row.
pub(super) struct CopiesFigure {
    /// The row.
    pub row: &'static str,
    /// What it is.
    pub name: String,
    /// The figure; none if there was nothing to measure.
    pub value: Option<f64>,
    /// Its unit.
    pub unit: &'static str,
    /// What is aimed at, if anything is.
    pub reach: Option<CopiesReach>,
    /// What it was computed from, with units in the names.
    pub parts: Vec<(String, f64)>,
}

/// With three decimals, or none where they say nothing.
fn rounded(value: f64) -> f64 {
    if value.abs() >= 1000.0 { value.round() } else { (value * 1000.0).round() / 1000.0 }
}

impl CopiesFigure {
    fn is_reached(&self) -> Option<bool> {
        let is_reached = |reach: CopiesReach| self.value.is_some_and(|v| reach.is_reached(v));
        self.reach.map(is_reached)
    }

    fn cells(&self) -> Vec<String> {
        let parts = self.parts.iter();
        let parts: Vec<_> =
            parts.map(|(name, part)| format!("{name} {}", rounded(*part))).collect();
        vec![
            self.row.into(),
            self.name.clone(),
            self.value.map_or("-".into(), |value| format!("{} {}", rounded(value), self.unit)),
            self.reach.map_or("-".into(), CopiesReach::text),
            self.is_reached().map_or("-", |reached| if reached { "yes" } else { "no" }).into(),
            parts.join(", "),
        ]
    }

    /// A line of JSON.
    pub(super) fn json(&self) -> Value {
        let parts = self.parts.iter().map(|(name, part)| (name.clone(), json!(rounded(*part))));
        json!({
            "bench": "copies", "row": self.row, "figure": self.name,
            "value": self.value.map(rounded), "unit": self.unit,
            "reach": self.reach.map(CopiesReach::text), "is_reached": self.is_reached(),
            "parts": parts.collect::<Map<String, Value>>(),
        })
    }
}

/// The table.
pub(super) fn text(figures: &[CopiesFigure]) -> String {
    let titles = ["row", "what", "measured", "reach", "reached", "from"];
    let titles = titles.iter().map(|title| (*title).to_owned()).collect();
    let rows: Vec<_> =
        std::iter::once(titles).chain(figures.iter().map(CopiesFigure::cells)).collect();
    aligned(&rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_says_whether_it_is_reached() {
        let figure = |value, reach| CopiesFigure {
            row: "dies",
            name: "errors".into(),
            value,
            unit: "errors",
            reach,
            parts: vec![("calls".into(), 7.0)],
        };
        for (value, reach, is) in [
            (Some(0.4), Some(CopiesReach::AtLeast(0.4)), Some(true)),
            (Some(0.5), Some(CopiesReach::AtMost(0.4)), Some(false)),
            (None, Some(CopiesReach::AtMost(5.0)), Some(false)),
            (Some(1.0), None, None),
        ] {
            assert_eq!(figure(value, reach).is_reached(), is, "{value:?} {reach:?}");
        }
        let all = [figure(Some(1234.56), Some(CopiesReach::AtMost(5.0)))];
        assert!(text(&all).contains("dies  errors  1235 errors  <= 5   no       calls 7"));
        assert_eq!(all[0].json()["parts"]["calls"], 7.0);
    }
}
