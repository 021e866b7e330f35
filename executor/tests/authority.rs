//! `Authority` from outside of the crate, where the program is used as a library.

use a2g_capability::Authority;

#[test]
fn a_process_has_one_authority() {
    {
        let authority = Authority::take();
        assert!(authority.is_some());
        assert!(Authority::take().is_none(), "the authority exists");
    }
    assert!(Authority::take().is_none(), "the authority is gone, and no second one is made");
    assert!(Authority::for_engine().is_none(), "nor is one for an engine of its own");
}
