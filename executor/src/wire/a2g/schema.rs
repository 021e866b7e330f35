//! The JSON Schemas of the vocabulary: its names, its quantities and its closed sets of words.
//!
//! The schema of each message is derived from its type in [`super::message`]. The schemas of the member types are
//! defined here, so that a range or a word in a schema is that of the decoder and the enum.

use crate::durability::Durability;
use crate::ident::{AgentDid, IntentId, ToolName};
use crate::limit::{Access, Layer};
use crate::outcome::{DenialReason, LogLevel, Status};
use crate::quantity::{CpuPercent, MemoryLimit, OutputLimit, Timeout};
use crate::tool::{Contract, DeclaredFilesystem};
use crate::verdict::{Decision, RiskLevel};
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

macro_rules! schemas {
    (inline: $inline:literal; $($type:ident: $schema:tt),* $(,)?) => {
        $(impl JsonSchema for $type {
            fn inline_schema() -> bool {
                $inline
            }

            fn schema_name() -> Cow<'static, str> {
                stringify!($type).into()
            }

            fn json_schema(_generator: &mut SchemaGenerator) -> Schema {
                json_schema!($schema)
            }
        })*
    };
}

schemas! {
    inline: false;
    AgentDid: { "type": "string", "pattern": "^did:[a-z0-9]+:[A-Za-z0-9._:%-]+$", "maxLength": 256 },
    IntentId: { "type": "string", "format": "uuid" },
    ToolName: { "type": "string", "pattern": "^[A-Za-z][A-Za-z0-9_.-]{0,63}$" },
}

schemas! {
    inline: true;
    MemoryLimit: { "type": "integer", "minimum": 1, "maximum": MemoryLimit::MAX_MB },
    CpuPercent: { "type": "integer", "minimum": 1, "maximum": CpuPercent::MAX },
    // A caller may ask for less than a second.
    Timeout: { "type": "number", "exclusiveMinimum": 0, "maximum": Timeout::MAX_SECONDS },
    OutputLimit: { "type": "integer", "minimum": 1, "maximum": OutputLimit::MAX_BYTES },
}
