//! Opening of the bottom: the manifest names the tables, and other tables of the database are
//! removed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use super::value_file::ValueSpace;
use super::version::{Table, Version};
use super::{Inner, Leveled, Merging, TableStore};
use crate::error::{Error, Result};
use crate::parts::sstable::FileMeta;
use crate::parts::values::ValueMeta;
use crate::stages::file_names::{
    is_table_of, is_value_file_of, table_file_number, value_file_number,
};
use crate::stages::{Folder, FrontShape, Shared};

/// Returns the files in the directories of tables.
fn found(store: &TableStore) -> Result<BTreeSet<PathBuf>> {
    let mut found = BTreeSet::new();
    let dirs = BTreeSet::from([&store.dir, &store.level0]);
    for dir in dirs {
        let names = store.fs.list(dir).map_err(|e| Error::io("list", dir, e))?;
        found.extend(names.into_iter().map(|name| dir.join(name)));
    }
    Ok(found)
}

/// Opens the bottom over the tables that the manifest names; `front` are the sizes of the stage
/// above. With `merging`, drains are merged with the first level.
///
/// CRASH: a table of this database that is not named had just been written, or was not removed yet.
/// A file without its header stays, and its number is not reused.
pub(crate) fn recover(
    shared: &Arc<Shared>,
    folder: &Folder,
    front: FrontShape,
    merging: Option<Merging>,
) -> Result<Leveled> {
    let options = &shared.options.bottom.leveled;
    let values = shared
        .manifest
        .with_state(|state| state.items::<ValueMeta>().cloned().collect::<Vec<_>>());
    let mut store = TableStore::new(
        folder,
        shared.manifest.db(),
        options,
        Arc::clone(&shared.memory),
    );
    store.writes_values |= !values.is_empty();
    let store = Arc::new(store);
    let metas = shared
        .manifest
        .with_state(|state| state.items::<FileMeta>().cloned().collect::<Vec<_>>());
    let found = found(&store)?;
    // Before anything is removed: an outdated manifest names too few tables, and the right one may
    // come back.
    if let Some(lost) = metas
        .iter()
        .find(|meta| !found.contains(&store.path(meta.number, meta.level)))
    {
        return Err(Error::corruption(format!(
            "{} is missing, but the manifest names it: restore the directory from a copy, or \
             recover the readable data with \"terrace repair\"{}",
            store.path(lost.number, lost.level).display(),
            match lost.level {
                0 => "; if level 0 has a directory of its own, open the database with it",
                _ => "",
            }
        )));
    }
    if let Some(lost) = values
        .iter()
        .find(|meta| !found.contains(&store.value_path(meta.number)))
    {
        return Err(Error::corruption(format!(
            "{} is missing, but the manifest names it: restore the directory from a copy, or \
             recover the readable data with \"terrace repair\"",
            store.value_path(lost.number).display()
        )));
    }
    let named = |number: u64| metas.iter().any(|meta| meta.number == number);
    let numbers: BTreeSet<u64> = values.iter().map(|meta| meta.number).collect();
    let named_values = |number: u64| numbers.contains(&number);
    for path in &found {
        let name = path.file_name().and_then(|name| name.to_str());
        let table = name.and_then(table_file_number);
        let Some(number) = table.or(name.and_then(value_file_number)) else {
            continue;
        };
        let is_named = match table {
            Some(number) => named(number),
            None => named_values(number),
        };
        let is_ours = || match table {
            Some(number) => is_table_of(&*store.fs, path, store.db, number),
            None => is_value_file_of(&*store.fs, path, store.db, number),
        };
        if is_named {
            shared.skip_ids(number + 1);
        } else if !is_ours() {
            shared.pass_over(number);
        } else {
            shared.skip_ids(number + 1);
            store
                .fs
                .remove(path)
                .map_err(|e| Error::io("remove the unfinished file", path, e))?;
        }
    }
    let values = values.into_iter();
    let values: Vec<_> = values.map(|meta| ValueSpace::held(&store, meta)).collect();
    let by_number: BTreeMap<_, _> = values.iter().map(|it| (it.meta.number, it)).collect();
    for meta in &metas {
        // Also for directories whose edits did not record it: two runs with one number would be one
        // run.
        shared.skip_ids(meta.run + 1);
    }
    let mut tables = Vec::with_capacity(metas.len());
    for meta in metas {
        let mut held = Vec::with_capacity(meta.values.len());
        for (number, _) in &meta.values {
            let file = by_number.get(number);
            held.push(Arc::clone(file.ok_or_else(|| {
                Error::corruption(format!(
                    "{} points into value file {number}, which the manifest does not name: restore \
                     the directory from a copy, or recover the readable data with \"terrace \
                     repair\"",
                    store.path(meta.number, meta.level).display()
                ))
            })?));
        }
        let mut table = Table::new(&store, meta.clone(), Vec::new(), held.into());
        if meta.range_deletes > 0 {
            table.ranges = Arc::new(table.open()?.range_deletes().fragments().to_vec());
        }
        tables.push(table);
    }
    let deepest = tables.iter().map(|t| t.meta.level as usize).max();
    let depth = (options.levels as usize).max(deepest.unwrap_or(0));
    let version = Version::of(depth, &tables, &values);
    Ok(Leveled {
        inner: Inner::new(Arc::clone(shared), front, store, merging, version),
    })
}
