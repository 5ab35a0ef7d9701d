//! Aligned text tables for people.

use std::fmt;

/// Rows of cells whose columns are padded to their widest cell, the first column left-aligned and
/// the others right-aligned.
#[derive(Debug, Default, Clone)]
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Returns a table with a heading row.
    pub fn new(heading: &[&str]) -> Table {
        Table {
            rows: vec![heading.iter().map(|cell| cell.to_string()).collect()],
        }
    }

    /// Adds a row; rows may have different lengths.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// Returns whether the table contains only the heading.
    pub fn is_empty(&self) -> bool {
        self.rows.len() < 2
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            self.rows
                .iter()
                .filter_map(|row| row.get(column))
                .map(|c| c.chars().count())
                .max()
        };
        let widths: Vec<usize> = (0..columns)
            .map(|column| width(column).unwrap_or(0))
            .collect();
        for row in &self.rows {
            let mut line = String::new();
            for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
                if column == 0 {
                    line.push_str(&format!("  {cell:<width$}"));
                } else {
                    line.push_str(&format!("  {cell:>width$}"));
                }
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Columns line up for cells of any width.
    #[test]
    fn columns_line_up() {
        let mut table = Table::new(&["tier", "bytes"]);
        table.row(["level 0".to_string(), "1".to_string()]);
        table.row(["x".to_string(), "12345678".to_string()]);
        let text = table.to_string();
        assert_eq!(
            text,
            "  tier        bytes\n  level 0         1\n  x        12345678\n"
        );
    }
}
