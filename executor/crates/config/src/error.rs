//! The errors of a configuration. Each names the line of its key.

use a2g_types::ident::did_you_mean;
use std::path::{Path, PathBuf};
use toml::de::{DeTable, DeValue};

/// The configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file could not be read.
    #[error("`{path}` cannot be read: {error}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The error of the system. It is part of the message and therefore not a `source`, which an error chain would
        /// print twice.
        error: std::io::Error,
    },
    /// The file is not TOML, or has an unknown key or a wrong type.
    #[error("`{path}` is not a valid configuration\n{reason}")]
    Syntax {
        /// The file.
        path: PathBuf,
        /// The parser's message, with line and column.
        reason: String,
    },
    /// A value is not valid.
    #[error("`{path}`{line}: `{key}` {reason}")]
    Value {
        /// The file.
        path: PathBuf,
        /// ` line N`, or empty if the key is not in the file.
        line: String,
        /// The key.
        key: String,
        /// The reason, as the rest of a sentence that begins with the key.
        reason: String,
    },
}

/// The error for the value of a dotted key.
pub(super) struct InvalidValueError {
    key: &'static str,
    /// The rest of a sentence that begins with the key.
    pub(super) reason: String,
    /// The occurrence of the key in the file, from 0.
    nth: usize,
}

impl InvalidValueError {
    /// Names one of several occurrences of the key, from 0.
    pub(super) fn at_occurrence(self, nth: usize) -> Self {
        Self { nth, ..self }
    }

    /// Adds the file, and the line of the key in `text`.
    pub(super) fn at_path(self, path: &Path, text: &str) -> ConfigError {
        let line = line_of(text, self.key, self.nth).map(|line| format!(" line {line}")).unwrap_or_default();
        ConfigError::Value { path: path.to_owned(), line, key: self.key.to_owned(), reason: self.reason }
    }
}

/// Makes the error for the value of `key` from the rest of a sentence that begins with the key.
pub(super) fn invalid(key: &'static str) -> impl Fn(&dyn std::fmt::Display) -> InvalidValueError {
    move |reason| InvalidValueError { key, reason: reason.to_string(), nth: 0 }
}

/// The reason why a text is not TOML, or has an unknown key or a wrong type. In a table of secrets, it repeats no line and no
/// value: a person may have written a secret where its source is named.
pub(super) fn syntax_reason(text: &str, error: &toml::de::Error) -> String {
    let place = error.span().and_then(|span| text.split_at_checked(span.start));
    if let Some((before, after)) = place {
        let line = after.lines().next().unwrap_or_default();
        // The last header before the error begins its table. A list of tables may be in one value, too.
        let table = before.rsplit("\n[").next().unwrap_or_default();
        if [table, line].iter().any(|part| part.to_ascii_lowercase().contains("secret")) {
            let number = before.matches('\n').count() + 1;
            return format!("line {number}: {}", with_nearest(&without_value(error.message())));
        }
    }
    with_nearest(error.to_string().trim_end())
}

/// A message of the parser without the value that has the wrong type: ``invalid type: string "abc", expected u64``.
fn without_value(message: &str) -> String {
    match message.split_once(": ") {
        Some((kind, rest)) if kind.starts_with("invalid ") => {
            let expected = rest.rfind(", expected ").and_then(|at| rest.get(at..)).unwrap_or_default();
            format!("{kind}{expected}")
        }
        Some(_) | None => message.to_owned(),
    }
}

/// The parser's message, with the expected name that is nearest to an unknown one added. The message has all names in
/// one line: ``unknown field `lisen`, expected one of `listen`, …``.
fn with_nearest(reason: &str) -> String {
    let line = |line: &str| {
        let mut quoted = line.split('`').skip(1).step_by(2);
        let unknown = quoted.next().filter(|_| line.starts_with("unknown "));
        match unknown.map(|name| (format!("`{name}`"), did_you_mean(name, quoted))) {
            Some((name, nearest)) => line.replacen(&name, &format!("{name}{nearest}"), 1),
            None => line.to_owned(),
        }
    };
    reason.lines().map(line).collect::<Vec<_>>().join("\n")
}

/// The line number of the nth occurrence of a dotted key, from 0.
// Parses the file a second time, but only if the configuration is refused: with `Spanned`, the type of every setting
// would have to carry its position.
fn line_of(text: &str, key: &str, nth: usize) -> Option<usize> {
    let document = DeTable::parse(text).ok()?;
    let mut offsets = Vec::new();
    collect_offsets(document.get_ref(), &key.split('.').collect::<Vec<_>>(), &mut offsets);
    let before = text.get(..*offsets.get(nth)?)?;
    Some(before.matches('\n').count() + 1)
}

/// Collects the byte offset of every value of a key, given by its parts, in the order of the text.
fn collect_offsets(table: &DeTable<'_>, key: &[&str], offsets: &mut Vec<usize>) {
    let Some((first, rest)) = key.split_first() else { return };
    for (name, value) in table.iter().filter(|(name, _)| name.get_ref() == first) {
        let tables = match value.get_ref() {
            DeValue::Table(table) => vec![(value.span(), table)],
            DeValue::Array(items) => {
                items.iter().filter_map(|item| Some((item.span(), item.get_ref().as_table()?))).collect()
            }
            DeValue::String(_)
            | DeValue::Integer(_)
            | DeValue::Float(_)
            | DeValue::Boolean(_)
            | DeValue::Datetime(_) => Vec::new(),
        };
        match rest {
            [] if tables.is_empty() => offsets.push(name.span().start),
            [] => offsets.extend(tables.iter().map(|(span, _)| span.start)),
            rest => tables.iter().for_each(|(_, table)| collect_offsets(table, rest, offsets)),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::tests::parse;

    #[test]
    fn errors_name_line_and_key() {
        let cases = [
            ("[ceilings]\nmax_memory_mb = 0\n", "line 2", "ceilings.max_memory_mb"),
            ("\nceilings = { max_memory_mb = 0 }\n", "line 2", "ceilings.max_memory_mb"),
            ("[ceilings]\n\n\"max_memory_mb\" = 0\n", "line 3", "ceilings.max_memory_mb"),
            ("[server]\nlisten = \"nowhere\"\n", "line 2", "server.listen"),
            ("\n[ceilings]\nfilesystem_scope = [\"/**\"]\n", "line 3", "ceilings.filesystem_scope"),
            ("[executor]\ndid = \"me\"", "line 2", "executor.did"),
            ("[trust]\nkeys = \"keys\"", "", "`executor.did` has to be set where `trust.keys` is"),
            ("[trust]\nmax_proof_seconds = 604801", "line 2", "trust.max_proof_seconds"),
            ("[governor]\nurl = \"ftp://x\"", "line 2", "governor.url"),
            ("[ceilings]\nmax_memry_mb = 5\n", "line 2", "max_memry_mb"),
            (
                "[ceilings]\nmax_handles = 31\n",
                "line 2",
                "`ceilings.max_handles` must be an integer from 32 to 65536",
            ),
            ("[ceilings]\nmax_subscriptions = 0\n", "line 2", "ceilings.max_subscriptions"),
            ("[ceilings]\nmax_random_bytes = 1000000001\n", "line 2", "ceilings.max_random_bytes"),
            ("[ceilings]\nmax_directory_entries = 0\n", "line 2", "ceilings.max_directory_entries"),
            ("[ceilings]\nmax_fuel = 0\n", "line 2", "ceilings.max_fuel"),
            ("[ceilings]\nmax_memory_mb = \"5\"\n", "line 2", "max_memory_mb"),
            ("[ceilings]\nmax_memory_mb = -1\n", "line 2", "max_memory_mb"),
            ("[ceilings]\ntimeout_seconds = 1e3\n", "line 2", "timeout_seconds"),
            ("[governor]\nheartbeat_seconds = 0\n", "line 2", "governor.heartbeat_seconds"),
            ("[governor]\nconditions_from = -0.1\n", "line 2", "governor.conditions_from"),
            (
                "[governor]\ndeny_from = 1.1\n",
                "line 2",
                "`governor.deny_from` is 1.1 and has to be from 0.7 to 1.0",
            ),
            ("[governor]\nescalate_from = nan\n", "line 2", "governor.escalate_from"),
            (
                "[governor]\nescalate_from = 0.9\n",
                "",
                "`governor.deny_from` is 0.8 and has to be from 0.9 to 1.0",
            ),
            (
                "[governor]\nobserve = [\"a.cedar\"]\n",
                "line 2",
                "`governor.observe` names `a.cedar`, and needs",
            ),
            (
                "[governor]\npolicies = \"p\"\nobserve = [\"p/a.cedar\"]\n",
                "line 3",
                "`governor.observe` names `p/a.cedar`",
            ),
            (
                "[governor]\npolicies = \"p\"\nobserve = [\"a.cedar\", \"a.cedar\"]\n",
                "line 3",
                "`governor.observe` names a file twice",
            ),
            ("[[mount]]\nguest = \"workspace\"\nhost = \".\"\n", "line 2", "mount.guest"),
            ("server = 5\n", "line 1", "server"),
            ("[executor]\nisolation = \"proces\"\n", "line 2", "isolation"),
            (
                "[executor]\nrenew_runs = 0\n",
                "line 2",
                "`executor.renew_runs` must be an integer from 1 to 1000000",
            ),
            (
                "[executor]\nrenew_seconds = 86401\n",
                "line 2",
                "`executor.renew_seconds` must be an integer from 1 to",
            ),
            (
                "[executor.reuse]\nruns = 1\n",
                "line 2",
                "`executor.reuse.runs` must be an integer from 2 to 100000",
            ),
            (
                "[executor]\nreuse = { idle_ms = 60001 }\n",
                "line 2",
                "`executor.reuse.idle_ms` must be an integer from 1 to 60000",
            ),
            ("[executor.reuse]\ntools = [\"../a\"]\n", "line 2", "`executor.reuse.tools`"),
            (
                "[executor]\nfresh_layout = true\n[executor.reuse]\ntools = [\"a\"]\n",
                "line 4",
                "`executor.reuse.tools` contradicts `executor.fresh_layout`",
            ),
            (
                "[executor]\ninline_tools = [\"a\"]\nreuse.tools = [\"b\", \"a\"]\n",
                "line 3",
                "`executor.reuse.tools` names `a`, which has no process to reuse",
            ),
            (
                "[executor]\nisolation = \"inline\"\nreuse.tools = [\"a\"]\n",
                "line 3",
                "`executor.reuse.tools` names `a`, which has no process to reuse",
            ),
            ("[server\n", "line 1", "server"),
            ("[network]\nallowed_domains = [\"http://a.com\"]\n", "line 2", "network.allowed_domains"),
            ("[network]\nblocked_domains = [\"a@b.com\"]\n", "line 2", "network.blocked_domains"),
            ("[network]\nallowed_addresses = [\"10.0.0.1/8\"]\n", "line 2", "network.allowed_addresses"),
            ("[network]\nmax_requests = 0\n", "line 2", "network.max_requests"),
            ("[network]\nmax_connections = 65\n", "line 2", "network.max_connections"),
            ("[network]\nmax_received_bytes = -1\n", "line 2", "max_received_bytes"),
            ("[network.hosts]\n\"10.0.0.1\" = [\"10.0.0.1\"]\n", "line 1", "network.hosts"),
            ("[network.hosts]\n\"a.com\" = []\n", "line 1", "network.hosts"),
            ("[network.hosts]\n\"a.com\" = [\"b.com\"]\n", "line 2", "a.com"),
        ];
        for (text, line, key) in cases {
            let error = parse(text).unwrap_err();
            assert!(error.contains(line) && error.contains(key), "{text:?}: {error}");
        }
    }

    #[test]
    fn an_error_among_secrets_repeats_no_value() {
        let secret = "[[secret]]\nname = \"a\"\nfile = \"f\"\ntools = [\"*\"]\n\
                      requests = [\"GET https://a.com/\"]\n";
        for (line, words) in [
            ("value = \"c4n4ry\"", "line 6: unknown field `value`"),
            ("max_uses = \"c4n4ry\"", "line 6: invalid type, expected "),
            ("place = \"c4n4ry", "line 6: "),
            ("oauth = { client_secret = \"c4n4ry\" }", "line 6: "),
            ("place = \"header:authorization: Bearer c4n4ry\"", "line 6: `secret.place` is no place"),
            ("place = \"header:x\"\nscheme = \"Bearer c4n4ry\"", "line 7: `secret.scheme` is no scheme"),
        ] {
            let error = parse(&format!("{secret}{line}\n")).unwrap_err();
            assert!(error.contains(words) && !error.contains("c4n4ry"), "{line}: {error}");
        }
        let inline = parse("secret = [\n  { value = \"c4n4ry\" }\n]\n").unwrap_err();
        assert!(inline.contains("unknown field") && !inline.contains("c4n4ry"), "{inline}");
    }

    #[test]
    fn a_wrong_key_is_told_the_nearest_right_one() {
        for (text, nearest) in [
            ("[ceilings]\nmax_memry_mb = 5\n", "`max_memry_mb` (did you mean `max_memory_mb`?), expected"),
            ("[sever]\nlisten = \"x\"\n", "`sever` (did you mean `server`?), expected"),
            ("[executor]\nisolation = \"proces\"\n", "`proces` (did you mean `process`?), expected"),
            ("[doors.a2a]\ndialekt = \"acp\"\n", "`dialekt` (did you mean `dialect`?), expected"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(nearest), "{text}: {error}");
        }
        assert!(!parse("[ceilings]\nxyz = 5\n").unwrap_err().contains("did you mean"));
    }
}
