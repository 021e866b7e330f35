//! The other side of [`Context`](crate::Context): the executor on WebAssembly, a recording natively.
//!
//! Both offer the same three methods, so that the rest of the crate does not know which one it has.

#[cfg(not(target_family = "wasm"))]
pub(crate) use recording::Host;
#[cfg(target_family = "wasm")]
pub(crate) use wasm::Host;

/// Calls the imports of the world.
#[cfg(target_family = "wasm")]
mod wasm {
    use crate::Level;
    use crate::bindings::a2g::tool::host;

    #[derive(Debug, Default)]
    pub(crate) struct Host;

    impl Host {
        pub(crate) fn log(&self, level: Level, message: &str) {
            host::log(level.into(), message);
        }

        pub(crate) fn progress(&self, percent: Option<f32>, message: &str) {
            host::progress(percent, message);
        }

        pub(crate) fn artifact(&self, name: &str, mime: &str, chunk: &[u8], last: bool) {
            host::artifact(name, mime, chunk, last);
        }
    }
}

/// Keeps what the tool reported, for the author's tests.
#[cfg(not(target_family = "wasm"))]
mod recording {
    use std::cell::RefCell;

    use crate::Level;
    use crate::testing::Record;

    #[derive(Debug, Default)]
    pub(crate) struct Host {
        record: RefCell<Record>,
    }

    impl Host {
        pub(crate) fn log(&self, level: Level, message: &str) {
            self.record.borrow_mut().log(level, message);
        }

        pub(crate) fn progress(&self, percent: Option<f32>, message: &str) {
            self.record.borrow_mut().progress(percent, message);
        }

        pub(crate) fn artifact(&self, name: &str, mime: &str, chunk: &[u8], last: bool) {
            self.record.borrow_mut().artifact(name, mime, chunk, last);
        }

        pub(crate) fn record(&self) -> Record {
            self.record.borrow().clone()
        }
    }
}
