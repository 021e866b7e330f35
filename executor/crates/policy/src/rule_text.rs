//! The text of one rule of Cedar.

/// Maximum length of a line, if it can be broken.
const MAX_LINE: usize = 100;

/// A rule of Cedar, to be written.
#[derive(Debug, Clone)]
pub(crate) struct RuleText {
    annotations: Vec<String>,
    effect: &'static str,
    principal: String,
    action: String,
    resource: String,
    /// Conditions that all have to hold.
    when: Vec<String>,
    unless: Option<String>,
}

impl RuleText {
    /// A permit for every principal.
    pub(crate) fn permit(action: &str, resource: &str) -> Self {
        Self::new("permit", action, resource)
    }

    /// A forbid for every principal.
    pub(crate) fn forbid(action: &str, resource: &str) -> Self {
        Self::new("forbid", action, resource)
    }

    fn new(effect: &'static str, action: &str, resource: &str) -> Self {
        Self {
            annotations: Vec::new(),
            effect,
            principal: "principal".to_owned(),
            action: action.to_owned(),
            resource: resource.to_owned(),
            when: Vec::new(),
            unless: None,
        }
    }

    /// Adds an annotation; one without a value has an empty one.
    pub(crate) fn annotate(&mut self, name: &str, value: &str) {
        let is_flag = value.is_empty() && name != "calls";
        let shown = if is_flag { String::new() } else { format!("({})", quoted(value)) };
        self.annotations.push(format!("@{name}{shown}"));
    }

    /// Sets the condition of the principal in the scope.
    pub(crate) fn of_principal(&mut self, principal: String) {
        self.principal = principal;
    }

    /// Adds a condition that has to hold.
    pub(crate) fn when(&mut self, condition: String) {
        self.when.push(condition);
    }

    /// Sets the condition that must not hold.
    pub(crate) fn unless(&mut self, condition: String) {
        self.unless = Some(condition);
    }

    /// The rule, with the end of its last line.
    pub(crate) fn write(&self) -> String {
        let Self { annotations, effect, principal, action, resource, when, unless } = self;
        let mut lines = annotations.clone();
        let one_line = format!("{effect} ({principal}, {action}, {resource})");
        if one_line.len() <= MAX_LINE {
            lines.push(one_line);
        } else {
            lines.push(format!("{effect} ("));
            let mut parts = [principal, action, resource].into_iter().peekable();
            while let Some(part) = parts.next() {
                let comma = if parts.peek().is_some() { "," } else { "" };
                lines.push(broken(&format!("    {part}{comma}")));
            }
            lines.push(")".to_owned());
        }
        if let [only] = when.as_slice() {
            lines.push(clause("when", only));
        } else if !when.is_empty() {
            let all = when.iter().map(|condition| grouped(condition)).collect::<Vec<_>>().join(" && ");
            lines.push(clause("when", &all));
        }
        lines.extend(unless.as_ref().map(|condition| clause("unless", condition)));
        lines.join("\n") + ";\n"
    }
}

/// A string literal of Cedar, whose escapes are those of Rust.
pub(crate) fn quoted(text: &str) -> String {
    format!("{text:?}")
}

/// The condition that one of these holds.
pub(crate) fn any_of(conditions: impl IntoIterator<Item = String>) -> String {
    conditions.into_iter().collect::<Vec<_>>().join(" || ")
}

/// A condition as an operand of `&&`.
fn grouped(condition: &str) -> String {
    if condition.contains(" || ") { format!("({condition})") } else { condition.to_owned() }
}

/// A clause, on one line if it fits.
fn clause(keyword: &str, condition: &str) -> String {
    let one_line = format!("{keyword} {{ {condition} }}");
    if one_line.len() <= MAX_LINE {
        return one_line;
    }
    format!("{keyword} {{\n{}\n}}", broken(&format!("    {condition}")))
}

/// Breaks a line behind commas and operators outside of texts, and aligns what follows with its start.
fn broken(line: &str) -> String {
    let indent = line.len() - line.trim_start().len();
    let mut written = String::new();
    let mut length = 0;
    for (nth, word) in words(line.trim_start()).into_iter().enumerate() {
        if nth == 0 || length + 1 + word.len() > MAX_LINE {
            written.push_str(if nth == 0 { "" } else { "\n" });
            written.push_str(&" ".repeat(if nth == 0 { indent } else { indent + 4 }));
            length = indent;
        } else {
            written.push(' ');
            length += 1;
        }
        length += word.len();
        written.push_str(&word);
    }
    written
}

/// The parts between spaces outside of texts.
fn words(line: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut is_in_text = false;
    let mut is_escaped = false;
    for letter in line.chars() {
        if letter == ' ' && !is_in_text {
            words.push(String::new());
            continue;
        }
        if letter == '"' && !is_escaped {
            is_in_text = !is_in_text;
        }
        is_escaped = letter == '\\' && !is_escaped;
        if let Some(word) = words.last_mut() {
            word.push(letter);
        }
    }
    words
}
