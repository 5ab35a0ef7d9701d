//! This file is the start and the end of the `terrace` command: arguments in, exit code out.
//!
//! Exit codes: 0 done, 1 it failed or the answer is no, 2 the command line is wrong; of repair, 3 that
//! something may be missing and 4 that there was nothing to make a database of.

mod args;
mod commands;
mod error;
mod format;
mod output;
mod store;

use std::process::ExitCode;

use error::CliError;

fn main() -> ExitCode {
    let cli = args::Cli::read();
    let json = cli.json;
    match commands::run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever read the output has seen enough of it.
        Err(CliError::OutputClosed) => ExitCode::SUCCESS,
        Err(e) => {
            // Nothing is left to do when the message cannot be written either.
            let _ = e.report(json);
            ExitCode::from(e.exit_code())
        }
    }
}
