//! `terrace keyspaces`: lists, creates and drops keyspaces.

use serde_json::json;
use terrace::Db;
use terrace_bench::{Table, units};

use crate::args::{KeyspacesCommand, StoreArgs};
use crate::error::CliError;
use crate::output::Output;
use crate::store::{self, Access, open};

/// Returns every keyspace with an estimate of its bytes.
pub(super) fn sizes(db: &Db) -> Result<Vec<(String, u64)>, CliError> {
    let mut sizes = Vec::new();
    for keyspace in store::keyspaces(db)? {
        let bytes = keyspace.approximate_size::<&[u8]>(..)?;
        sizes.push((keyspace.name().to_owned(), bytes));
    }
    Ok(sizes)
}

pub(super) fn keyspaces(
    command: &KeyspacesCommand,
    store: &StoreArgs,
    json: bool,
) -> Result<(), CliError> {
    let mut out = Output::new();
    let db = match command {
        KeyspacesCommand::List(args) => {
            let db = open(&args.db, store, Access::Read)?;
            let mut table = Table::new(&["keyspace", "approx. size"]);
            for (name, bytes) in sizes(&db)? {
                if json {
                    out.line(json!({ "name": name, "bytes": bytes }))?;
                } else {
                    table.row([name, units::bytes(bytes)]);
                }
            }
            if !json {
                out.bytes(table.to_string().as_bytes())?;
            }
            db
        }
        KeyspacesCommand::Create(args) => {
            let db = open(&args.db, store, Access::Create)?;
            let existed = db.keyspace(&args.name)?.is_some();
            db.create_keyspace(&args.name)?;
            if json {
                out.line(json!({ "name": args.name, "created": !existed }))?;
            }
            db
        }
        KeyspacesCommand::Drop(args) => {
            let db = open(&args.db, store, Access::Change)?;
            if !db.drop_keyspace(&args.name)? {
                let name = &args.name;
                return Err(CliError::Failed(format!("there is no keyspace {name:?}")));
            }
            if json {
                out.line(json!({ "name": args.name, "dropped": true }))?;
            }
            db
        }
    };
    out.finish()?;
    Ok(db.close()?)
}
