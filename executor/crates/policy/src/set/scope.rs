//! The scope of a policy: whom it is about, which actions, and of what.

use crate::schema::{EntityKind, EntityTypes};
use cedar_policy::{ActionConstraint, Entities, EntityUid, Policy, PrincipalConstraint, ResourceConstraint};

/// The scope of a policy. It matches exactly the requests for which Cedar evaluates more than the scope.
#[derive(Debug)]
pub(super) struct Scope {
    principal: PrincipalConstraint,
    action: ActionConstraint,
    resource: ResourceConstraint,
}

impl Scope {
    pub(super) fn of(policy: &Policy) -> Self {
        Self {
            principal: policy.principal_constraint(),
            action: policy.action_constraint(),
            resource: policy.resource_constraint(),
        }
    }

    /// The agent or group that the scope names.
    pub(super) fn principal(&self) -> Option<&EntityUid> {
        match &self.principal {
            PrincipalConstraint::Any | PrincipalConstraint::Is(_) => None,
            PrincipalConstraint::In(uid)
            | PrincipalConstraint::Eq(uid)
            | PrincipalConstraint::IsIn(_, uid) => Some(uid),
        }
    }

    /// `true` if the scope matches an agent; `None` stands for every agent that nobody names, which has no groups.
    pub(super) fn matches_principal(
        &self,
        principal: Option<&EntityUid>,
        types: &EntityTypes,
        entities: &Entities,
    ) -> bool {
        let is_in = |uid: &EntityUid| principal.is_some_and(|principal| is_in(entities, principal, uid));
        match &self.principal {
            PrincipalConstraint::Any => true,
            PrincipalConstraint::In(uid) => is_in(uid),
            PrincipalConstraint::Eq(uid) => principal == Some(uid),
            PrincipalConstraint::Is(name) => name == types.name(EntityKind::Agent),
            PrincipalConstraint::IsIn(name, uid) => name == types.name(EntityKind::Agent) && is_in(uid),
        }
    }

    /// `true` if the scope matches an action.
    pub(super) fn matches_action(&self, action: &EntityUid, entities: &Entities) -> bool {
        match &self.action {
            ActionConstraint::Any => true,
            ActionConstraint::In(uids) => uids.iter().any(|uid| is_in(entities, action, uid)),
            ActionConstraint::Eq(uid) => action == uid,
        }
    }

    /// `true` if the scope matches a resource.
    pub(super) fn matches_resource(&self, resource: &EntityUid, entities: &Entities) -> bool {
        match &self.resource {
            ResourceConstraint::Any => true,
            ResourceConstraint::In(uid) => is_in(entities, resource, uid),
            ResourceConstraint::Eq(uid) => resource == uid,
            ResourceConstraint::Is(name) => resource.type_name() == name,
            ResourceConstraint::IsIn(name, uid) => {
                resource.type_name() == name && is_in(entities, resource, uid)
            }
        }
    }

    /// `true` if the scope matches some resources of a type, if those of `above` are the types that can contain it.
    pub(super) fn may_have_resource(&self, kind: EntityKind, above: EntityKind, types: &EntityTypes) -> bool {
        let contains = |uid: &EntityUid| [kind, above].iter().any(|kind| types.kind(uid) == Some(*kind));
        match &self.resource {
            ResourceConstraint::Any => true,
            ResourceConstraint::In(uid) => contains(uid),
            ResourceConstraint::Eq(uid) => types.kind(uid) == Some(kind),
            ResourceConstraint::Is(name) => name == types.name(kind),
            ResourceConstraint::IsIn(name, uid) => name == types.name(kind) && contains(uid),
        }
    }

    /// `true` if the scope compares the resource with a folder by `==`.
    pub(super) fn is_equal_to_folder(&self, types: &EntityTypes) -> bool {
        match &self.resource {
            ResourceConstraint::Eq(uid) => types.kind(uid) == Some(EntityKind::Folder),
            ResourceConstraint::Any
            | ResourceConstraint::In(_)
            | ResourceConstraint::Is(_)
            | ResourceConstraint::IsIn(..) => false,
        }
    }
}

/// `member in group` in Cedar.
fn is_in(entities: &Entities, member: &EntityUid, group: &EntityUid) -> bool {
    member == group || entities.is_ancestor_of(group, member)
}
