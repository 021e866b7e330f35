//! The JSON Schemas of names and quantities, for the published documents of every protocol.

use crate::ident::{AgentDid, IntentId, ToolName};
use crate::quantity::{CpuPercent, MemoryLimit, OutputLimit, Timeout};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use std::borrow::Cow;

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
