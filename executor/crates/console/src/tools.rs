//! The catalogue, and the page of each tool.

use super::ConsoleState;
use super::elsewhere::{self, FleetAnswers};
use super::form::FormFields;
use super::page::{Viewer, block, line, not_found, scrolling_table, whole};
use super::send;
use super::session::SignedIn;
use a2g_types::clock::format_seconds;
use a2g_types::ident::ToolName;
use a2g_types::limit::Group;
use a2g_types::node::NodeName;
use a2g_types::tool::{DeclaredCapabilities, Descriptor, ToolSignature};
use axum::extract::{Path, State};
use axum::response::Response;
use maud::{Markup, html};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

/// A tool, in the form for another node.
#[derive(Serialize, Deserialize)]
pub(super) struct NodeTool {
    name: ToolName,
    version: String,
    digest: String,
}

/// The tools of this node.
pub(super) fn list_own_tools(console: &ConsoleState) -> Vec<NodeTool> {
    let tools = console.executor.catalogue.tools();
    let tool = |Descriptor { name, version, digest, .. }: &Descriptor| NodeTool {
        name: name.clone(),
        version: version.clone(),
        digest: digest.to_string(),
    };
    tools.iter().map(tool).collect()
}

/// `GET /console/tools`.
pub(super) async fn list(State(console): State<Arc<ConsoleState>>, signed_in: SignedIn) -> Response {
    let FleetAnswers { answers, notice } = elsewhere::list_tools(&console, &signed_in.caller).await;
    let tools = console.executor.catalogue.tools();
    let named =
        answers.iter().map(|(node, tools)| (node, tools.iter().map(|tool| (&tool.name, tool)).collect()));
    let others = named.collect::<Vec<_>>();
    let absent = absent_tools(&tools, &others);
    let has_others = !others.is_empty();
    let body = html! {
        h1 { "Tools" }
        @if let Some(notice) = notice { p role="status" { (notice) } }
        @if tools.is_empty() && absent.is_empty() {
            p { "There are no tools: add some with " code { "a2g-executor tool add" } "." }
        } @else {
            (scrolling_table("Tools", &html! {
                thead { tr {
                    th { "Tool" } th { "Version" } th { "Description" } th { "Files" } th { "Network" } th { "May call" }
                    @if has_others { th { "Other nodes" } }
                } }
                tbody {
                    @for tool in tools.iter() {
                        tr {
                            td { a href={ "/console/tools/" (tool.name) } { (tool.name) } }
                            td { (line(&tool.version)) }
                            td { (line(&tool.description)) }
                            td { (tool.capabilities.filesystem.as_str()) }
                            td { @if tool.capabilities.network { "yes" } @else { "no" } }
                            td { (tool.capabilities.calls.to_names().join(", ")) }
                            @if has_others { td { (compare_nodes(tool, &others)) } }
                        }
                    }
                    @for (name, nodes) in &absent {
                        tr { td { (name) } td colspan="5" { "Not at this node." } td { "only at " (line(&nodes.join(", "))) } }
                    }
                }
            }))
        }
    };
    signed_in.viewer(&console).page("Tools", &body)
}

/// The tools of each other node, by their names.
type OtherTools<'a> = [(&'a NodeName, HashMap<&'a ToolName, &'a NodeTool>)];

/// The tools that only other nodes have, with these nodes and their versions.
fn absent_tools<'a>(own: &[Descriptor], others: &OtherTools<'a>) -> BTreeMap<&'a str, Vec<String>> {
    let own = own.iter().map(|tool| &tool.name).collect::<HashSet<_>>();
    let mut absent = BTreeMap::<_, Vec<_>>::new();
    for (node, tools) in others {
        for NodeTool { name, version, digest: _ } in tools.values().filter(|tool| !own.contains(&tool.name)) {
            absent.entry(name.as_str()).or_default().push(format!("{node} ({version})"));
        }
    }
    absent
}

/// Says which other nodes lack a tool or have another module of it.
fn compare_nodes(tool: &Descriptor, others: &OtherTools<'_>) -> String {
    let mut lacking = Vec::new();
    let mut differing = Vec::new();
    let digest = tool.digest.to_string();
    for (node, tools) in others {
        match tools.get(&tool.name) {
            None => lacking.push(node.as_str()),
            Some(other) if other.digest != digest => differing.push(node.as_str()),
            Some(_same) => {}
        }
    }
    let part =
        |what: &str, nodes: Vec<&str>| (!nodes.is_empty()).then(|| format!("{what} {}", nodes.join(", ")));
    let differences = [part("not at", lacking), part("another module at", differing)];
    let parts = differences.into_iter().flatten().collect::<Vec<_>>();
    if parts.is_empty() { "the same module".to_owned() } else { parts.join("; ") }
}

/// `GET /console/tools/{tool}`.
pub(super) async fn show(
    State(console): State<Arc<ConsoleState>>,
    signed_in: SignedIn,
    Path(name): Path<String>,
) -> Response {
    let tools = console.executor.catalogue.tools();
    let Some(tool) = find_tool(&tools, &name) else { return not_found("tool") };
    tool_page(signed_in.viewer(&console), tool, None)
}

/// The tool with this name.
pub(super) fn find_tool<'a>(tools: &'a [Descriptor], name: &str) -> Option<&'a Descriptor> {
    let name = ToolName::parse(name).ok()?;
    tools.iter().find(|tool| tool.name == name)
}

/// The page of a tool. After a failed attempt to send an intent, it has the fields of that attempt and the error, a
/// sentence without its full stop.
pub(super) fn tool_page(
    viewer: Viewer<'_>,
    tool: &Descriptor,
    attempt: Option<(&FormFields, &str)>,
) -> Response {
    let body = html! {
        @if let Some((_, error)) = attempt { p.error role="alert" { "The intent was not sent, or did not run: " (error) "." } }
        (tool_body(tool))
        (send::intent_form(viewer, tool, attempt.map(|(form, _)| form)))
    };
    viewer.page("Tool", &body)
}

fn tool_body(tool: &Descriptor) -> Markup {
    let DeclaredCapabilities { filesystem, effects, network, requests, secrets, limits, calls } =
        &tool.capabilities;
    let limits = limits.claimed().filter(|(row, _)| row.group != Group::Calls);
    let schema = |schema| block(&serde_json::to_string_pretty(schema).unwrap_or_default());
    html! {
        h1 { (tool.name) }
        @if let Some(title) = &tool.title { p { (line(title)) } }
        p { (line(&tool.description)) }
        dl.facts {
            dt { "Version" } dd { (line(&tool.version)) }
            dt { "Contract" } dd { (tool.contract.as_str()) }
            dt { "Module" } dd { code.hash { (tool.digest.to_string()) } }
            @if let Some(ToolSignature { signer, package, expires_at }) = &tool.signature {
                dt { "Signed by" } dd {
                    (signer)
                    @if let Some(at) = expires_at { ", until " (format_seconds(*at)) }
                }
                dt { "Package" } dd { code.hash { "sha256:" (package.to_string()) } }
            }
            dt { "Files" } dd { (filesystem.as_str()) }
            @if let Some(effects) = effects.unless_direct() { dt { "File changes" } dd { (effects.as_str()) } }
            dt { "Network" } dd { @if *network { "yes" } @else { "no" } }
            @for request in requests { dt { "Request" } dd { code { (whole(&request.to_string())) } } }
            @for secret in secrets { dt { "Secret" } dd { (secret) } }
            @for (row, amount) in limits { dt { (row.label()) } dd { "at most " (row.format(amount)) } }
            dt { "May call" } dd { (calls.to_names().join(", ")) @if calls.is_empty() { "none" } }
            @if tool.has_sessions { dt { "Sessions" } dd { "yes: a call may ask for one" } }
            dt { "Idempotent" } dd { @if tool.is_idempotent { "yes, as its author declares" } @else { "not declared" } }
        }
        h2 { "Arguments" }
        (schema(&tool.arguments_schema))
        @if let Some(result) = &tool.result_schema { h2 { "Result" } (schema(result)) }
        p { a href={ "/console/runs?tool=" (tool.name) } { "Runs of this tool" } }
    }
}
