//! The objects of A2A 0.3.0, as they are sent and as the journal stores them.
//!
//! The `Deserialize` implementations read only the journal's own rows. Requests of clients are read by
//! [`super::decode`], which reports a JSON Pointer and limits sizes.

use a2g_types::json::JsonText;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};
use strum::{IntoStaticStr, VariantArray};
use time::OffsetDateTime;

/// Free-form members, of which this door reads only `tool`.
pub type Metadata = Map<String, Value>;

/// The author of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MessageRole {
    /// The client.
    User,
    /// This executor.
    Agent,
}

/// One part of a message or of an artifact.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Part {
    /// Text for people.
    Text {
        /// The plain text.
        text: String,
        /// Free-form metadata of the sender.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        metadata: Option<Metadata>,
    },
    /// A file.
    File {
        /// Name, media type and content.
        file: FilePart,
        /// Free-form metadata of the sender.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        metadata: Option<Metadata>,
    },
    /// JSON for programs.
    Data {
        /// A JSON object, as checked text.
        data: JsonText,
        /// Free-form metadata of the sender.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        metadata: Option<Metadata>,
    },
}

impl Part {
    /// A text part without metadata.
    #[must_use]
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text { text: text.into(), metadata: None }
    }

    /// A data part without metadata.
    #[must_use]
    pub fn data(data: Map<String, Value>) -> Self {
        Self::Data { data: Value::Object(data).into(), metadata: None }
    }
}

/// A part before its kind is checked. serde's own reader of tagged enums would first build a tree of the data.
#[derive(Deserialize)]
struct UncheckedPart {
    kind: PartKind,
    text: Option<String>,
    file: Option<FilePart>,
    data: Option<JsonText>,
    metadata: Option<Metadata>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum PartKind {
    Text,
    File,
    Data,
}

impl<'de> Deserialize<'de> for Part {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let UncheckedPart { kind, text, file, data, metadata } = UncheckedPart::deserialize(deserializer)?;
        let part = match kind {
            PartKind::Text => text.map(|text| Self::Text { text, metadata }),
            PartKind::File => file.map(|file| Self::File { file, metadata }),
            PartKind::Data => data.map(|data| Self::Data { data, metadata }),
        };
        part.ok_or_else(|| D::Error::custom("a part lacks the member of its kind"))
    }
}

/// The file of a file part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FilePart {
    /// The file name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The media type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mime_type: Option<String>,
    /// The bytes or their address.
    #[serde(flatten)]
    pub content: FileContent,
}

/// The content of a file, or its address, which is never fetched.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FileContent {
    /// Base64, with padding.
    Bytes(String),
    /// A URI, stored and returned verbatim.
    Uri(String),
}

/// One message of a conversation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename = "message", rename_all = "camelCase")]
pub struct Message {
    /// The author.
    pub role: MessageRole,
    /// The content: at least one part.
    pub parts: Vec<Part>,
    /// The id that the message's author chose.
    pub message_id: String,
    /// The id of the conversation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context_id: Option<String>,
    /// The id of the task that the message belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task_id: Option<String>,
    /// Ids of other tasks that the message refers to.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reference_task_ids: Vec<String>,
    /// URIs of extensions. This door implements none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub extensions: Vec<String>,
    /// Free-form metadata of the sender.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Metadata>,
}

/// The state of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, IntoStaticStr, VariantArray)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub enum TaskState {
    /// Accepted; the guest has not started.
    Submitted,
    /// The guest is running.
    Working,
    /// Waiting for a message, for a person's permission, or for a decision on file changes.
    InputRequired,
    /// The tool succeeded.
    Completed,
    /// The run was cancelled, or its file changes were discarded or undone.
    Canceled,
    /// The tool failed, a limit ended it, or it is not known what has become of its file changes.
    Failed,
    /// Rejected before the tool ran.
    Rejected,
}

impl TaskState {
    /// The name on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// Returns `true` for a state that a task never leaves.
    #[must_use]
    pub fn is_terminal(self) -> bool {
        match self {
            Self::Submitted | Self::Working | Self::InputRequired => false,
            Self::Completed | Self::Canceled | Self::Failed | Self::Rejected => true,
        }
    }

    /// Returns `true` for a state that a task leaves only through a message or a decision, if at all.
    #[must_use]
    pub fn is_settled(self) -> bool {
        match self {
            Self::Submitted | Self::Working => false,
            Self::InputRequired | Self::Completed | Self::Canceled | Self::Failed | Self::Rejected => true,
        }
    }
}

/// A task's state with its time and reason.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TaskStatus {
    /// The state.
    pub state: TaskState,
    /// The reason, or the input that is requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<Message>,
    /// The time of the change to this state.
    #[serde(with = "time::serde::rfc3339")]
    pub timestamp: OffsetDateTime,
}

/// An output of a tool, or its result.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TaskArtifact {
    /// An id that is unique within the task.
    pub artifact_id: String,
    /// The name that the tool gave the output; `result` for the result, `changes` for file changes that wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The content.
    pub parts: Vec<Part>,
}

/// One tool call with its messages and outputs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename = "task", rename_all = "camelCase")]
pub struct Task {
    /// The task's id, which is also the id of its intent.
    pub id: String,
    /// The id of the conversation.
    pub context_id: String,
    /// The current status.
    pub status: TaskStatus,
    /// The outputs, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub artifacts: Vec<TaskArtifact>,
    /// The messages, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub history: Vec<Message>,
    /// Measurements and refusal details, once there are any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Metadata>,
}

/// A change of a task's state.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename = "status-update", rename_all = "camelCase")]
pub struct StatusUpdate {
    /// The id of the task.
    pub task_id: String,
    /// The id of the task's conversation.
    pub context_id: String,
    /// The new status.
    pub status: TaskStatus,
    /// `true` for the last event of its stream.
    pub r#final: bool,
}

/// A new output of a task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename = "artifact-update", rename_all = "camelCase")]
pub struct ArtifactUpdate {
    /// The id of the task.
    pub task_id: String,
    /// The id of the task's conversation.
    pub context_id: String,
    /// The complete output.
    pub artifact: TaskArtifact,
    /// Always `false`: artifacts are never sent in pieces.
    pub append: bool,
    /// Always `true`: artifacts are never sent in pieces.
    pub last_chunk: bool,
}

/// One event of a stream.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub enum TaskUpdate {
    /// The whole task, the first event of every stream.
    Task(Box<Task>),
    /// The task changed its state.
    Status(Box<StatusUpdate>),
    /// The tool produced an artifact.
    Artifact(Box<ArtifactUpdate>),
}

impl TaskUpdate {
    /// Returns `true` for the last event of a stream.
    #[must_use]
    pub fn is_final(&self) -> bool {
        match self {
            Self::Task(task) => task.status.state.is_settled(),
            Self::Status(update) => update.r#final,
            Self::Artifact(_) => false,
        }
    }
}
