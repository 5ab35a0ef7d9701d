//! Rules about bytes that survive: layouts in one place, unsafe code in few, orderings explained.

use super::Violation;
use super::source::Source;

/// Where unsafe code may stand, by path, and why it must.
const UNSAFE_PLACES: &[(&str, &str)] = &[
    (
        "crates/terrace-media/",
        "mapped memory, flush and fence instructions",
    ),
    (
        "crates/terrace-bench/src/store/leveldb/ffi.rs",
        "a peer of the benchmark: the C interface of its library",
    ),
    (
        "crates/terrace-bench/src/store/lmdb.rs",
        "a peer of the benchmark: it reads through a memory map",
    ),
    (
        "crates/terrace-testkit/src/heap.rs",
        "a counting allocator; implementing one is unsafe",
    ),
];

/// Calls that order writes to the media.
const ORDERING_CALLS: &[&str] = &["fence", "persist", "publish"];

/// How many lines above an ordering call its comment may stand.
const PERSIST_LINES: usize = 6;

/// The sources whose ordering calls must be explained; the media crate implements them.
const STORE_SRC: &str = "crates/terrace/src/";

/// Checks one source; `test` says that only tests compile it.
pub(crate) fn check(source: &Source, test: bool, violations: &mut Vec<Violation>) {
    let unsafe_allowed = UNSAFE_PLACES
        .iter()
        .any(|(place, _)| source.path.starts_with(place));
    let is_layout = source.path.ends_with("/layout.rs");
    for (at, token) in source.tokens.iter().enumerate() {
        let mut report = |rule, advice: String| {
            violations.push(Violation::new(&source.path, token.line, rule, advice));
        };
        match token.text.as_str() {
            "unsafe" if !unsafe_allowed => report(
                "unsafe",
                "move the unsafe code to terrace-media, or list this place with its reason".into(),
            ),
            "repr" if !is_layout && !token.test && !test && has_c(source, at) => {
                report(
                    "layout",
                    "a struct that reaches media belongs in a `layout.rs`".into(),
                );
            }
            word if ORDERING_CALLS.contains(&word) => {
                let call = source.word_before(at) == "." && source.word(at + 1) == "(";
                let store = source.path.starts_with(STORE_SRC) && !token.test && !test;
                if call && store && !is_explained(source, token.line) {
                    report(
                        "persist-comment",
                        format!(
                            "add a `PERSIST:` comment that says what `{word}` makes durable \
                                 first"
                        ),
                    );
                }
            }
            _ => {}
        }
    }
}

/// Whether the `repr` at `at` asks for the C layout.
fn has_c(source: &Source, at: usize) -> bool {
    source.word(at + 1) == "("
        && (at + 2..source.tokens.len())
            .map(|at| source.word(at))
            .take_while(|word| *word != "]")
            .any(|word| word == "C")
}

fn is_explained(source: &Source, line: usize) -> bool {
    let from = line.saturating_sub(1 + PERSIST_LINES);
    source.lines[from..line]
        .iter()
        .any(|line| line.contains("// PERSIST:"))
}
