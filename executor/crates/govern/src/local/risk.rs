//! Risk scores: one table of documented heuristics.
//!
//! The local governor has no model, so `model_score` is absent and `score = max(model, heuristic)` is the heuristic
//! score: the highest score of the matching rows, never their sum. A row is a guess about text, which people can read
//! and discuss: `policies/README.md` has the table. The grant, not this table, determines what a guest can reach, so no
//! row is about paths: a program would name another one in its code.

use crate::arguments::{ArgumentRole, Arguments};
use crate::rule::NormalizedText;
use a2g_types::call::Call;
use a2g_types::ident::ToolName;
use a2g_types::verdict::{Risk, RiskLevel};
use url::{Host, Url};

/// One heuristic.
pub(super) struct Heuristic {
    /// The name, which starts the sentence in `threats`.
    pub(super) name: &'static str,
    /// The text that the heuristic matches, and the reason for its score.
    #[allow(dead_code, reason = "a test compares it with the table in `policies/README.md`")]
    pub(super) looks_for: &'static str,
    pub(super) score: f64,
    pub(super) threat: &'static str,
    applies: fn(&Evidence<'_>) -> bool,
}

/// The base score of a tool that only reads.
pub(super) const READS: f64 = 0.05;
/// The base score of every other tool: the document's example of a harmless write.
pub(super) const WRITES: f64 = 0.15;

/// The heuristics.
pub(super) const ROWS: [Heuristic; 5] = [
    Heuristic {
        name: "private_key",
        looks_for: "the first line of a private key in PEM form, in any argument: the tool may disclose the key",
        score: 0.75,
        threat: "an argument holds a private key",
        applies: |evidence| evidence.any(|_| true, |text| has_private_key(&text.whole)),
    },
    Heuristic {
        name: "destructive_command",
        looks_for: "`rm -rf`, `mkfs`, `dd if=`, a fork bomb, or a download piped into a shell, in an argument that is \
                    not file content or search text: the tool may pass it to another machine",
        score: 0.95,
        threat: "an argument is a command that destroys data or runs a download",
        applies: |evidence| evidence.any(is_command, is_destructive),
    },
    Heuristic {
        name: "prompt_injection",
        looks_for: "phrases such as `ignore previous instructions` in the intent's context: an agent that repeats them \
                    may have been manipulated into the intent",
        score: 0.75,
        threat: "the agent's reasoning reads like an injected prompt",
        applies: |evidence| evidence.reasoning.iter().any(|text| has_injection_phrase(text)),
    },
    Heuristic {
        name: "insecure_url",
        looks_for: "a URL that is neither HTTPS nor WSS, outside file content and search text",
        score: 0.45,
        threat: "plain http is refused: a URL without TLS gets no network, so use `https`",
        applies: |evidence| evidence.urls().any(|url| !matches!(url.scheme(), "https" | "wss")),
    },
    Heuristic {
        name: "ip_literal_url",
        looks_for: "a URL whose host is an IP address in any spelling: the metadata services of cloud machines have \
                    such addresses",
        score: 0.75,
        threat: "a URL names an IP address in place of a domain",
        applies: |evidence| evidence.urls().any(|url| is_ip(&url)),
    },
];

/// `true` for a tool whose name starts with a verb of reading. Every other tool is assumed to write.
#[must_use]
pub fn only_reads(tool: &ToolName) -> bool {
    const READERS: [&str; 13] = [
        "read", "list", "search", "hash", "find", "get", "stat", "show", "view", "count", "diff", "grep",
        "inspect",
    ];
    let first = tool.as_str().split(['_', '-', '.']).next().unwrap_or_default();
    READERS.contains(&first)
}

pub(super) fn assess(call: &Call) -> Risk {
    let evidence = Evidence::of(call);
    let base = if evidence.only_reads { READS } else { WRITES };
    let matching: Vec<&Heuristic> = ROWS.iter().filter(|row| (row.applies)(&evidence)).collect();
    let score = matching.iter().map(|row| row.score).fold(base, f64::max);
    Risk {
        score,
        level: RiskLevel::from_score(score),
        model_score: None,
        heuristic_score: Some(score),
        threats: matching.iter().map(|row| format!("{}: {}", row.name, row.threat)).collect(),
    }
}

/// The input of all rows, computed once for a call.
struct Evidence<'a> {
    arguments: Arguments<'a>,
    normalized: Vec<(ArgumentRole, NormalizedText)>,
    reasoning: Vec<String>,
    only_reads: bool,
}

impl<'a> Evidence<'a> {
    fn of(call: &'a Call) -> Self {
        let arguments = Arguments::of(&call.arguments);
        let normalized =
            arguments.texts().iter().map(|text| (text.role, NormalizedText::of(&text.text))).collect();
        let context = call.context.as_ref().map(Arguments::of);
        let context = context.iter().flat_map(Arguments::texts);
        Self {
            normalized,
            reasoning: context.map(|text| NormalizedText::of(&text.text).whole.to_lowercase()).collect(),
            only_reads: only_reads(&call.tool),
            arguments,
        }
    }

    fn any(&self, has_role: fn(ArgumentRole) -> bool, matches: fn(&NormalizedText) -> bool) -> bool {
        self.normalized.iter().any(|(role, text)| has_role(*role) && matches(text))
    }

    fn urls(&self) -> impl Iterator<Item = Url> {
        urls_in(&self.arguments)
    }
}

/// All URLs with an authority in arguments that are not file content.
pub(super) fn urls_in(arguments: &Arguments<'_>) -> impl Iterator<Item = Url> {
    let texts = arguments.texts().iter().filter(|text| is_command(text.role));
    let words = texts.flat_map(|text| text.text.split(|c: char| c.is_whitespace() || "\"'`<>()".contains(c)));
    words.filter(|word| word.contains("://")).filter_map(|word| Url::parse(word).ok())
}

fn is_command(role: ArgumentRole) -> bool {
    match role {
        ArgumentRole::Path | ArgumentRole::Other | ArgumentRole::Joined => true,
        ArgumentRole::Content => false,
    }
}

fn has_private_key(text: &str) -> bool {
    let headers = text.split("-----BEGIN ").skip(1);
    headers.filter_map(|rest| rest.split_once("-----")).any(|(label, _)| label.ends_with("PRIVATE KEY"))
}

fn is_destructive(text: &NormalizedText) -> bool {
    const FORK_BOMB: &str = ":(){";
    let whole = &text.whole;
    is_recursive_rm(whole)
        || contains_at_word_start(whole, "mkfs")
        || contains_at_word_start(whole, "dd if=")
        || contains_at_word_start(whole, "dd of=/dev/")
        || whole.replace(' ', "").contains(FORK_BOMB)
        || text.pipelines.iter().any(|line| pipes_download_to_shell(line))
}

/// The words of a command line, without quotes and operators.
fn words(text: &str) -> impl Iterator<Item = &str> + Clone {
    text.split(|c: char| c.is_whitespace() || "\"'`;&|()$".contains(c)).filter(|word| !word.is_empty())
}

/// `true` for the name or the path of one of these programs.
fn is_program(word: &str, names: &[&str]) -> bool {
    names.contains(&word.rsplit('/').next().unwrap_or(word))
}

/// `true` for `rm` with recursive and forced options, in any spelling.
fn is_recursive_rm(text: &str) -> bool {
    let mut words = words(text);
    while let Some(word) = words.next() {
        if !is_program(word, &["rm"]) {
            continue;
        }
        let mut recursive = false;
        let mut forced = false;
        for option in words.clone().take_while(|word| word.starts_with('-')) {
            let long = option.starts_with("--");
            recursive |= option == "--recursive" || (!long && option.contains(['r', 'R']));
            forced |= option == "--force" || (!long && option.contains('f'));
        }
        if recursive && forced {
            return true;
        }
    }
    false
}

/// `true` when `needle` occurs at the start of a word, so that `add if=` is not `dd if=`.
fn contains_at_word_start(text: &str, needle: &str) -> bool {
    let is_word_char = |c: char| c.is_alphanumeric() || c == '_' || c == '-';
    text.match_indices(needle)
        .any(|(at, _)| !text.get(..at).is_some_and(|before| before.ends_with(is_word_char)))
}

/// `true` for a stage with `curl` or `wget` and a later stage that is a shell.
fn pipes_download_to_shell(line: &str) -> bool {
    const SHELLS: [&str; 6] = ["sh", "bash", "zsh", "dash", "ksh", "python3"];
    let precedes_command =
        |word: &&str| is_program(word, &["sudo", "env"]) || word.contains('=') || word.starts_with('-');
    let mut stages = line.split('|');
    stages.any(|stage| words(stage).any(|word| is_program(word, &["curl", "wget"])))
        && stages.any(|stage| {
            words(stage).find(|word| !precedes_command(word)).is_some_and(|word| is_program(word, &SHELLS))
        })
}

/// `true` when collapsed lower-case text contains a known phrase.
fn has_injection_phrase(text: &str) -> bool {
    const PHRASES: [&str; 12] = [
        "ignore previous instructions",
        "ignore all previous",
        "ignore the previous",
        "ignore your instructions",
        "ignore the above",
        "disregard previous",
        "disregard all",
        "disregard your",
        "forget your instructions",
        "bypass the governor",
        "override the policy",
        "reveal your system prompt",
    ];
    PHRASES.iter().any(|phrase| text.contains(phrase))
}

fn is_ip(url: &Url) -> bool {
    match url.host() {
        Some(Host::Ipv4(_) | Host::Ipv6(_)) => true,
        // The URL parser leaves the host of an unknown scheme as text.
        Some(Host::Domain(name)) => name.parse::<std::net::Ipv4Addr>().is_ok(),
        None => false,
    }
}
