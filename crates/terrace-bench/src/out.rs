//! The output of a run for people.

use std::io::Write;

use crate::error::BenchError;

/// Writes lines for people. An error is kept until `check` returns it.
pub(crate) struct Out<'a> {
    out: Option<&'a mut dyn Write>,
    failed: Option<std::io::Error>,
}

impl<'a> Out<'a> {
    pub(crate) fn to(out: Option<&'a mut dyn Write>) -> Out<'a> {
        Out { out, failed: None }
    }

    pub(crate) fn line(&mut self, line: std::fmt::Arguments<'_>) {
        let Some(out) = &mut self.out else { return };
        if let Err(e) = writeln!(out, "{line}").and_then(|()| out.flush()) {
            self.failed.get_or_insert(e);
        }
    }

    pub(crate) fn check(&mut self) -> Result<(), BenchError> {
        self.failed
            .take()
            .map_or(Ok(()), |e| Err(BenchError::Output(e)))
    }
}
