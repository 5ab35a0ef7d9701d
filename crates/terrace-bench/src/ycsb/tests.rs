//! Tests of YCSB's workloads: proportions, lengths, defaults, and refused properties.

use super::*;

fn workload(text: &str) -> Result<Workload, String> {
    let properties = Properties::parse(text, "test").expect("it is well formed");
    Workload::of(&properties, 1000, 2000)
}

/// The six standard workloads match YCSB's papers and files, and each is parsed.
#[test]
fn the_standard_workloads_are_standard() {
    use Operation::{Insert, Read, ReadModifyWrite, Scan, Update};
    type Shares<'a> = &'a [(Operation, f64)];
    let expected: [(&str, Shares<'_>, Distribution); 6] = [
        ("a", &[(Read, 0.5), (Update, 0.5)], Distribution::Zipfian),
        ("b", &[(Read, 0.95), (Update, 0.05)], Distribution::Zipfian),
        ("c", &[(Read, 1.0)], Distribution::Zipfian),
        ("d", &[(Read, 0.95), (Insert, 0.05)], Distribution::Latest),
        ("e", &[(Scan, 0.95), (Insert, 0.05)], Distribution::Zipfian),
        (
            "f",
            &[(Read, 0.5), (ReadModifyWrite, 0.5)],
            Distribution::Zipfian,
        ),
    ];
    for (name, shares, requests) in expected {
        let properties = properties_of(name).expect(name);
        let workload = Workload::of(&properties, 1000, 2000).expect(name);
        for operation in Operation::ALL {
            let share = shares.iter().find(|(of, _)| *of == operation);
            let share = share.map_or(0.0, |(_, share)| *share);
            let off = (workload.share(operation) - share).abs();
            assert!(off < 1e-9, "{name} {}", operation.name());
        }
        assert_eq!(workload.requests, requests, "{name}");
        assert_eq!((workload.loaded, workload.ops), (1000, 2000), "{name}");
        assert_eq!(workload.record_bytes_max(), 1000, "{name}");
        assert_eq!(workload.ignored, ["workload", "readallfields"], "{name}");
    }
    let e = Workload::of(&properties_of("e").expect("e"), 1, 1).expect("e");
    assert_eq!(e.scan_entries_max, 100);
    assert!(properties_of("g").is_err_and(|e| e.contains("churn") && e.contains("path")));
}

/// Operations have the requested proportions, for any sum of them.
#[test]
fn operations_come_in_proportion() {
    let text = "readproportion=3\nupdateproportion=2\ninsertproportion=1\nscanproportion=1\n\
                readmodifywriteproportion=1";
    let workload = workload(text).expect("it is valid");
    let mut rng = fastrand::Rng::with_seed(9);
    let mut counts = [0u32; 5];
    let draws = 200_000;
    for _ in 0..draws {
        counts[workload.choose(&mut rng) as usize] += 1;
    }
    for (operation, share) in Operation::ALL.into_iter().zip([3.0, 2.0, 1.0, 1.0, 1.0]) {
        let drawn = f64::from(counts[operation as usize]) / f64::from(draws);
        let expected = share / 8.0;
        // Five standard deviations of a binomial of this many draws.
        let bound = 5.0 * (expected * (1.0 - expected) / f64::from(draws)).sqrt();
        assert!(
            (drawn - expected).abs() < bound,
            "{}: {drawn}",
            operation.name()
        );
    }
}

/// Without properties a workload is YCSB's default.
#[test]
fn defaults_are_ycsbs() {
    let workload = workload("").expect("it is valid");
    assert!((workload.share(Operation::Read) - 0.95).abs() < 1e-9);
    assert!((workload.share(Operation::Update) - 0.05).abs() < 1e-9);
    assert_eq!(workload.requests, Distribution::Uniform);
    assert_eq!((workload.first, workload.loaded), (0, 1000));
    assert_eq!(workload.record_bytes_max(), 1000);
    assert!(!workload.ordered && workload.padding == 1);
    assert_eq!(workload.scan_entries_max, 1000);
    assert_eq!(
        workload.describe(false),
        "1,000 records of 1000 B, hashed; 2,000 operations: 95 % read, 5 % update; uniform"
    );
    assert_eq!(workload.describe(true), "1,000 records of 1000 B, hashed");
}

/// Lengths are in their range, reach both ends, and have the requested shape.
#[test]
fn lengths_have_their_shape() {
    let text = |shape: &str| {
        format!("fieldcount=1\nminfieldlength=20\nfieldlength=60\nfieldlengthdistribution={shape}")
    };
    let mut rng = fastrand::Rng::with_seed(3);
    let mut counted = |shape: &str| {
        let workload = workload(&text(shape)).expect(shape);
        let mut counts = vec![0u32; 61];
        for _ in 0..41_000 {
            counts[workload.record_bytes(&mut rng)] += 1;
        }
        counts
    };
    let constant = counted("constant");
    assert_eq!(constant[60], 41_000);
    let uniform = counted("uniform");
    assert!(
        uniform[20..]
            .iter()
            .all(|count| (850..1150).contains(count)),
        "{uniform:?}"
    );
    let zipfian = counted("zipfian");
    assert_eq!(zipfian[..20].iter().sum::<u32>(), 0);
    assert!(
        zipfian[20] > 5 * zipfian[30] && zipfian[60] > 0,
        "{zipfian:?}"
    );
    let problem = workload(&text("histogram"))
        .map(|_| ())
        .expect_err("it is not there");
    assert!(
        problem.contains("constant, uniform or zipfian"),
        "{problem}"
    );
}

/// All invalid properties are named, each with its place and a valid value.
#[test]
fn problems_are_named_together() {
    let text = "readpropotion=1\nrecordcount=0\nrequestdistribution=pareto\nfieldlength=long\n\
                insertorder=backwards\ninsertstart=5000\nscanproportion=-1\nthreadcount=0";
    let problem = workload(text).map(|_| ()).expect_err("eight are bad");
    for part in [
        "readpropotion is not a property of YCSB (test, line 1); did you mean readproportion?",
        "recordcount is 0",
        "\"pareto\"",
        "zipfian",
        "fieldlength is \"long\"",
        "\"backwards\"",
        "insertstart 5000",
        "scanproportion is -1",
        "threadcount is 0",
    ] {
        assert!(problem.contains(part), "{part} in {problem}");
    }
    let nothing = "readproportion=0\nupdateproportion=0";
    let problem = workload(nothing).map(|_| ()).expect_err("nothing to do");
    assert!(problem.contains("all proportions are 0"), "{problem}");
}

/// Properties without effect here are distinguished from misspelled ones.
#[test]
fn what_is_ignored_is_named() {
    let text = "workload=site.ycsb.workloads.CoreWorkload\nrocksdb.dir=/x\nwriteallfields=true\n\
                hdrhistogram.percentiles=99\nthreadcount=4\ntarget=5000";
    let workload = workload(text).expect("it is valid");
    let ignored = [
        "workload",
        "rocksdb.dir",
        "writeallfields",
        "hdrhistogram.percentiles",
    ];
    assert_eq!(workload.ignored, ignored);
    for (a, b, near) in [
        ("target", "targets", true),
        ("target", "traget", true),
        ("target", "tarxet", true),
        ("target", "arget", true),
        ("target", "targ", false),
        ("target", "gadget", false),
    ] {
        assert_eq!(is_near(a, b), near, "{b}");
    }
}
