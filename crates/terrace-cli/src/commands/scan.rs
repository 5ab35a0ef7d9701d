//! `terrace scan`.

use std::ffi::OsString;
use std::ops::Bound;

use serde_json::{Map, Value};
use terrace::{Iter, PairRef};

use super::get_put::bytes_of;
use crate::args::{ScanArgs, StoreArgs};
use crate::error::CliError;
use crate::format::escape::escape;
use crate::output::{Output, insert_bytes, insert_expiry};
use crate::store::{Access, Store};

pub(super) fn scan(args: &ScanArgs, store: &StoreArgs, json: bool) -> Result<(), CliError> {
    let argument = |argument: &Option<OsString>| {
        argument
            .as_deref()
            .map(|argument| bytes_of(argument, &args.text))
            .transpose()
    };
    let prefix = argument(&args.prefix)?;
    let (from, to) = (argument(&args.from)?, argument(&args.to)?);
    if let (Some(from), Some(to)) = (&from, &to)
        && from > to
    {
        return Err(CliError::Usage(
            "the start key sorts after the end key".into(),
        ));
    }
    let store = Store::open(&args.db, store, Access::Read)?;
    let mut iter = match prefix {
        Some(prefix) => store.keyspace.prefix(prefix)?,
        None => {
            let from = from.map_or(Bound::Unbounded, Bound::Included);
            let to = to.map_or(Bound::Unbounded, Bound::Excluded);
            store.keyspace.range::<Vec<u8>>((from, to))?
        }
    };
    if args.keys_only {
        iter = iter.keys_only();
    }
    let mut out = Output::new();
    let printed = print(&mut iter, args, json, &mut out);
    drop(iter);
    printed.and_then(|()| out.finish())?;
    store.close()
}

fn print(iter: &mut Iter, args: &ScanArgs, json: bool, out: &mut Output) -> Result<(), CliError> {
    let mut line = Vec::new();
    let mut left = args.limit.unwrap_or(u64::MAX);
    while left > 0 {
        let Some(entry) = (if args.reverse {
            iter.next_back_ref()
        } else {
            iter.next_ref()
        }) else {
            break;
        };
        let entry = entry?;
        left -= 1;
        line.clear();
        if json {
            let mut object = Map::new();
            if !args.values_only {
                insert_bytes(&mut object, "key", entry.key());
            }
            if !args.keys_only {
                insert_bytes(&mut object, "value", entry.value());
            }
            insert_expiry(&mut object, entry.expiry());
            line.extend_from_slice(Value::Object(object).to_string().as_bytes());
        } else {
            add_text(entry, args, &mut line);
        }
        line.push(b'\n');
        out.bytes(&line)?;
    }
    Ok(())
}

fn add_text(entry: PairRef<'_>, args: &ScanArgs, line: &mut Vec<u8>) {
    let add = |bytes: &[u8], line: &mut Vec<u8>| {
        if args.raw {
            line.extend_from_slice(bytes);
        } else {
            escape(bytes, line);
        }
    };
    if !args.values_only {
        add(entry.key(), line);
    }
    if !args.values_only && !args.keys_only {
        line.push(b'\t');
    }
    if !args.keys_only {
        add(entry.value(), line);
    }
}
