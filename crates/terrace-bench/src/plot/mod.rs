//! Charts as SVG: bars, lines, steps and bands on linear and logarithmic axes.
//!
//! No script and no font is needed, and colours are classes of one style sheet ([`STYLE`]), so a
//! chart in a page follows the page into dark mode and a chart in a file includes the sheet. The
//! colours of the first series are those of Okabe and Ito, which people with colour blindness can
//! distinguish; lines also differ in their dashes, and bars in their order.

mod axis;
mod bars;
mod lines;
mod svg;

pub(crate) use axis::Scale;
pub(crate) use bars::{Bar, Bars, Part};
pub(crate) use lines::{Band, Line, Lines};
pub(crate) use svg::{STYLE, escape, file};

/// The number of colours of series; further series reuse them.
pub(crate) const COLOURS: usize = 10;
