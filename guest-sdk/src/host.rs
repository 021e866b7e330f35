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
    use crate::bindings::a2g::tool::host;
    use crate::{Level, ToolError};

    #[derive(Debug, Default)]
    pub(crate) struct Host;

    impl Host {
        pub(crate) fn log(&self, level: Level, message: &str) {
            host::log(level.into(), message);
        }

        pub(crate) fn progress(&self, percent: Option<f32>, message: &str) {
            host::progress(percent, message);
        }

        pub(crate) fn artifact(
            &self,
            name: &str,
            mime: &str,
            chunk: &[u8],
            last: bool,
        ) -> Result<(), ToolError> {
            host::artifact(name, mime, chunk, last)
                .map_err(|refused| ToolError::new(refused.code, refused.message))
        }
    }
}

/// Keeps what the tool reported, for the author's tests.
#[cfg(not(target_family = "wasm"))]
mod recording {
    use std::cell::RefCell;

    use crate::testing::Record;
    use crate::{Level, ToolError};

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

        /// The rules for names and types are the executor's, so that a recording takes any.
        #[allow(clippy::unnecessary_wraps, reason = "the host of a component can refuse")]
        pub(crate) fn artifact(
            &self,
            name: &str,
            mime: &str,
            chunk: &[u8],
            last: bool,
        ) -> Result<(), ToolError> {
            self.record.borrow_mut().artifact(name, mime, chunk, last);
            Ok(())
        }

        pub(crate) fn record(&self) -> Record {
            self.record.borrow().clone()
        }
    }
}
