//! Tests of expiry on the command line: show, dump, load.

use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

use super::{Place, assert_fails, text};

/// Returns milliseconds since 1970.
fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.expect("the time is after 1970").as_millis() as u64
}

/// A put with a time to live has an expiry, which get and scan show; others have none.
#[test]
fn expiry_is_shown() {
    let place = Place::new();
    let before = now();
    place.stdout("put --ttl 1000", &[&"session", &"7f3a"]);
    let after = now();
    place.stdout("put", &[&"user", &"ada"]);
    let shown = place.json("get", &[&"session"]);
    let moment = shown["expiry_ms"].as_u64().expect("a moment");
    assert!((before + 1_000_000..=after + 1_000_000).contains(&moment));
    assert_eq!(place.stdout("get", &[&"session"]), b"7f3a\n");
    assert!(place.json("get", &[&"user"])["expiry_ms"].is_null());
    for order in ["scan --json", "scan --json --reverse"] {
        let lines = text(&place.stdout(order, &[]));
        for line in lines.lines() {
            let pair: serde_json::Value = serde_json::from_str(line).expect(line);
            match pair["key"].as_str() {
                Some("session") => assert_eq!(pair["expiry_ms"], moment),
                _ => assert!(pair["expiry_ms"].is_null(), "{pair}"),
            }
        }
    }
}

/// A dump keeps the expiry of each pair, in both formats, through load and through ingest. A pair
/// that has expired by then is absent, and so is the pair that it replaces.
#[test]
fn dumps_keep_expiry() {
    let place = Place::new();
    let later = now() + 3_600_000;
    let input = format!(
        "a\t1\texpiry_ms={later}\nb\t2\nc\\t\t3\\n\texpiry_ms={}\n",
        u64::MAX / 2
    );
    let loaded = place.feed("load", &[], input.as_bytes());
    assert!(loaded.status.success(), "{}", text(&loaded.stderr));
    assert_eq!(text(&place.stdout("dump", &[])), input);
    for name in ["dump.tsv", "dump.jsonl"] {
        let file = place.path(name);
        place.stdout("dump", &[&file]);
        for command in ["load", "ingest", "ingest --design leveled"] {
            let other = Place::new();
            let fed = other.run(command, &[&file]);
            assert!(fed.status.success(), "{}", text(&fed.stderr));
            assert_eq!(text(&other.stdout("dump", &[])), input, "{name}, {command}");
            assert_eq!(other.json("get", &[&"a"])["expiry_ms"], later);
        }
    }
    let json = fs::read_to_string(place.path("dump.jsonl")).expect("a dump");
    assert!(json.contains(&format!("\"expiry_ms\":{later}")), "{json}");

    for (command, key) in [("load", "a"), ("ingest", "b")] {
        let past = format!("{key}\tlate\texpiry_ms=1000\n");
        assert!(place.feed(command, &[], past.as_bytes()).status.success());
        assert_fails(&place.run("get", &[&key]), 1, "there is no key");
    }
    assert_eq!(place.stdout("scan --keys-only", &[]), b"c\\t\n");
    let bad = place.feed("load", &[], b"d\t1\texpiry_ms=soon\n");
    assert_fails(&bad, 1, "line 1: its expiry_ms is \"soon\"");
}
