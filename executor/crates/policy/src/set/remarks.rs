//! What people are told of a set beyond its decisions.

use super::CedarSet;
use crate::rule_name::RuleName;
use crate::source::describe;
use a2g_types::ident::ToolName;
use cedar_policy::{
    ActionConstraint, Effect, EntityUid, PolicyId, PrincipalConstraint, ResourceConstraint, ValidationMode,
    Validator,
};

/// The scope of a rule, for people; a part is empty if it is about everything.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleScope {
    /// The agent or the group.
    pub principal: String,
    /// The actions.
    pub action: String,
    /// The tool, folder, host or secret.
    pub resource: String,
}

impl CedarSet {
    /// The remarks of Cedar's validator that do not refuse a set, each with its rule.
    #[must_use]
    pub fn remarks(&self) -> Vec<(&RuleName, String)> {
        let result = Validator::new(self.schema.clone()).validate(&self.all, ValidationMode::Strict);
        let remarks = result.validation_warnings().filter_map(|warning| {
            let rule = self.rules.get(warning.policy_id())?;
            let (_line, message) = describe(warning, &rule.text);
            Some((&rule.name, message.replacen(&format!("for policy `{}`, ", warning.policy_id()), "", 1)))
        });
        let mut remarks = remarks.collect::<Vec<_>>();
        remarks.sort();
        remarks
    }

    /// The tools that no rule permits anybody to call: no scope of a `permit` matches their calls.
    #[must_use]
    pub fn tools_without_permit(&self) -> Vec<&ToolName> {
        let is_permitted = |action: &EntityUid, resource: &EntityUid| {
            let mut permits = self.rules.values().filter(|rule| rule.effect() == Effect::Permit);
            permits.any(|rule| {
                rule.scope.matches_action(action, &self.entities)
                    && rule.scope.matches_resource(resource, &self.entities)
            })
        };
        let others = self.tools.iter().filter(|(_, shape)| !is_permitted(&shape.action, &shape.resource));
        others.map(|(tool, _)| tool).collect()
    }

    /// The scope of a rule of this set.
    #[must_use]
    pub fn scope_of(&self, rule: &RuleName) -> Option<RuleScope> {
        let RuleName { file, line, id: _ } = rule;
        let policy = &self.rules.get(&PolicyId::new(format!("{file}:{line}")))?.policy;
        let id = |uid: &EntityUid| uid.id().unescaped().to_owned();
        let principal = match policy.principal_constraint() {
            PrincipalConstraint::Any => String::new(),
            PrincipalConstraint::In(uid) | PrincipalConstraint::IsIn(_, uid) => format!("in {}", id(&uid)),
            PrincipalConstraint::Eq(uid) => id(&uid),
            PrincipalConstraint::Is(name) => format!("every {name}"),
        };
        let action = match policy.action_constraint() {
            ActionConstraint::Any => String::new(),
            ActionConstraint::In(uids) => uids.iter().map(id).collect::<Vec<_>>().join(", "),
            ActionConstraint::Eq(uid) => id(&uid),
        };
        let resource = match policy.resource_constraint() {
            ResourceConstraint::Any => String::new(),
            ResourceConstraint::In(uid) | ResourceConstraint::IsIn(_, uid) => format!("in {}", id(&uid)),
            ResourceConstraint::Eq(uid) => id(&uid),
            ResourceConstraint::Is(name) => format!("every {name}"),
        };
        Some(RuleScope { principal, action, resource })
    }
}
