//! `G2A_POLICY`: standing limits, from a governor or from a file.

use crate::a2g::limits;
use crate::field::{Field, Object};
use crate::strict_json::{self, JsonBounds};
use a2g_types::fault::Fault;
use a2g_types::ident::{AgentDid, SecretName, ToolName};
use a2g_types::limit::FileEffects;
use a2g_types::tool::CallTargets;
use a2g_types::verdict::{NetworkRule, Policy, ResourceRule, ToolRule};
use std::collections::{BTreeMap, BTreeSet};

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
    object.read_optional::<String>("description")?;
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
    field.object()?.read_nullable_with("policy", |field| decode(field.object()?, PolicySource::Governor))
}

fn decode(object: Object<'_>, source: PolicySource) -> Result<Policy, Fault> {
    object.read_all(|object| {
        let agent = decode_agent(&object.require("agent_did")?, source)?;
        let version = object.read("version")?;
        let constitution_hash = object.read_nullable("constitution_hash")?;
        object.read::<Object<'_>>("capabilities")?.read_all(|object| {
            Ok(Policy {
                agent,
                version,
                tools: object.read_optional_with("tools", decode_tools)?.unwrap_or_default(),
                network: object.read_optional_with("network", decode_network)?.unwrap_or_default(),
                resources: object.read_optional_with("resources", decode_resources)?.unwrap_or_default(),
                constitution_hash,
            })
        })
    })
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
        let twice = field.fault("the tool occurs twice");
        if rules.insert(name, decode_tool(field)?).is_some() {
            return Err(twice);
        }
    }
    Ok(rules)
}

fn decode_tool(field: Field<'_>) -> Result<ToolRule, Fault> {
    field.object()?.read_all(|object| {
        let allowed = object.read("allowed")?;
        let constraints = object.read_optional_with("constraints", decode_constraints)?;
        Ok(ToolRule { allowed, ..constraints.unwrap_or_default() })
    })
}

fn decode_constraints(field: Field<'_>) -> Result<ToolRule, Fault> {
    field.object()?.read_all(|object| {
        Ok(ToolRule {
            allowed: false,
            paths: object.read_optional("paths")?,
            blocked_paths: object.read_optional("blocked_paths")?.unwrap_or_default(),
            blocked_patterns: object.read_optional("blocked_patterns")?.unwrap_or_default(),
            max_size_bytes: object
                .read_optional_with("max_size_bytes", |field| field.integer(1, MAX_SIZE_BYTES))?,
            effects: object
                .read_optional_with("effects", |field| field.enum_variant::<FileEffects>())?
                .unwrap_or_default(),
            limits: limits::read::<limits::InConstraints>(object)?,
            calls: object.read_optional_with("calls", decode_calls)?,
            secrets: object.read_optional_with("secrets", decode_secrets)?,
            grants_all_paths: object.read_optional("grant_all_paths")?.unwrap_or_default(),
            is_previewed: object.read_optional("preview")?.unwrap_or_default(),
        })
    })
}

fn decode_calls(field: Field<'_>) -> Result<CallTargets, Fault> {
    CallTargets::parse(&field.strings()?).map_err(|error| field.fault(error.to_string()))
}

fn decode_secrets(field: Field<'_>) -> Result<BTreeSet<SecretName>, Fault> {
    let parsed =
        field.strings()?.iter().map(|name| SecretName::parse(name)).collect::<Result<BTreeSet<_>, _>>();
    parsed.map_err(|error| field.fault(error.to_string()))
}

fn decode_network(field: Field<'_>) -> Result<NetworkRule, Fault> {
    field.object()?.read_all(|object| {
        Ok(NetworkRule {
            allowed_domains: object.read_optional("allowed_domains")?,
            blocked_domains: object.read_optional("blocked_domains")?.unwrap_or_default(),
            max_requests_per_minute: object.read_optional_with("max_requests_per_minute", |field| {
                field.integer(1, MAX_REQUESTS_PER_MINUTE)
            })?,
        })
    })
}

fn decode_resources(field: Field<'_>) -> Result<ResourceRule, Fault> {
    field.object()?.read_all(|object| {
        Ok(ResourceRule {
            limits: limits::read::<limits::InResources>(object)?,
            max_disk_mb: object.read_optional_with("max_disk_mb", |field| field.integer(1, MAX_DISK_MB))?,
        })
    })
}
