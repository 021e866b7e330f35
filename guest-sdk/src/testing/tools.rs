//! Tools of the test's own, in place of the executor's.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;

use serde_json::{Value, json};

use crate::{Descriptor, ToolDefinition, ToolError, ToolSummary};

type Answers = dyn Fn(&Value) -> Result<Value, ToolError>;

thread_local! {
    static TOOLS: RefCell<Option<Rc<Stage>>> = const { RefCell::new(None) };
}

/// One call that a tool made.
#[derive(Debug, Clone, PartialEq)]
pub struct Call {
    /// The name of the called tool, as the caller wrote it.
    pub tool: String,
    /// The arguments; null if they were not JSON.
    pub arguments: Value,
}

#[derive(Clone)]
struct Entry {
    description: String,
    arguments_schema: Value,
    answers: Rc<Answers>,
}

struct Stage {
    entries: RefCell<BTreeMap<String, Entry>>,
    max_calls: Cell<Option<usize>>,
    calls: RefCell<Vec<Call>>,
}

/// The tools that the code under test can call on this thread, for as long as the value lives. Without one, a run may
/// call nothing.
///
/// There is one at a time: a new one takes the place of the one before. A call that is started runs at once, and its
/// outcome waits.
///
/// ```
/// use a2g_guest_sdk::prelude::*;
/// use a2g_guest_sdk::testing::{TestContext, Tools};
///
/// let tools = Tools::new()
///     .tool("read_file", |arguments| Ok(json!({ "content": arguments["path"] })))
///     .denied("write_file", "no rule allows `write_file`")
///     .limited("slow", "time", "the tool ran longer than its timeout of 1 s");
/// let ctx = TestContext::new();
/// let file: Value = ctx.tools().call("read_file", &json!({ "path": "/workspace/a" }))?;
/// assert_eq!(file["content"], "/workspace/a");
/// let refused = ctx.tools().call::<Value>("write_file", &json!({})).unwrap_err();
/// assert_eq!(refused.code(), "denied");
/// assert_eq!(tools.calls()[1].tool, "write_file");
/// # Ok::<_, ToolError>(())
/// ```
#[must_use = "there are no tools again once this is dropped"]
pub struct Tools {
    stage: Rc<Stage>,
}

impl Default for Tools {
    fn default() -> Self {
        Self::new()
    }
}

impl Tools {
    /// No tools yet.
    pub fn new() -> Self {
        let stage =
            Stage { entries: RefCell::default(), max_calls: Cell::new(None), calls: RefCell::default() };
        let stage = Rc::new(stage);
        TOOLS.set(Some(Rc::clone(&stage)));
        Self { stage }
    }

    /// Adds a tool that takes any arguments. `answers` gives its result, or its own error.
    pub fn tool(self, name: &str, answers: impl Fn(&Value) -> Result<Value, ToolError> + 'static) -> Self {
        let (description, arguments_schema) = (String::new(), json!({ "type": "object" }));
        self.add(name, Entry { description, arguments_schema, answers: Rc::new(answers) })
    }

    /// As [`Self::tool`], with the description that the tool gives of itself. Arguments are not checked against its
    /// schema.
    pub fn described_tool(
        self,
        descriptor: &Descriptor,
        answers: impl Fn(&Value) -> Result<Value, ToolError> + 'static,
    ) -> Self {
        let description = descriptor.description.clone();
        let arguments_schema = serde_json::from_str(&descriptor.arguments_schema).unwrap_or_default();
        self.add(&descriptor.name, Entry { description, arguments_schema, answers: Rc::new(answers) })
    }

    /// Adds a tool of which the governor denies every call, for this reason.
    pub fn denied(self, name: &str, reason: &str) -> Self {
        let detail = json!({ "blocked_by": "verdict_denied", "ran": false });
        let error = ToolError::new("denied", reason).with_detail(detail);
        self.tool(name, move |_| Err(error.clone()))
    }

    /// Adds a tool whose every run ends at a limit, such as `time` or `memory`.
    pub fn limited(self, name: &str, limit: &str, message: &str) -> Self {
        let error = ToolError::new("limit_reached", message).with_detail(json!({ "limit": limit }));
        self.tool(name, move |_| Err(error.clone()))
    }

    /// Limits the number of calls, like `max_calls` of a grant.
    pub fn max_calls(self, max: usize) -> Self {
        self.stage.max_calls.set(Some(max));
        self
    }

    /// The calls so far, in order, but for those beyond [`Self::max_calls`].
    #[must_use]
    pub fn calls(&self) -> Vec<Call> {
        self.stage.calls.borrow().clone()
    }

    fn add(self, name: &str, entry: Entry) -> Self {
        self.stage.entries.borrow_mut().insert(name.to_owned(), entry);
        self
    }
}

impl Drop for Tools {
    fn drop(&mut self) {
        TOOLS.with_borrow_mut(|current| {
            if current.as_ref().is_some_and(|stage| Rc::ptr_eq(stage, &self.stage)) {
                *current = None;
            }
        });
    }
}

impl fmt::Debug for Tools {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let entries = self.stage.entries.borrow();
        f.debug_struct("Tools").field("names", &entries.keys()).field("calls", &self.stage.calls).finish()
    }
}

impl Stage {
    fn entry(&self, name: &str) -> Result<Entry, ToolError> {
        self.entries.borrow().get(name).cloned().ok_or_else(|| {
            ToolError::new(
                "unknown_tool",
                format!("there is no tool `{name}`: list the tools for their names"),
            )
        })
    }

    /// Counts a call, refused ones too, as the executor does.
    fn count(&self, name: &str, arguments: &str) -> Result<(), ToolError> {
        let mut calls = self.calls.borrow_mut();
        if let Some(max) = self.max_calls.get().filter(|max| calls.len() >= *max) {
            return Err(ToolError::new(
                "calls_exhausted",
                format!("this run has made all its {max} calls (`max_calls`)"),
            ));
        }
        let arguments = serde_json::from_str(arguments).unwrap_or_default();
        calls.push(Call { tool: name.to_owned(), arguments });
        Ok(())
    }
}

/// The tools of the test.
fn stage() -> Result<Rc<Stage>, ToolError> {
    TOOLS.with_borrow(Option::clone).ok_or_else(|| {
        ToolError::new("not_allowed", "this run may call no tools: a test adds them with `testing::Tools`")
    })
}

pub(crate) fn list() -> Vec<ToolSummary> {
    let summary = |(name, entry): (&String, &Entry)| ToolSummary {
        name: name.clone(),
        description: entry.description.clone(),
    };
    stage().map_or_else(|_| Vec::new(), |stage| stage.entries.borrow().iter().map(summary).collect())
}

pub(crate) fn describe(name: &str) -> Result<ToolDefinition, ToolError> {
    let Entry { description, arguments_schema, answers: _ } = stage()?.entry(name)?;
    Ok(ToolDefinition { name: name.to_owned(), description, arguments_schema, result_schema: None })
}

pub(crate) fn call(name: &str, arguments: &str) -> Result<String, ToolError> {
    let stage = stage()?;
    stage.count(name, arguments)?;
    let entry = stage.entry(name)?;
    let arguments = serde_json::from_str::<Value>(arguments)
        .ok()
        .filter(Value::is_object)
        .ok_or_else(|| ToolError::new("invalid_arguments", "the arguments have to be one JSON object"))?;
    (entry.answers)(&arguments).map(|result| result.to_string())
}
