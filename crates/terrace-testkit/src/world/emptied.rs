//! Emptying a world: deletes release their space.

use terrace::{Design, Durability};
use terrace_media::Medium;

use super::World;
use crate::oracle::Outcome;
use crate::script::{Entry, Op};
use crate::settings;

impl World {
    /// Deletes everything, drains, and checks that the space was released.
    pub fn check_space(&mut self) -> Outcome {
        self.let_go();
        for space in self.oracle.live().into_keys().filter(|&space| space != 0) {
            self.run(&Op::DropSpace(space))?;
        }
        for key in self.oracle.live_in(0).into_keys() {
            let entry = Entry {
                until: None,
                ttl: None,
                space: 0,
                key,
                value: None,
            };
            self.run(&Op::Write(vec![entry], Durability::Buffered))?;
        }
        self.run(&Op::Drain)?;
        self.check_all()?;
        let metrics = self.db()?.metrics();
        let options = self.db()?.options();
        // The manifest (twice during a rewrite), redo area, head, two memtables with their logs,
        // and a repository with some open extents.
        let memtable = options.front.memtable_bytes + (64 << 10);
        let mut bound = (512 << 10) + 2 * 2 * memtable + 6 * options.bottom.extent_bytes;
        let in_turns = [Design::NoveLsm, Design::NoveLsmNoSst].contains(&options.design_of_new());
        if in_turns && self.oracle.medium() != Medium::Dram {
            // The memtable in the pool that takes writes.
            let usual = (8 * options.front.memtable_bytes).min(options.pool.size_bytes / 16);
            bound += options.front.pm_memtable_bytes.unwrap_or(usual);
        }
        if self.key_bytes > 1 << 10 {
            // The manifest keeps the bounds of tables, and reserves as much again as its largest
            // size so far.
            bound += 16 * self.key_bytes as u64;
        }
        let gives_back = settings::gives_space_back(options.design_of_new());
        if gives_back && metrics.pool.allocated_bytes > bound {
            return Err(format!(
                "an empty store keeps {} bytes of the pool, more than {bound}; refused: {:?}; \
                 {metrics}; drained now: {:?}",
                metrics.pool.allocated_bytes,
                self.refused,
                self.db()?.drain(),
            ));
        }
        Ok(())
    }
}
