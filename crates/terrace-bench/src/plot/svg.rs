//! SVG as text: elements, the style sheet, a picture as a file.

use std::fmt::Write;

/// The style of every picture: colours of series, text, axes and grid, in light and dark mode.
pub(crate) const STYLE: &str = "\
svg.plot{font:12px system-ui,sans-serif;color-scheme:light dark;max-width:100%;height:auto;\
--ink:#1b1b1b;--soft:#5c5c5c;--grid:#dedede;--ground:#ffffff;\
--s0:#0072b2;--s1:#d55e00;--s2:#009e73;--s3:#cc79a7;--s4:#56b4e9;--s5:#b8860b;--s6:#7a5195;--s7:#666666;--s8:#6b3d1e;--s9:#7f9a00}
@media(prefers-color-scheme:dark){svg.plot{--ink:#e8e8e8;--soft:#a8a8a8;--grid:#3a3a3a;--ground:#161616;\
--s0:#4aa8e0;--s1:#ff8a3d;--s2:#2fcf9f;--s3:#e6a3c8;--s4:#8fd0f5;--s5:#e3b23c;--s6:#b28fd0;--s7:#a0a0a0;--s8:#c98d5f;--s9:#c3d84a}}
.plot text{fill:var(--ink)}.plot .soft{fill:var(--soft)}.plot .note{fill:var(--soft);font-size:10px}.plot .title{font-weight:600;font-size:13px}
.plot .grid{stroke:var(--grid);stroke-width:1}.plot .axis{stroke:var(--soft);stroke-width:1}
.plot .whisker{stroke:var(--ink);stroke-width:1.2}.plot .line{fill:none;stroke-width:1.8;stroke-linejoin:round}
.plot .band{fill:var(--s1);opacity:.22}.plot .ground{fill:var(--ground)}
.f0{fill:var(--s0)}.f1{fill:var(--s1)}.f2{fill:var(--s2)}.f3{fill:var(--s3)}
.f4{fill:var(--s4)}.f5{fill:var(--s5)}.f6{fill:var(--s6)}.f7{fill:var(--s7)}.f8{fill:var(--s8)}.f9{fill:var(--s9)}
.l0{stroke:var(--s0)}.l1{stroke:var(--s1);stroke-dasharray:7 3}.l2{stroke:var(--s2);stroke-dasharray:2 2.5}
.l3{stroke:var(--s3);stroke-dasharray:9 3 2 3}.l4{stroke:var(--s4)}.l5{stroke:var(--s5);stroke-dasharray:7 3}
.l6{stroke:var(--s6);stroke-dasharray:2 2.5}.l7{stroke:var(--s7);stroke-dasharray:9 3 2 3}
.l8{stroke:var(--s8)}.l9{stroke:var(--s9);stroke-dasharray:7 3}
";

/// Escapes text for XML and HTML, between tags and in attributes.
pub(crate) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            c if c.is_control() && c != '\n' => out.push(' '),
            c => out.push(c),
        }
    }
    out
}

/// Returns a picture as a standalone file, with the style sheet and a background.
pub(crate) fn file(picture: &str) -> String {
    let head = picture.find('>').map_or(0, |at| at + 1);
    let (open, rest) = picture.split_at(head);
    format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n{open}<style>{STYLE}</style>\
         <rect class=\"ground\" width=\"100%\" height=\"100%\"/>{rest}\n"
    )
}

/// A picture being drawn.
#[derive(Debug, Default)]
pub(super) struct Canvas {
    body: String,
}

impl Canvas {
    pub(super) fn line(&mut self, class: &str, from: (f64, f64), to: (f64, f64)) {
        let _ = writeln!(
            self.body,
            "<line class=\"{class}\" x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{}\"/>",
            short(from.0),
            short(from.1),
            short(to.0),
            short(to.1)
        );
    }

    pub(super) fn rect(&mut self, class: &str, at: (f64, f64), size: (f64, f64), tip: &str) {
        let _ = write!(
            self.body,
            "<rect class=\"{class}\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"",
            short(at.0),
            short(at.1),
            short(size.0.max(0.0)),
            short(size.1.max(0.0))
        );
        let _ = match tip {
            "" => writeln!(self.body, "/>"),
            tip => writeln!(self.body, "><title>{}</title></rect>", escape(tip)),
        };
    }

    /// Draws text whose `anchor` (start, middle, end) is at `at`.
    pub(super) fn text(&mut self, class: &str, anchor: &str, at: (f64, f64), text: &str) {
        let _ = writeln!(
            self.body,
            "<text class=\"{class}\" text-anchor=\"{anchor}\" x=\"{}\" y=\"{}\">{}</text>",
            short(at.0),
            short(at.1),
            escape(text)
        );
    }

    /// Draws text from bottom to top, centred at `at`.
    pub(super) fn text_up(&mut self, at: (f64, f64), text: &str) {
        let (x, y) = (short(at.0), short(at.1));
        let _ = writeln!(
            self.body,
            "<text class=\"soft\" text-anchor=\"middle\" transform=\"translate({x} {y}) rotate(-90)\">{}\
             </text>",
            escape(text)
        );
    }

    pub(super) fn path(&mut self, class: &str, points: &[(f64, f64)], tip: &str) {
        let mut path = String::new();
        for (i, (x, y)) in points.iter().enumerate() {
            let pen = if i == 0 { 'M' } else { 'L' };
            let _ = write!(path, "{pen}{} {}", short(*x), short(*y));
        }
        let _ = writeln!(
            self.body,
            "<path class=\"line {class}\" d=\"{path}\"><title>{}</title></path>",
            escape(tip)
        );
    }

    /// Returns the picture of `size`, with `label` for people who cannot see it.
    pub(super) fn finish(self, size: (f64, f64), label: &str) -> String {
        let (width, height) = (short(size.0), short(size.1));
        format!(
            "<svg class=\"plot\" xmlns=\"http://www.w3.org/2000/svg\" role=\"img\" width=\"{width}\" \
             height=\"{height}\" viewBox=\"0 0 {width} {height}\" aria-label=\"{}\">\n{}</svg>",
            escape(label),
            self.body
        )
    }
}

/// Formats a coordinate with visible precision.
fn short(value: f64) -> String {
    let text = format!("{value:.1}");
    text.strip_suffix(".0").map_or(text.clone(), str::to_string)
}

/// The width of a title and of a note relative to other text.
pub(super) const TITLE: f64 = 1.1;
pub(super) const NOTE: f64 = 0.75;

/// Estimates the width of `text` at the text size of pictures.
pub(super) fn width_of(text: &str) -> f64 {
    text.chars().count() as f64 * 7.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plot::COLOURS;

    /// Each series has a colour in light and dark mode, and the fill and the stroke that use it.
    #[test]
    fn all_colours_are_in_the_style() {
        for i in 0..COLOURS {
            assert_eq!(STYLE.matches(&format!("--s{i}:#")).count(), 2, "{i}");
            let fill = format!(".f{i}{{fill:var(--s{i})}}");
            let stroke = format!(".l{i}{{stroke:var(--s{i})");
            assert!(STYLE.contains(&fill) && STYLE.contains(&stroke), "{i}");
        }
        assert!(!STYLE.contains(&format!("--s{COLOURS}:")));
    }

    /// A picture stays well formed for names with any characters.
    #[test]
    fn names_are_escaped() {
        assert_eq!(escape("a<b>&\"c\"\u{7}"), "a&lt;b&gt;&amp;&quot;c&quot; ");
        let mut canvas = Canvas::default();
        canvas.text("soft", "start", (1.0, 2.25), "<script>");
        let picture = canvas.finish((10.0, 20.0), "x");
        assert!(
            picture.contains("x=\"1\" y=\"2.2\">&lt;script&gt;</text>"),
            "{picture}"
        );
        let file = file(&picture);
        assert!(
            file.starts_with("<?xml") && file.contains("<style>svg.plot"),
            "{file}"
        );
        assert_eq!(file.matches("<svg").count(), 1);
    }
}
