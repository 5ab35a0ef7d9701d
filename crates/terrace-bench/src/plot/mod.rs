//! This folder is pictures as SVG: bars, lines, steps and bands on linear and logarithmic axes.
//!
//! No script and no font is needed, and colours are classes of one style sheet ([`STYLE`]), so a
//! picture in a page follows the page into the dark and a picture in a file brings the sheet along.
//! The colours of the first series are those of Okabe and Ito, which people tell apart who see colours
//! differently; lines differ in their dashes too, and bars in their order.

mod axis;
mod bars;
mod lines;
mod svg;

pub(crate) use axis::Scale;
pub(crate) use bars::{Bar, Bars, Part};
pub(crate) use lines::{Band, Line, Lines};
pub(crate) use svg::{STYLE, escape, file};

/// Series that have a colour of their own; more begin again.
pub(crate) const COLOURS: usize = 10;
