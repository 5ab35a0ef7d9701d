//! Each rule fires on the smallest tree that breaks it, and stays silent on one that does not.

use super::*;

/// The crate root of a small store, and a few modules for imports to point at.
const STORE: &[(&str, &str)] = &[
    (
        "lib.rs",
        "mod db; mod designs; mod engine; mod stages; mod parts; mod error;\npub use db::Db; pub use error::{Error, Kind as ErrorKind};",
    ),
    ("error.rs", "pub struct Error;"),
    ("db/mod.rs", "pub struct Db;"),
    (
        "designs/mod.rs",
        "use crate::stages::{bottom::repository::Repository, front::wal::Wal};",
    ),
    (
        "engine/mod.rs",
        "use crate::stages::{Front, front::Options};\nuse crate::{Error, ErrorKind};",
    ),
    ("parts/mod.rs", "pub mod log;"),
    ("parts/log.rs", "use super::super::error::Error;"),
    (
        "stages/mod.rs",
        "pub mod front; pub mod bottom; pub trait Front {}",
    ),
    ("stages/front/mod.rs", "pub mod wal; pub struct Options;"),
    (
        "stages/front/wal.rs",
        "use super::Options; use crate::stages::Front; use crate::parts::log;",
    ),
    ("stages/bottom/mod.rs", "pub mod repository;"),
    ("stages/bottom/repository/mod.rs", "mod copy;"),
    (
        "stages/bottom/repository/copy.rs",
        "use crate::stages::bottom::repository;",
    ),
];

/// The rules that fire on the small store with `changes` written over it, as `path:line rule`.
fn fired(changes: &[(&str, &str)]) -> Vec<String> {
    let mut tree = Tree::default();
    for (path, text) in STORE.iter().chain(changes) {
        let path = match path.strip_prefix('/') {
            Some(path) => path.to_owned(),
            None => format!("crates/terrace/src/{path}"),
        };
        let header = if path.ends_with(".rs") && !text.starts_with("//!") {
            "//! It.\n"
        } else {
            ""
        };
        tree.add(&path, format!("{header}{text}"));
    }
    let shown = |v: &Violation| {
        let path = v
            .path
            .strip_prefix("crates/terrace/src/")
            .unwrap_or(&v.path);
        format!("{path}:{} {}", v.line, v.rule)
    };
    check(&tree).iter().map(shown).collect()
}

#[track_caller]
fn fires(changes: &[(&str, &str)], expected: &[&str]) {
    assert_eq!(fired(changes), expected);
}

#[test]
fn a_tidy_store_is_silent() {
    fires(&[], &[]);
}

#[test]
fn an_upward_import_fires() {
    let up = &["parts/log.rs:2 import-up"];
    fires(&[("parts/log.rs", "use crate::engine::Commit;")], up);
    fires(
        &[("parts/log.rs", "use crate::{error::Error, stages::Front};")],
        up,
    );
    fires(
        &[("parts/log.rs", "pub use super::super::engine as e;")],
        up,
    );
    fires(
        &[("parts/log.rs", "fn f() -> crate::engine::Commit { g() }")],
        up,
    );
    fires(
        &[("parts/log.rs", "mod inner { use super::super::super::db; }")],
        up,
    );
    fires(
        &[("engine/mod.rs", "use crate::designs::Design;")],
        &["engine/mod.rs:2 import-up"],
    );
}

#[test]
fn a_leaf_reaches_leaves_and_its_list() {
    let root = "mod db; mod designs; mod engine; mod stages; mod parts; mod error; mod testing;";
    let testing = "use crate::designs::decoders; use crate::error::Error;";
    let files = |testing| {
        [
            ("lib.rs", root),
            ("engine/mod.rs", ""),
            ("testing.rs", testing),
        ]
    };
    fires(&files(testing), &[]);
    fires(
        &files("use crate::designs::miodb;"),
        &["testing.rs:2 import-up"],
    );
    fires(
        &files("use crate::parts::log;"),
        &["testing.rs:2 import-up"],
    );
    let up = fired(&[("error.rs", "use crate::parts::log;")]);
    assert!(up.contains(&"error.rs:2 import-up".to_owned()), "{up:?}");
}

/// Two files that import one another fire, over a third one and through the root too. A path to the
/// module around a file, and one in a test, is not in a circle.
#[test]
fn a_circle_of_imports_fires() {
    let parts = "pub mod log; pub mod cache; pub mod codec;";
    let files = |log, cache, codec| {
        [
            ("parts/mod.rs", parts),
            ("parts/log.rs", log),
            ("parts/cache.rs", cache),
            ("parts/codec.rs", codec),
        ]
    };
    let circle = &["parts/cache.rs:2 import-circle"];
    fires(
        &files("use super::cache::C;", "", "use super::log::L;"),
        &[],
    );
    fires(
        &files("use super::cache::C;", "use crate::parts::log::L;", ""),
        circle,
    );
    fires(
        &files(
            "use super::cache::C;",
            "use super::codec::D;",
            "fn f() -> super::log::L { g() }",
        ),
        circle,
    );
    fires(
        &files(
            "use super::cache::C;",
            "#[cfg(test)] mod tests { use super::super::log::L; }",
            "use super::{C, super::error::Error};",
        ),
        &[],
    );
}

#[test]
fn an_upward_import_through_the_root_fires() {
    fires(
        &[("engine/mod.rs", "use crate::Db;")],
        &["engine/mod.rs:2 import-up"],
    );
    fires(
        &[("engine/mod.rs", "use crate::*;")],
        &["engine/mod.rs:2 import-root"],
    );
    fires(
        &[("engine/mod.rs", "use crate::Unknown;")],
        &["engine/mod.rs:2 import-root"],
    );
}

#[test]
fn imports_of_tests_and_words_in_prose_are_free() {
    let text = "// crate::db::Db\n#[cfg(test)]\nmod tests { use crate::db::Db; }";
    fires(&[("parts/log.rs", text)], &[]);
    let text = "fn f() -> &'static str { \"crate::db\" }\npub(in crate::db) fn g() { crate::m!() }";
    fires(&[("parts/log.rs", text)], &[]);
    let files = [
        ("parts/log.rs", "#[cfg(test)]\nmod tests;"),
        ("parts/log/tests.rs", "use crate::db::Db;"),
    ];
    fires(&files, &[]);
    let text = "#[cfg(not(test))]\nmod inner { use crate::db::Db; }";
    fires(&[("parts/log.rs", text)], &["parts/log.rs:3 import-up"]);
}

#[test]
fn a_concrete_stage_outside_designs_fires() {
    let import = "use crate::stages::front::wal::Wal;";
    fires(
        &[("engine/mod.rs", import)],
        &["engine/mod.rs:2 import-stage"],
    );
    fires(&[("db/mod.rs", import)], &["db/mod.rs:2 import-stage"]);
    let sibling = ("stages/bottom/repository/copy.rs", import);
    fires(
        &[sibling],
        &["stages/bottom/repository/copy.rs:2 import-stage"],
    );
    let again = ("stages/front/mod.rs", "pub mod wal; pub use wal::Wal;");
    fires(&[again], &["stages/front/mod.rs:2 import-stage"]);
}

#[test]
fn a_top_level_module_outside_the_layers_fires() {
    let root = "mod db; mod designs; mod engine; mod stages; mod parts; mod error; mod extra;";
    let files = [("lib.rs", root), ("extra.rs", ""), ("engine/mod.rs", "")];
    fires(&files, &["extra.rs:1 import-root"]);
}

#[test]
fn a_wide_comment_fires() {
    let wide = |line: &str| format!("//! It.\n{line}{}\n", "x".repeat(100 - line.len()));
    fires(&[("error.rs", &wide("/// "))], &[]);
    fires(
        &[("error.rs", &wide("    // ").replace("xx\n", "xxx\n"))],
        &["error.rs:2 width"],
    );
    fires(
        &[("error.rs", &wide("// | a | ").replace("xx\n", "xxx\n"))],
        &[],
    );
}

#[test]
fn the_marker_of_a_merge_fires() {
    let half = format!("//! It.\n{} HEAD\nconst A: u8 = 1;\n", "<".repeat(7));
    fires(&[("error.rs", &half)], &["error.rs:2 merge"]);
    let other = format!("//! It.\n{} wtests\n", ">".repeat(7));
    fires(&[("error.rs", &other)], &["error.rs:2 merge"]);
}

#[test]
fn a_file_without_a_header_fires() {
    fires(&[("/crates/terrace/build.rs", "//! It.")], &[]);
    let mut tree = Tree::default();
    tree.add("crates/terrace/tests/it/main.rs", "mod x;\n//! Late.\n");
    assert_eq!(
        check(&tree).iter().map(|v| v.rule).collect::<Vec<_>>(),
        ["header"]
    );
}

#[test]
fn a_byte_outside_ascii_fires() {
    fires(
        &[("error.rs", "fn f() {}\n// 3 \u{b5}s")],
        &["error.rs:3 ascii"],
    );
    fires(&[("/Cargo.toml", "# \u{b5}")], &["Cargo.toml:1 ascii"]);
    fires(&[("/docs/x.md", "\u{b5}")], &[]);
}

#[test]
fn an_empty_name_fires() {
    let files = [
        ("parts/mod.rs", "pub mod log; mod util;"),
        ("parts/util.rs", ""),
    ];
    fires(&files, &["parts/util.rs:1 module-name"]);
    fires(
        &[("parts/log.rs", "mod common { }")],
        &["parts/log.rs:2 module-name"],
    );
    fires(
        &[("/crates/x/tests/it/helpers/mod.rs", "")],
        &["crates/x/tests/it/helpers/mod.rs:1 module-name"],
    );
}

#[test]
fn a_layout_outside_its_file_fires() {
    let text = "#[repr(C, align(64))]\nstruct Header;";
    fires(&[("parts/log.rs", text)], &["parts/log.rs:2 layout"]);
    fires(
        &[("parts/log.rs", "#[repr(transparent)]\nstruct Header;")],
        &[],
    );
    fires(
        &[
            ("parts/mod.rs", "pub mod log; mod layout;"),
            ("parts/layout.rs", text),
        ],
        &[],
    );
}

#[test]
fn an_unfinished_mark_fires() {
    for mark in [concat!("// TO", "DO: x"), concat!("fn f() { to", "do!() }")] {
        fires(&[("error.rs", mark)], &["error.rs:2 unfinished"]);
    }
    let ignored = concat!("#[ig", "nore = \"slow\"]\nfn f() {}");
    fires(&[("error.rs", ignored)], &["error.rs:2 unfinished"]);
    fires(&[("error.rs", concat!("// mastoTO", "DOn"))], &[]);
}

#[test]
fn a_file_that_no_module_declares_fires() {
    fires(&[("parts/lost.rs", "")], &["parts/lost.rs:1 unreachable"]);
    let commented = [
        ("parts/mod.rs", "pub mod log; // mod lost;"),
        ("parts/lost.rs", ""),
    ];
    fires(&commented, &["parts/lost.rs:1 unreachable"]);
    let nested = [
        ("parts/log.rs", "mod a { mod b; }"),
        ("parts/log/a/b.rs", ""),
    ];
    fires(&nested, &[]);
    fires(
        &[
            ("/crates/x/src/bin/tool.rs", "mod a;"),
            ("/crates/x/src/bin/a.rs", ""),
        ],
        &[],
    );
}

#[test]
fn unsafe_code_outside_its_places_fires() {
    let text = "fn f() { unsafe { g() } }";
    fires(&[("parts/log.rs", text)], &["parts/log.rs:2 unsafe"]);
    fires(&[("/crates/terrace-media/src/lib.rs", text)], &[]);
    fires(&[("parts/log.rs", "// unsafe\n#![deny(unsafe_code)]")], &[]);
}

#[test]
fn an_unexplained_ordering_fires() {
    let call = "fn f() {\n    region.fence(p);\n}";
    fires(
        &[("parts/log.rs", call)],
        &["parts/log.rs:3 persist-comment"],
    );
    let near = format!("// PERSIST: a before b.{}{call}", "\n".repeat(5));
    fires(&[("parts/log.rs", &near)], &[]);
    let far = format!("// PERSIST: a before b.{}{call}", "\n".repeat(6));
    fires(
        &[("parts/log.rs", &far)],
        &["parts/log.rs:9 persist-comment"],
    );
    let test = "#[cfg(test)]\nmod tests { fn f() { region.publish(1); } }";
    fires(&[("parts/log.rs", test)], &[]);
    fires(&[("parts/log.rs", "fn fence(p: P) {}")], &[]);
}

#[test]
fn a_broken_link_fires() {
    let good = "[a](b.md#x) [b](../README.md) [c](https://example.org) `[d](e)` [f](#g) [h](..)";
    let files = [
        ("/docs/a.md", good),
        ("/docs/b.md", "[self]: a.md"),
        ("/README.md", ""),
    ];
    fires(&files, &[]);
    fires(&[("/a.md", "x\n[a](lost.md)")], &["a.md:2 link"]);
    fires(&[("/a.md", "[a]: lost.md")], &["a.md:1 link"]);
    fires(
        &[("/a.md", "[a](../a.md) [b](/a.md)")],
        &["a.md:1 link", "a.md:1 link"],
    );
    fires(&[("/a.md", "```\n[a](lost.md)\n```")], &[]);
}

#[test]
fn the_scanner_skips_literals_and_keeps_lines() {
    let text = "let a = r#\"mod \" x;\"#; let b = b\"\\\"mod\"; let c = '\"'; let d: &'a str;\n/* /* */ mod */ mod y;";
    let source = Source::parse("x.rs", text);
    let mods: Vec<usize> = source
        .tokens
        .iter()
        .filter(|token| token.text == "mod")
        .map(|token| token.line)
        .collect();
    assert_eq!(mods, [2]);
}

#[test]
fn a_violation_reads_as_one_line() {
    let violation = Violation::new("a/b.rs", 7, "header", "add it");
    assert_eq!(violation.to_string(), "a/b.rs:7: header: add it");
}

/// Lines of code are those that are neither comments nor tests.
#[test]
fn comments_and_tests_are_no_lines_of_code() {
    let mut tree = Tree::default();
    let text = "//! It.\n\nmod parts;\n// Why.\nfn f() {\n    g();\n}\n#[cfg(test)]\nmod tests {\n    fn t() {}\n}\n";
    tree.add("crates/store/src/lib.rs", text);
    tree.add("crates/store/src/parts/mod.rs", "//! It.\nfn g() {}\n");
    let counted = lines(&tree);
    let counted: Vec<&str> = counted.split_whitespace().collect();
    assert_eq!(counted, ["store", "5", "parts", "1", "all", "5"]);
}
