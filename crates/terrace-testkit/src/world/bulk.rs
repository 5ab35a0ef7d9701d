//! Ingests of a world: each pair is accepted, or rejected by the limit that it exceeds, and the
//! accepted pairs appear atomically.

use terrace::{Durability, ErrorKind};
use terrace_media::Medium;

use super::{Unanswered, World};
use crate::oracle::Outcome;
use crate::script::{Entry, Key};
use crate::sizes;
use crate::value::Value;

impl World {
    pub(super) fn ingest(
        &mut self,
        space: u8,
        pairs: &[(Key, Value)],
        hook: Unanswered<'_>,
    ) -> Outcome {
        let Some(handle) = self.space(space)? else {
            return Ok(());
        };
        let options = self.db()?.options();
        let in_memory = self.oracle.medium() == Medium::Dram;
        let into_files = options.design_of_new().keeps_table_files();
        let mut taken = Vec::new();
        let mut added = handle.ingest().map(|ingest| (ingest, Ok(())));
        if let Ok((ingest, added)) = &mut added {
            for (key, value) in pairs {
                let entry = Entry {
                    space,
                    key: key.clone(),
                    value: Some(*value),
                    until: None,
                    ttl: None,
                };
                let invalid = sizes::is_invalid_in_bulk(&entry, options, into_files);
                match ingest.add(key, value.bytes()) {
                    Ok(()) if invalid == Some(true) => {
                        return Err("an ingest takes a pair beyond the limits of sizes".into());
                    }
                    Ok(()) => taken.push(entry),
                    Err(e) if e.kind() == ErrorKind::Invalid && invalid != Some(false) => {}
                    Err(e) => {
                        *added = Err(e);
                        break;
                    }
                }
            }
        }
        // No pair may be visible before the ingest finishes, in any case.
        let write = self.oracle.begin(&taken);
        let ingested = added.and_then(|(ingest, added)| added.and_then(|()| ingest.finish()));
        hook(&self.oracle)?;
        match ingested {
            Ok(_) => self.oracle.acknowledged(write, Durability::Sync),
            // Table files take no space in a pool, and the disk is limited only if the test does
            // so.
            Err(e) if e.kind() == ErrorKind::Full && (!in_memory || self.place.fs.is_some()) => {
                self.refused.push(e.to_string());
                self.oracle.refused(write);
            }
            Err(e) if e.kind() == ErrorKind::Unsupported && in_memory && !into_files => {
                self.oracle.refused(write);
            }
            Err(e) => return Err(format!("an ingest fails: {e:?}")),
        }
        Ok(())
    }
}
