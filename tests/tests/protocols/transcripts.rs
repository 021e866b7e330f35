//! Golden transcripts: conversations from the documents' own examples, held with the built binary.
//!
//! They are in `tests/transcripts/DOOR/`, and its README says how one is written. Every member of an answer is
//! compared, so that one that is new or gone shows. All that differs is said at once.

mod matching;
mod reading;
mod talking;

use harness::seeds;
use matching::{compare, text_is};
use reading::{Message, Transcript};
use serde_json::Value;
use std::collections::BTreeSet;
use talking::{Conversation, ReceivedAnswer};

/// The doors, each with a test that holds its transcripts.
macro_rules! doors {
    ($($test:ident: $door:literal),*) => {
        const DOORS: &[&str] = &[$($door),*];
        $(
            #[test]
            fn $test() {
                hold($door);
            }
        )*
    };
}

doors! {
    a2g_answers_match_their_transcripts: "a2g",
    a2a_answers_match_their_transcripts: "a2a",
    a2e_answers_match_their_transcripts: "a2e",
    mcp_answers_match_their_transcripts: "mcp",
    nexus_answers_match_their_transcripts: "nexus",
    sovereign_answers_match_their_transcripts: "sovereign"
}

/// Holds all of a door, and says everything in which an answer is not as it is written.
fn hold(door: &str) {
    let mut wrong = Vec::new();
    for transcript in reading::of_door(door) {
        for way in &transcript.ways {
            let differences = differences(&transcript, Conversation::start(door, way)).into_iter();
            let place = |line| format!("tests/transcripts/{}:{line}, {way}", transcript.name);
            wrong.extend(differences.map(|(line, what)| format!("{}: {what}", place(line))));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Differences from a transcript: the line of the sent message, and a description.
fn differences(transcript: &Transcript, mut talk: Conversation) -> Vec<(usize, String)> {
    let mut all = Vec::new();
    let mut told = 0;
    for turn in &transcript.turns {
        let is_told =
            |message: &&Message| message.first.as_ref().is_some_and(|first| first.starts_with("POST"));
        let (notices, expected) = turn.expected.iter().partition::<Vec<_>, _>(is_told);
        let answers = talk.exchange(&turn.sent, expected.len());
        let mut wrong = Vec::new();
        // A request that nothing answers has no body, and a status that says so.
        let answers = answers
            .into_iter()
            .filter(|answer| answer.body.is_some() || !expected.is_empty() || answer.first != "HTTP 204");
        let answers = answers.collect::<Vec<_>>();
        if answers.len() != expected.len() {
            wrong.push(format!("{} answers and not {}: {answers:#?}", answers.len(), expected.len()));
        }
        for (expected, actual) in expected.iter().zip(&answers) {
            wrong.extend(unlike(expected, actual, &mut talk));
        }
        for expected in notices {
            let first = expected.first.clone().unwrap_or_default();
            let actual = ReceivedAnswer { first, headers: Vec::new(), body: Some(talk.told(told)) };
            wrong.extend(unlike(expected, &actual, &mut talk));
            told += 1;
        }
        all.extend(wrong.into_iter().map(|what| (turn.line, what)));
    }
    all.extend(talk.finish().into_iter().map(|more| (0, format!("something more came: {more}"))));
    all
}

/// Differences in one message, with the complete message at the end.
fn unlike(expected: &Message, actual: &ReceivedAnswer, talk: &mut Conversation) -> Vec<String> {
    let mut wrong = Vec::new();
    let first = expected.first.as_deref().unwrap_or("HTTP 200");
    if first != actual.first {
        wrong.push(format!("{} and not {first}", actual.first));
    }
    for (name, pattern) in &expected.headers {
        let found = actual.headers.iter().find(|(given, _)| given.eq_ignore_ascii_case(name));
        let fits = found.is_some_and(|(_, value)| text_is(pattern, value, &mut talk.known));
        if !fits {
            wrong.push(format!("{name} is {found:?} and not {pattern}"));
        }
    }
    match (serde_json::from_str::<Value>(&expected.body), &actual.body) {
        (Ok(expected), Some(actual)) => compare("", &expected, actual, &mut talk.known, &mut wrong),
        (Err(_), None) if expected.body.is_empty() => {}
        (Err(error), _) => wrong.push(format!("what is expected is no JSON: {error}")),
        (Ok(_), None) => wrong.push("nothing came".to_owned()),
    }
    if let (false, Some(body)) = (wrong.is_empty(), &actual.body) {
        wrong.push(format!("the whole of it: {body:#}"));
    }
    wrong
}

#[test]
fn every_folder_is_a_door_and_malformed_transcripts_are_refused() {
    let folders = std::fs::read_dir(reading::folder()).expect("the folder");
    let folders = folders.map(|entry| entry.expect("an entry")).filter(|entry| entry.path().is_dir());
    let folders = folders.map(|entry| entry.file_name().to_string_lossy().into_owned());
    assert_eq!(folders.collect::<BTreeSet<_>>(), DOORS.iter().map(|door| (*door).to_owned()).collect());
    for text in ["", "@ http", "> {}", "@ http\n< {}", "@ http\n> {}\n{}", "@ http\n> GET /x\n> y"] {
        assert!(reading::read("x".to_owned(), text).is_err(), "{text}");
    }
}

/// Every method, event, type and code that a document names, as messages have them.
fn documented_names(document: &str) -> BTreeSet<String> {
    let after = |mark: &'static str| document.split(mark).skip(1);
    let quoted = |text: &str| text.split('"').next().map(|word| format!("\"{word}\""));
    let written = ["\"method\": \"", "\"event\": \"", "\n    \""].into_iter();
    let written = written.flat_map(after).filter_map(quoted).filter(|word| !word.contains(' '));
    let types = after("MessageType.").filter_map(|rest| rest.split(';').next());
    let types = types.map(|word| format!("\"{}\"", word.to_lowercase()));
    let codes = after("-32").filter_map(|rest| rest.get(..3)).map(|digits| format!("-32{digits}"));
    written.chain(types).chain(codes).collect()
}

#[test]
fn every_documented_name_occurs_in_a_transcript() {
    let Some(seeds) = seeds() else { return };
    for (door, number) in
        [("a2g", "000"), ("nexus", "001"), ("a2e", "002"), ("a2a", "003"), ("sovereign", "004")]
    {
        let documents =
            std::fs::read_dir(&seeds).expect("the documents").map(|entry| entry.expect("an entry"));
        let mut documents = documents.filter(|entry| entry.file_name().to_string_lossy().starts_with(number));
        let document = documents.next().expect("a document of each door").path();
        let mut names = documented_names(&std::fs::read_to_string(document).expect("text"));
        assert!(names.len() > 3, "{door}: {names:?}");
        // No client can provoke an internal error.
        names.remove("-32603");
        let transcripts = reading::of_door(door);
        let turns = transcripts.iter().flat_map(|transcript| &transcript.turns);
        let messages = turns.flat_map(|turn| std::iter::once(&turn.sent).chain(&turn.expected));
        let bodies = messages.map(|message| &*message.body).collect::<Vec<_>>();
        names.retain(|name| !bodies.iter().any(|body| body.contains(name)));
        assert!(names.is_empty(), "{door}: {names:?}");
    }
}
