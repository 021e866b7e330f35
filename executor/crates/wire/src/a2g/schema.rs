//! The JSON Schemas of enums, and of integers with a maximum.
//!
//! The schema of each message is derived from its type in [`super::message`]. The schemas of the member types are
//! defined here, so that their ranges and names are those of the decoder and the enum.

use a2g_types::durability::Durability;
use a2g_types::limit::{Access, FileEffects, Layer};
use a2g_types::outcome::{
    ChangeState, ChangeWord, DecisionAct, DenialReason, EntryWord, LogLevel, NestedEnd, Status,
};
use a2g_types::session::SessionEnd;
use a2g_types::tool::{Contract, DeclaredFilesystem};
use a2g_types::verdict::{Decision, RiskLevel};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Serialize, Serializer};
use std::borrow::Cow;
use strum::VariantArray;

/// An enum whose names have their own schema in the published document.
pub(super) trait WireEnum: Copy + Into<&'static str> + VariantArray {
    /// The name of the schema.
    const NAME: &'static str;
}

/// A variant of an enum, serialized as its name.
pub(super) struct WireName<T>(pub(super) T);

impl<T: WireEnum> Serialize for WireName<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.0.into())
    }
}

impl<T: WireEnum> JsonSchema for WireName<T> {
    fn schema_name() -> Cow<'static, str> {
        T::NAME.into()
    }

    fn json_schema(_generator: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "enum": names::<T>() })
    }
}

/// The names of an enum's variants, in their order.
pub(super) fn names<T: Copy + Into<&'static str> + VariantArray>() -> Vec<&'static str> {
    T::VARIANTS.iter().map(|variant| (*variant).into()).collect()
}

macro_rules! wire_enums {
    ($($name:literal: $set:ty),* $(,)?) => {
        $(impl WireEnum for $set {
            const NAME: &'static str = $name;
        })*
    };
}

wire_enums! {
    "Access": Access,
    "ChangeKind": ChangeWord,
    "ChangeState": ChangeState,
    "Contract": Contract,
    "Decision": Decision,
    "DecisionAct": DecisionAct,
    "DeclaredFilesystem": DeclaredFilesystem,
    "DenialReason": DenialReason,
    "Durability": Durability,
    "EntryKind": EntryWord,
    "FileEffects": FileEffects,
    "LogLevel": LogLevel,
    "NestedEnd": NestedEnd,
    "RiskLevel": RiskLevel,
    "SessionEndReason": SessionEnd,
    "SetBy": Layer,
    "Status": Status,
}

/// An integer from 1 to `MAX`.
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
