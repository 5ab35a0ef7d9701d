//! A panic of a thread of the store fails the case during which it happens.

use terrace_testkit::shrink::guarded;

use crate::alone::alone;

/// A case during which such a thread panics fails, even if it returns success. Panics of other
/// threads are not recorded.
#[test]
fn a_panic_of_a_thread_is_a_failure() {
    // Panics are recorded for a whole process.
    alone("panics::a_panic_of_a_thread_is_a_failure", panics);
}

fn panics() {
    let run = |name: &str| {
        let name = name.to_owned();
        guarded(move || {
            let thread = std::thread::Builder::new().name(name);
            let thread = thread
                .spawn(|| panic!("on purpose"))
                .map_err(|e| e.to_string())?;
            drop(thread.join());
            Ok(())
        })
    };
    let failed = run("terrace-7").unwrap_err();
    assert!(failed.contains("on purpose"), "{failed}");
    assert_eq!(run("another"), Ok(()));
}
