//! The errors of a child before its guest begins.

use crate::quantity::Timeout;

/// Why there is no child for a run, or no guest in its child. Another child may have more luck.
#[derive(Debug, thiserror::Error)]
pub enum ChildError {
    /// The machine's, in the server.
    #[error(transparent)]
    System(#[from] std::io::Error),
    /// The task that starts zygotes panicked.
    #[error(transparent)]
    Panicked(#[from] tokio::task::JoinError),
    /// The process that forks children is gone.
    #[error("its zygote ended")]
    ZygoteEnded,
    /// The descriptor of the child did not arrive.
    #[error("the server has no room for a descriptor")]
    NoDescriptor,
    /// The words of the zygote or of the child, which are other processes.
    #[error("{0}")]
    Reported(String),
    /// The kernel's words about the end of the child.
    #[error("{0}")]
    Ended(String),
    /// A child that describes a tool sent something else.
    #[error("its process said what a description does not say")]
    NoDescription,
    /// The tool took too long to describe itself.
    #[error("`describe` did not answer within {0}")]
    DescribeTimeout(Timeout),
    /// A description that nobody wants to hold.
    #[error("its description has {bytes} bytes, and {max_bytes} are the most")]
    LongDescription {
        /// Its size.
        bytes: usize,
        /// The limit.
        max_bytes: usize,
    },
}
