//! The implementation of [`Context`](crate::Context): calls to the executor on WebAssembly, a recording natively.
//!
//! Both have the same methods, so the rest of the crate does not depend on the target.

#[cfg(not(target_family = "wasm"))]
pub(crate) use recording::Host;
#[cfg(target_family = "wasm")]
pub(crate) use wasm::Host;

/// Calls the imports of the world.
#[cfg(target_family = "wasm")]
mod wasm {
    use crate::bindings::a2g::tool::{calls, host};
    use crate::{Level, ToolDefinition, ToolError, ToolSummary};

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

        pub(crate) fn tools(&self) -> Vec<ToolSummary> {
            calls::list().into_iter().map(Into::into).collect()
        }

        pub(crate) fn definition(&self, name: &str) -> Result<ToolDefinition, ToolError> {
            Ok(calls::describe(name)?.into())
        }

        pub(crate) fn call(&self, name: &str, arguments: &str) -> Result<String, ToolError> {
            Ok(calls::call(name, arguments)?)
        }

        pub(crate) fn start(&self, name: &str, arguments: &str) -> u32 {
            calls::start(name, arguments)
        }

        pub(crate) fn wait(&self, numbers: &[u32]) -> Result<(u32, Result<String, ToolError>), ToolError> {
            let calls::Finished { call, outcome } = calls::wait(numbers)?;
            Ok((call, outcome.map_err(Into::into)))
        }
    }
}

/// Records the reports of the tool for the author's tests.
#[cfg(not(target_family = "wasm"))]
mod recording {
    use std::cell::RefCell;

    use crate::testing::{Record, tools};
    use crate::{Level, ToolDefinition, ToolError, ToolSummary};

    #[derive(Debug, Default)]
    pub(crate) struct Host {
        record: RefCell<Record>,
        /// The outcome of each call, until it is taken.
        calls: RefCell<Vec<Option<Result<String, ToolError>>>>,
    }

    impl Host {
        pub(crate) fn log(&self, level: Level, message: &str) {
            self.record.borrow_mut().log(level, message);
        }

        pub(crate) fn progress(&self, percent: Option<f32>, message: &str) {
            self.record.borrow_mut().progress(percent, message);
        }

        /// Records the chunk. Only the executor enforces the rules for names and media types.
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

        pub(crate) fn tools(&self) -> Vec<ToolSummary> {
            tools::list()
        }

        pub(crate) fn definition(&self, name: &str) -> Result<ToolDefinition, ToolError> {
            tools::describe(name)
        }

        pub(crate) fn call(&self, name: &str, arguments: &str) -> Result<String, ToolError> {
            let number = self.start(name, arguments);
            self.take(number)?
        }

        pub(crate) fn start(&self, name: &str, arguments: &str) -> u32 {
            // `calls` is borrowed only after this line, because the test's closure may start calls itself.
            let outcome = tools::call(name, arguments);
            let mut calls = self.calls.borrow_mut();
            calls.push(Some(outcome));
            u32::try_from(calls.len()).unwrap_or(u32::MAX)
        }

        pub(crate) fn wait(&self, numbers: &[u32]) -> Result<(u32, Result<String, ToolError>), ToolError> {
            let first = numbers
                .first()
                .ok_or_else(|| ToolError::new("unknown_call", "name at least one call to wait for"))?;
            Ok((*first, self.take(*first)?))
        }

        fn take(&self, number: u32) -> Result<Result<String, ToolError>, ToolError> {
            let mut calls = self.calls.borrow_mut();
            let place = usize::try_from(number).unwrap_or(usize::MAX).wrapping_sub(1);
            calls.get_mut(place).and_then(Option::take).ok_or_else(|| {
                ToolError::new(
                    "unknown_call",
                    format!("no call {number} is pending: its outcome was taken, or it was not started"),
                )
            })
        }

        pub(crate) fn record(&self) -> Record {
            self.record.borrow().clone()
        }
    }
}
