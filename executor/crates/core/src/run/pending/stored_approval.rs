//! An approval, as the fleet stores it.

use crate::run::approval_rules::PartialApproval;
use crate::run::decision_basis::DecisionBasis;
use a2g_govern::Callers;
use a2g_journal::Approval;
use a2g_types::fault::Fault;
use a2g_types::grant::GrantSummary;
use a2g_types::node::NodeText;
use a2g_types::stored::v1;
use a2g_types::tool::Digest;
use a2g_types::verdict::Manifest;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};

#[derive(Debug, Serialize, Deserialize)]
struct StoredApproval {
    /// The names of all who have approved.
    by: String,
    /// Of an intent that needs more approvals: read by [`Callers::author_from_node`].
    author: Option<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none", with = "v1::optional_manifest")]
    manifest: Option<Manifest>,
    basis: Option<Digest>,
    /// The grants that were shown.
    #[serde(with = "v1::grants")]
    grants: Vec<GrantSummary>,
}

impl StoredApproval {
    fn to_raw(&self) -> Result<Box<RawValue>, Fault> {
        to_raw_value(self).map_err(|error| Fault::Internal(error.to_string()))
    }
}

/// The stored form of an approval that lets an intent run.
pub(super) fn write_approval(approval: &Approval) -> Result<Box<RawValue>, Fault> {
    let Approval { by, manifest, basis, grants } = approval.clone();
    StoredApproval { by, author: None, manifest, basis: basis.map(Digest), grants }.to_raw()
}

/// The stored form of an approval of an intent that needs more of them.
pub(super) fn write_partial_approval(
    approval: &PartialApproval,
    callers: &Callers,
) -> Result<Box<RawValue>, Fault> {
    let PartialApproval { author, manifest, grant, basis } = approval;
    let stored = StoredApproval {
        by: author.name().to_owned(),
        author: callers.author_to_node(author),
        manifest: manifest.clone(),
        basis: basis.map(|basis| Digest(basis.hash())),
        grants: vec![grant.clone()],
    };
    stored.to_raw()
}

/// Reads an approval that lets an intent run.
pub(super) fn read_approval(approval: &RawValue) -> Result<Approval, Fault> {
    let read = serde_json::from_str(approval.get());
    let StoredApproval { by, author: _, manifest, basis, grants } =
        read.map_err(|error| Fault::Internal(error.to_string()))?;
    Ok(Approval { by, manifest, basis: basis.map(|Digest(hash)| hash), grants })
}

/// Reads an approval of an intent that needs more of them; `None` if it was made under another list of callers.
pub(super) fn read_partial_approval(text: &NodeText, callers: &Callers) -> Option<PartialApproval> {
    let author = callers.author_from_node(text)?;
    let StoredApproval { manifest, basis, grants, .. } = serde_json::from_str(text.as_str()).ok()?;
    let basis = basis.map(|Digest(hash)| DecisionBasis::from_hash(hash));
    Some(PartialApproval { author, manifest, grant: grants.into_iter().next()?, basis })
}
