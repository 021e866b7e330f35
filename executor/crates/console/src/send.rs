//! The form on the page of a tool that sends an intent.
//!
//! ```text
//! schema of the arguments ─▶ fields ─ form ─▶ arguments ─▶ Call ─▶ Engine::handle_intent, as from any door
//! ```
//! The form has the id of the intent, so that a form that is sent twice runs once. The governor decides on the intent,
//! and the core checks the arguments against the schema; this module only turns fields into JSON.

use super::ConsoleState;
use super::form::FormFields;
use super::page::{Viewer, fault_text, forbidden, line, not_found};
use super::session::PostedForm;
use super::tools::{find_tool, tool_page};
use a2g_core::run::{RunEvent, RunEventSink};
use a2g_govern::Role;
use a2g_http::body;
use a2g_http::protocol::with_caller;
use a2g_types::call::{Call, Door, Priority};
use a2g_types::fault::Fault;
use a2g_types::ident::{AgentDid, IntentId};
use a2g_types::tool::Descriptor;
use a2g_wire::strict_json;
use axum::extract::{Path, State};
use axum::response::{IntoResponse as _, Redirect, Response};
use maud::{Markup, html};
use serde_json::{Map, Value};
use std::sync::Arc;
use tokio::sync::Notify;

/// The agent that the form suggests to a caller that may act for any.
const DEFAULT_AGENT: &str = "did:a2g:agent:1.0:console";
/// Maximum number of arguments that have a field of their own. Further ones are given as JSON.
const MAX_FIELDS: usize = 32;
/// Maximum number of values that a field lists for a choice. An argument with more is given as JSON.
const MAX_CHOICES: usize = 64;
/// The prefix of the names of fields for arguments, which keeps them apart from the form's own fields.
const ARGUMENT_PREFIX: &str = "argument.";
/// The field for arguments that have none of their own.
const OTHER_ARGUMENTS: &str = "arguments";

/// An argument with a field of its own.
struct ArgumentField<'a> {
    name: &'a str,
    schema: &'a Value,
    kind: FieldKind<'a>,
    is_required: bool,
}

/// The control for the values of an argument.
#[derive(Clone, Copy)]
enum FieldKind<'a> {
    Text,
    Number,
    /// One of these values.
    Choice(&'a [Value]),
    Json,
}

/// The values of a boolean.
static BOOLEANS: [Value; 2] = [Value::Bool(true), Value::Bool(false)];

/// The arguments of a schema that get a field. Only the schema's own properties are read, and nothing below them.
fn argument_fields<'a>(schema: &'a Value) -> Vec<ArgumentField<'a>> {
    let required = schema.get("required").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let properties = schema.get("properties").and_then(Value::as_object);
    let field = |(name, schema): (&'a String, &'a Value)| {
        let kind = match (schema.get("enum").and_then(Value::as_array), schema.get("type")) {
            (Some(values), _) if values.len() <= MAX_CHOICES => FieldKind::Choice(values),
            (None, Some(Value::String(kind))) => match kind.as_str() {
                "string" => FieldKind::Text,
                "integer" | "number" => FieldKind::Number,
                "boolean" => FieldKind::Choice(&BOOLEANS),
                _ => FieldKind::Json,
            },
            _ => FieldKind::Json,
        };
        let is_required = required.iter().any(|required| required.as_str() == Some(name));
        ArgumentField { name, schema, kind, is_required }
    };
    let mut fields = properties.into_iter().flatten().map(field).collect::<Vec<_>>();
    // Stable, so optional arguments keep their order.
    fields.sort_by_key(|field| !field.is_required);
    fields.truncate(MAX_FIELDS);
    fields
}

/// The form, for a caller that may send intents. `sent` has the fields of an earlier attempt.
pub(super) fn intent_form(viewer: Viewer<'_>, tool: &Descriptor, sent: Option<&FormFields>) -> Markup {
    if !viewer.caller.is_any_of(&[Role::Agent]) || !viewer.caller.tools().includes(&tool.name) {
        return html! {};
    }
    let value = |name: &str| sent.and_then(|form| form.get(name)).unwrap_or_default();
    let agent = match (value("agent"), viewer.caller.only_agent()) {
        ("", Some(agent)) => agent.as_str(),
        ("", None) => DEFAULT_AGENT,
        (agent, _) => agent,
    };
    html! {
        h2 #send { "Send an intent" }
        p { "The governor decides on it, and it runs under what the governor grants, like an intent from any other door." }
        form.arguments method="post" action={ "/console/tools/" (tool.name) "/send" } {
            (viewer.token_field())
            input type="hidden" name="intent" value=(IntentId::random().to_string());
            p { label for="agent" { "Agent" } input #agent name="agent" required value=(agent); }
            @for field in argument_fields(&tool.arguments_schema) {
                (argument_field(&field, value(&format!("{ARGUMENT_PREFIX}{}", field.name))))
            }
            details open[!value(OTHER_ARGUMENTS).is_empty()] {
                summary { "Other arguments, as a JSON object" }
                p { label for=(OTHER_ARGUMENTS) { "Arguments" } textarea id=(OTHER_ARGUMENTS) name=(OTHER_ARGUMENTS) rows="4" { "\n" (value(OTHER_ARGUMENTS)) } }
            }
            p { button.primary type="submit" { "Send the intent" } }
        }
    }
}

fn argument_field(
    ArgumentField { name, schema, kind, is_required }: &ArgumentField<'_>,
    value: &str,
) -> Markup {
    let id = format!("{ARGUMENT_PREFIX}{name}");
    let hint = schema.get("description").and_then(Value::as_str).map(|hint| line(&hint.replace('\n', " ")));
    let default = schema.get("default").map(|default| line(&default.to_string()));
    html! {
        p {
            label for=(id) { (line(name)) @if *is_required { " (required)" } }
            @match kind {
                FieldKind::Text => { textarea id=(id) name=(id) rows="1" { "\n" (value) } }
                FieldKind::Number => { input id=(id) name=(id) type="text" inputmode="decimal" value=(value) required[*is_required]; }
                FieldKind::Json => { textarea id=(id) name=(id) rows="3" placeholder="JSON" required[*is_required] { "\n" (value) } }
                FieldKind::Choice(values) => {
                    select id=(id) name=(id) required[*is_required] {
                        option value="" { "not given" }
                        @for choice in values.iter() {
                            @let text = choice.to_string();
                            option value=(text) selected[text == value] { (line(choice.as_str().unwrap_or(&text))) }
                        }
                    }
                }
            }
            @if let Some(hint) = hint { span.hint { (hint) } }
            @if let Some(default) = default { span.hint { " Default: " (default) } }
        }
    }
}

/// The arguments in a form.
///
/// # Errors
/// A sentence for the person, without its full stop.
fn parse_arguments(
    console: &ConsoleState,
    schema: &Value,
    form: &FormFields,
) -> Result<Map<String, Value>, String> {
    let parse = |what: &str, text: &str| -> Result<Value, String> {
        let checked =
            strict_json::check(text.as_bytes(), &console.bounds).map_err(|fault| fault_text(&fault));
        let value = checked.and_then(|text| serde_json::from_str(text).map_err(|error| error.to_string()));
        value.map_err(|error| format!("{what} is not valid JSON: {error}"))
    };
    let mut arguments = match form.get(OTHER_ARGUMENTS).map(str::trim).filter(|text| !text.is_empty()) {
        None => Map::new(),
        Some(text) => match parse("the field of other arguments", text)? {
            Value::Object(arguments) => arguments,
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
                return Err("the other arguments have to be a JSON object".to_owned());
            }
        },
    };
    for ArgumentField { name, schema: _, kind, is_required } in argument_fields(schema) {
        let what = format!("`{}`", line(name));
        // A browser ends the lines of a text with CRLF.
        let text = form.get(&format!("{ARGUMENT_PREFIX}{name}")).unwrap_or_default().replace("\r\n", "\n");
        let value = match kind {
            FieldKind::Text if is_required && !arguments.contains_key(name) => Value::String(text),
            _ if text.is_empty() => continue,
            FieldKind::Text => Value::String(text),
            FieldKind::Number => match parse(&what, text.trim())? {
                number @ Value::Number(_) => number,
                Value::Null | Value::Bool(_) | Value::String(_) | Value::Array(_) | Value::Object(_) => {
                    return Err(format!("{what} has to be a number"));
                }
            },
            FieldKind::Choice(_) | FieldKind::Json => parse(&what, &text)?,
        };
        if arguments.insert(name.to_owned(), value).is_some() {
            return Err(format!(
                "{what} is given twice: once in its own field, and once among the other arguments"
            ));
        }
    }
    Ok(arguments)
}

/// The call of a form.
///
/// # Errors
/// A sentence for the person, without its full stop.
fn parse_call(
    console: &ConsoleState,
    caller: &str,
    tool: &Descriptor,
    form: &FormFields,
) -> Result<Call, String> {
    let agent = AgentDid::parse(form.get("agent").unwrap_or_default().trim());
    let intent = IntentId::parse(form.get("intent").unwrap_or_default());
    let arguments = parse_arguments(console, &tool.arguments_schema, form)?;
    let text = Value::Object(arguments.clone()).to_string();
    Ok(Call {
        door: Door::Console,
        agent: agent.map_err(|error| error.to_string())?,
        intent: intent.map_err(|_| "the form has no intent: open the page again".to_owned())?,
        is_new: false,
        tool: tool.name.clone(),
        arguments,
        context: None,
        caller_timeout: None,
        priority: Priority::Normal,
        charge: body::charge(caller, text.as_bytes()).map_err(|fault| fault_text(&fault))?,
        parent: None,
        caller_tools: None,
        session: None,
    })
}

/// `POST /console/tools/{tool}/send`.
pub(super) async fn send(
    State(console): State<Arc<ConsoleState>>,
    Path(name): Path<String>,
    PostedForm { signed_in, form }: PostedForm,
) -> Response {
    let tools = console.executor.catalogue.tools();
    let Some(tool) = find_tool(&tools, &name) else { return not_found("tool") };
    if !signed_in.caller.is_any_of(&[Role::Agent]) {
        return forbidden("agent");
    }
    let again = |error: &str| tool_page(signed_in.viewer(&console), tool, Some((&form, error)));
    let call = match parse_call(&console, signed_in.caller.name(), tool, &form) {
        Ok(call) => call,
        Err(error) => return again(&error),
    };
    let intent = call.intent;
    let run = async {
        let call = with_caller(&console.executor, &signed_in.caller, call)?;
        let started = Arc::new(Notify::new());
        let notify = Arc::clone(&started);
        let sink = RunEventSink::new(move |event| {
            if matches!(event, RunEvent::Started) {
                notify.notify_one();
            }
        });
        tokio::select! {
            answer = console.executor.engine.handle_intent(call, sink) => answer.map(drop),
            // The run goes on without this request.
            () = started.notified() => Ok(()),
        }
    };
    let result: Result<(), Fault> = run.await;
    match result {
        Ok(()) => Redirect::to(&format!("/console/runs/{intent}")).into_response(),
        Err(fault) => again(&fault_text(&fault)),
    }
}
