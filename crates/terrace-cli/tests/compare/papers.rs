//! This test reads every file of papers/.

use std::fs;
use std::path::Path;

use super::super::{terrace, text};

/// Every file of a paper can be run, and says what its paper says.
#[test]
fn papers_can_be_run() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../papers");
    let mut files = 0;
    for entry in fs::read_dir(folder).expect("the folder").flatten() {
        let file = entry.path();
        let source = fs::read_to_string(&file).expect("a file");
        let mut run = terrace();
        run.args(["bench", "compare", "--dry-run"]).arg(&file);
        let output = run.output().expect("it runs");
        assert!(output.status.success(), "{}", text(&output.stderr));
        let lines = text(&output.stdout);
        assert!(
            lines.contains("--memtable-size"),
            "{}: {lines}",
            file.display()
        );
        for part in ["[paper]", "scale = 64", "[[paper.value]]", "source = "] {
            assert!(source.contains(part), "{part} in {}", file.display());
        }
        files += 1;
    }
    assert!(files >= 9, "{files}");
}
