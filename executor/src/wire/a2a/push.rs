//! Webhooks: what a client asks to be told, and what it is told: the task (A2A 0.3.0, section 9.5), or the events of the
//! A2A-ACP document.

use super::message::{Artifact, FileContent, Part, State, Status, Task, Update};
use super::{Dialect, encode};
use crate::error_chain::BoxedError;
use crate::fault::Fault;
use crate::ident::AgentDid;
use crate::wire::field::{Field, Object};
use crate::wire::jsonrpc::Id;
use crate::wire::raw;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use time::format_description::well_known::Rfc3339;
use time::{OffsetDateTime, Time};

/// The most characters of a URL, and of a secret.
const MAX_URL_BYTES: usize = 2048;

/// What a client can be told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EventKind {
    /// A task is in another state.
    StatusChange,
    /// The executor said something.
    Message,
    /// A task waits for input.
    InputRequired,
    /// A tool made something.
    Artifact,
}

impl EventKind {
    /// All of them, with their words on the wire.
    pub const ALL: [(&'static str, Self); 4] = [
        ("status_change", Self::StatusChange),
        ("message", Self::Message),
        ("input_required", Self::InputRequired),
        ("artifact", Self::Artifact),
    ];

    /// The word on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::StatusChange => "status_change",
            Self::Message => "message",
            Self::InputRequired => "input_required",
            Self::Artifact => "artifact",
        }
    }
}

/// How a webhook is authenticated, beside its token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Authentication {
    /// The schemes that it takes: `Bearer` or `Basic` is among them.
    pub schemes: Vec<String>,
    /// What stands behind the scheme.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials: Option<String>,
}

/// What a client asks to be told, and where.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PushConfig {
    /// Its name within the task; empty until it has one.
    pub id: String,
    /// Where to post.
    pub url: String,
    /// Shown as `X-A2A-Notification-Token`, and as a bearer unless `authentication` says otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
    /// How to authenticate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub authentication: Option<Authentication>,
    /// Of what; `None` is everything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled_events: Option<Vec<EventKind>>,
    /// From when nothing is told, in UTC: `HH:MM`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quiet_hours_start: Option<String>,
    /// Until when.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quiet_hours_end: Option<String>,
    /// When it was set.
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
}

impl PushConfig {
    /// Whether it wants to be told of this now.
    #[must_use]
    pub fn wants(&self, event: EventKind, now: OffsetDateTime) -> bool {
        let enabled = self.enabled_events.as_ref().is_none_or(|events| events.contains(&event));
        let hours = (self.quiet_hours_start.as_deref(), self.quiet_hours_end.as_deref());
        let quiet = match hours {
            (Some(start), Some(end)) => match (hour(start), hour(end)) {
                (Some(start), Some(end)) => is_between(now.time(), start, end),
                (_, None) | (None, _) => false,
            },
            (_, None) | (None, _) => false,
        };
        enabled && !quiet
    }

    /// The headers that a notice has.
    #[must_use]
    pub fn headers(&self) -> Vec<(&'static str, String)> {
        let token = self.token.iter().map(|token| ("x-a2a-notification-token", token.clone()));
        let authorization = match (&self.authentication, &self.token) {
            (Some(Authentication { schemes, credentials: Some(credentials) }), _) => {
                let basic = !schemes.iter().any(|scheme| scheme.eq_ignore_ascii_case("bearer"));
                Some(format!("{} {credentials}", if basic { "Basic" } else { "Bearer" }))
            }
            (Some(_) | None, Some(token)) => Some(format!("Bearer {token}")),
            (Some(_) | None, None) => None,
        };
        token.chain(authorization.map(|value| ("authorization", value))).collect()
    }
}

/// Whether a time lies in hours that may go over midnight.
fn is_between(now: Time, start: Time, end: Time) -> bool {
    if start <= end { start <= now && now < end } else { now >= start || now < end }
}

/// `HH:MM`.
fn hour(text: &str) -> Option<Time> {
    let (hours, minutes) = text.split_once(':').filter(|(hours, minutes)| {
        hours.len() == 2 && minutes.len() == 2 && text.bytes().all(|b| b.is_ascii_digit() || b == b':')
    })?;
    Time::from_hms(hours.parse().ok()?, minutes.parse().ok()?, 0).ok()
}

/// One message to a webhook.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice {
    /// The task and the configuration: what has one of these is told in order.
    pub of: (String, String),
    /// Whose task it is.
    pub owner: AgentDid,
    /// Where to post.
    pub url: String,
    /// With these headers.
    pub headers: Vec<(&'static str, String)>,
    /// This JSON.
    pub body: String,
}

/// Why nothing would be posted to a URL. Its text is for the caller that named the URL.
#[derive(Debug, thiserror::Error)]
#[error("nothing is posted there ({reason}): `doors.a2a.webhook_domains` lists who is told")]
pub struct WebhookUrlError {
    /// The rule or limit that forbids it. Part of the sentence, so no `source`, which a chain would say again.
    pub reason: BoxedError,
}

/// Who posts notices.
pub trait Webhooks: Send + Sync {
    /// Whether anything could be posted to a URL.
    ///
    /// # Errors
    /// [`WebhookUrlError`] says why not.
    fn check(&self, url: &str) -> Result<(), WebhookUrlError>;

    /// Takes a notice, without waiting.
    fn notify(&self, notice: Notice);
}

/// The posts for an update in A2A 0.3.0: the task as it is then, once, with the events that have happened. An artifact
/// is posted with the next state, so that a tool with many of them does not post each task many times.
#[must_use]
pub fn task_notices(update: &Update, before: State, task: &Task) -> Vec<(Vec<EventKind>, String)> {
    if matches!(update, Update::Artifact(_)) {
        return Vec::new();
    }
    let mut happened = events(update, before).into_iter().map(|(event, _)| event).collect::<Vec<_>>();
    if happened.is_empty() {
        return Vec::new();
    }
    if task.status.state.is_terminal() && !task.artifacts.is_empty() {
        happened.push(EventKind::Artifact);
    }
    vec![(happened, raw(task).get().to_owned())]
}

/// The posts for an update in the document's dialect: each event for itself.
#[must_use]
pub fn event_notices(
    update: &Update,
    before: State,
    task: &str,
    now: OffsetDateTime,
) -> Vec<(Vec<EventKind>, String)> {
    let events = events(update, before).into_iter();
    events.map(|(event, data)| (vec![event], body(task, event, &data, now))).collect()
}

/// The events of an update of a task that was in the state `before`.
pub(super) fn events(update: &Update, before: State) -> Vec<(EventKind, Value)> {
    match update {
        Update::Task(task) => status(&task.status, State::Submitted),
        Update::Status(update) => status(&update.status, before),
        Update::Artifact(update) => vec![(EventKind::Artifact, artifact(&update.artifact))],
    }
}

fn status(status: &Status, before: State) -> Vec<(EventKind, Value)> {
    let Status { state, message, timestamp: _ } = status;
    let mut events = Vec::new();
    if *state != before {
        let data = json!({ "old_state": before.as_str(), "new_state": state.as_str() });
        events.push((EventKind::StatusChange, data));
    }
    // How far a tool is, only streams are told.
    let said = message.as_ref().filter(|_| state.is_settled()).map(|message| words(&message.parts));
    if let Some(said) = said.filter(|said| !said.is_empty()) {
        let data = json!({ "message_role": "assistant", "message_content": said });
        events.push((EventKind::Message, data));
        if *state == State::InputRequired {
            let data = json!({ "prompt": said, "input_types": ["application/json", "text/plain"] });
            events.push((EventKind::InputRequired, data));
        }
    }
    events
}

fn words(parts: &[Part]) -> String {
    let words = parts.iter().filter_map(|part| match part {
        Part::Text { text, metadata: _ } => Some(text.as_str()),
        Part::File { .. } | Part::Data { .. } => None,
    });
    words.collect::<Vec<_>>().join("\n")
}

fn artifact(artifact: &Artifact) -> Value {
    let Artifact { artifact_id, name, parts } = artifact;
    let (kind, size) = match parts.first() {
        Some(Part::File { file, metadata: _ }) => match &file.content {
            // Of base64: four characters are three bytes.
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

/// One event as it is posted.
fn body(task: &str, event: EventKind, data: &Value, now: OffsetDateTime) -> String {
    let timestamp = now.truncate_to_millisecond().format(&Rfc3339).unwrap_or_default();
    json!({ "event": event.as_str(), "task_id": task, "timestamp": timestamp, "data": data }).to_string()
}

/// The configuration of `tasks/pushNotificationConfig/set`: `pushNotificationConfig`, or `config`.
pub(super) fn of_params(params: &mut Object<'_>) -> Result<PushConfig, Fault> {
    match (params.take("pushNotificationConfig")?, params.take("config")?) {
        (Some(_), Some(alias)) => {
            Err(alias.refused(&"says again what `pushNotificationConfig` says: send one"))
        }
        (Some(config), None) | (None, Some(config)) => self::config(config),
        (None, None) => Err(Fault::invalid("/pushNotificationConfig", "`pushNotificationConfig` is missing")),
    }
}

/// A configuration. What it does not know could be a restriction that nobody would keep to.
pub(super) fn config(field: Field<'_>) -> Result<PushConfig, Fault> {
    let mut config = field.object()?;
    let id = super::decode::maybe_name(&mut config, "id")?.unwrap_or_default();
    let url = secret(&config.need("url")?)?;
    let token = config.take_unless_null("token")?.map(|token| secret(&token)).transpose()?;
    let authentication = config.take_unless_null("authentication")?.map(authentication).transpose()?;
    let events = config.take_unless_null("enabledEvents")?;
    let enabled_events = events
        .map(|events| events.list()?.iter().map(|event| event.word(&EventKind::ALL)).collect())
        .transpose()?;
    let (start, end) = (quiet(&mut config, "quietHoursStart")?, quiet(&mut config, "quietHoursEnd")?);
    if start.is_some() != end.is_some() {
        let message = "`quietHoursStart` and `quietHoursEnd` belong together";
        return Err(Fault::invalid("/pushNotificationConfig", message));
    }
    config.take("createdAt")?;
    config.end()?;
    Ok(PushConfig {
        id,
        url,
        token,
        authentication,
        enabled_events,
        quiet_hours_start: start,
        quiet_hours_end: end,
        created_at: OffsetDateTime::UNIX_EPOCH,
    })
}

fn quiet(config: &mut Object<'_>, member: &str) -> Result<Option<String>, Fault> {
    let read = |text: &str| match hour(text) {
        Some(_) => Ok(text.to_owned()),
        None => Err("a time of day is `HH:MM`, in UTC"),
    };
    config.take_unless_null(member)?.map(|field| field.parsed(read)).transpose()
}

/// What goes into a header or a request line.
fn secret(field: &Field<'_>) -> Result<String, Fault> {
    let read = |text: &str| {
        let visible = text.bytes().all(|byte| byte.is_ascii_graphic());
        if visible && !text.is_empty() && text.len() <= MAX_URL_BYTES {
            Ok(text.to_owned())
        } else {
            Err(format!("must be 1 to {MAX_URL_BYTES} visible characters of ASCII"))
        }
    };
    field.parsed(read)
}

fn authentication(field: Field<'_>) -> Result<Authentication, Fault> {
    let mut authentication = field.object()?;
    let schemes = authentication.need("schemes")?;
    let at = schemes.pointer().to_owned();
    let schemes = schemes.texts()?;
    let known = |scheme: &String| ["bearer", "basic"].contains(&scheme.to_ascii_lowercase().as_str());
    if !schemes.iter().any(known) {
        return Err(Fault::invalid(at, "`schemes` has to have `Bearer` or `Basic`"));
    }
    let credentials = authentication.take_unless_null("credentials")?;
    Ok(Authentication { schemes, credentials: credentials.map(|field| secret(&field)).transpose()? })
}

/// The answer to `set`.
#[must_use]
pub fn set_response(id: &Id, task: &str, config: &PushConfig, dialect: Dialect) -> String {
    match dialect {
        Dialect::A2a => encode::response(id, &of_task(task, config)),
        Dialect::Acp => {
            let created = config.created_at.format(&Rfc3339).unwrap_or_default();
            encode::response(id, &json!({ "id": config.id, "status": "active", "createdAt": created }))
        }
    }
}

/// The answer to `get`.
#[must_use]
pub fn get_response(id: &Id, task: &str, config: &PushConfig) -> String {
    encode::response(id, &of_task(task, config))
}

/// The answer to `list`.
#[must_use]
pub fn list_response(id: &Id, task: &str, configs: &[PushConfig]) -> String {
    let listed = configs.iter().map(|config| of_task(task, config)).collect::<Vec<_>>();
    encode::response(id, &listed)
}

/// The answer to `delete`.
#[must_use]
pub fn delete_response(id: &Id) -> String {
    encode::response(id, &Value::Null)
}

fn of_task(task: &str, config: &PushConfig) -> Value {
    json!({ "taskId": task, "pushNotificationConfig": config })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quiet(start: &str, end: &str, now: Time) -> bool {
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
        assert!(!config.wants(EventKind::Artifact, now), "not asked for");
        !config.wants(EventKind::Message, now)
    }

    #[test]
    fn quiet_hours_may_go_over_midnight() {
        let at = |hours, minutes| Time::from_hms(hours, minutes, 0).unwrap();
        for (hours, minutes, is) in
            [(22, 0, true), (23, 59, true), (0, 0, true), (7, 59, true), (8, 0, false), (21, 59, false)]
        {
            assert_eq!(quiet("22:00", "08:00", at(hours, minutes)), is, "{hours}:{minutes}");
        }
        for (hours, is) in [(11, false), (12, true), (13, false)] {
            assert_eq!(quiet("12:00", "13:00", at(hours, 0)), is, "{hours}");
        }
        assert!(!quiet("12:00", "12:00", at(12, 0)), "no time at all");
        for bad in ["24:00", "8:00", "08:60", "0800", "", "08:0x", "+8:00", "08:00:00"] {
            assert_eq!(hour(bad), None, "{bad}");
        }
    }
}
