//! `G2A_POLICY`: standing limits, from a governor or from a file.

use crate::field::{Field, Object};
use crate::strict_json::{self, JsonBounds};
use a2g_types::fault::Fault;
use a2g_types::ident::{AgentDid, ToolName};
use a2g_types::limit::CallCeilings;
use a2g_types::quantity::{CpuPercent, MemoryLimit, Timeout};
use a2g_types::tool::CallTargets;
use a2g_types::verdict::{NetworkRule, Policy, ResourceRule, ToolRule};
use std::collections::BTreeMap;

/// Maximum number of requests per minute in a policy.
pub(in crate::a2g) const MAX_REQUESTS_PER_MINUTE: u64 = 1_000_000;
/// Maximum disk space in a policy: 1 PiB.
pub(in crate::a2g) const MAX_DISK_MB: u64 = 1 << 30;
/// Maximum length of an argument in a policy: 1 PiB, so that "no limit" can be expressed as a number.
pub(in crate::a2g) const MAX_SIZE_BYTES: u64 = 1 << 50;

/// The source of a policy, which determines the accepted values of `agent_did`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PolicySource {
    /// A governor: one agent.
    Governor,
    /// A file of the operator: one agent, or `"*"` for all of them.
    File,
}

/// Decodes the params of `g2a/policy`. Unknown members are refused at every level.
///
/// # Errors
/// [`Fault::InvalidParams`] with a pointer into `params`; [`Fault::Parse`] for text that is not JSON.
pub fn policy(params: &str) -> Result<Policy, Fault> {
    decode(Object::parse(params)?, PolicySource::Governor)
}

/// Decodes a policy file: as [`policy`], but `agent_did` may be `"*"`, and a `description` (a string) may state its
/// purpose. The text is checked with [`strict_json::check`] here.
///
/// # Errors
/// As [`policy`].
pub fn policy_file(text: &str) -> Result<Policy, Fault> {
    let text = strict_json::check(text.as_bytes(), &JsonBounds::default())?;
    let mut object = Object::parse(text)?;
    if let Some(description) = object.take("description")? {
        description.string()?;
    }
    decode(object, PolicySource::File)
}

/// Decodes the result of `a2g/register`: the agent's standing policy, if the result has one as `policy`. Any other
/// result is an acknowledgement, which many reference governors send.
///
/// # Errors
/// As [`policy`], with pointers into the result.
pub fn registration_result(result: &str) -> Result<Option<Policy>, Fault> {
    let field = Field::parse(result)?;
    if !field.is_object() {
        return Ok(None);
    }
    let policy = field.object()?.take_unless_null("policy")?;
    policy.map(|field| decode(field.object()?, PolicySource::Governor)).transpose()
}

fn decode(mut object: Object<'_>, source: PolicySource) -> Result<Policy, Fault> {
    let agent = decode_agent(&object.require("agent_did")?, source)?;
    let version = object.require("version")?.string()?;
    let capabilities = object.require("capabilities")?;
    let hash = object.take_unless_null("constitution_hash")?;
    let constitution_hash = hash.map(|field| field.string()).transpose()?;
    object.finish()?;

    let mut object = capabilities.object()?;
    let policy = Policy {
        agent,
        version,
        tools: object.take("tools")?.map(decode_tools).transpose()?.unwrap_or_default(),
        network: object.take("network")?.map(decode_network).transpose()?.unwrap_or_default(),
        resources: object.take("resources")?.map(decode_resources).transpose()?.unwrap_or_default(),
        constitution_hash,
    };
    object.finish()?;
    Ok(policy)
}

fn decode_agent(field: &Field<'_>, source: PolicySource) -> Result<Option<AgentDid>, Fault> {
    if source == PolicySource::File && field.string()? == "*" {
        return Ok(None);
    }
    field.parse_with(AgentDid::parse).map(Some)
}

fn decode_tools(field: Field<'_>) -> Result<BTreeMap<ToolName, ToolRule>, Fault> {
    let mut rules = BTreeMap::new();
    let whole = field.pointer().to_owned();
    for (key, field) in field.object()?.remaining() {
        let name = ToolName::parse(&key).map_err(|error| Fault::invalid(&whole, error.to_string()))?;
        let pointer = field.pointer().to_owned();
        if rules.insert(name, decode_tool(field)?).is_some() {
            return Err(Fault::invalid(pointer, "the tool occurs twice"));
        }
    }
    Ok(rules)
}

fn decode_tool(field: Field<'_>) -> Result<ToolRule, Fault> {
    let mut object = field.object()?;
    let allowed = object.require("allowed")?.boolean()?;
    let constraints = object.take("constraints")?;
    object.finish()?;
    let Some(constraints) = constraints else { return Ok(ToolRule { allowed, ..ToolRule::default() }) };

    let mut object = constraints.object()?;
    let timeout = object.take("timeout_seconds")?;
    let size = object.take("max_size_bytes")?;
    let max_calls = object.take("max_calls")?;
    let all_paths = object.take("grant_all_paths")?;
    let calls = object.take("calls")?;
    let rule = ToolRule {
        allowed,
        paths: object.take("paths")?.map(Field::strings).transpose()?,
        blocked_paths: optional_strings(&mut object, "blocked_paths")?,
        blocked_patterns: optional_strings(&mut object, "blocked_patterns")?,
        max_size_bytes: size.map(|field| field.integer(1, MAX_SIZE_BYTES)).transpose()?,
        timeout: timeout.map(|field| field.quantity(Timeout::from_seconds)).transpose()?,
        calls: calls.map(decode_calls).transpose()?,
        max_calls: max_calls
            .map(|field| field.integer(0, CallCeilings::MAX_CALLS))
            .transpose()?
            .map(saturate),
        grants_all_paths: all_paths.map(|field| field.boolean()).transpose()?.unwrap_or(false),
    };
    object.finish()?;
    Ok(rule)
}

fn decode_calls(field: Field<'_>) -> Result<CallTargets, Fault> {
    let pointer = field.pointer().to_owned();
    CallTargets::parse(&field.strings()?).map_err(|error| Fault::invalid(pointer, error.to_string()))
}

fn saturate(count: u64) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

fn decode_network(field: Field<'_>) -> Result<NetworkRule, Fault> {
    let mut object = field.object()?;
    let requests = object.take("max_requests_per_minute")?;
    let rule = NetworkRule {
        allowed_domains: object.take("allowed_domains")?.map(Field::strings).transpose()?,
        blocked_domains: optional_strings(&mut object, "blocked_domains")?,
        max_requests_per_minute: requests
            .map(|field| field.integer(1, MAX_REQUESTS_PER_MINUTE))
            .transpose()?,
    };
    object.finish()?;
    Ok(rule)
}

fn decode_resources(field: Field<'_>) -> Result<ResourceRule, Fault> {
    let mut object = field.object()?;
    let memory = object.take("max_memory_mb")?;
    let cpu = object.take("max_cpu_percent")?;
    let disk = object.take("max_disk_mb")?;
    object.finish()?;
    Ok(ResourceRule {
        max_memory: memory.map(|field| field.quantity(MemoryLimit::from_mb)).transpose()?,
        max_cpu: cpu.map(|field| field.quantity(CpuPercent::new)).transpose()?,
        max_disk_mb: disk.map(|field| field.integer(1, MAX_DISK_MB)).transpose()?,
    })
}

/// A list of strings; empty if it is absent.
fn optional_strings(object: &mut Object<'_>, name: &str) -> Result<Vec<String>, Fault> {
    Ok(object.take(name)?.map(Field::strings).transpose()?.unwrap_or_default())
}
