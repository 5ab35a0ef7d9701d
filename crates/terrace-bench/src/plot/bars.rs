//! Bar charts: groups of bars, whole or made of parts, with whiskers.

use super::COLOURS;
use super::axis::{Axis, Scale, number};
use super::svg::{Canvas, NOTE, TITLE, width_of};

const HEIGHT: f64 = 280.0;
const LEFT: f64 = 64.0;
const TOP: f64 = 58.0;
const BOTTOM: f64 = 56.0;

const BAR_MAX: f64 = 44.0;

/// A bar chart.
#[derive(Debug, Default)]
pub(crate) struct Bars {
    /// The title.
    pub(crate) title: String,
    /// The conditions, shown below it.
    pub(crate) note: String,
    /// The unit of the numbers at the side.
    pub(crate) unit: String,
    /// The names of the colours, by number of the series or part.
    pub(crate) legend: Vec<String>,
    /// Groups: their names and their bars.
    pub(crate) groups: Vec<(String, Vec<Bar>)>,
}

/// One bar.
#[derive(Debug, Clone, Default)]
pub(crate) struct Bar {
    /// The text under it, if bars of a group need names.
    pub(crate) name: String,
    /// The parts, from bottom to top.
    pub(crate) parts: Vec<Part>,
    /// The lowest and highest value of the repeats whose median the bar is.
    pub(crate) range: Option<(f64, f64)>,
    /// The text above it.
    pub(crate) label: String,
}

/// A part of a bar.
#[derive(Debug, Clone, Default)]
pub(crate) struct Part {
    /// The colour.
    pub(crate) series: usize,
    /// Its height.
    pub(crate) value: f64,
    /// The tooltip.
    pub(crate) tip: String,
}

impl Bar {
    fn top(&self) -> f64 {
        let sum = self.parts.iter().map(|part| part.value).sum::<f64>();
        self.range.map_or(sum, |(_, high)| sum.max(high))
    }
}

impl Bars {
    /// Returns the chart as SVG.
    pub(crate) fn draw(&self) -> String {
        let bars = self.groups.iter().flat_map(|(_, bars)| bars);
        let named = bars.clone().any(|bar| !bar.name.is_empty());
        let count = bars.clone().count().max(1) as f64;
        // A bar is as wide as its texts, so that numbers do not overlap.
        let text = bars
            .clone()
            .map(|bar| width_of(&bar.label).max(width_of(&bar.name)));
        let slot = text.fold(BAR_MAX, f64::max) + 6.0;
        let gap = 26.0;
        let groups = self.groups.len() as f64;
        let inner = (count * slot + groups * gap).max(240.0);
        let names = legend_width(&self.legend).max(width_of(&self.title) * TITLE);
        let width = LEFT + inner.max(names).max(width_of(&self.note) * NOTE) + 12.0;
        let axis = Axis::of(Scale::Linear, bars.map(Bar::top));
        let mut canvas = Canvas::default();
        legend(&mut canvas, &self.title, &self.legend, "f");
        let (top, floor, height) = (TOP, HEIGHT - BOTTOM, HEIGHT);
        let y = |value: f64| floor - axis.place(value) * (floor - top);
        side(&mut canvas, &axis, &self.unit, (LEFT, width - 8.0), &y);
        let mut x = LEFT + gap / 2.0;
        for (name, bars) in &self.groups {
            let begin = x;
            for bar in bars {
                let middle = x + slot / 2.0;
                let left = middle - BAR_MAX / 2.0;
                let mut base = 0.0;
                for part in &bar.parts {
                    let (from, to) = (y(base), y(base + part.value));
                    let class = format!("f{}", part.series % COLOURS);
                    canvas.rect(&class, (left, to), (BAR_MAX, from - to), &part.tip);
                    base += part.value;
                }
                if let Some((low, high)) = bar.range.filter(|(low, high)| high > low) {
                    canvas.line("whisker", (middle, y(low)), (middle, y(high)));
                    for end in [low, high] {
                        canvas.line("whisker", (middle - 4.0, y(end)), (middle + 4.0, y(end)));
                    }
                }
                if !bar.label.is_empty() {
                    canvas.text("", "middle", (middle, y(bar.top()) - 4.0), &bar.label);
                }
                if named {
                    canvas.text("soft", "middle", (middle, floor + 15.0), &bar.name);
                }
                x += slot;
            }
            let at = ((begin + x) / 2.0, floor + if named { 32.0 } else { 18.0 });
            canvas.text("", "middle", at, name);
            x += gap;
        }
        canvas.text("note", "start", (LEFT, height - 4.0), &self.note);
        canvas.finish((width, height), &self.title)
    }
}

/// Draws the title and the names of the colours.
pub(super) fn legend(canvas: &mut Canvas, title: &str, names: &[String], class: &str) {
    canvas.text("title", "start", (LEFT, 16.0), title);
    let mut x = LEFT;
    for (series, name) in names
        .iter()
        .enumerate()
        .filter(|(_, name)| !name.is_empty())
    {
        let mark = format!("{class}{}", series % COLOURS);
        match class {
            "f" => canvas.rect(&mark, (x, 24.0), (11.0, 11.0), ""),
            _ => canvas.path(&mark, &[(x - 4.0, 30.0), (x + 14.0, 30.0)], name),
        }
        canvas.text("soft", "start", (x + 17.0, 34.0), name);
        x += 17.0 + width_of(name) + 14.0;
    }
}

pub(super) fn legend_width(names: &[String]) -> f64 {
    let names = names.iter().filter(|name| !name.is_empty());
    names.map(|name| 31.0 + width_of(name)).sum()
}

/// Draws the numbers at the side, a line for each, and their unit.
pub(super) fn side(
    canvas: &mut Canvas,
    axis: &Axis,
    unit: &str,
    (left, right): (f64, f64),
    y: &dyn Fn(f64) -> f64,
) {
    for tick in &axis.ticks {
        let class = if *tick == 0.0 { "axis" } else { "grid" };
        canvas.line(class, (left, y(*tick)), (right, y(*tick)));
        canvas.text("soft", "end", (left - 6.0, y(*tick) + 4.0), &number(*tick));
    }
    let ends = (axis.ticks.first(), axis.ticks.last());
    if let (Some(low), Some(high)) = ends {
        canvas.text_up((13.0, (y(*low) + y(*high)) / 2.0), unit);
    }
}
