//! The entry point of the `terrace` command: parses arguments, runs the command and sets the exit
//! code.
//!
//! Exit codes: 0 success, 1 failure or a negative result, 2 invalid command line; of repair, 3 that
//! data may be missing and 4 that there was no data for a new database.

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
        // The reader of the output has closed it, which is no failure.
        Err(CliError::OutputClosed) => ExitCode::SUCCESS,
        Err(e) => {
            // If the message cannot be written either, only the exit code is left.
            let _ = e.report(json);
            ExitCode::from(e.exit_code())
        }
    }
}
