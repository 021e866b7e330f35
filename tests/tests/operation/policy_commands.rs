//! `a2g-executor policy`: what an operator sees of policies before they are in force.

use super::cli::CommandFolder;
use harness::*;
use serde_json::json;
use std::path::Path;

/// Everybody may read the workspace, and nothing in it that is secret.
const READ: &str = r#"// Everybody may read.
@id("read")
@max_memory_mb("64")
permit (principal, action in [Action::"read_file", Action::"list_directory"], resource);

@id("folders")
permit (principal, action == Action::"read", resource in Folder::"/workspace");

@id("secrets")
@reason("it is secret")
forbid (principal, action == Action::"read", resource in Folder::"/workspace/secrets");
"#;

fn with_policies(files: &[(&str, &str)]) -> CommandFolder {
    let place = CommandFolder::new();
    std::fs::create_dir(place.path("policies")).unwrap();
    files.iter().for_each(|(name, text)| place.put(&format!("policies/{name}"), text));
    place.configure("[governor]\npolicies = \"policies\"");
    place
}

#[test]
fn the_schema_has_the_tools_of_the_catalogue() {
    let place = CommandFolder::new();
    let texts = ["entity Folder in [Folder];", "action \"read_file\" in [\"call\"]", "path: String"];
    place.expect("policy schema", 0, &texts);
}

#[test]
fn check_lists_rules_and_names_errors_by_file_and_line() {
    let place = with_policies(&[("read.cedar", READ)]);
    let texts = [
        "read.cedar:2 (read)",
        "forbid",
        "in /workspace/secrets",
        "no rule permits: ",
        "write_file",
        "3 rules in 1 file",
    ];
    place.expect("policy check", 0, &texts);
    place.expect("policy check policies/read.cedar", 0, &["3 rules in 1 file"]);
    place.expect("policy check policies/absent.cedar", 2, &["absent.cedar"]);
    let action = "permit (principal, action == Action::\"read_file\", resource)";
    for (text, part) in [
        (format!("\n\n{action}\nwhen {{ context.input.pat == \"x\" }};"), "pat"),
        (format!("\n\n@max_memory_mb(\"0\")\n{action};"), "max_memory_mb"),
        ("\n\npermit (principal, action == Action::\"fly\", resource);".to_owned(), "fly"),
        ("\n\npermit (principal action);".to_owned(), ""),
    ] {
        place.put("policies/read.cedar", &text);
        place.expect("policy check", 2, &["read.cedar", "line ", part]);
    }
}

#[test]
fn convert_writes_policies_that_can_be_used_and_never_over_others() {
    let place = CommandFolder::new();
    let policies = Path::new(env!("CARGO_MANIFEST_DIR")).join("../policies/default.json");
    let line = format!("policy convert {}", policies.display());
    let shown = place.expect(&line, 0, &["@id(\"risk-denied\")", "Left out", "run_python"]);
    assert!(shown.stdout.lines().all(|line| line.len() <= 110), "{}", shown.stdout);
    place.expect(&format!("{line} --to out"), 0, &["written"]);
    place.expect("policy check out", 0, &["the policies are valid"]);
    place.expect(&format!("{line} --to out"), 1, &["out/policies.cedar"]);
    place.expect("policy convert out", 2, &["in Cedar already"]);
    let disk = json!({ "tools": { "read_file": { "allowed": true } }, "resources": { "max_disk_mb": 1 } });
    let disk = json!({ "agent_did": "*", "version": "1", "capabilities": disk });
    place.put("disk.json", disk.to_string());
    place.expect("policy convert disk.json --to other", 2, &["max_disk_mb"]);
    assert!(!place.path("other").exists(), "nothing is written after an error");
}

#[test]
fn test_shows_each_case_and_the_rules_that_none_reaches() {
    let case = |name: &str, path: &str, more: &str| {
        format!(
            "[[case]]\nname = \"{name}\"\nagent = \"did:a:b\"\ntool = \"read_file\"\n\
             arguments = {{ path = \"{path}\" }}\n{more}\n"
        )
    };
    let allowed = case(
        "a file",
        "/workspace/a",
        "expect = \"allow\"\nrule = \"read\"\nfolders = [\"/workspace/**\"]\nlimits = { max_memory_mb = 64 }",
    );
    let place = with_policies(&[("read.cedar", READ), ("read.test.toml", &allowed)]);
    let passed = place.expect("policy test policies/read.cedar", 0, &["a file", "ok", "1 case, 0 failed"]);
    let of_secrets = passed.stdout.lines().find(|line| line.contains("read.cedar:9 (secrets)")).unwrap();
    assert!(of_secrets.contains("no case"), "{of_secrets}");

    let denied = case("a secret", "/workspace/secrets/a", "expect = \"deny\"\nreason = \"it is secret\"");
    place.put("policies/read.test.toml", format!("{allowed}{denied}"));
    let passed = place.expect("policy test policies", 0, &["2 cases, 0 failed"]);
    assert!(!passed.stdout.contains("no case"), "{}", passed.stdout);

    let wrong = case("a wish", "/workspace/secrets/a", "expect = \"allow\"");
    place.put("policies/read.test.toml", format!("{allowed}{wrong}"));
    let texts = ["FAILED a wish", "expected allow, and it is deny", "it is secret", "2 cases, 1 failed"];
    place.expect("policy test policies/read.test.toml", 1, &texts);

    for (text, part) in [
        ("", "[[case]]"),
        (&*case("n", "/a", "expect = \"perhaps\""), "perhaps"),
        (&case("n", "/a", "expect = \"allow\"").replace("read_file", "fly"), "calls `fly`"),
        (&format!("policies = [\"no.cedar\"]\n{allowed}"), "tests `no.cedar`"),
    ] {
        place.put("policies/read.test.toml", text);
        place.expect("policy test policies/read.cedar", 2, &[part]);
    }
}

/// An executor under JSON policies has run two calls, and denied one.
fn served() -> Home {
    let mut executor = Executor::start(Options::new());
    let workspace = executor.workspace();
    std::fs::write(workspace.join("a.txt"), "a").unwrap();
    for (tool, arguments) in [
        ("read_file", json!({ "path": "/workspace/a.txt" })),
        ("write_file", json!({ "path": "/workspace/b.txt", "content": "b" })),
        ("read_file", json!({ "path": "/etc/passwd" })),
    ] {
        executor.rpc("a2g/intent", &intent(tool, arguments));
    }
    // A killed one may lose refusals.
    executor.process().stop();
    executor.kill()
}

fn expect(home: &Home, arguments: &[&str], texts: &[&str]) -> String {
    let done = home.run(arguments);
    let stdout = String::from_utf8(done.stdout).unwrap();
    let stderr = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{arguments:?}\n{stdout}\n{stderr}");
    for text in texts {
        assert!(stdout.contains(text), "{arguments:?} does not say `{text}`\n{stdout}\n{stderr}");
    }
    stdout
}

#[test]
fn replay_counts_decisions_that_change_and_names_what_it_cannot_know() {
    let home = served();
    let policies = home.folder().join("new");
    std::fs::create_dir(&policies).unwrap();
    std::fs::write(policies.join("read.cedar"), READ).unwrap();
    let policies = policies.to_str().unwrap();
    let texts = [
        "2 calls replayed: 1 decided alike, 1 otherwise",
        "no permit",
        "it was denied, and arguments of denied calls are",
    ];
    expect(&home, &["policy", "replay", "--since", "1h", "--policies", policies], &texts);
    let writes = "permit (principal, action in Action::\"call\", resource);\n\
                  permit (principal, action in [Action::\"read\", Action::\"write\"], resource in Folder::\"/workspace\");";
    std::fs::write(Path::new(policies).join("read.cedar"), writes).unwrap();
    let texts = ["2 calls replayed: 2 decided alike, 0 otherwise"];
    expect(&home, &["policy", "replay", "--since", "1h", "--policies", policies], &texts);
    // The second write has another past.
    let once = "permit (principal, action in Action::\"call\", resource) when { context.history.calls.day == 0 };\n\
                permit (principal, action in [Action::\"read\", Action::\"write\"], resource in Folder::\"/workspace\");";
    std::fs::write(Path::new(policies).join("read.cedar"), once).unwrap();
    let texts = ["2 calls replayed: 1 decided alike, 1 otherwise"];
    expect(&home, &["policy", "replay", "--since", "1h", "--policies", policies], &texts);
}

#[test]
fn diff_shows_the_smallest_call_that_is_allowed_more() {
    let place = with_policies(&[("read.cedar", READ)]);
    std::fs::create_dir(place.path("new")).unwrap();
    let diff = |new: &str, code: i32, texts: &[&str]| {
        place.put("new/read.cedar", new);
        let texts = [&["no proof was made"], texts].concat();
        place.expect("policy diff policies new --calls 1200", code, &texts)
    };
    diff(READ, 0, &["no difference found in ", "nothing more"]);
    let narrower = READ.replace("Action::\"read_file\", ", "");
    diff(&narrower, 0, &["nothing more"]);
    let open = READ.split("@id(\"secrets\")").next().unwrap();
    diff(open, 1, &["the decision was deny, and is allow", "path = \"/workspace/secrets"]);
    let memory = READ.replace("@max_memory_mb(\"64\")", "@max_memory_mb(\"65\")");
    diff(&memory, 1, &["a higher `max_memory_mb`"]);
    let late = format!(
        "{READ}\npermit (principal, action == Action::\"write_file\", resource)\n\
         when {{ context.history.same.hour > 12 }};"
    );
    diff(&late, 1, &["the decision was deny, and is allow", "write_file"]);
}

#[test]
fn suggest_permits_what_was_used_and_writes_nothing() {
    let home = served();
    let texts = [
        "action == Action::\"read_file\"",
        "resource in Folder::\"/workspace\"",
        "@max_memory_mb(",
        "// write_file: 1 call.",
        "2 calls replayed: 2 decided alike, 0 otherwise",
    ];
    let shown = expect(&home, &["policy", "suggest", "--agent", AGENT, "--since", "1h"], &texts);
    assert!(!shown.contains("/tmp") && !shown.contains("list_directory"), "{shown}");
    let other = ["policy", "suggest", "--agent", "did:a:nobody", "--since", "1h"];
    let refused = home.run(&other);
    assert_eq!(refused.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("has no run since then"));
}
