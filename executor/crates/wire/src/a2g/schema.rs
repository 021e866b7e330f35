//! The JSON Schemas of the closed sets of words, and of integers with a maximum.
//!
//! The schema of each message is derived from its type in [`super::message`]. The schemas of the member types are
//! defined here, so that a range or a word in a schema is that of the decoder and the enum.

use a2g_types::durability::Durability;
use a2g_types::limit::{Access, Layer};
use a2g_types::outcome::{DenialReason, LogLevel, Status};
use a2g_types::tool::{Contract, DeclaredFilesystem};
use a2g_types::verdict::{Decision, RiskLevel};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Serialize, Serializer};
use std::borrow::Cow;
use strum::VariantArray;

/// A closed set whose words have a schema of their own in the published document.
pub(super) trait ClosedSet: Copy + Into<&'static str> + VariantArray {
    /// The name of its schema.
    const NAME: &'static str;
}

/// A value of a closed set, serialised as its word.
pub(super) struct Word<T>(pub(super) T);

impl<T: ClosedSet> Serialize for Word<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.0.into())
    }
}

impl<T: ClosedSet> JsonSchema for Word<T> {
    fn schema_name() -> Cow<'static, str> {
        T::NAME.into()
    }

    fn json_schema(_generator: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "enum": words::<T>() })
    }
}

/// The words of a closed set, in the order of its variants.
pub(super) fn words<T: Copy + Into<&'static str> + VariantArray>() -> Vec<&'static str> {
    T::VARIANTS.iter().map(|variant| (*variant).into()).collect()
}

macro_rules! closed_sets {
    ($($name:literal: $set:ty),* $(,)?) => {
        $(impl ClosedSet for $set {
            const NAME: &'static str = $name;
        })*
    };
}

closed_sets! {
    "Access": Access,
    "Contract": Contract,
    "Decision": Decision,
    "DeclaredFilesystem": DeclaredFilesystem,
    "DenialReason": DenialReason,
    "Durability": Durability,
    "LogLevel": LogLevel,
    "RiskLevel": RiskLevel,
    "SetBy": Layer,
    "Status": Status,
}

/// An integer from 1 to `MAX`, as the configuration accepts it.
#[derive(Serialize)]
pub(super) struct UpTo<const MAX: u64>(pub(super) u64);

impl<const MAX: u64> JsonSchema for UpTo<MAX> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        format!("UpTo{MAX}").into()
    }

    fn json_schema(_generator: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "integer", "minimum": 1, "maximum": MAX })
    }
}
