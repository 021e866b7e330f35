//! Nothing: the integration tests are in `tests/`.
