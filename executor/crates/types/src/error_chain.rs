//! Formats an error with its causes on one line, for the log and for the operator's terminal.
//!
//! Errors of this program do not repeat the text of their source. A caller receives a [`Fault`](crate::fault::Fault),
//! never a chain. An error whose text quotes an inner error holds that error in a typed field, not as its source. An
//! error that is stored or sent to another process becomes text.

use std::error::Error;
use std::fmt;

/// An error of another crate, or of one of several crates.
pub type BoxedError = Box<dyn Error + Send + Sync>;

/// Displays an error and its sources, outermost first, with `: ` between them.
#[derive(Debug, Clone, Copy)]
pub struct ErrorChain<'a>(pub &'a (dyn Error + 'static));

impl fmt::Display for ErrorChain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut outer = self.0.to_string();
        f.write_str(&outer)?;
        let mut source = self.0.source();
        while let Some(error) = source {
            let text = error.to_string();
            // Some errors end their text with that of their source, and also return the source.
            if !outer.ends_with(&text) {
                write!(f, ": {text}")?;
                outer = text;
            }
            source = error.source();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    enum Example {
        #[error("the tool cannot be loaded")]
        Plain(#[source] std::io::Error),
        #[error("the tool cannot be loaded: {0}")]
        Repeating(#[source] std::io::Error),
        #[error(transparent)]
        Transparent(BoxedError),
    }

    #[test]
    fn each_text_is_printed_once() {
        let cause = || std::io::Error::other(std::fmt::Error);
        for (error, expected) in [
            (Example::Plain(cause()), format!("the tool cannot be loaded: {}", cause())),
            (Example::Repeating(cause()), format!("the tool cannot be loaded: {}", cause())),
            (
                Example::Transparent(Box::new(Example::Plain(cause()))),
                format!("the tool cannot be loaded: {}", cause()),
            ),
        ] {
            assert_eq!(ErrorChain(&error).to_string(), expected);
        }
    }
}
