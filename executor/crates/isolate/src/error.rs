//! The errors of a child before its guest begins.

use a2g_types::quantity::Timeout;

/// A run has no child, or its child has not started the guest. Another child may succeed.
#[derive(Debug, thiserror::Error)]
pub enum ChildError {
    /// An I/O error in the server.
    #[error(transparent)]
    System(#[from] std::io::Error),
    /// The task that starts zygotes panicked.
    #[error(transparent)]
    Panicked(#[from] tokio::task::JoinError),
    /// The process that forks children has ended.
    #[error("the zygote, which forks the processes of runs, has ended")]
    ZygoteEnded,
    /// The child's pidfd did not arrive.
    #[error("the server has reached its limit on open descriptors (`RLIMIT_NOFILE`)")]
    NoDescriptor,
    /// The tool is not among those that children can receive.
    #[error("its code was not given to the processes of runs")]
    UnknownTool,
    /// The reason that the zygote or the child sent.
    #[error("{0}")]
    Reported(String),
    /// The end of the child, as the kernel reports it.
    #[error("{0}")]
    Ended(String),
    /// A child that was to describe its tool sent a message of another kind.
    #[error("its process sent a message that is not part of a description")]
    NoDescription,
    /// The tool did not describe itself in time.
    #[error("`describe` did not answer within {0}")]
    DescribeTimeout(Timeout),
    /// The description exceeds its size limit.
    #[error("its description has {bytes} bytes; the limit is {max_bytes}")]
    LongDescription {
        /// The size of the description, in bytes.
        bytes: usize,
        /// The limit, in bytes.
        max_bytes: usize,
    },
}
