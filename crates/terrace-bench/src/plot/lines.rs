//! Line charts with linear or logarithmic axes, and with marked spans of the bottom axis.

use super::COLOURS;
use super::axis::{Axis, Scale, number};
use super::bars::{legend, legend_width, side};
use super::svg::{Canvas, NOTE, TITLE, width_of};

/// The minimum width of a chart.
const WIDTH_MIN: f64 = 540.0;
// The margins around the plotted area.
const LEFT: f64 = 64.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 52.0;
const BOTTOM: f64 = 62.0;
/// The part of `TOP` for the legend.
const LEGEND: f64 = 22.0;

/// A line chart.
#[derive(Debug)]
pub(crate) struct Lines {
    pub(crate) title: String,
    /// The conditions, shown below the chart.
    pub(crate) note: String,
    /// The unit and the scale of the bottom axis.
    pub(crate) x: (String, Scale),
    /// The unit and the scale of the side axis.
    pub(crate) y: (String, Scale),
    /// The end of a bottom axis that begins at zero, for times; `None` to derive both ends from the
    /// points.
    pub(crate) x_end: Option<f64>,
    pub(crate) height: f64,
    /// A value that the side axis includes, so that charts shown side by side have the same axis.
    pub(crate) y_max: Option<f64>,
    pub(crate) lines: Vec<Line>,
    pub(crate) bands: Vec<Band>,
}

/// One line.
#[derive(Debug, Clone)]
pub(crate) struct Line {
    /// The name in the legend; empty if it has no entry there.
    pub(crate) name: String,
    /// The number of its colour.
    pub(crate) series: usize,
    /// The points, from left to right.
    pub(crate) points: Vec<(f64, f64)>,
}

/// A marked span of the bottom axis.
#[derive(Debug, Clone)]
pub(crate) struct Band {
    pub(crate) from: f64,
    pub(crate) to: f64,
    pub(crate) tip: String,
}

impl Lines {
    /// Returns the chart as SVG.
    pub(crate) fn draw(&self) -> String {
        let points = || self.lines.iter().flat_map(|line| &line.points);
        let x_axis = match self.x_end {
            Some(end) => Axis::to(end),
            None => Axis::of(self.x.1, points().map(|(x, _)| *x)),
        };
        let y_axis = Axis::of(self.y.1, points().map(|(_, y)| *y).chain(self.y_max));
        let names: Vec<String> = self.lines.iter().map(|line| line.name.clone()).collect();
        let has_legend = names.iter().any(|name| !name.is_empty());
        let legend_space = if has_legend {
            legend_width(&names)
        } else {
            0.0
        };
        let text_width = legend_space.max(width_of(&self.title) * TITLE);
        let wanted = LEFT + text_width.max(width_of(&self.note) * NOTE) + RIGHT;
        let width = WIDTH_MIN.max(wanted);
        let top = if has_legend { TOP } else { TOP - LEGEND };
        let (floor, right) = (self.height - BOTTOM, width - RIGHT);
        let x = |value: f64| LEFT + x_axis.place(value) * (right - LEFT);
        let y = |value: f64| floor - y_axis.place(value) * (floor - top);
        let mut canvas = Canvas::default();
        for band in &self.bands {
            let (from, to) = (x(band.from), x(band.to));
            // A short span stays visible.
            canvas.rect(
                "band",
                (from, top),
                ((to - from).max(1.5), floor - top),
                &band.tip,
            );
        }
        side(&mut canvas, &y_axis, &self.y.0, (LEFT, right), &y);
        for tick in &x_axis.ticks {
            canvas.line("grid", (x(*tick), floor), (x(*tick), floor + 4.0));
            canvas.text("soft", "middle", (x(*tick), floor + 17.0), &number(*tick));
        }
        canvas.text(
            "soft",
            "middle",
            ((LEFT + right) / 2.0, floor + 36.0),
            &self.x.0,
        );
        canvas.line("axis", (LEFT, floor), (right, floor));
        for line in &self.lines {
            let points: Vec<(f64, f64)> = line.points.iter().map(|p| (x(p.0), y(p.1))).collect();
            canvas.path(&format!("l{}", line.series % COLOURS), &points, &line.name);
            if let [(x, y)] = points[..] {
                // A single point makes no line, so draw a mark.
                let class = format!("f{}", line.series % COLOURS);
                canvas.rect(&class, (x - 3.0, y - 3.0), (6.0, 6.0), &line.name);
            }
        }
        legend(&mut canvas, &self.title, &self.ordered_names(), "l");
        canvas.text("note", "start", (LEFT, self.height - 4.0), &self.note);
        canvas.finish((width, self.height), &self.title)
    }

    /// Returns the name of each colour, empty if it is unused: the legend derives colours from
    /// positions.
    fn ordered_names(&self) -> Vec<String> {
        let count = self
            .lines
            .iter()
            .map(|line| line.series + 1)
            .max()
            .unwrap_or(0);
        let name = |series| {
            let line = self.lines.iter().find(|line| line.series == series);
            line.map_or(String::new(), |line| line.name.clone())
        };
        let names: Vec<String> = (0..count).map(name).collect();
        match names.iter().all(String::is_empty) {
            true => Vec::new(),
            false => names,
        }
    }
}
