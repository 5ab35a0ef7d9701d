//! Tests of pools: made, opened, refused, grown, cut, and what their superblock survives.

use super::*;
use crate::{AllocError, Machine, Purpose, Survive};
use std::path::Path;

fn config(backing: Backing) -> PoolConfig {
    PoolConfig {
        grow_bytes: 64 << 10,
        granule: 4096,
        ..PoolConfig::new(backing, 1 << 20)
    }
}

fn file(dir: &Path) -> PoolConfig {
    config(Backing::File(dir.join("pool")))
}

/// After a clean close, a pool opens with its roots, its bytes, and the word that it was clean.
#[test]
fn reopens_with_what_it_held() {
    let dir = tempfile::tempdir().expect("a folder");
    let machine = Machine::new(1, Medium::Dax);
    for config in [
        file(dir.path()),
        PoolConfig {
            medium: MediumChoice::ForceDax,
            ..config(Backing::File(dir.path().join("forced")))
        },
        config(Backing::Simulated(machine)),
        config(Backing::Simulated(Machine::new(2, Medium::Mapped))),
    ] {
        let pool = Pool::create(config.clone()).expect("created");
        assert_eq!(pool.shutdown(), Shutdown::Clean);
        let extent = pool.alloc(10_000).expect("allocated");
        assert_eq!(extent.len(), 12 << 10);
        let span = extent.span();
        let mut claim = extent.claim(0, 10_000).expect("claimed");
        claim.write_streaming(0, &[7; 10_000], Purpose::Flush);
        pool.region().fence(Purpose::Flush);
        pool.region().sync(span.off, 10_000).expect("synced");
        pool.set_roots(&[(0, span.off), (15, span.len)])
            .expect("set");
        pool.mark_clean().expect("marked");
        let uuid = pool.uuid();
        drop((claim, extent, pool));

        let pool = Pool::open(config).expect("opened");
        assert_eq!(pool.shutdown(), Shutdown::Clean);
        assert_eq!(pool.uuid(), uuid);
        assert_eq!((pool.root(0), pool.root(15)), (span.off, span.len));
        let extent = pool.adopt(span).expect("adopted");
        assert!(matches!(pool.adopt(span), Err(AllocError::Overlap(_))));
        assert_eq!(
            pool.region().bytes(extent.off(), 10_000),
            Some(&[7; 10_000][..])
        );
    }
}

/// On `Dax`, what was flushed and fenced is there after a power loss, and nothing else has to be.
#[test]
fn power_loss_keeps_what_was_fenced() {
    let machine = Machine::new(3, Medium::Dax);
    let pool = Pool::create(config(Backing::Simulated(machine.clone()))).expect("created");
    let extent = pool.alloc(4096).expect("allocated");
    let mut claim = extent.claim(0, 4096).expect("claimed");
    claim.write(0, &[1; 64]);
    claim.write(64, &[2; 64]);
    pool.region().persist(extent.off(), 64, Purpose::Log);
    let image = machine.crash_image(Survive::None);
    let after = Machine::boot(image, 4);
    let pool = Pool::open(config(Backing::Simulated(after))).expect("opened");
    assert_eq!(pool.shutdown(), Shutdown::PowerLost);
    assert_eq!(pool.region().bytes(extent.off(), 64), Some(&[1; 64][..]));
    assert_eq!(
        pool.region().bytes(extent.off() + 64, 64),
        Some(&[0; 64][..])
    );
}
