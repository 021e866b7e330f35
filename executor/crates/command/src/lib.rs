//! The parts that the commands of the program share: their output, the options of a configuration, the set-up of the
//! sandbox and the catalogue, the files that were installed with the program, and the executor of a command that runs
//! tools by itself.

pub mod installed;
pub mod layout;
pub mod local_run;
pub mod output;
pub mod setup;

/// The error of a command line that is not valid. The exit code is 2, as for an error of clap.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct UsageError(pub String);
