//! Webhooks: their configuration, and the bodies of their notifications. A body is the task in A2A 0.3.0 (section 9.5),
//! and one event in A2A-ACP.

use super::decode::{decode_name, one_of};
use super::message::{FileContent, Part, Task, TaskArtifact, TaskState, TaskStatus, TaskUpdate};
use super::{Dialect, encode};
use crate::field::{Field, Object};
use crate::jsonrpc::Id;
use crate::to_raw;
use a2g_types::fault::Fault;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use strum::{IntoStaticStr, VariantArray};
use time::format_description::well_known::Rfc3339;
use time::{OffsetDateTime, Time};

/// Maximum length of a URL, token or credentials, in bytes.
const MAX_TEXT_BYTES: usize = 2048;

/// The events that a webhook can subscribe to.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, IntoStaticStr, VariantArray,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum EventKind {
    /// A task changed its state.
    StatusChange,
    /// The executor added a message.
    Message,
    /// A task waits for input.
    InputRequired,
    /// A tool produced an artifact.
    Artifact,
}

impl EventKind {
    /// The name on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// The authentication of notifications to a webhook, in addition to its token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Authentication {
    /// The accepted schemes; `Bearer` or `Basic` is among them.
    pub schemes: Vec<String>,
    /// The text after the scheme in `Authorization`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials: Option<String>,
}

/// One webhook of a task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PushConfig {
    /// The webhook's id within the task; empty until one is assigned.
    pub id: String,
    /// The URL that receives the notifications.
    pub url: String,
    /// Sent as `X-A2A-Notification-Token`, and as a bearer token unless `authentication` has credentials.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
    /// The authentication besides the token; `None`: only the token, if any, is sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub authentication: Option<Authentication>,
    /// The subscribed events; `None` for all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled_events: Option<Vec<EventKind>>,
    /// The start of the daily quiet hours, in UTC: `HH:MM`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quiet_hours_start: Option<String>,
    /// The end of the quiet hours; earlier than the start if they cross midnight.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quiet_hours_end: Option<String>,
    /// The time of registration. The decoder sets 1970, and the door the actual time.
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
}

impl PushConfig {
    /// Returns `true` when the webhook subscribes to the event and `now` is outside its quiet hours.
    #[must_use]
    pub fn accepts(&self, event: EventKind, now: OffsetDateTime) -> bool {
        let is_enabled = self.enabled_events.as_ref().is_none_or(|events| events.contains(&event));
        let hours = (self.quiet_hours_start.as_deref(), self.quiet_hours_end.as_deref());
        let is_quiet = match hours {
            (Some(start), Some(end)) => match (parse_time_of_day(start), parse_time_of_day(end)) {
                (Some(start), Some(end)) => is_between(now.time(), start, end),
                (_, None) | (None, _) => false,
            },
            (_, None) | (None, _) => false,
        };
        is_enabled && !is_quiet
    }

    /// The HTTP headers of each notification, secrets included.
    #[must_use]
    pub fn headers(&self) -> Vec<(&'static str, String)> {
        let token = self.token.iter().map(|token| ("x-a2a-notification-token", token.clone()));
        let authorization = match (&self.authentication, &self.token) {
            (Some(Authentication { schemes, credentials: Some(credentials) }), _) => {
                let is_basic = !schemes.iter().any(|scheme| scheme.eq_ignore_ascii_case("bearer"));
                Some(format!("{} {credentials}", if is_basic { "Basic" } else { "Bearer" }))
            }
            (Some(_) | None, Some(token)) => Some(format!("Bearer {token}")),
            (Some(_) | None, None) => None,
        };
        token.chain(authorization.map(|value| ("authorization", value))).collect()
    }
}

fn is_between(now: Time, start: Time, end: Time) -> bool {
    if start <= end { start <= now && now < end } else { now >= start || now < end }
}

/// Parses `HH:MM`.
fn parse_time_of_day(text: &str) -> Option<Time> {
    let (hours, minutes) = text.split_once(':').filter(|(hours, minutes)| {
        hours.len() == 2 && minutes.len() == 2 && text.bytes().all(|b| b.is_ascii_digit() || b == b':')
    })?;
    Time::from_hms(hours.parse().ok()?, minutes.parse().ok()?, 0).ok()
}

/// The notification for an update in A2A 0.3.0, if any: the current task, with the events of the update, plus
/// [`EventKind::Artifact`] when a task with artifacts ends. An artifact alone causes no notification, because each
/// notification repeats all artifacts.
#[must_use]
pub fn task_notifications(
    update: &TaskUpdate,
    before: TaskState,
    task: &Task,
) -> Vec<(Vec<EventKind>, String)> {
    if matches!(update, TaskUpdate::Artifact(_)) {
        return Vec::new();
    }
    let mut kinds = events(update, before).into_iter().map(|(event, _)| event).collect::<Vec<_>>();
    if kinds.is_empty() {
        return Vec::new();
    }
    if task.status.state.is_terminal() && !task.artifacts.is_empty() {
        kinds.push(EventKind::Artifact);
    }
    vec![(kinds, to_raw(task).get().to_owned())]
}

/// The notifications for an update in the A2A-ACP dialect: one for each event, with its kind and its body.
#[must_use]
pub fn event_notifications(
    update: &TaskUpdate,
    before: TaskState,
    task: &str,
    now: OffsetDateTime,
) -> Vec<(Vec<EventKind>, String)> {
    let events = events(update, before).into_iter();
    events.map(|(event, data)| (vec![event], event_body(task, event, &data, now))).collect()
}

/// The events of an update of a task that was in state `before`.
pub(super) fn events(update: &TaskUpdate, before: TaskState) -> Vec<(EventKind, Value)> {
    match update {
        TaskUpdate::Task(task) => status_events(&task.status, TaskState::Submitted),
        TaskUpdate::Status(update) => status_events(&update.status, before),
        TaskUpdate::Artifact(update) => vec![(EventKind::Artifact, artifact_data(&update.artifact))],
    }
}

fn status_events(status: &TaskStatus, before: TaskState) -> Vec<(EventKind, Value)> {
    let TaskStatus { state, message, timestamp: _ } = status;
    let mut events = Vec::new();
    if *state != before {
        let data = json!({ "old_state": before.as_str(), "new_state": state.as_str() });
        events.push((EventKind::StatusChange, data));
    }
    // Progress messages of a running tool are sent only on streams.
    let text = message.as_ref().filter(|_| state.is_settled()).map(|message| joined_text(&message.parts));
    if let Some(text) = text.filter(|text| !text.is_empty()) {
        let data = json!({ "message_role": "assistant", "message_content": text });
        events.push((EventKind::Message, data));
        if *state == TaskState::InputRequired {
            let data = json!({ "prompt": text, "input_types": ["application/json", "text/plain"] });
            events.push((EventKind::InputRequired, data));
        }
    }
    events
}

fn joined_text(parts: &[Part]) -> String {
    let texts = parts.iter().filter_map(|part| match part {
        Part::Text { text, metadata: _ } => Some(text.as_str()),
        Part::File { .. } | Part::Data { .. } => None,
    });
    texts.collect::<Vec<_>>().join("\n")
}

fn artifact_data(artifact: &TaskArtifact) -> Value {
    let TaskArtifact { artifact_id, name, parts } = artifact;
    let (kind, size) = match parts.first() {
        Some(Part::File { file, metadata: _ }) => match &file.content {
            // Four base64 characters encode three bytes.
            FileContent::Bytes(bytes) => {
                let padding = bytes.bytes().rev().take_while(|byte| *byte == b'=').count();
                ("file", (bytes.len() / 4 * 3).saturating_sub(padding))
            }
            FileContent::Uri(_) => ("file", 0),
        },
        Some(Part::Data { data, metadata: _ }) => ("data", data.as_str().len()),
        Some(Part::Text { text, metadata: _ }) => ("text", text.len()),
        None => ("data", 0),
    };
    json!({
        "artifact_type": kind,
        "artifact_name": name.as_ref().unwrap_or(artifact_id),
        "artifact_size": size,
    })
}

/// The JSON of the notification of one event.
fn event_body(task: &str, event: EventKind, data: &Value, now: OffsetDateTime) -> String {
    let timestamp = now.truncate_to_millisecond().format(&Rfc3339).unwrap_or_default();
    json!({ "event": event.as_str(), "task_id": task, "timestamp": timestamp, "data": data }).to_string()
}

/// The webhook in params of `tasks/pushNotificationConfig/set`: `pushNotificationConfig`, or `config`.
pub(super) fn decode_set_params(params: &mut Object<'_>) -> Result<PushConfig, Fault> {
    const NAME: &str = "pushNotificationConfig";
    let config = one_of(params.take(NAME)?, NAME, params.take("config")?)?;
    decode_config(config.ok_or_else(|| params.missing(NAME))?)
}

/// Decodes a webhook. Unknown members are rejected, because each could be a restriction that would not be enforced.
pub(super) fn decode_config(field: Field<'_>) -> Result<PushConfig, Fault> {
    field.object()?.read_all(|object| {
        // A client may return a webhook as it was listed.
        object.take("createdAt")?;
        let config = PushConfig {
            id: object.read_nullable_with("id", decode_name)?.unwrap_or_default(),
            url: decode_header_text(object.require("url")?)?,
            token: object.read_nullable_with("token", decode_header_text)?,
            authentication: object.read_nullable_with("authentication", decode_authentication)?,
            enabled_events: object.read_nullable_with("enabledEvents", |events| {
                events.list()?.iter().map(Field::enum_variant).collect()
            })?,
            quiet_hours_start: object.read_nullable_with("quietHoursStart", decode_quiet_hour)?,
            quiet_hours_end: object.read_nullable_with("quietHoursEnd", decode_quiet_hour)?,
            created_at: OffsetDateTime::UNIX_EPOCH,
        };
        if config.quiet_hours_start.is_some() != config.quiet_hours_end.is_some() {
            let message = "`quietHoursStart` and `quietHoursEnd` must be set together";
            return Err(Fault::invalid("/pushNotificationConfig", message));
        }
        Ok(config)
    })
}

fn decode_quiet_hour(field: Field<'_>) -> Result<String, Fault> {
    field.parse_with(|text| match parse_time_of_day(text) {
        Some(_) => Ok(text.to_owned()),
        None => Err("must be a time of day in UTC, `HH:MM`"),
    })
}

/// Accepts text that is safe in an HTTP header and a request line.
fn decode_header_text(field: Field<'_>) -> Result<String, Fault> {
    field.parse_with(|text| {
        let is_printable = text.bytes().all(|byte| byte.is_ascii_graphic());
        if is_printable && !text.is_empty() && text.len() <= MAX_TEXT_BYTES {
            Ok(text.to_owned())
        } else {
            Err(format!("must be 1 to {MAX_TEXT_BYTES} printable ASCII characters, without spaces"))
        }
    })
}

fn decode_authentication(field: Field<'_>) -> Result<Authentication, Fault> {
    let mut authentication = field.object()?;
    let schemes = authentication.require("schemes")?;
    let names = schemes.strings()?;
    let is_supported = |scheme: &String| ["bearer", "basic"].contains(&scheme.to_ascii_lowercase().as_str());
    if !names.iter().any(is_supported) {
        return Err(schemes.fault("`schemes` must include `Bearer` or `Basic`"));
    }
    let credentials = authentication.read_nullable_with("credentials", decode_header_text)?;
    Ok(Authentication { schemes: names, credentials })
}

/// Encodes the response to `tasks/pushNotificationConfig/set`.
#[must_use]
pub fn set_response(id: &Id, task: &str, config: &PushConfig, dialect: Dialect) -> String {
    match dialect {
        Dialect::A2a => encode::response(id, &task_config(task, config)),
        Dialect::Acp => {
            let created = config.created_at.format(&Rfc3339).unwrap_or_default();
            encode::response(id, &json!({ "id": config.id, "status": "active", "createdAt": created }))
        }
    }
}

/// Encodes the response to `tasks/pushNotificationConfig/get`.
#[must_use]
pub fn get_response(id: &Id, task: &str, config: &PushConfig) -> String {
    encode::response(id, &task_config(task, config))
}

/// Encodes the response to `tasks/pushNotificationConfig/list`.
#[must_use]
pub fn list_response(id: &Id, task: &str, configs: &[PushConfig]) -> String {
    let configs = configs.iter().map(|config| task_config(task, config)).collect::<Vec<_>>();
    encode::response(id, &configs)
}

/// Encodes the response to `tasks/pushNotificationConfig/delete`: the result `null`.
#[must_use]
pub fn delete_response(id: &Id) -> String {
    encode::response(id, &Value::Null)
}

fn task_config(task: &str, config: &PushConfig) -> Value {
    json!({ "taskId": task, "pushNotificationConfig": config })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_quiet(start: &str, end: &str, now: Time) -> bool {
        let config = PushConfig {
            id: "x".into(),
            url: "https://x".into(),
            token: None,
            authentication: None,
            enabled_events: Some(vec![EventKind::Message]),
            quiet_hours_start: Some(start.into()),
            quiet_hours_end: Some(end.into()),
            created_at: OffsetDateTime::UNIX_EPOCH,
        };
        let now = OffsetDateTime::UNIX_EPOCH.replace_time(now);
        assert!(!config.accepts(EventKind::Artifact, now), "not subscribed");
        !config.accepts(EventKind::Message, now)
    }

    #[test]
    fn quiet_hours_may_cross_midnight() {
        let at = |hours, minutes| Time::from_hms(hours, minutes, 0).unwrap();
        for (hours, minutes, expected) in
            [(22, 0, true), (23, 59, true), (0, 0, true), (7, 59, true), (8, 0, false), (21, 59, false)]
        {
            assert_eq!(is_quiet("22:00", "08:00", at(hours, minutes)), expected, "{hours}:{minutes}");
        }
        for (hours, expected) in [(11, false), (12, true), (13, false)] {
            assert_eq!(is_quiet("12:00", "13:00", at(hours, 0)), expected, "{hours}");
        }
        assert!(!is_quiet("12:00", "12:00", at(12, 0)), "an empty range");
        for bad in ["24:00", "8:00", "08:60", "0800", "", "08:0x", "+8:00", "08:00:00"] {
            assert_eq!(parse_time_of_day(bad), None, "{bad}");
        }
    }
}
