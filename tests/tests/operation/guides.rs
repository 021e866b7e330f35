//! The commands of the README and of `docs/how-do-i.md`, run in their order as a reader pastes them.

use harness::*;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Maximum time of all commands of a page.
const MAX_PAGE: Duration = Duration::from_secs(600);
/// The command of the README that downloads science Python, unless it is told which wheel to take.
const ADD_SCIENCE: &str = "tool add --python science";
/// The programs that the pages say they need.
const PROGRAMS: [&str; 5] = ["bash", "curl", "jq", "openssl", "python3"];

fn read(page: &str) -> String {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(page);
    std::fs::read_to_string(&page).unwrap_or_else(|error| panic!("{}: {error}", page.display()))
}

/// The code blocks of a page in this language.
fn blocks(page: &str, language: &str) -> Vec<String> {
    let fence = format!("\n```{language}\n");
    page.split(&*fence).skip(1).map(|rest| rest.split("```\n").next().expect("an end").to_owned()).collect()
}

/// Runs commands in one shell, in a folder that looks like the repository after `cargo xtask demo`, and returns all that
/// they print. The first command that fails ends the shell, and is a failure. The ports of the pages are replaced by free
/// ones. `None` if a program is missing that the commands need.
fn paste(commands: &str) -> Option<String> {
    let is_there = |program: &&str| {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
    };
    if let Some(missing) = PROGRAMS.iter().find(|program| !is_there(program)) {
        print_skipped(&format!("there is no {missing}"));
        return None;
    }
    let ports = [(); 2].map(|()| std::net::TcpListener::bind("127.0.0.1:0").expect("a port"));
    let [server, governor] = ports.map(|port| port.local_addr().expect("an address").port().to_string());
    let with_ports = |text: &str| text.replace("7420", &server).replace("7410", &governor);
    let folder = tempfile::tempdir().expect("a temp folder");
    let path = |name: &str| folder.path().join(name);
    for made in ["target/debug", "docs/examples", "home"] {
        std::fs::create_dir_all(path(made)).expect("a folder");
    }
    symlink(tools(), path("target/tools")).expect("a link");
    // The pages use the default port.
    let wrapper = format!(
        "#!/bin/sh\nif [ \"$1\" = serve ]; then shift; set -- serve --listen 127.0.0.1:{server} \"$@\"; fi\nexec {:?} \"$@\"\n",
        program()
    );
    std::fs::write(path("target/debug/a2g-executor"), wrapper).expect("a script");
    let executable = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(path("target/debug/a2g-executor"), executable).expect("permissions");
    for example in ["docs/examples/governor.py", "docs/examples/orders.yaml"] {
        std::fs::write(path(example), with_ports(&read(example))).expect("a file");
    }

    let mut shell = Command::new("bash");
    let guarded = format!("set -euo pipefail\ntrap 'kill $(jobs -p) || true' EXIT\n{}", with_ports(commands));
    shell.args(["-c", &guarded]).current_dir(folder.path());
    shell.env("HOME", path("home")).env("XDG_CACHE_HOME", cache_home()).env("COLUMNS", "200");
    for variable in ["XDG_STATE_HOME", "DISPLAY", "WAYLAND_DISPLAY"] {
        shell.env_remove(variable);
    }
    let output = run_to_end_within(shell, b"", MAX_PAGE);
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{printed}\n{}", String::from_utf8_lossy(&output.stderr));
    Some(printed)
}

/// Shows that these texts are in the output, one after another.
fn assert_in_order(output: &str, texts: &[&str]) {
    let mut rest = output;
    for text in texts {
        let Some((_, after)) = rest.split_once(text) else {
            panic!("`{text}` is not in, or not in its order in\n{output}");
        };
        rest = after;
    }
}

#[test]
fn the_commands_of_the_readme_run_as_pasted() {
    let interprets = has_interpreter("run_python");
    let page = read("README.md");
    let mut commands = blocks(&page, "sh");
    assert!(commands.len() >= 8, "{commands:?}");
    // The demo has a test of its own in `xtask`, and prepares what is prepared here. `cargo xtask dist --check` installs
    // the packages.
    let is_elsewhere = |block: &str| block.contains("cargo xtask") || block.contains("uvx");
    commands.retain(|block| !is_elsewhere(block) && (interprets || !block.contains("sizes.py")));
    let wheel = science_wheel();
    commands.retain(|block| wheel.is_some() || !block.contains(ADD_SCIENCE));
    let add_science = wheel
        .as_ref()
        .map_or_else(String::new, |wheel| format!("{ADD_SCIENCE} --wheel '{}'", wheel.display()));
    // The server has a terminal of its own.
    let serves = "until grep -q 'all tools are prepared' serve.log; do sleep 0.1; done";
    let serves = format!("\na2g-executor serve 2> serve.log &\n{serves}\n");
    let pasted =
        commands.join("").replace("\na2g-executor serve\n", &serves).replace(ADD_SCIENCE, &add_science);
    assert_eq!(pasted.matches("serve.log &").count(), 1, "{pasted}");
    let Some(output) = paste(&pasted) else { return };
    let before = [
        r#""verdict":"APPROVED""#,
        r#""bytes_written":13"#,
        "`/etc/hello.txt` lies outside `/workspace/**`;",
        "SUCCESS",
        "verdict_denied",
        "checkpoint",
        r#""verdict":"ESCALATE""#,
        "private_key",
        "/console?key=",
    ];
    let secrets = blocks(&page, "toml");
    let [secret] = secrets.as_slice() else { panic!("{secrets:?}") };
    let api = [
        "made orders_get_order: GET https://api.orders.example/v1/orders/{id}",
        secret.as_str(),
        "added orders_get_order",
        "These changes were made",
        "1 examples passed",
    ];
    let program = [r#""status":"SUCCESS""#, "list_directory", "read_file", "write_file"];
    let after = ["claude mcp add -s user a2g -- ", r#""bytes_written":13"#, "SUCCESS", "write_file"];
    let program = if interprets { &program[..] } else { &[] };
    let of_plot = ["added run_python 0.1.0+science", "figure-1.png"];
    let plot = if wheel.is_some() { &of_plot[..] } else { &[] };
    assert_in_order(&output, &[&before[..], &api, program, plot, &after].concat());
}

#[test]
fn the_commands_of_the_page_on_policies_run_as_pasted() {
    let commands = blocks(&read("docs/policies.md"), "sh");
    assert_eq!(commands.len(), 2, "{commands:?}");
    if let Some(output) = paste(&commands.join("")) {
        assert_in_order(&output, &["the twentieth request", "api.cedar:4", "4 cases, 0 failed"]);
    }
}

#[test]
fn the_commands_of_how_do_i_run_as_pasted() {
    let page = read("docs/how-do-i.md");
    let example = read("docs/examples/governor.py");
    assert_eq!(
        blocks(&page, "python"),
        std::slice::from_ref(&example),
        "the page shows the governor that it runs"
    );
    assert_eq!(example.lines().count(), 25, "the page says so");
    let interprets = has_interpreter("run_python");
    let mut commands = blocks(&page, "sh");
    commands.retain(|block| interprets || !block.contains("run_python"));
    let Some(output) = paste(&commands.join("")) else { return };
    let of_session = [r#"{"result":42,"turn":2}"#, r#"{"ended":true}"#, "session_lost"];
    let session = if interprets { &of_session[..] } else { &[] };
    assert_in_order(
        &output,
        &[
            &[
                // One host for one tool: the test has no internet, so the page may not come.
                "Nothing was written",
                "These changes were made",
                "\"status\": ",
                "`allowed_domains`: the domain `example.org` is not in the list",
                "plain http is refused",
                // A key.
                "These changes were made",
                "api: version ",
                "\"status\": ",
                // TLS and callers.
                "\"status\": \"SUCCESS\"",
                "show a token",
                "plain http is refused: this port has TLS",
                "planner",
                // Two tools for one agent.
                "hello",
                "does not list the tool `write_file`",
                // At most twice an hour.
                "\"status\": \"SUCCESS\"",
                "\"status\": \"SUCCESS\"",
                "two files were hashed within an hour",
                // The reason of a denial.
                "`/etc/motd` lies outside `/workspace/**`;",
                "verdict_denied",
                // The file changes of a call.
                "\"status\": \"STAGED\"",
                "Changed (1)",
                "+port = 443",
                "port = 80\n",
                "\nport = 443\n",
                "\nport = 80\n",
            ][..],
            // Variables that stay.
            session,
            // An upgrade.
            &[
                "the configuration is valid",
                "checkpoint",
                r#"{"status":"ok"}"#,
                // The governor of 25 lines.
                "\"status\": \"SUCCESS\"",
                "bytes_written",
                "use one of ['list_directory', 'read_file', 'write_file']",
            ],
        ]
        .concat(),
    );
}
