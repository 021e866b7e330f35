//! The files as a program sees them: the originals, with its changes laid over them.
