//! Reports of experiments: Markdown with tables, and plots beside it.

use plotters::prelude::*;
use std::fmt::Write;
use std::path::Path;

/// A report in the making.
pub(crate) struct Report {
    name: &'static str,
    text: String,
    plots: Vec<(String, Plot)>,
}

/// Bars, one for each label.
#[derive(Default)]
pub(crate) struct Plot {
    /// Title: the quantity, with its unit.
    pub title: String,
    /// Labels and values.
    pub bars: Vec<(String, f64)>,
    /// Marks across the bars, such as what each should reach.
    pub marks: Vec<Option<f64>>,
}

const SIZE: (u32, u32) = (760, 360);

impl Report {
    /// An empty report; files are named after it.
    pub(crate) fn new(name: &'static str, title: &str) -> Report {
        Report { name, text: format!("# {title}\n"), plots: Vec::new() }
    }

    /// A paragraph.
    pub(crate) fn say(&mut self, text: &str) {
        let _ = write!(self.text, "\n{text}\n");
    }

    /// A table. The first row names the columns.
    pub(crate) fn table(&mut self, rows: &[Vec<String>]) {
        self.text.push('\n');
        for (index, row) in rows.iter().enumerate() {
            let _ = writeln!(self.text, "| {} |", row.join(" | "));
            if index == 0 {
                let _ = writeln!(self.text, "|{}", "---|".repeat(row.len()));
            }
        }
    }

    /// A plot, in a file of its own.
    pub(crate) fn plot(&mut self, suffix: &str, plot: Plot) {
        let file = format!("{}-{suffix}.svg", self.name);
        let _ = write!(self.text, "\n![{}]({file})\n", plot.title);
        self.plots.push((file, plot));
    }

    /// Writes everything into a directory, or the text to standard output.
    pub(crate) fn finish(self, directory: Option<&Path>) -> Result<(), Box<dyn std::error::Error>> {
        let Some(directory) = directory else {
            glint::say_part!("{}", self.text);
            return Ok(());
        };
        let failed = |path: &Path, e: &dyn std::fmt::Display| format!("{}: {e}", path.display());
        std::fs::create_dir_all(directory).map_err(|e| failed(directory, &e))?;
        for (file, plot) in &self.plots {
            let path = directory.join(file);
            draw(&path, plot).map_err(|e| failed(&path, &e))?;
        }
        let path = directory.join(format!("{}.md", self.name));
        std::fs::write(&path, &self.text).map_err(|e| failed(&path, &e))?;
        eprintln!("{}", path.display());
        Ok(())
    }
}

/// A table for a terminal: cells in columns.
pub(crate) fn aligned(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        let cells = rows.iter().filter_map(move |row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    rows.iter().map(line).collect()
}

fn draw(path: &Path, plot: &Plot) -> Result<(), Box<dyn std::error::Error>> {
    let root = SVGBackend::new(path, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let marks = plot.marks.iter().flatten();
    let highest = plot.bars.iter().map(|(_, value)| value).chain(marks);
    let top = highest.copied().fold(0.0, f64::max) * 1.15;
    let bars = plot.bars.len();
    let mut chart = ChartBuilder::on(&root)
        .caption(&plot.title, ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(70)
        .build_cartesian_2d((0..bars).into_segmented(), 0.0..top)?;
    let label = |at: &SegmentValue<usize>| match at {
        SegmentValue::CenterOf(index) => plot.bars.get(*index).map(|(label, _)| label.clone()),
        _ => None,
    };
    chart
        .configure_mesh()
        .disable_x_mesh()
        .x_labels(bars)
        .x_label_formatter(&|at| label(at).unwrap_or_default())
        .draw()?;
    let style = RGBColor(45, 105, 165).filled();
    chart.draw_series(plot.bars.iter().enumerate().map(|(index, (_, value))| {
        let from = (SegmentValue::Exact(index), 0.0);
        let mut bar = Rectangle::new([from, (SegmentValue::Exact(index + 1), *value)], style);
        bar.set_margin(0, 0, 14, 14);
        bar
    }))?;
    let marks = plot.marks.iter().enumerate().filter_map(|(index, mark)| Some((index, (*mark)?)));
    chart.draw_series(marks.map(|(index, mark)| {
        let from = (SegmentValue::Exact(index), mark);
        PathElement::new([from, (SegmentValue::Exact(index + 1), mark)], RED.stroke_width(2))
    }))?;
    chart.draw_series(plot.bars.iter().enumerate().map(|(index, (_, value))| {
        let text = match *value {
            value if value < 10.0 && top < 10.0 => format!("{value:.2}"),
            value if value < 100.0 => format!("{value:.1}"),
            value => format!("{value:.0}"),
        };
        let at = (SegmentValue::CenterOf(index), *value + top * 0.04);
        Text::new(text, at, ("sans-serif", 13))
    }))?;
    root.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_text_and_plots() {
        let dir = tempfile::tempdir().unwrap();
        let mut report = Report::new("trial", "A trial");
        report.say("Words.");
        report.table(&[vec!["a".into(), "b".into()], vec!["1".into(), "2".into()]]);
        let bars = vec![("one".into(), 1.0), ("two".into(), 20_000.0)];
        report.plot("bars", Plot { title: "Bars".into(), bars, marks: vec![None, Some(15_000.0)] });
        report.finish(Some(dir.path())).unwrap();
        let text = std::fs::read_to_string(dir.path().join("trial.md")).unwrap();
        assert!(text.contains("| a | b |\n|---|---|\n| 1 | 2 |"), "{text}");
        assert!(text.contains("(trial-bars.svg)"), "{text}");
        let svg = std::fs::read_to_string(dir.path().join("trial-bars.svg")).unwrap();
        assert!(svg.contains("20000") && svg.contains("two"), "{svg}");
        assert!(svg.contains("#FF0000"), "a mark: {svg}");
    }
}
