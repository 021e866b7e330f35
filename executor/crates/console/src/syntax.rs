//! The parts of a program, for colours: comments, texts, numbers and keywords of a few languages.
//!
//! The parts are a guess that knows no grammar, and together they always are the whole text. So a wrong guess gives
//! a wrong colour, and hides nothing. Code may be guessed to be a comment, so comments are shown no weaker than code.

/// What a part of a program is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PartKind {
    Plain,
    Comment,
    Text,
    Number,
    Keyword,
}

impl PartKind {
    /// The class of its element; `None` for a part without an element of its own.
    pub(super) fn class(self) -> Option<&'static str> {
        match self {
            Self::Plain => None,
            Self::Comment => Some("c"),
            Self::Text => Some("t"),
            Self::Number => Some("n"),
            Self::Keyword => Some("k"),
        }
    }
}

/// The signs and words of a language.
#[derive(Debug)]
pub(super) struct Syntax {
    /// The language and the extensions of its files.
    names: &'static [&'static str],
    line_comments: &'static [&'static str],
    block_comment: Option<(&'static str, &'static str)>,
    /// The quotation marks, longer ones first, and whether a text between them may have several lines.
    quotes: &'static [(&'static str, bool)],
    keywords: &'static [&'static str],
}

const SYNTAXES: [Syntax; 6] = [
    Syntax {
        names: &["python", "py"],
        line_comments: &["#"],
        block_comment: None,
        quotes: &[("\"\"\"", true), ("'''", true), ("\"", false), ("'", false)],
        keywords: &[
            "False", "None", "True", "and", "as", "assert", "async", "await", "break", "class", "continue",
            "def", "del", "elif", "else", "except", "finally", "for", "from", "global", "if", "import", "in",
            "is", "lambda", "match", "nonlocal", "not", "or", "pass", "raise", "return", "try", "while",
            "with", "yield",
        ],
    },
    Syntax {
        names: &["javascript", "typescript", "js", "mjs", "cjs", "ts"],
        line_comments: &["//"],
        block_comment: Some(("/*", "*/")),
        quotes: &[("\"", false), ("'", false), ("`", true)],
        keywords: &[
            "async",
            "await",
            "break",
            "case",
            "catch",
            "class",
            "const",
            "continue",
            "default",
            "delete",
            "do",
            "else",
            "export",
            "extends",
            "false",
            "finally",
            "for",
            "from",
            "function",
            "if",
            "import",
            "in",
            "instanceof",
            "let",
            "new",
            "null",
            "of",
            "return",
            "static",
            "super",
            "switch",
            "this",
            "throw",
            "true",
            "try",
            "typeof",
            "undefined",
            "var",
            "void",
            "while",
            "yield",
        ],
    },
    Syntax {
        names: &["rust", "rs"],
        line_comments: &["//"],
        block_comment: Some(("/*", "*/")),
        quotes: &[("\"", true)],
        keywords: &[
            "as", "async", "await", "break", "const", "continue", "dyn", "else", "enum", "extern", "false",
            "fn", "for", "if", "impl", "in", "let", "loop", "match", "mod", "move", "mut", "pub", "ref",
            "return", "self", "static", "struct", "super", "trait", "true", "type", "unsafe", "use", "where",
            "while",
        ],
    },
    Syntax {
        names: &["shell", "bash", "sh"],
        line_comments: &["#"],
        block_comment: None,
        quotes: &[("\"", true), ("'", true)],
        keywords: &[
            "case", "do", "done", "elif", "else", "esac", "exit", "export", "fi", "for", "function", "if",
            "in", "local", "return", "set", "then", "until", "while",
        ],
    },
    Syntax {
        names: &["sql"],
        line_comments: &["--"],
        block_comment: Some(("/*", "*/")),
        quotes: &[("'", true), ("\"", false)],
        keywords: &[
            "ALTER", "AND", "AS", "BY", "CREATE", "DELETE", "DROP", "FROM", "GRANT", "GROUP", "HAVING", "IN",
            "INSERT", "INTO", "JOIN", "LIMIT", "NOT", "NULL", "ON", "OR", "ORDER", "SELECT", "SET", "TABLE",
            "TRUNCATE", "UNION", "UPDATE", "VALUES", "WHERE", "WITH",
        ],
    },
    Syntax {
        names: &["json", "toml", "yaml", "yml"],
        line_comments: &["#"],
        block_comment: None,
        quotes: &[("\"", false)],
        keywords: &["true", "false", "null"],
    },
];

impl Syntax {
    /// The syntax of a language that is one of the words of `text`: of a tool's name, a media type, or an extension.
    pub(super) fn find(text: &str) -> Option<&'static Self> {
        let words = text.split(|c: char| !c.is_ascii_alphanumeric());
        let mut known = words.map(|word| SYNTAXES.iter().find(|syntax| syntax.has_name(word)));
        known.find_map(|syntax| syntax)
    }

    fn has_name(&self, word: &str) -> bool {
        self.names.iter().any(|name| word.eq_ignore_ascii_case(name))
    }

    fn is_keyword(&self, word: &str) -> bool {
        // SQL is written in either case.
        let is_same = |keyword: &&str| {
            if self.names.contains(&"sql") { keyword.eq_ignore_ascii_case(word) } else { *keyword == word }
        };
        self.keywords.iter().any(is_same)
    }

    /// Splits a text into its parts, each when it is asked for. All together take time proportional to the text's length.
    pub(super) fn split<'a>(&'static self, text: &'a str) -> Parts<'a> {
        Parts { syntax: self, rest: text, previous: None, may_be_in_regex: false, next_part: None }
    }

    /// `true` if `/*` and `//` after `previous` may be the beginning of a comment. In JavaScript they can also be inside a
    /// regular expression, as in `/[/*]/`. Only a grammar knows that, so this is a guess that errs towards code: they are
    /// comments only where a statement or a word can end, and after no other `/` on the line.
    fn may_begin_comment(&self, previous: Option<char>, may_be_in_regex: bool) -> bool {
        let is_boundary = |c: char| c.is_whitespace() || matches!(c, ';' | '{' | '}' | ')' | ',');
        !self.names.contains(&"js") || (!may_be_in_regex && previous.is_none_or(is_boundary))
    }

    /// The kind and the length in bytes of the part at the beginning of `rest`, which is not empty and follows `previous`.
    fn first_part(&self, rest: &str, previous: Option<char>, may_be_in_regex: bool) -> (PartKind, usize) {
        let may_begin_comment = self.may_begin_comment(previous, may_be_in_regex);
        let length_while = |is_part: fn(char) -> bool| rest.find(|c| !is_part(c)).unwrap_or(rest.len());
        let begins_a_word = previous.is_none_or(char::is_whitespace);
        if may_begin_comment
            && let Some((open, close)) = self.block_comment
            && let Some(inner) = rest.strip_prefix(open)
        {
            let end = inner.find(close).map_or(inner.len(), |end| end + close.len());
            return (PartKind::Comment, open.len() + end);
        }
        // In a shell, `#` begins a comment only where a word begins.
        let begins = |sign: &&str| {
            rest.starts_with(*sign) && (*sign != "#" || begins_a_word || self.names.contains(&"py"))
        };
        if may_begin_comment && self.line_comments.iter().any(begins) {
            // The line ends of Python and JavaScript: what follows one of them runs.
            let end = rest.find(['\n', '\r', '\u{2028}', '\u{2029}']);
            return (PartKind::Comment, end.unwrap_or(rest.len()));
        }
        for (quote, has_lines) in self.quotes {
            if let Some(inner) = rest.strip_prefix(quote) {
                return (PartKind::Text, quote.len() + text_end(inner, quote, *has_lines));
            }
        }
        match rest.chars().next() {
            Some(first) if first.is_ascii_digit() => {
                (PartKind::Number, length_while(|c| c.is_ascii_alphanumeric() || c == '.' || c == '_'))
            }
            Some(first) if first.is_alphabetic() || first == '_' => {
                let length = length_while(|c| c.is_alphanumeric() || c == '_');
                let is_keyword = rest.get(..length).is_some_and(|word| self.is_keyword(word));
                (if is_keyword { PartKind::Keyword } else { PartKind::Plain }, length)
            }
            first => (PartKind::Plain, first.map_or(rest.len(), char::len_utf8)),
        }
    }
}

/// The parts of a text that have not been asked for yet.
pub(super) struct Parts<'a> {
    syntax: &'static Syntax,
    rest: &'a str,
    /// The last character before `rest`.
    previous: Option<char>,
    /// `true` after a `/` that is neither in a comment nor in a text, to the end of the line.
    may_be_in_regex: bool,
    /// A part before `rest` that comes next: the plain part before it came first.
    next_part: Option<(PartKind, &'a str)>,
}

impl<'a> Iterator for Parts<'a> {
    type Item = (PartKind, &'a str);

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(part) = self.next_part.take() {
            return Some(part);
        }
        let begin = self.rest;
        let mut plain_bytes = 0;
        while !self.rest.is_empty() {
            let (kind, length) = self.syntax.first_part(self.rest, self.previous, self.may_be_in_regex);
            let (part, rest) = self.rest.split_at_checked(length).unwrap_or((self.rest, ""));
            self.previous = part.chars().next_back();
            self.rest = rest;
            if kind != PartKind::Plain {
                self.next_part = Some((kind, part));
                break;
            }
            self.may_be_in_regex = part == "/" || (self.may_be_in_regex && part != "\n");
            plain_bytes += part.len();
        }
        match begin.get(..plain_bytes) {
            Some(plain) if !plain.is_empty() => Some((PartKind::Plain, plain)),
            Some(_) | None => self.next_part.take(),
        }
    }
}

/// The length of the rest of a text with its closing quotation mark; to the end of the line or of `inner` without one. A
/// line end after a backslash does not end the line.
fn text_end(inner: &str, quote: &str, has_lines: bool) -> usize {
    let mut is_escaped = false;
    for (at, c) in inner.char_indices() {
        if is_escaped {
            is_escaped = inner.get(at..).is_some_and(|rest| rest.starts_with("\r\n"));
        } else if c == '\\' {
            is_escaped = true;
        } else if matches!(c, '\n' | '\r') && !has_lines {
            return at;
        } else if inner.get(at..).is_some_and(|rest| rest.starts_with(quote)) {
            return at + quote.len();
        }
    }
    inner.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_parts_are_the_whole_text(text in "[a-z'\"`/*#\\\\\n é1-]{0,80}", syntax in 0..SYNTAXES.len()) {
            let names = SYNTAXES[syntax].names;
            let parts = Syntax::find(names[0]).unwrap().split(&text).collect::<Vec<_>>();
            prop_assert!(parts.iter().all(|(_, part)| !part.is_empty()));
            // A plain part ends where the text does, or where another kind begins.
            let is_plain = |part: &(PartKind, &str)| part.0 == PartKind::Plain;
            prop_assert!(parts.windows(2).all(|two| !two.iter().all(is_plain)));
            prop_assert_eq!(parts.into_iter().map(|(_, part)| part).collect::<String>(), text);
        }
    }

    /// A hostile text of a megabyte costs no more than the parts that are asked for.
    #[test]
    fn a_text_is_read_no_further_than_its_parts_are_asked_for() {
        for piece in ["'a' ", "1 ", "if ", "#\n"] {
            let text = piece.repeat(300_000);
            let mut parts = Syntax::find("python").unwrap().split(&text);
            assert_eq!(parts.by_ref().take(2_048).count(), 2_048);
            assert!(parts.rest.len() > text.len() - 2_050 * piece.len(), "{piece}: {}", parts.rest.len());
        }
    }

    #[test]
    fn programs_have_their_parts() {
        use PartKind::{Comment, Keyword, Number, Text};
        type Case = (&'static str, &'static str, &'static [(PartKind, &'static str)]);
        let cases: [Case; 11] = [
            (
                "run_python",
                "for x in 'a\\'b': # '\n  f(\"\"\"\n1\"\"\", 12)",
                &[
                    (Keyword, "for"),
                    (Keyword, "in"),
                    (Text, "'a\\'b'"),
                    (Comment, "# '"),
                    (Text, "\"\"\"\n1\"\"\""),
                    (Number, "12"),
                ],
            ),
            (
                "text/javascript",
                "let a = `x\n${y}` /* 1\n */ // z",
                &[(Keyword, "let"), (Text, "`x\n${y}`"), (Comment, "/* 1\n */"), (Comment, "// z")],
            ),
            // A text that does not end on its line ends with it, so one sign does not colour the rest of the program.
            ("main.py", "x = 'a\nreturn", &[(Text, "'a"), (Keyword, "return")]),
            // Code that runs is no comment: the `#` is in the text, and the `/*` in a regular expression.
            ("main.py", "x = 'a\\\n#'; f('y')", &[(Text, "'a\\\n#'"), (Text, "'y'")]),
            ("main.py", "x = 'a\\\r\n#'; f()\n# z\rf()", &[(Text, "'a\\\r\n#'"), (Comment, "# z")]),
            (
                "main.js",
                "const r = /[/*]/; f();\ntools.write_file({});\n//*/",
                &[(Keyword, "const"), (Comment, "//*/")],
            ),
            ("main.js", "r = / /*/; f(); //x\ng(); /* y */", &[(Comment, "/* y */")]),
            ("main.js", "r = /[//]/; f();\ng(1);// y", &[(Number, "1"), (Comment, "// y")]),
            ("deploy.sh", "echo ${x#y} # z", &[(Comment, "# z")]),
            ("query.sql", "select 1 -- x", &[(Keyword, "select"), (Number, "1"), (Comment, "-- x")]),
            ("application/json", "{\"a\": true}", &[(Text, "\"a\""), (Keyword, "true")]),
        ];
        for (hint, text, expected) in cases {
            let parts = Syntax::find(hint).expect(hint).split(text);
            let marked = parts.filter(|(kind, _)| *kind != PartKind::Plain);
            assert_eq!(marked.collect::<Vec<_>>(), expected, "{hint}");
        }
        assert!(Syntax::find("write_file").is_none() && Syntax::find("").is_none());
    }
}
