//! The commands that bashkit does not have: `tool`, and those that say what to use instead of them.

use a2g_guest_sdk::prelude::*;
use a2g_guest_sdk::{Tools, serde_json};
use bashkit::{BashBuilder, Builtin, BuiltinContext, ExecResult, async_trait};

/// The commands that the shell lacks or would need the network, processes or other programs for, each with what to use instead.
const ADVICE: [(&[&str], &str); 10] = [
    (
        &["curl", "wget", "http"],
        "the shell has no network: use `tool http_fetch --url URL`, whose result is JSON with the member `body`",
    ),
    (
        &["ssh", "scp", "sftp", "rsync", "ftp", "nc", "ncat", "telnet", "ping", "dig", "nslookup"],
        "the shell has no network: use `tool http_fetch --url URL` for what HTTP reaches",
    ),
    (&["sudo", "su", "doas"], "there are no other users: run the command itself"),
    (
        &["apt", "apt-get", "dpkg", "yum", "dnf", "apk", "brew", "pip", "pip3", "npm", "npx", "cargo", "gem"],
        "nothing can be installed: use the commands that `help` lists, or `tool run_python`",
    ),
    (
        &["python", "python3", "perl", "ruby"],
        "there is no such interpreter in the shell: use `tool run_python --code CODE`",
    ),
    (
        // That of bashkit counts with 53 bits, and its results are wrong without a message.
        &["bc"],
        "there is no exact arithmetic in the shell: use `awk 'BEGIN { print 1 / 3 }'` for small numbers, and \
         `tool run_python --code CODE` for exact ones",
    ),
    (
        &["node", "deno", "bun"],
        "there is no such interpreter in the shell: use `tool run_javascript --code CODE`",
    ),
    (
        &["git", "gh", "svn", "hg"],
        "there is no version control in the shell: `tool` lists the tools that there are",
    ),
    (&["docker", "podman", "kubectl", "systemctl"], "the shell starts no programs and controls no machines"),
    (
        &["vi", "vim", "nano", "emacs", "less", "more", "man", "top", "watch"],
        "there is no terminal: print with `cat` or `head`, and edit with `sed -i` or a here-document",
    ),
];

/// Adds the commands to a shell.
pub(crate) fn add(mut shell: BashBuilder) -> BashBuilder {
    for (names, advice) in ADVICE {
        for name in names {
            shell = shell.builtin(*name, Box::new(Absent { name, advice }));
        }
    }
    shell.builtin("tool", Box::new(Tool))
}

/// A command that the shell lacks.
struct Absent {
    name: &'static str,
    advice: &'static str,
}

#[async_trait]
impl Builtin for Absent {
    async fn execute(&self, _: BuiltinContext<'_>) -> bashkit::Result<ExecResult> {
        /// As of a command that is not found.
        const STATUS: i32 = 127;
        Ok(ExecResult::err(format!("{}: {}\n", self.name, self.advice), STATUS))
    }
}

const USAGE: &str = "\
usage: tool                        lists the tools that this run may call
       tool NAME --argument value  calls one: values as its schema says, JSON for lists and objects, `-` for the input
       tool NAME '{\"argument\": ...}' or tool NAME - (JSON from the input)
       tool --describe NAME        prints the schemas of its arguments and its result
";

/// Calls another tool.
struct Tool;

#[async_trait]
impl Builtin for Tool {
    async fn execute(&self, call: BuiltinContext<'_>) -> bashkit::Result<ExecResult> {
        // A context has no state: each of them is the same host.
        let context = Context::default();
        let input = || call.stdin.map(|input| input.text_lossy().into_owned()).unwrap_or_default();
        let outcome = run(context.tools(), call.args, input);
        Ok(match outcome {
            Ok(output) => ExecResult::ok(output),
            Err(Failure::Usage(problem)) => ExecResult::err(format!("tool: {problem}\n{USAGE}"), 2),
            Err(Failure::Call(error)) => {
                let name = call.args.iter().find(|word| !word.starts_with('-')).map_or("", String::as_str);
                let facts = json!({ "code": error.code(), "detail": error.detail() });
                ExecResult::err(format!("tool {name}: {error}\n{facts}\n"), 1)
            }
        })
    }
}

/// The reason why `tool` has no result.
enum Failure {
    Usage(String),
    Call(ToolError),
}

fn run(tools: Tools<'_>, words: &[String], input: impl Fn() -> String) -> Result<String, Failure> {
    let Some((first, rest)) = words.split_first() else {
        let lines = tools.list().into_iter().map(|tool| format!("{}\t{}\n", tool.name, tool.description));
        return Ok(lines.collect());
    };
    match (first.as_str(), rest) {
        ("--help" | "-h", _) => Ok(USAGE.to_owned()),
        ("--describe", [name]) => describe(tools, name),
        (option, _) if option.starts_with('-') => Err(Failure::Usage(format!("unknown option `{option}`"))),
        (name, written) => {
            let arguments = arguments(tools, name, written, input)?;
            let result = tools.call::<Value>(name, &arguments);
            result.map(|result| format!("{result}\n")).map_err(Failure::Call)
        }
    }
}

fn describe(tools: Tools<'_>, name: &str) -> Result<String, Failure> {
    let tool = tools.describe(name).map_err(Failure::Call)?;
    let text = json!({
        "name": tool.name,
        "description": tool.description,
        "arguments": tool.arguments_schema,
        "result": tool.result_schema,
    });
    Ok(format!("{text}\n"))
}

/// The arguments of a call: one JSON object, or options.
fn arguments(
    tools: Tools<'_>,
    name: &str,
    words: &[String],
    input: impl Fn() -> String,
) -> Result<Value, Failure> {
    match words {
        [] => Ok(json!({})),
        [text] if text == "-" => parse(name, &input()),
        [text] if !text.starts_with("--") => parse(name, text),
        options => {
            let tool = tools.describe(name).map_err(Failure::Call)?;
            from_options(&tool.arguments_schema, options, input)
        }
    }
}

fn parse(name: &str, text: &str) -> Result<Value, Failure> {
    serde_json::from_str::<Value>(text).ok().filter(Value::is_object).ok_or_else(|| {
        let problem =
            format!("the arguments of `{name}` are no JSON object: write '{{\"argument\": \"value\"}}'");
        Failure::Usage(problem)
    })
}

fn from_options(schema: &Value, words: &[String], input: impl Fn() -> String) -> Result<Value, Failure> {
    let mut arguments = serde_json::Map::new();
    let mut rest = words.iter().peekable();
    while let Some(word) = rest.next() {
        let named = word.strip_prefix("--").filter(|named| !named.is_empty());
        let option =
            named.ok_or_else(|| Failure::Usage(format!("`{word}` is no option: write --argument value")))?;
        let assigned = option.split_once('=');
        let text = assigned.map(|(_, text)| text).or_else(|| {
            let next = rest.next_if(|word| !word.starts_with("--"));
            next.map(String::as_str)
        });
        let name = property_name(schema, assigned.map_or(option, |(name, _)| name));
        let property = schema.get("properties").and_then(|properties| properties.get(&name));
        let value = match text {
            None => Value::Bool(true),
            Some("-") => value(property, &input()),
            Some(text) => value(property, text),
        };
        add_argument(&mut arguments, name, value, takes(property, "array"));
    }
    Ok(Value::Object(arguments))
}

/// The name of an argument: options are often written with `-` in place of `_`.
fn property_name(schema: &Value, option: &str) -> String {
    let has = |name: &str| schema.get("properties").is_some_and(|properties| properties.get(name).is_some());
    let name = option.replace('-', "_");
    if !has(option) && has(&name) { name } else { option.to_owned() }
}

/// An option that is repeated adds to a list.
fn add_argument(arguments: &mut serde_json::Map<String, Value>, name: String, value: Value, is_list: bool) {
    let added = if is_list && !value.is_array() { json!([value]) } else { value };
    match (arguments.get_mut(&name), added) {
        (Some(Value::Array(list)), Value::Array(more)) => list.extend(more),
        (_, added) => {
            arguments.insert(name, added);
        }
    }
}

/// The value of an option: text where the schema takes text, and otherwise JSON, if it is that.
fn value(property: Option<&Value>, text: &str) -> Value {
    if takes(property, "string") {
        return json!(text);
    }
    serde_json::from_str(text).unwrap_or_else(|_| json!(text))
}

/// True if the schema of an argument names `kind` as its type, or as one of them.
fn takes(property: Option<&Value>, kind: &str) -> bool {
    match property.and_then(|property| property.get("type")) {
        Some(Value::String(found)) => found == kind,
        Some(Value::Array(found)) => found.iter().any(|found| found == kind),
        Some(_) | None => false,
    }
}
