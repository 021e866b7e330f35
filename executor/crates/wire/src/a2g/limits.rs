//! The limits of a layer as members of messages. The table of limits has their names and ranges.

use crate::field::Object;
use a2g_types::fault::Fault;
use a2g_types::limit::{ClaimedLimits, Group, LIMITS, Layer, LimitRow};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::ser::SerializeMap as _;
use serde::{Serialize, Serializer};
use serde_json::{Map, json};
use std::borrow::Cow;
use std::marker::PhantomData;

/// A place for limits in a message.
pub(super) trait LimitPlace {
    /// The layer that sets the limits there.
    const LAYER: Layer;

    /// `true` if the limit of this row has a member there.
    fn has(row: &LimitRow) -> bool;

    /// The rows of its members.
    fn rows() -> impl Iterator<Item = &'static LimitRow> {
        LIMITS.iter().filter(|row| Self::has(row))
    }
}

macro_rules! places {
    ($($(#[$doc:meta])* $place:ident of $layer:ident: |$row:ident| $has:expr;)+) => {
        $($(#[$doc])*
        pub(super) enum $place {}

        impl LimitPlace for $place {
            const LAYER: Layer = Layer::$layer;

            fn has($row: &LimitRow) -> bool {
                $has
            }
        })+
    };
}

places! {
    /// A capability manifest.
    InManifest of Verdict: |row| row.is_set_by(Layer::Verdict);
    /// The capabilities of a tool.
    InTool of Tool: |row| row.is_set_by(Layer::Tool) && row.group != Group::Calls;
    /// The capabilities of a tool that calls others.
    InToolCalls of Tool: |row| row.is_set_by(Layer::Tool) && row.group == Group::Calls;
    /// A standing policy, for all tools.
    InResources of StandingPolicy: |row| row.is_set_by(Layer::StandingPolicy) && row.is_for_all_tools();
    /// A standing policy, for one tool.
    InConstraints of StandingPolicy: |row| row.is_set_by(Layer::StandingPolicy) && !row.is_for_all_tools();
    /// Those of [`InConstraints`] that are not of calls.
    InRunConstraints of StandingPolicy: |row| InConstraints::has(row) && row.group != Group::Calls;
    /// Those of [`InConstraints`] that are of calls.
    InCallConstraints of StandingPolicy: |row| InConstraints::has(row) && row.group == Group::Calls;
}

/// Reads the limits of a place. A member that is absent sets no limit.
pub(super) fn read<P: LimitPlace>(object: &mut Object<'_>) -> Result<ClaimedLimits, Fault> {
    let mut limits = ClaimedLimits::default();
    for row in P::rows() {
        let amount = |number| row.parse_amount(P::LAYER, number);
        limits[row.limit] = object.read_optional_with(row.key(), |field| field.quantity(amount))?;
    }
    Ok(limits)
}

/// The members for the limits of a place. One that is not set is absent.
pub(super) struct LimitMembers<P> {
    limits: ClaimedLimits,
    place: PhantomData<P>,
}

impl<P: LimitPlace> LimitMembers<P> {
    pub(super) fn new(limits: ClaimedLimits) -> Self {
        Self { limits, place: PhantomData }
    }
}

impl<P: LimitPlace> Serialize for LimitMembers<P> {
    fn serialize<S: Serializer>(&self, writer: S) -> Result<S::Ok, S::Error> {
        let mut map = writer.serialize_map(None)?;
        for (row, amount) in self.limits.claimed().filter(|(row, _)| P::has(row)) {
            map.serialize_entry(row.key(), &row.to_number(amount))?;
        }
        map.end()
    }
}

impl<P: LimitPlace> JsonSchema for LimitMembers<P> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "LimitMembers".into()
    }

    fn json_schema(_generator: &mut SchemaGenerator) -> Schema {
        let member = |row: &LimitRow| {
            let range = row.range_for(P::LAYER);
            json!({ "type": "integer", "minimum": range.start(), "maximum": range.end() })
        };
        let properties = P::rows().map(|row| (row.key().to_owned(), member(row))).collect::<Map<_, _>>();
        json_schema!({ "type": "object", "properties": properties })
    }
}
