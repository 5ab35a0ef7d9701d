//! Survival: the part of a database that outlives the process, which decides when a log may go.
//!
//! | survival | pool | bottom | the log of an entry goes when the entry is |
//! |---|---|---|---|
//! | `Pool` | on a medium | anywhere | in a table in the pool, or below |
//! | `LogTables` | on a medium; its tables are logs | table files | in a table file |
//! | `Files` | memory | table files | in a table file: flushed there, or drained |
//! | `Logs` | memory | memory | never: no other place of it outlives the process |
//!
//! A wrong answer here loses data only when the power fails or the process is killed. So the rule
//! is in one place, and is used for every decision about when a log goes, which data a close has to
//! write out, and which entry may hide an older one permanently.

use terrace_media::Medium;

use crate::options::Design;

/// The part of a database that outlives the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Survival {
    Pool,
    LogTables,
    Files,
    Logs,
}

impl Survival {
    /// Returns the survival of a database of `design` whose pool is on `medium`.
    pub(crate) fn of(design: Design, medium: Medium) -> Survival {
        match medium {
            Medium::Dax | Medium::Mapped if design.keeps_tables_in_logs() => Survival::LogTables,
            Medium::Dax | Medium::Mapped => Survival::Pool,
            Medium::Dram if design.keeps_table_files() => Survival::Files,
            Medium::Dram => Survival::Logs,
        }
    }

    /// Returns whether an entry that is in its last place no longer needs its log.
    pub(crate) fn frees_logs(self) -> bool {
        self != Survival::Logs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks every cell. `Leveled` without a pool has no buffer, but its flushes end in files all
    /// the same.
    #[test]
    fn each_design_survives_on_each_medium_as_the_table_says() {
        for medium in [Medium::Dax, Medium::Mapped] {
            for design in Design::ALL {
                let expected = match design {
                    Design::FlatLsm => Survival::LogTables,
                    _ => Survival::Pool,
                };
                assert_eq!(Survival::of(design, medium), expected);
            }
        }
        let without_a_pool = Design::ALL.map(|design| Survival::of(design, Medium::Dram));
        let expected = Design::ALL.map(|design| match design {
            Design::MioDb | Design::NoveLsmNoSst => Survival::Logs,
            Design::MioDbSsd
            | Design::MatrixKv
            | Design::FlatLsm
            | Design::NoveLsm
            | Design::NoveLsmHier
            | Design::Leveled => Survival::Files,
            #[cfg(feature = "test-design")]
            Design::BufferOnly => Survival::Logs,
        });
        assert_eq!(without_a_pool, expected);
    }
}
