//! The other tools of a native test, which replace the executor's.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;

use serde_json::{Value, json};

use crate::{Descriptor, ToolDefinition, ToolError, ToolSummary};

type Answers = dyn Fn(&Value) -> Result<Value, ToolError>;

thread_local! {
    static TOOLS: RefCell<Option<Rc<MockTools>>> = const { RefCell::new(None) };
}

/// One call that a tool made.
#[derive(Debug, Clone, PartialEq)]
pub struct Call {
    /// The name of the called tool, as the caller wrote it.
    pub tool: String,
    /// The arguments; null if they are not JSON.
    pub arguments: Value,
}

#[derive(Clone)]
struct Entry {
    description: String,
    arguments_schema: Value,
    answers: Rc<Answers>,
}

/// The state of [`Tools`].
struct MockTools {
    entries: RefCell<BTreeMap<String, Entry>>,
    max_calls: Cell<Option<usize>>,
    calls: RefCell<Vec<Call>>,
}

/// The tools that the code under test can call on this thread, while this value lives. Without `Tools`, a run may call
/// nothing.
///
/// A thread has one `Tools` at a time: a new one replaces the previous one. A call that is started runs at once, and
/// its outcome is kept until it is waited for.
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
    mock: Rc<MockTools>,
}

impl Default for Tools {
    fn default() -> Self {
        Self::new()
    }
}

impl Tools {
    /// Makes an empty set of tools.
    pub fn new() -> Self {
        let mock =
            MockTools { entries: RefCell::default(), max_calls: Cell::new(None), calls: RefCell::default() };
        let mock = Rc::new(mock);
        TOOLS.set(Some(Rc::clone(&mock)));
        Self { mock }
    }

    /// Adds a tool that accepts any JSON object. `answers` returns its result or its error.
    pub fn tool(self, name: &str, answers: impl Fn(&Value) -> Result<Value, ToolError> + 'static) -> Self {
        let (description, arguments_schema) = (String::new(), json!({ "type": "object" }));
        self.add(name, Entry { description, arguments_schema, answers: Rc::new(answers) })
    }

    /// Adds a tool like [`Self::tool`], with the name, description and schema of `descriptor`. Arguments are not
    /// checked against the schema.
    pub fn described_tool(
        self,
        descriptor: &Descriptor,
        answers: impl Fn(&Value) -> Result<Value, ToolError> + 'static,
    ) -> Self {
        let description = descriptor.description.clone();
        let arguments_schema = serde_json::from_str(&descriptor.arguments_schema).unwrap_or_default();
        self.add(&descriptor.name, Entry { description, arguments_schema, answers: Rc::new(answers) })
    }

    /// Adds a tool whose calls the governor denies, for this reason.
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

    /// Sets the maximum number of calls, like `max_calls` of a grant.
    pub fn max_calls(self, max: usize) -> Self {
        self.mock.max_calls.set(Some(max));
        self
    }

    /// The calls so far, in order, without those beyond [`Self::max_calls`].
    #[must_use]
    pub fn calls(&self) -> Vec<Call> {
        self.mock.calls.borrow().clone()
    }

    fn add(self, name: &str, entry: Entry) -> Self {
        self.mock.entries.borrow_mut().insert(name.to_owned(), entry);
        self
    }
}

impl Drop for Tools {
    fn drop(&mut self) {
        TOOLS.with_borrow_mut(|current| {
            if current.as_ref().is_some_and(|mock| Rc::ptr_eq(mock, &self.mock)) {
                *current = None;
            }
        });
    }
}

impl fmt::Debug for Tools {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let entries = self.mock.entries.borrow();
        f.debug_struct("Tools").field("names", &entries.keys()).field("calls", &self.mock.calls).finish()
    }
}

impl MockTools {
    fn entry(&self, name: &str) -> Result<Entry, ToolError> {
        self.entries.borrow().get(name).cloned().ok_or_else(|| {
            ToolError::new(
                "unknown_tool",
                format!("there is no tool `{name}`: list the tools to see their names"),
            )
        })
    }

    /// Counts a call before it is checked, because the executor counts refused calls too.
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

/// The tools of this thread's test.
fn mock() -> Result<Rc<MockTools>, ToolError> {
    TOOLS.with_borrow(Option::clone).ok_or_else(|| {
        ToolError::new("not_allowed", "this run may call no tools: add them with `testing::Tools`")
    })
}

pub(crate) fn list() -> Vec<ToolSummary> {
    let summary = |(name, entry): (&String, &Entry)| ToolSummary {
        name: name.clone(),
        description: entry.description.clone(),
    };
    mock().map_or_else(|_| Vec::new(), |mock| mock.entries.borrow().iter().map(summary).collect())
}

pub(crate) fn describe(name: &str) -> Result<ToolDefinition, ToolError> {
    let Entry { description, arguments_schema, answers: _ } = mock()?.entry(name)?;
    Ok(ToolDefinition { name: name.to_owned(), description, arguments_schema, result_schema: None })
}

pub(crate) fn call(name: &str, arguments: &str) -> Result<String, ToolError> {
    let mock = mock()?;
    mock.count(name, arguments)?;
    let entry = mock.entry(name)?;
    let arguments = serde_json::from_str::<Value>(arguments)
        .ok()
        .filter(Value::is_object)
        .ok_or_else(|| ToolError::new("invalid_arguments", "the arguments have to be one JSON object"))?;
    (entry.answers)(&arguments).map(|result| result.to_string())
}
