//! The dispatch of commands to functions.

mod bench;
mod checkpoint;
mod compact;
mod dump;
mod get_put;
mod ingest;
mod inspect;
mod keyspaces;
mod load;
mod repair;
mod scan;
mod stat;
mod verify;

use crate::args::{Cli, Command};
use crate::error::CliError;

/// Runs the command.
pub(crate) fn run(cli: Cli) -> Result<(), CliError> {
    let Cli {
        store,
        json,
        command,
    } = cli;
    match command {
        Command::Get(args) => get_put::get(&args, &store, json),
        Command::Put(args) => get_put::put(&args, &store, json),
        Command::Delete(args) => get_put::delete(&args, &store, json),
        Command::Scan(args) => scan::scan(&args, &store, json),
        Command::Load(args) => load::load(&args, &store, json),
        Command::Ingest(args) => ingest::ingest(&args, &store, json),
        Command::Checkpoint(args) => checkpoint::checkpoint(&args, &store, json),
        Command::Repair(args) => repair::repair(&args, &store, json),
        Command::Compact(args) => compact::compact(&args, &store, json),
        Command::Dump(args) => dump::dump(&args, &store, json),
        Command::Stat(args) => stat::stat(&args.db, &store, json),
        Command::Verify(args) => verify::verify(&args.db, &store, json),
        Command::Keyspaces(command) => keyspaces::keyspaces(&command, &store, json),
        Command::SstDump(args) => inspect::table::dump(&args, json),
        Command::ValueDump(args) => inspect::values::dump(&args, json),
        Command::LogDump(args) => inspect::log::dump(&args, json),
        Command::ManifestDump(args) => inspect::manifest::dump(&args, json),
        Command::Bench(args) => bench::bench(&args, &store, json),
    }
}
