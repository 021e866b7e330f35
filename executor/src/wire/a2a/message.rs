//! The objects of A2A 0.3.0, as they are written and as the journal keeps them.
//!
//! What a client sends is never read by these derived readers, but by [`super::decode`].

use crate::json::JsonText;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};
use time::OffsetDateTime;

/// Members that this door does not interpret.
pub type Metadata = Map<String, Value>;

/// Who said a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// The client.
    User,
    /// This executor.
    Agent,
}

/// A piece of a message or of an artifact.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Part {
    /// Text for people.
    Text {
        /// The text.
        text: String,
        /// What else was said of it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        metadata: Option<Metadata>,
    },
    /// A file.
    File {
        /// The file.
        file: File,
        /// What else was said of it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        metadata: Option<Metadata>,
    },
    /// JSON for programs.
    Data {
        /// The object, as text.
        data: JsonText,
        /// What else was said of it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        metadata: Option<Metadata>,
    },
}

impl Part {
    /// Text.
    #[must_use]
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text { text: text.into(), metadata: None }
    }

    /// An object.
    #[must_use]
    pub fn data(data: Map<String, Value>) -> Self {
        Self::Data { data: Value::Object(data).into(), metadata: None }
    }
}

/// A part as it is read. A reader of tagged enums would make a tree of the data first.
#[derive(Deserialize)]
struct ReadPart {
    kind: PartKind,
    text: Option<String>,
    file: Option<File>,
    data: Option<JsonText>,
    metadata: Option<Metadata>,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum PartKind {
    Text,
    File,
    Data,
}

impl<'de> Deserialize<'de> for Part {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let ReadPart { kind, text, file, data, metadata } = ReadPart::deserialize(deserializer)?;
        let read = match kind {
            PartKind::Text => text.map(|text| Self::Text { text, metadata }),
            PartKind::File => file.map(|file| Self::File { file, metadata }),
            PartKind::Data => data.map(|data| Self::Data { data, metadata }),
        };
        read.ok_or_else(|| D::Error::custom("a part has nothing of its kind"))
    }
}

/// A file of a part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct File {
    /// Its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Its media type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mime_type: Option<String>,
    /// What it holds.
    #[serde(flatten)]
    pub content: FileContent,
}

/// What a file holds, or where it is. Nothing is ever fetched.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FileContent {
    /// Base64, with padding.
    Bytes(String),
    /// A URI.
    Uri(String),
}

/// A message.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename = "message", rename_all = "camelCase")]
pub struct Message {
    /// Who said it.
    pub role: Role,
    /// What it says: at least one part.
    pub parts: Vec<Part>,
    /// The name that its author gave it.
    pub message_id: String,
    /// The conversation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context_id: Option<String>,
    /// The task that it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task_id: Option<String>,
    /// Other tasks that it speaks of.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reference_task_ids: Vec<String>,
    /// The extensions that it uses. This door has none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub extensions: Vec<String>,
    /// What else was said of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Metadata>,
}

/// Where a task is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// It was taken, and its guest does not run yet.
    Submitted,
    /// Its guest runs.
    Working,
    /// It waits for a message, or for a person's permission.
    InputRequired,
    /// The tool succeeded.
    Completed,
    /// It was stopped.
    Canceled,
    /// The tool failed, or a limit ended it.
    Failed,
    /// It was refused before anything ran.
    Rejected,
}

impl State {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Submitted,
        Self::Working,
        Self::InputRequired,
        Self::Completed,
        Self::Canceled,
        Self::Failed,
        Self::Rejected,
    ];

    /// The word on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Submitted => "submitted",
            Self::Working => "working",
            Self::InputRequired => "input-required",
            Self::Completed => "completed",
            Self::Canceled => "canceled",
            Self::Failed => "failed",
            Self::Rejected => "rejected",
        }
    }

    /// Whether a task stays there for good.
    #[must_use]
    pub fn is_terminal(self) -> bool {
        match self {
            Self::Submitted | Self::Working | Self::InputRequired => false,
            Self::Completed | Self::Canceled | Self::Failed | Self::Rejected => true,
        }
    }

    /// Whether nothing more happens unless somebody does something.
    #[must_use]
    pub fn is_settled(self) -> bool {
        match self {
            Self::Submitted | Self::Working => false,
            Self::InputRequired | Self::Completed | Self::Canceled | Self::Failed | Self::Rejected => true,
        }
    }
}

/// Where a task is, since when, and why.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Where.
    pub state: State,
    /// Why, or what is asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<Message>,
    /// Since when.
    #[serde(with = "time::serde::rfc3339")]
    pub timestamp: OffsetDateTime,
}

/// Something that a tool made, or its result.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Artifact {
    /// Its name within the task.
    pub artifact_id: String,
    /// The tool's name for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// What it is made of.
    pub parts: Vec<Part>,
}

/// A task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename = "task", rename_all = "camelCase")]
pub struct Task {
    /// Its name, which is also that of its intent.
    pub id: String,
    /// The conversation.
    pub context_id: String,
    /// Where it is.
    pub status: Status,
    /// What was made.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub artifacts: Vec<Artifact>,
    /// What was said, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub history: Vec<Message>,
    /// What else is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Metadata>,
}

/// A task is somewhere else now.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename = "status-update", rename_all = "camelCase")]
pub struct StatusUpdate {
    /// The task.
    pub task_id: String,
    /// Its conversation.
    pub context_id: String,
    /// Where it is now.
    pub status: Status,
    /// Whether the stream ends with this.
    pub r#final: bool,
}

/// A task has made something.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename = "artifact-update", rename_all = "camelCase")]
pub struct ArtifactUpdate {
    /// The task.
    pub task_id: String,
    /// Its conversation.
    pub context_id: String,
    /// What it made, whole.
    pub artifact: Artifact,
    /// Whether it belongs behind what came before under the same name: never.
    pub append: bool,
    /// Whether nothing more of it comes: always.
    pub last_chunk: bool,
}

/// One thing that a stream tells.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Update {
    /// The whole task, with which every stream begins.
    Task(Box<Task>),
    /// It is somewhere else.
    Status(Box<StatusUpdate>),
    /// It has made something.
    Artifact(Box<ArtifactUpdate>),
}

impl Update {
    /// Whether a stream ends with this.
    #[must_use]
    pub fn is_final(&self) -> bool {
        match self {
            Self::Task(task) => task.status.state.is_settled(),
            Self::Status(update) => update.r#final,
            Self::Artifact(_) => false,
        }
    }
}
