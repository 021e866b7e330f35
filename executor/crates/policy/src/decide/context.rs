//! What policies read of a call: `context`, made without JSON and without the schema, because every decision makes
//! some.

use crate::facts::{CallFacts, History, Past, Subject, Window};
use crate::schema::{CedarType, EntityKind, Record};
use crate::set::CedarSet;
use cedar_policy::{Context, RestrictedExpression};
use serde_json::{Map, Value};
use std::collections::BTreeSet;
use time::{OffsetDateTime, UtcOffset};

/// The value of `context.call.door` if the governor is not told the door.
const UNKNOWN_DOOR: &str = "unknown";

/// The reason why a call has no context, as a clause for its agent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum ContextError {
    /// A policy would compare it with a value of another type.
    #[error("its argument `{argument}` has to be {expected}; send such a value")]
    Misfit {
        /// The name of the argument, with those above it.
        argument: String,
        /// The type.
        expected: &'static str,
    },
    /// A policy could read it.
    #[error("its argument `{argument}` is missing; send it")]
    Missing {
        /// The name of the argument, with those above it.
        argument: String,
    },
    /// A policy reads `context.text`, and whoever asks for the decision has not computed it.
    #[error(
        "a policy reads `context.text`, which this program has not computed; tell the operator of this fault"
    )]
    NoText,
    /// Cedar refuses the facts.
    #[error("Cedar cannot read its facts ({0}); tell the operator")]
    Cedar(String),
}

/// The contexts of one decision. All of them have the same past.
pub(super) struct Contexts<'a> {
    set: &'a CedarSet,
    facts: &'a CallFacts<'a>,
    past: &'a dyn Past,
    call: RestrictedExpression,
    risk: RestrictedExpression,
    now: RestrictedExpression,
    weekday: RestrictedExpression,
    /// The members of `context.history` that are the same for each subject.
    history: Vec<(&'static str, RestrictedExpression)>,
    /// The number of earlier calls of the tool.
    same: Window,
    /// The folders that earlier calls were granted.
    read: BTreeSet<String>,
}

impl<'a> Contexts<'a> {
    pub(super) fn of(
        set: &'a CedarSet,
        facts: &'a CallFacts<'a>,
        past: &'a dyn Past,
    ) -> Result<Self, ContextError> {
        let History { calls, denials, same, written_bytes, succeeded, reached, read } =
            past.history(facts.agent, Subject::Tool(facts.tool), facts.now);
        let succeeded = succeeded.iter().map(|tool| entity(set, EntityKind::Tool, tool.as_str()));
        let reached = reached.iter().map(|host| entity(set, EntityKind::Host, host));
        let history = vec![
            ("calls", window(calls)?),
            ("denials", window(denials)?),
            ("written_bytes", window(written_bytes)?),
            ("succeeded", RestrictedExpression::new_set(succeeded)),
            ("reached", RestrictedExpression::new_set(reached)),
        ];
        let threats = facts.threats.iter().map(|threat| text(threat));
        let risk = record([
            ("score", RestrictedExpression::new_long(facts.risk_score.into())),
            ("threats", RestrictedExpression::new_set(threats)),
        ])?;
        Ok(Self {
            set,
            facts,
            past,
            call: call(set, facts)?,
            risk,
            now: RestrictedExpression::new_datetime(datetime(facts.now)),
            weekday: text(&facts.now.to_offset(UtcOffset::UTC).weekday().to_string().to_lowercase()),
            history,
            same,
            read,
        })
    }

    /// The context of the request for the call itself.
    pub(super) fn of_call(&self, input: RestrictedExpression) -> Result<Context, ContextError> {
        let all_texts = match self.facts.text {
            Some(all_texts) => all_texts,
            None if self.set.mentions_text() => return Err(ContextError::NoText),
            None => "",
        };
        let own = [
            ("input", input),
            ("longest_text", count(self.facts.longest_text)),
            ("text", text(all_texts)),
            ("history", self.history(self.same, &self.read)?),
        ];
        self.context(own)
    }

    /// The context of a request for a folder, a host or a secret. `granted` are the folders that this very call is
    /// granted: for what leaves the machine, it counts as having read them.
    pub(super) fn of_part(
        &self,
        subject: Subject<'_>,
        granted: &BTreeSet<String>,
    ) -> Result<Context, ContextError> {
        let same = self.past.history(self.facts.agent, subject, self.facts.now).same;
        let tool = entity(self.set, EntityKind::Tool, self.facts.tool.as_str());
        let own = [("tool", tool), ("history", self.history(same, self.read.union(granted))?)];
        self.context(own)
    }

    fn history<'b>(
        &self,
        same: Window,
        read: impl IntoIterator<Item = &'b String>,
    ) -> Result<RestrictedExpression, ContextError> {
        let read = read.into_iter().map(|folder| entity(self.set, EntityKind::Folder, folder));
        let own = [("same", window(same)?), ("read", RestrictedExpression::new_set(read))];
        record(self.history.iter().cloned().chain(own))
    }

    fn context(
        &self,
        own: impl IntoIterator<Item = (&'static str, RestrictedExpression)>,
    ) -> Result<Context, ContextError> {
        let shared = [
            ("call", self.call.clone()),
            ("risk", self.risk.clone()),
            ("now", self.now.clone()),
            ("weekday", self.weekday.clone()),
        ];
        let members = own.into_iter().chain(shared).map(|(name, value)| (name.to_owned(), value));
        Context::from_pairs(members).map_err(|error| ContextError::Cedar(error.to_string()))
    }
}

/// The arguments that have a form in Cedar. No policy can name others.
pub(super) fn input(
    arguments: &Map<String, Value>,
    members: &Record,
) -> Result<RestrictedExpression, ContextError> {
    typed_record(arguments, members, "")
}

fn typed_record(
    object: &Map<String, Value>,
    members: &Record,
    above: &str,
) -> Result<RestrictedExpression, ContextError> {
    let mut typed_members = Vec::with_capacity(members.len());
    for (name, member) in members {
        let argument = || if above.is_empty() { name.clone() } else { format!("{above}.{name}") };
        match object.get(name) {
            Some(value) => typed_members.push((name.clone(), typed(value, &member.kind, &argument)?)),
            None if member.is_required => return Err(ContextError::Missing { argument: argument() }),
            None => {}
        }
    }
    RestrictedExpression::new_record(typed_members).map_err(|error| ContextError::Cedar(error.to_string()))
}

/// A value as the type of its argument.
fn typed(
    value: &Value,
    kind: &CedarType,
    argument: &dyn Fn() -> String,
) -> Result<RestrictedExpression, ContextError> {
    let misfit = |expected| ContextError::Misfit { argument: argument(), expected };
    match kind {
        CedarType::String => value.as_str().map(text).ok_or_else(|| misfit("a text")),
        CedarType::Bool => {
            value.as_bool().map(RestrictedExpression::new_bool).ok_or_else(|| misfit("true or false"))
        }
        CedarType::Long => {
            let number = value.as_i64().map(RestrictedExpression::new_long);
            number.ok_or_else(|| misfit("a whole number of at most 64 bits, without fraction and exponent"))
        }
        CedarType::Set(kind) => {
            let items = value.as_array().ok_or_else(|| misfit("a list"))?;
            let items = items
                .iter()
                .enumerate()
                .map(|(index, item)| typed(item, kind, &|| format!("{}[{index}]", argument())));
            Ok(RestrictedExpression::new_set(items.collect::<Result<Vec<_>, _>>()?))
        }
        CedarType::Record(members) => {
            let object = value.as_object().ok_or_else(|| misfit("an object"))?;
            typed_record(object, members, &argument())
        }
    }
}

/// `context.call`.
fn call(set: &CedarSet, facts: &CallFacts<'_>) -> Result<RestrictedExpression, ContextError> {
    let door = facts.door.map_or_else(|| UNKNOWN_DOOR.to_owned(), |door| door.to_string());
    let parent = facts.parent.as_ref().map(|tool| ("parent", entity(set, EntityKind::Tool, tool.as_str())));
    let own = [
        ("depth", RestrictedExpression::new_long(facts.depth.into())),
        ("door", RestrictedExpression::new_string(door)),
        ("in_session", RestrictedExpression::new_bool(facts.is_in_session)),
    ];
    record(own.into_iter().chain(parent))
}

fn window(Window { minute, hour, day }: Window) -> Result<RestrictedExpression, ContextError> {
    record([("minute", count(minute)), ("hour", count(hour)), ("day", count(day))])
}

fn record(
    members: impl IntoIterator<Item = (&'static str, RestrictedExpression)>,
) -> Result<RestrictedExpression, ContextError> {
    let members = members.into_iter().map(|(name, value)| (name.to_owned(), value));
    RestrictedExpression::new_record(members).map_err(|error| ContextError::Cedar(error.to_string()))
}

fn entity(set: &CedarSet, kind: EntityKind, id: &str) -> RestrictedExpression {
    RestrictedExpression::new_entity_uid(set.uid(kind, id))
}

fn text(text: &str) -> RestrictedExpression {
    RestrictedExpression::new_string(text.to_owned())
}

/// A count, or the greatest number of Cedar.
fn count(count: u64) -> RestrictedExpression {
    RestrictedExpression::new_long(i64::try_from(count).unwrap_or(i64::MAX))
}

/// A time as Cedar reads it: in UTC, to the millisecond. It refuses one outside the years 0 to 9999.
fn datetime(time: OffsetDateTime) -> String {
    let utc = time.to_offset(UtcOffset::UTC);
    let (hour, minute, second, millisecond) = utc.time().as_hms_milli();
    let (year, month, day) = utc.to_calendar_date();
    let month = u8::from(month);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millisecond:03}Z")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::Member;
    use serde_json::json;
    use time::macros::datetime as at;

    fn member(kind: CedarType, is_required: bool) -> Member {
        Member { kind, is_required }
    }

    #[test]
    fn a_time_is_written_in_utc_to_the_millisecond() {
        for (time, expected) in [
            (at!(2026-12-01 09:05:07.0129 UTC), "2026-12-01T09:05:07.012Z"),
            (at!(2026-12-01 00:30 +02:00), "2026-11-30T22:30:00.000Z"),
            (at!(1969-07-20 20:17 UTC), "1969-07-20T20:17:00.000Z"),
        ] {
            assert_eq!(datetime(time), expected);
            let pairs = [("now".to_owned(), RestrictedExpression::new_datetime(datetime(time)))];
            assert!(Context::from_pairs(pairs).is_ok(), "{expected}");
        }
    }

    #[test]
    fn an_argument_that_does_not_fit_its_type_is_named() {
        let line = Record::from([("line".to_owned(), member(CedarType::Long, true))]);
        let members = Record::from([
            ("path".to_owned(), member(CedarType::String, true)),
            ("deep".to_owned(), member(CedarType::Bool, false)),
            ("tags".to_owned(), member(CedarType::Set(Box::new(CedarType::String)), false)),
            ("at".to_owned(), member(CedarType::Record(line), false)),
        ]);
        let whole = "a whole number of at most 64 bits, without fraction and exponent";
        for (arguments, expected) in [
            (json!({ "path": "a" }), None),
            (json!({ "path": "a", "deep": true, "tags": ["x"], "at": { "line": -1, "more": 1.5 } }), None),
            (json!({ "path": "a", "unknown": null }), None),
            (json!({ "path": "a", "tags": [] }), None),
            (json!({ "path": 1 }), Some(("path", "a text"))),
            (json!({ "path": "a", "deep": "true" }), Some(("deep", "true or false"))),
            (json!({ "path": "a", "deep": null }), Some(("deep", "true or false"))),
            (json!({ "path": "a", "tags": "x" }), Some(("tags", "a list"))),
            (json!({ "path": "a", "tags": ["x", 1] }), Some(("tags[1]", "a text"))),
            (json!({ "path": "a", "at": 1 }), Some(("at", "an object"))),
            (json!({ "path": "a", "at": { "line": 1.5 } }), Some(("at.line", whole))),
            (json!({ "path": "a", "at": { "line": u64::MAX } }), Some(("at.line", whole))),
        ] {
            let refused = input(arguments.as_object().unwrap(), &members).err();
            let expected = expected
                .map(|(argument, expected)| ContextError::Misfit { argument: argument.to_owned(), expected });
            assert_eq!(refused, expected, "{arguments}");
        }
        for (arguments, argument) in
            [(json!({}), "path"), (json!({ "path": "a", "at": { "lines": 1 } }), "at.line")]
        {
            let refused = input(arguments.as_object().unwrap(), &members).err();
            assert_eq!(refused, Some(ContextError::Missing { argument: argument.to_owned() }), "{arguments}");
        }
    }
}
