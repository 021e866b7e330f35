//! A transcript as its file has it: `tests/transcripts/README.md` says how that is written.

use std::path::{Path, PathBuf};

/// The first line of what the governor answers when it is asked next.
pub const ANSWER: &str = "ANSWER";
/// The file in a door's folder that is no transcript.
const SHARED: &str = "names.txt";

/// One conversation.
pub struct Transcript {
    /// `DOOR/NAME.txt`.
    pub name: String,
    /// The ways in which it is held, each with an executor of its own.
    pub ways: Vec<String>,
    pub turns: Vec<Turn>,
}

/// One sent message, and all answers to it.
pub struct Turn {
    pub line: usize,
    pub sent: Message,
    pub expected: Vec<Message>,
}

/// One message, with the placeholders that it was written with.
#[derive(Default)]
pub struct Message {
    /// Such as `GET /health`, `HTTP 400` or `ANSWER`.
    pub first: Option<String>,
    pub headers: Vec<(String, String)>,
    pub body: String,
}

impl Message {
    fn parse(text: &str) -> Result<Self, String> {
        if !["GET ", "POST ", "DELETE ", "HTTP ", ANSWER].iter().any(|start| text.starts_with(start)) {
            return Ok(Self { body: text.to_owned(), ..Self::default() });
        }
        let (head, body) = text.split_once("\n\n").unwrap_or((text.trim_end(), ""));
        let mut lines = head.lines();
        let first = lines.next().map(str::to_owned);
        let headers = lines.map(|line| {
            let (name, value) = line.split_once(": ").ok_or_else(|| format!("no header: {line}"))?;
            Ok((name.to_owned(), value.to_owned()))
        });
        Ok(Self { first, headers: headers.collect::<Result<_, String>>()?, body: body.to_owned() })
    }
}

/// The lines of one message, and whether it is sent.
struct Block {
    line: usize,
    sent: bool,
    text: String,
}

/// Reads one.
///
/// # Errors
/// An error message with the number of its line.
pub fn read(name: String, text: &str) -> Result<Transcript, String> {
    let mut ways = Vec::new();
    let mut blocks = Vec::<Block>::new();
    let mut open = false;
    for (index, line) in text.lines().enumerate() {
        let (sign, rest) = line.split_at_checked(1).unwrap_or((line, ""));
        let sent = match sign {
            "" | "#" => {
                open = false;
                continue;
            }
            "@" if ways.is_empty() && blocks.is_empty() => {
                ways = rest.split_whitespace().map(str::to_owned).collect();
                continue;
            }
            ">" => true,
            "<" => false,
            _ => return Err(format!("{name}:{}: no line of a transcript: {line}", index + 1)),
        };
        if !open || blocks.last().is_none_or(|block| block.sent != sent) {
            blocks.push(Block { line: index + 1, sent, text: String::new() });
        }
        open = true;
        if let Some(block) = blocks.last_mut() {
            block.text += rest.strip_prefix(' ').unwrap_or(rest);
            block.text.push('\n');
        }
    }
    let mut turns = Vec::<Turn>::new();
    for Block { line, sent, text } in blocks {
        let message = Message::parse(text.trim_end()).map_err(|wrong| format!("{name}:{line}: {wrong}"))?;
        match turns.last_mut() {
            _ if sent => turns.push(Turn { line, sent: message, expected: Vec::new() }),
            Some(turn) => turn.expected.push(message),
            None => return Err(format!("{name}:{line}: nothing was sent before")),
        }
    }
    if ways.is_empty() || turns.is_empty() {
        return Err(format!("{name}: nothing is sent, or no line with `@` says how"));
    }
    Ok(Transcript { name, ways, turns })
}

/// The folder of the transcripts.
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("transcripts")
}

/// The texts that messages of a door share, each with its name as transcripts have it.
fn shared_texts(text: &str) -> Vec<(String, String)> {
    let blocks = text.split("\n\n").map(|block| {
        let mut lines = block.lines().filter(|line| !line.starts_with('#'));
        (lines.next().unwrap_or_default().to_owned(), lines.map(str::trim).collect::<Vec<_>>().join(" "))
    });
    blocks.filter(|(name, _)| !name.is_empty()).collect()
}

/// All of one door, by name.
pub fn of_door(door: &str) -> Vec<Transcript> {
    let files = std::fs::read_dir(folder().join(door)).expect("a folder for each door");
    let mut paths = files.map(|file| file.expect("an entry").path()).collect::<Vec<_>>();
    paths.sort();
    let shared = folder().join(door).join(SHARED);
    paths.retain(|path| *path != shared);
    let shared = shared_texts(&std::fs::read_to_string(shared).unwrap_or_default());
    let transcripts = paths.iter().map(|path| {
        let file = path.file_name().expect("a name").to_string_lossy();
        let text = std::fs::read_to_string(path).expect("a transcript is text");
        let text = shared.iter().fold(text, |text, (name, shared)| text.replace(name, shared));
        read(format!("{door}/{file}"), &text).unwrap_or_else(|wrong| panic!("{wrong}"))
    });
    let transcripts = transcripts.collect::<Vec<_>>();
    assert!(!transcripts.is_empty(), "{door} has no transcript");
    transcripts
}
