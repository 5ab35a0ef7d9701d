//! The build script: passes the commit of the git repository, if any, to the benchmark, which names
//! it in every result.

use std::process::Command;

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_string())
}

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let Some(commit) = git(&["rev-parse", "--short=12", "HEAD"]) else {
        return;
    };
    println!("cargo::rustc-env=TERRACE_BENCH_COMMIT={commit}");
    // Both change with each commit and each checkout; a path that does not exist would cause a
    // rebuild every time.
    for name in ["HEAD", "logs/HEAD"] {
        if let Some(path) = git(&["rev-parse", "--git-path", name])
            && let Ok(path) = std::fs::canonicalize(path)
        {
            println!("cargo::rerun-if-changed={}", path.display());
        }
    }
}
