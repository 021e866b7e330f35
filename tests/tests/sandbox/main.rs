//! Hostile guests: tools that try to leave their sandbox, or to take more than they are granted.

mod hostile;
