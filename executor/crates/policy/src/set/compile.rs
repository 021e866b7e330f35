//! From texts to a set: each refusal names its file and line.

use super::annotations::{Annotations, Setting};
use super::bounded::Bounded;
use super::expression::Conditions;
use super::literals::Named;
use super::members::{Members, check_tool};
use super::scope::Scope;
use super::{CedarSet, Rule};
use crate::rule_name::RuleName;
use crate::schema::{EntityKind, ParsedSchema, READ, WRITE, left_out, schema_text};
use crate::source::{
    ENTITIES_FILE, MAX_FILE_BYTES, PolicyError, PolicyFile, PolicySources, describe, line_of,
};
use a2g_types::ident::{AgentDid, did_you_mean, excerpt};
use a2g_types::tool::{Descriptor, Digest};
use cedar_policy::entities_errors::EntitiesError;
use cedar_policy::{
    Entities, EntityUid, Policy, PolicyId, PolicySet, Template, ValidationMode, ValidationWarning, Validator,
};
use miette::Diagnostic;
use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr as _;
use std::sync::Arc;

/// Maximum number of policies of a set.
const MAX_POLICIES: usize = 10_000;

/// Maximum nesting of brackets in a file. Cedar's parser recurses into each.
const MAX_NESTING: usize = 64;
/// Maximum number of `&&` and `||` of a policy. Cedar recurses into each: its validator here, and its evaluator on the
/// thread of a decision, whose stack is smaller.
const MAX_OPERATORS: usize = 200;
/// The stack of the thread that compiles: enough for policies within these bounds in a build without optimisation.
const STACK_BYTES: usize = 64 << 20;

/// Compiles on a thread of its own, because a thread of a server has too small a stack for it.
pub(super) fn compile_apart(sources: &PolicySources, tools: &[&Descriptor]) -> Result<CedarSet, PolicyError> {
    std::thread::scope(|scope| {
        let builder = std::thread::Builder::new().stack_size(STACK_BYTES);
        let started = builder.spawn_scoped(scope, || compile(sources, tools));
        let thread = started.map_err(|error| PolicyError::Schema {
            message: format!("no thread can be started to compile them: {error}"),
        })?;
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// The first line on which brackets are nested too deeply. Brackets in texts and comments are none.
fn too_deep(text: &str) -> Option<u32> {
    let mut line = 1;
    let mut depth = 0_usize;
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        match character {
            '\n' => line += 1,
            '"' => {
                while let Some(inner) = characters.next_if(|inner| *inner != '"') {
                    line += u32::from(inner == '\n');
                    if inner == '\\' {
                        characters.next();
                    }
                }
                characters.next();
            }
            '/' if characters.peek() == Some(&'/') => {
                while characters.next_if(|inner| *inner != '\n').is_some() {}
            }
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth = depth.saturating_sub(1),
            _other => {}
        }
        if depth > MAX_NESTING {
            return Some(line);
        }
    }
    None
}

fn compile(sources: &PolicySources, tools: &[&Descriptor]) -> Result<CedarSet, PolicyError> {
    let catalogue_text = schema_text(tools.iter().copied());
    // The file is for a governor that sees no tools.
    let (source_text, schema) = match &sources.schema {
        Some(text) if tools.is_empty() => (text, ParsedSchema::of_file(text)?),
        Some(_) | None => (&catalogue_text, ParsedSchema::of_catalogue(&catalogue_text)?),
    };
    let members = Members::read(sources.entities.as_deref(), &schema)?;
    let actions = schema.schema.action_entities().map_err(|error| refused_schema(&error))?;
    let mut compiler =
        Compiler { schema: &schema, members: &members, actions: &actions, rules: BTreeMap::new() };
    sources.files.iter().try_for_each(|file| compiler.add_file(file))?;
    let rules = compiler.rules;
    let policies = rules.values().map(|rule| rule.policy.clone());
    let all = PolicySet::from_policies(policies).map_err(|error| refused_schema(&error))?;
    validate(&all, &rules, &schema, sources, tools)?;
    let named_agents = rules.values().filter_map(|rule| scope_agent(rule, &schema));
    let named_agents = named_agents.chain(members.agents.iter().cloned()).collect::<BTreeSet<_>>();
    let mut named = Named::default();
    rules.values().for_each(|rule| named.add(&rule.named));
    let entities = members.into_entities().chain(named.entities(&schema.types));
    let entities =
        Entities::from_entities(entities, Some(&schema.schema)).map_err(|error| refused_entities(&error))?;
    Ok(CedarSet {
        mentions_text: rules.values().any(|rule| rule.mentions_text),
        hash: hash(sources, source_text),
        schema: schema.schema,
        types: schema.types,
        tools: schema.tools,
        entities,
        all: Arc::new(all),
        rules,
        named_agents,
        slices: Bounded::default(),
        literals: Bounded::default(),
    })
}

/// The digest of what a set is made of. Each text has its length before it, so no two lists have the same bytes.
fn hash(sources: &PolicySources, schema: &str) -> Digest {
    let files = sources.files.iter().flat_map(|file| [file.name.as_str(), file.text.as_str()]);
    let texts = files.chain([schema, sources.entities.as_deref().unwrap_or_default()]);
    let bytes = texts.fold(Vec::new(), |mut bytes, text| {
        bytes.extend(text.len().to_le_bytes());
        bytes.extend(text.as_bytes());
        bytes
    });
    Digest::compute(&bytes)
}

fn refused_schema(error: &dyn Diagnostic) -> PolicyError {
    PolicyError::Schema { message: describe(error, "").1 }
}

fn refused_entities(error: &EntitiesError) -> PolicyError {
    let message = if let EntitiesError::TransitiveClosureError(cycle) = error {
        format!("a group is in itself, or in one that is in it ({cycle}); remove one of these parents")
    } else {
        describe(error, "").1
    };
    PolicyError::at(ENTITIES_FILE, None, message)
}

/// The agent that the scope of a rule names.
fn scope_agent(rule: &Rule, schema: &ParsedSchema) -> Option<AgentDid> {
    let uid = rule.scope.principal()?;
    let is_agent = schema.types.kind(uid) == Some(EntityKind::Agent);
    is_agent.then(|| AgentDid::parse(uid.id().unescaped()).ok()).flatten()
}

/// What policies are read with, and those that are read.
struct Compiler<'a> {
    schema: &'a ParsedSchema,
    members: &'a Members,
    /// The actions, with their group.
    actions: &'a Entities,
    rules: BTreeMap<PolicyId, Rule>,
}

impl Compiler<'_> {
    fn add_file(&mut self, file: &PolicyFile) -> Result<(), PolicyError> {
        let PolicyFile { name, text } = file;
        if u64::try_from(text.len()).is_ok_and(|bytes| bytes > MAX_FILE_BYTES) {
            return Err(PolicyError::TooLarge { path: name.into(), max_bytes: MAX_FILE_BYTES });
        }
        if let Some(line) = too_deep(text) {
            let message =
                format!("brackets are nested more than {MAX_NESTING} deep; divide the rule into several");
            return Err(PolicyError::at(name, Some(line), message));
        }
        let parsed = PolicySet::from_str(text).map_err(|error| PolicyError::of(name, text, &error))?;
        if parsed.num_of_policies() + self.rules.len() > MAX_POLICIES {
            return Err(PolicyError::TooMany { what: "policies", max: MAX_POLICIES });
        }
        for (line, source) in located(&parsed, text) {
            let refused = |message| PolicyError::at(name, Some(line), message);
            let Source::Policy(policy, text) = source else {
                return Err(refused(
                    "it is a template (`?principal` or `?resource`), which nobody would fill in; write the agent or the \
                     resource"
                        .to_owned(),
                ));
            };
            let rule = self.rule(policy, name, line, text).map_err(refused)?;
            let id = rule.policy.id().clone();
            if self.rules.insert(id, rule).is_some() {
                return Err(refused(
                    "a second policy begins on this line; begin it on a line of its own".to_owned(),
                ));
            }
        }
        Ok(())
    }

    fn rule(&self, policy: &Policy, file: &str, line: u32, text: String) -> Result<Rule, String> {
        let operators = ["&&", "||"].map(|operator| text.matches(operator).count()).iter().sum::<usize>();
        if operators > MAX_OPERATORS {
            return Err(format!(
                "it has {operators} times `&&` or `||`, and at most {MAX_OPERATORS} are evaluated; divide it into several \
                 rules, or write a set (`[…].contains(…)`)"
            ));
        }
        let scope = Scope::of(policy);
        let types = &self.schema.types;
        let setting = Setting { types, tools: &self.schema.tools, actions: self.actions };
        let annotations = Annotations::read(policy, &scope, setting)?;
        let json = policy.to_json().map_err(|error| error.to_string())?;
        let conditions = Conditions::of(&json);
        if conditions.compares_folder || scope.is_equal_to_folder(types) {
            let message =
                "`==` compares a folder with nothing that is in it; write `resource in Folder::\"…\"`";
            return Err(message.to_owned());
        }
        if conditions.uses_resource_freely && self.may_be_folder(&scope) {
            let message = "in a rule for folders, `resource` stands only on the left of `in` and `is`, because files are \
                           compared with the folders that contain them; write `resource in [Folder::\"…\", …]`";
            return Err(message.to_owned());
        }
        let mut named = Named::default();
        policy.entity_literals().iter().try_for_each(|uid| self.add_literal(&mut named, uid))?;
        Ok(Rule {
            name: RuleName { file: file.to_owned(), line, id: policy.annotation("id").map(str::to_owned) },
            policy: policy.new_id(PolicyId::new(format!("{file}:{line}"))),
            annotations,
            text,
            scope,
            named,
            mentions_text: conditions.mentions_text,
        })
    }

    /// `true` if the scope matches requests for folders.
    fn may_be_folder(&self, scope: &Scope) -> bool {
        let types = &self.schema.types;
        let has_action =
            |name: &str| scope.matches_action(&types.uid(EntityKind::Action, name), self.actions);
        scope.may_have_resource(EntityKind::Folder, EntityKind::Folder, types)
            && (has_action(READ) || has_action(WRITE))
    }

    /// Refuses an entity that does not exist, because a rule about it would say nothing.
    fn add_literal(&self, named: &mut Named, uid: &EntityUid) -> Result<(), String> {
        let id = uid.id().unescaped();
        let checked = match self.schema.types.kind(uid) {
            Some(EntityKind::Action) => self.check_action(uid),
            Some(EntityKind::Agent) => {
                AgentDid::parse(id).map(|_agent| ()).map_err(|error| error.to_string())
            }
            Some(EntityKind::Folder) => named.add_folder(id),
            Some(EntityKind::Group) => self.members.check_group(id),
            Some(EntityKind::Host) => named.add_host(id),
            Some(EntityKind::Label) => self.members.check_label(id),
            Some(EntityKind::Secret) => named.add_secret(id),
            Some(EntityKind::Tool) => check_tool(id, self.schema),
            None => {
                let types = "`Agent`, `Group`, `Tool`, `Label`, `Folder`, `Host`, `Secret` and `Action`";
                Err(format!("`{}` is not a type of entities: there are {types}", uid.type_name()))
            }
        };
        checked.map_err(|message| format!("`{uid}`: {message}"))
    }

    fn check_action(&self, uid: &EntityUid) -> Result<(), String> {
        if self.actions.get(uid).is_some() {
            return Ok(());
        }
        let id = uid.id().unescaped();
        let known = self.actions.iter().map(cedar_policy::Entity::uid).collect::<Vec<_>>();
        let advice = did_you_mean(id, known.iter().map(|uid| uid.id().unescaped()));
        Err(format!(
            "no tool of the catalogue has the action `{}`{advice}; add the tool, or remove its rules",
            excerpt(id)
        ))
    }
}

/// What stands at one place of a file.
enum Source<'a> {
    Policy(&'a Policy, String),
    Template,
}

/// Each policy of a parsed text, with its line.
// Cedar numbers them in their order, and says what their texts are; between them, there are only spaces and comments.
fn located<'a>(parsed: &'a PolicySet, text: &str) -> Vec<(u32, Source<'a>)> {
    let mut sources = Vec::new();
    let mut rest = text;
    let mut line = 1;
    for number in 0..parsed.num_of_policies() + parsed.num_of_templates() {
        let start = skip_comments(rest);
        line += line_of(rest, rest.len() - start.len()) - 1;
        let id = PolicyId::new(format!("policy{number}"));
        let policy = parsed.policy(&id);
        let own = match policy {
            Some(policy) => policy.to_cedar().unwrap_or_default(),
            None => parsed.template(&id).map(Template::to_cedar).unwrap_or_default(),
        };
        debug_assert!(start.starts_with(&own), "{own} at line {line}");
        let own_line = line;
        line += line_of(&own, own.len()) - 1;
        rest = start.get(own.len()..).unwrap_or_default();
        sources.push((own_line, policy.map_or(Source::Template, |policy| Source::Policy(policy, own))));
    }
    sources
}

/// The text from the first character that is neither a space nor in a comment.
fn skip_comments(text: &str) -> &str {
    let mut rest = text.trim_start();
    while let Some(comment) = rest.strip_prefix("//") {
        let end = comment.find(['\n', '\r']).unwrap_or(comment.len());
        rest = comment.get(end..).unwrap_or_default().trim_start();
    }
    rest
}

/// Refuses policies that do not fit the schema, and those that can never apply.
fn validate(
    policies: &PolicySet,
    rules: &BTreeMap<PolicyId, Rule>,
    schema: &ParsedSchema,
    sources: &PolicySources,
    tools: &[&Descriptor],
) -> Result<(), PolicyError> {
    let result = Validator::new(schema.schema.clone()).validate(policies, ValidationMode::Strict);
    let errors = result.validation_errors().map(|error| (error.policy_id(), error as &dyn Diagnostic));
    let is_wrong = |warning: &&ValidationWarning| {
        let is_hidden = matches!(
            warning,
            ValidationWarning::BidiCharsInString(_) | ValidationWarning::BidiCharsInIdentifier(_)
        );
        let is_idle = matches!(
            warning,
            ValidationWarning::ImpossiblePolicy(_) | ValidationWarning::InvalidActionApplication(_)
        );
        // Without a tool, every rule about calls is one that never applies.
        is_hidden || (is_idle && !schema.tools.is_empty())
    };
    let warnings = result.validation_warnings().filter(is_wrong);
    let wrong = warnings.map(|warning| (warning.policy_id(), warning as &dyn Diagnostic));
    let refusals = errors.chain(wrong).map(|(id, error)| {
        let (file, line) = rules
            .get(id)
            .map_or_else(|| (id.to_string(), 1), |rule| (rule.name.file.clone(), rule.name.line));
        let text =
            sources.files.iter().find(|other| other.name == file).map_or("", |file| file.text.as_str());
        let (place, message) = describe(error, text);
        let plain = message.replacen(&format!("for policy `{id}`, "), "", 1);
        (file, place.unwrap_or(line), with_reason(plain, tools))
    });
    // The first of the file: Cedar's order changes from run to run.
    match refusals.min() {
        Some((file, line, message)) => Err(PolicyError::At { file, line, message }),
        None => Ok(()),
    }
}

/// Adds why an argument has no form in Cedar to a message that does not find it.
fn with_reason(message: String, tools: &[&Descriptor]) -> String {
    let mut reasons = tools.iter().flat_map(|tool| left_out(tool));
    match reasons.find(|(name, _)| message.contains(&format!("`input.{name}`"))) {
        Some((name, reason)) => format!("{message}; the argument `{}` is left out: {reason}", excerpt(&name)),
        None => message,
    }
}
