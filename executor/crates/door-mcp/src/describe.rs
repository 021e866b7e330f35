//! `describe_tools`, which stands for the other tools in the listing `code`. It reads only the catalogue, so a call to
//! it is not an intent: the governor is not asked, and the journal has no receipt.

use super::{McpDoor, RequestContext};
use a2g_wire::listing::{self, DESCRIBE_TOOLS, Listing};
use a2g_wire::mcp::decode::ToolCall;
use a2g_wire::mcp::fault::McpError;
use a2g_wire::mcp::tools::decode_describe;

impl McpDoor {
    /// Returns `true` if a call with this name asks for descriptions. A token needs no scope for such a call: the
    /// answer has only the tools that the token's scope reaches.
    pub(super) fn describes(&self, tool: &str) -> bool {
        self.listing == Listing::Code && tool == DESCRIBE_TOOLS
    }

    /// Answers with the stubs of tools that the caller may reach.
    pub(super) fn describe(&self, context: &RequestContext, call: &ToolCall) -> Result<String, McpError> {
        if call.state.is_some() {
            return Err(McpError::StateRejected);
        }
        let request = match decode_describe(&call.arguments) {
            Ok(request) => request,
            Err(fault) => return Ok(context.encoder().not_described(&context.id, &fault)),
        };
        let tools = self.executor.catalogue.tools();
        let agent = self.agent_of(&context.caller)?;
        let reachable = tools.iter().filter(|tool| self.may_see(&context.caller, &agent, &tool.name));
        Ok(context.encoder().described(&context.id, &listing::describe(reachable, &request)))
    }
}
