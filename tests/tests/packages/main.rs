//! Tools: how authors make, describe, sign and fetch them, and the collections of others.

mod authoring;
mod catalogue;
mod collections;
mod definitions;
mod languages;
mod openapi;
mod python_packages;
mod registry;
mod remote_mcp;
mod science;
mod signatures;
mod tools;
