//! The list of changes that a table describes.
