//! The calls that are too large for the fleet.

pub(super) use a2g_fleet::is_too_large;

use a2g_fleet::MAX_MESSAGE_BYTES;
use a2g_types::fault::Fault;
use a2g_types::ident::ToolName;

/// The fault for a call whose tool this node lacks, and which is too large for a message to another one.
pub(super) fn too_large_fault(tool: &ToolName) -> Fault {
    let message = format!(
        "this node of the fleet does not have the tool `{tool}`, and the call and its verdict need a message of more than \
         {} KiB, the fixed maximum: install the tool here, or send the call to a node that has it",
        MAX_MESSAGE_BYTES >> 10
    );
    Fault::ToolUnavailable { tool: tool.clone(), message }
}
