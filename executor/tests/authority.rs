//! The authority that a program has that uses this one as a library.

use a2g_executor::capability::Authority;

#[test]
fn a_process_has_one_authority() {
    let first = Authority::take();
    assert!(first.is_some());
    assert!(Authority::take().is_none(), "it is taken");
    drop(first);
    assert!(Authority::take().is_none(), "it was taken");
}
