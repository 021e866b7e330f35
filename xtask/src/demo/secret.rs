//! The steps with an API that wants a key, and the search for the key in all that the demo leaves behind.
//!
//! The API makes another key for each demo, and writes it to the file from which the executor reads it. Nothing else
//! gets it: no tool, no argument, and not this program either.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use fs_err as fs;
use serde_json::{Value, json};

use super::client::{at, text};
use super::fixture::{Fixture, Server};
use super::output::mark;
use super::steps::AGENT;
use crate::run::{self, BOLD, UNLIMITED, Workspace};

/// The name of the secret, and the beginning of the names of the tools.
const NAME: &str = "orders";
/// The tools of the two operations of the API.
pub(super) const ORDER: &str = "orders_get_order";
pub(super) const REQUEST: &str = "orders_get_request";
/// The host in the API's certificate, and what the executor has to know of it.
const HOST: &str = "orders.test";
pub(super) const NETWORK: &str = "hosts = { \"orders.test\" = [\"127.0.0.1\"] }\nca_file = \"orders.pem\"\n";
/// Files in the folder of the demo.
const CERTIFICATE: &str = "orders.pem";
const KEY: &str = "secrets/orders";
/// A file in the folder of the logs.
const LOG: &str = "orders-api.log";

/// Builds the API and starts it.
pub(super) fn start_api(workspace: &Workspace, folder: &Path, logs: &Path) -> Result<Server> {
    let mut build = workspace.cargo(&["build", "--locked", "-p", "xtask", "--features", "api"]);
    build.args(["--bin", "orders_api"]);
    run::log(workspace, "build the API of the demo", &mut build, UNLIMITED)?;
    fs::create_dir(folder.join("secrets"))?;
    let mut api = Command::new(workspace.executor().with_file_name("orders_api"));
    api.arg(folder.join(CERTIFICATE)).arg(folder.join(KEY));
    Server::start("API", api, logs.join(LOG), "")
}

/// Adds the API's operations as tools, by the commands of the README, and the secret that the first of them prints.
pub(super) fn add_tools(workspace: &Workspace, fixture: &Fixture) -> Result<()> {
    run::progress("Adding", "an API by `a2g-executor tool new --openapi`, `tool add` and `tool allow`");
    let origin = format!("https://{HOST}:{}", fixture.api.address.port());
    let server = format!("{origin}/v1");
    let config = fixture.path("executor.toml");
    let executor = |words: &[&str]| {
        let mut command = Command::new(workspace.executor());
        command.args(words).current_dir(fixture.path(""));
        command
    };
    let mut new = executor(&["tool", "new", NAME, "--operations", "getOrder,getRequest", "--secret", NAME]);
    new.args(["--server", &server, "--openapi"]).arg(workspace.root.join("docs/examples/orders.yaml"));
    let made = run::capture(&mut new)?;
    for tool in [ORDER, REQUEST] {
        let mut add = executor(&["tool", "add", tool, "--config"]);
        run::log(workspace, &format!("add {tool} to the demo's tools"), add.arg(&config), UNLIMITED)?;
        let mut allow =
            executor(&["tool", "allow", tool, &origin, "--write", "--agent", AGENT, "--policies"]);
        allow.arg(fixture.path("policies")).arg("--config").arg(&config);
        run::log(workspace, &format!("allow {tool} its host"), &mut allow, UNLIMITED)?;
    }
    // It is printed last.
    let (_, secret) = made.split_once("[[secret]]").context("`tool new` printed no `[[secret]]`")?;
    let before = fs::read_to_string(&config)?;
    fs::write(&config, format!("{before}\n[[secret]]{secret}\n"))?;
    Ok(())
}

pub(super) fn check_order(answer: &Value, _: &Fixture) -> Result<String> {
    check(answer, &json!({ "id": "1042", "item": "chair", "count": 3 }))
}

/// Checks the answer in which the API repeats the key.
pub(super) fn check_request(answer: &Value, _: &Fixture) -> Result<String> {
    check(answer, &json!({ "authorization": format!("Bearer [secret {NAME}]") }))
}

/// Checks the body of the API's answer, and that the request had the secret.
fn check(answer: &Value, expected: &Value) -> Result<String> {
    let result = at(answer, "/result/report/result");
    let used = at(answer, "/result/report/usage/secrets/0");
    ensure!(at(result, "/body") == expected, "the result is {result}");
    ensure!(text(used, "/name") == NAME && at(used, "/uses") == 1, "`usage.secrets` holds {used}");
    Ok(format!("the answer: {expected}; usage.secrets: {used}"))
}

/// Searches for the key in all files of the demo and in the cache, and prints where it is. Returns `true` if only the
/// log of the API and the file that the executor reads have it.
pub(super) fn search(fixture: &Fixture) -> Result<bool> {
    let log = fixture.logs.join(LOG);
    let key = fixture.path(KEY);
    let mut grep = Command::new("grep");
    // It reads the key from the file: each user of the machine can see arguments.
    grep.env("LC_ALL", "C").args(["-rcaF", "-f"]).arg(&key).arg(fixture.path("")).arg(&fixture.logs);
    let output = run::capture(grep.args(cache()))?;
    let found: Vec<_> = counts(&output).filter(|(_, count)| *count != "0").map(|(path, _)| path).collect();
    let is_known = [&log, &key].into_iter().all(|path| found.contains(&path.as_path()));
    let elsewhere: Vec<_> = found.into_iter().filter(|path| *path != log && *path != key).collect();
    anstream::println!("\n{BOLD}The key of the API{BOLD:#}");
    anstream::println!("{} it is in the API's log, and in the file that it was read from", mark(is_known));
    let searched = counts(&output).count();
    let verdict = if elsewhere.is_empty() { "nowhere else".to_owned() } else { format!("in {elsewhere:?}") };
    let places = "journal, reports, results, logs, tools, cache";
    anstream::println!("{} {verdict} ({searched} files searched: {places})", mark(elsewhere.is_empty()));
    Ok(is_known && elsewhere.is_empty())
}

/// The files in the output of `grep -c`, each with the number of its lines with a match.
fn counts(output: &str) -> impl Iterator<Item = (&Path, &str)> {
    output.lines().filter_map(|line| line.rsplit_once(':')).map(|(path, count)| (Path::new(path), count))
}

/// The folder of compiled tools, which the executor finds like this, if it is there.
fn cache() -> Option<PathBuf> {
    let folder = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let base = folder("XDG_CACHE_HOME").or_else(|| folder("HOME").map(|home| home.join(".cache")))?;
    Some(base.join("a2g-executor")).filter(|path| path.is_dir())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_is_a_file_and_a_count() {
        let found: Vec<_> = counts("/a/b:0\n/a/c:d:2\n").collect();
        assert_eq!(found, [(Path::new("/a/b"), "0"), (Path::new("/a//c:d"), "2")]);
    }
}
