//! The parts of the host's files that runs may have at all, which a program and its calls share: several, one inside
//! another, missing ones, and ones that are one folder on the host.

use super::Effects::{Direct, Staged};
use super::{
    BEFORE, Effects, ISOLATIONS, Shared, TOOL, before_but, brought, call, call_under, code, entries, granted,
    nested, program, read_entries, steps_of, write_entries,
};
use harness::{Options, call_in_background, expect_blocked, result};
use serde_json::{Value, json};
use std::os::unix::fs::symlink;
use std::path::Path;
use tempfile::TempDir;

/// A folder of the host with these entries.
fn folder(listed: &[(&str, &str)]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    write_entries(folder.path(), listed);
    folder
}

/// Replaces everything in a folder.
fn reset(folder: &Path, listed: &[(&str, &str)]) {
    std::fs::remove_dir_all(folder).unwrap();
    std::fs::create_dir(folder).unwrap();
    write_entries(folder, listed);
}

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

/// Options under which these trees may be granted beside the workspace.
fn with_trees(options: Options, trees: &[&str]) -> Options {
    let patterns = ["/workspace"].iter().chain(trees).map(|tree| format!("{tree}/**")).collect::<Vec<_>>();
    options.scope(&patterns.iter().map(String::as_str).collect::<Vec<_>>())
}

#[test]
fn a_program_and_its_calls_share_the_files_of_several_areas() {
    const OTHER: &[(&str, &str)] = &[("old.txt", "old"), ("folder/", ""), ("folder/in.txt", "in the folder")];
    let other = folder(OTHER);
    let steps = json!([
        ["rename", "/workspace/a.txt", "/other/a.txt"],
        ["rename", "/other/folder", "/workspace/folder"],
        ["write", "/workspace/b.txt", "TWO"],
        call_under(
            json!({ "scope": ["/other/**"] }),
            json!([
                ["list", "/other"],
                ["read", "/other/a.txt"],
                ["append", "/other/a.txt", "!"],
                ["create", "/other/new.txt", "new"],
                ["read", "/other/folder/in.txt"],
                ["read", "/workspace/folder/in.txt"],
                ["read", "/workspace/b.txt"],
            ]),
        ),
        call_under(
            json!({ "scope": ["/workspace/**"] }),
            json!([
                ["read", "/workspace/b.txt"],
                ["read", "/workspace/folder/in.txt"],
                ["append", "/workspace/folder/in.txt", "!"],
                ["read", "/workspace/a.txt"],
                ["read", "/other/new.txt"],
            ]),
        ),
        ["read", "/other/a.txt"],
        ["rename", "/other/old.txt", "/workspace/old.txt"],
        ["list", "/other"],
    ]);
    let grant = json!({ "scope": ["/workspace/**", "/other/**"] });
    let changed =
        [("b.txt", "TWO"), ("folder/", ""), ("folder/in.txt", "in the folder!"), ("old.txt", "old")];
    let after = before_but(&changed, &["a.txt"]);
    for isolation in ISOLATIONS {
        let options = Options::new().set("executor.isolation", isolation).mount("/other", other.path());
        let shared = Shared::start_with(with_trees(options, &["/other"]));
        for effects in Effects::ALL {
            let case = format!("{isolation} {effects:?}");
            shared.set_files(BEFORE);
            reset(other.path(), OTHER);
            let ran = shared.run(&granted(effects, grant.clone(), steps.clone()));
            let outcomes = ran.outcomes();
            let of_other = brought(steps_of(&outcomes[3]));
            let seen = [json!(["a.txt", "old.txt"]), json!("one")];
            assert_eq!(of_other[..2], seen, "{case}: {}", outcomes[3]);
            assert!(of_other[2..].iter().all(Value::is_null), "{case}: {}", outcomes[3]);
            let of_workspace = brought(steps_of(&outcomes[4]));
            let found = [json!("TWO"), json!("in the folder"), Value::Null, Value::Null, Value::Null];
            assert_eq!(of_workspace, found, "{case}: {}", outcomes[4]);
            let own = [json!("one!"), Value::Null, json!(["a.txt", "new.txt"])];
            assert_eq!(outcomes[5..], own, "{case}");
            if effects == Staged {
                assert_eq!(read_entries(other.path()), entries(OTHER), "{case}");
            }
            shared.settle(&ran);
            assert_eq!(shared.files(), after, "{case}");
            assert_eq!(
                read_entries(other.path()),
                entries(&[("a.txt", "one!"), ("new.txt", "new")]),
                "{case}"
            );
        }
    }
}

/// Two folders of one mount, and not the mount itself.
#[test]
fn parts_of_a_mount_are_areas_of_their_own() {
    let options = Options::new().scope(&["/workspace/sub/**", "/workspace/other/**"]);
    let shared = Shared::start_with(options);
    for effects in Effects::ALL {
        shared.set_files(BEFORE);
        std::fs::create_dir(shared.executor.workspace().join("other")).unwrap();
        let before = shared.files();
        let steps = json!([
            ["rename", "/workspace/sub/in.txt", "/workspace/other/in.txt"],
            call_under(
                json!({ "scope": ["/workspace/other/**"] }),
                json!([["append", "/workspace/other/in.txt", "!"], ["read", "/workspace/a.txt"]]),
            ),
            call_under(json!({ "scope": ["/workspace/sub/**"] }), json!([["list", "/workspace/sub"]])),
            ["read", "/workspace/other/in.txt"],
            ["read", "/workspace/a.txt"],
        ]);
        let ran = shared.run(&program(effects, steps));
        let outcomes = ran.outcomes();
        let of_other = steps_of(&outcomes[1]);
        assert!(of_other[0].is_null() && !code(&of_other[1]).is_empty(), "{effects:?}: {of_other:?}");
        assert_eq!(outcomes[2]["steps"], json!([["deep"]]), "{effects:?}");
        assert_eq!(brought(&outcomes[3..]), [json!("inside!"), Value::Null], "{effects:?}");
        if effects == Staged {
            assert_eq!(shared.files(), before);
            shared.decide("commit", &ran);
        }
        let after = before_but(&[("other/", ""), ("other/in.txt", "inside!")], &["sub/in.txt"]);
        assert_eq!(shared.files(), after, "{effects:?}");
    }
}

const AREA: &[(&str, &str)] =
    &[("in.txt", "of the area"), ("inner/", ""), ("inner/in.txt", "of the inner folder")];
const MOUNTED: &[(&str, &str)] = &[("in.txt", "of the mount")];

/// A folder with the same path for guests, in which another folder is mounted as `inner`.
struct NestedAreas {
    area: TempDir,
    mounted: TempDir,
}

impl NestedAreas {
    fn new() -> Self {
        Self { area: folder(AREA), mounted: folder(MOUNTED) }
    }

    fn start(&self, isolation: &str) -> Shared {
        let area = text(self.area.path());
        let options = Options::new().set("executor.isolation", isolation);
        let options = options.mount(&format!("{area}/inner"), self.mounted.path());
        Shared::start_with(with_trees(options, &[area]))
    }

    /// The guest path of an entry of the area.
    fn at(&self, name: &str) -> String {
        format!("{}/{name}", text(self.area.path()))
    }

    /// A step that calls the guest with the folder that is mounted.
    fn call_in_mount(&self, steps: Value) -> Value {
        call_under(json!({ "scope": [self.at("inner/**")] }), steps)
    }
}

/// Under a grant of the area, a path leads to the area's own folder, and under one of the mount to the mounted one.
#[test]
fn a_mount_inside_an_area_is_another_folder() {
    let areas = NestedAreas::new();
    let inner = areas.at("inner/in.txt");
    let steps = json!([
        ["append", inner, ", changed"],
        areas.call_in_mount(json!([
            ["read", inner],
            ["append", inner, ", changed"],
            ["create", areas.at("inner/new.txt"), "new"],
            ["read", areas.at("in.txt")],
        ])),
        ["read", inner],
        ["list", areas.at("inner")],
        call_under(json!({ "scope": [areas.at("**")] }), json!([["read", inner]])),
    ]);
    let of_area = "of the inner folder, changed";
    for isolation in ISOLATIONS {
        let shared = areas.start(isolation);
        for effects in Effects::ALL {
            let case = format!("{isolation} {effects:?}");
            reset(areas.area.path(), AREA);
            reset(areas.mounted.path(), MOUNTED);
            let ran = shared.run(&granted(effects, json!({ "scope": [areas.at("**")] }), steps.clone()));
            let outcomes = ran.outcomes();
            let seen = [json!("of the mount"), Value::Null, Value::Null, Value::Null];
            assert_eq!(brought(steps_of(&outcomes[1])), seen, "{case}");
            let own = [json!(of_area), json!(["in.txt"]), json!({ "steps": [of_area] })];
            assert_eq!(outcomes[2..], own, "{case}");
            shared.settle(&ran);
            let area = [AREA[0], AREA[1], ("inner/in.txt", of_area)];
            assert_eq!(read_entries(areas.area.path()), entries(&area), "{case}");
            let mounted = [("in.txt", "of the mount, changed"), ("new.txt", "new")];
            assert_eq!(read_entries(areas.mounted.path()), entries(&mounted), "{case}");
        }
    }
}

/// The folder of a mount goes while the server runs. It is then no folder, and not the one of the area that has its path.
#[test]
fn a_missing_mount_is_not_the_folder_of_the_area_around_it() {
    let areas = NestedAreas::new();
    let steps = json!([
        ["write", "/workspace/a.txt", "ONE"],
        areas.call_in_mount(json!([
            ["list", areas.at("inner")],
            ["read", areas.at("inner/in.txt")],
            ["create", areas.at("inner/new.txt"), "x"],
            ["write", areas.at("inner/in.txt"), "x"],
            ["remove", areas.at("inner/in.txt")],
        ])),
    ]);
    for isolation in ISOLATIONS {
        std::fs::create_dir_all(areas.mounted.path()).unwrap();
        let shared = areas.start(isolation);
        std::fs::remove_dir_all(areas.mounted.path()).unwrap();
        for effects in Effects::ALL {
            let case = format!("{isolation} {effects:?}");
            shared.set_files(BEFORE);
            let ran = shared.run(&program(effects, steps.clone()));
            let ended = &ran.outcomes()[1];
            // Either it is refused, as a direct one is, or it finds nothing.
            let is_refused = code(ended) == "denied";
            let finds_nothing = || steps_of(ended).iter().all(|outcome| !code(outcome).is_empty());
            assert!(is_refused || finds_nothing(), "{case}: {ended}");
            shared.settle(&ran);
            assert_eq!(read_entries(areas.area.path()), entries(AREA), "{case}");
            assert!(!areas.mounted.path().exists(), "{case}");
            assert_eq!(shared.files(), before_but(&[("a.txt", "ONE")], &[]), "{case}");
        }
    }
}

#[test]
fn a_missing_area_has_nothing_and_gets_nothing() {
    let gone = folder(&[]);
    for isolation in ISOLATIONS {
        std::fs::create_dir_all(gone.path()).unwrap();
        // It comes before the workspace, whose number in the table depends on it.
        let options = Options::new().set("executor.isolation", isolation).mount("/gone", gone.path());
        let shared = Shared::start_with(with_trees(options, &["/gone"]));
        std::fs::remove_dir(gone.path()).unwrap();
        for effects in Effects::APART {
            let case = format!("{isolation} {effects:?}");
            shared.set_files(BEFORE);
            let steps = json!([
                ["write", "/workspace/a.txt", "ONE"],
                call_under(
                    json!({ "scope": ["/gone/**", "/workspace/sub/**"] }),
                    json!([
                        ["list", "/gone"],
                        ["create", "/gone/x", "x"],
                        ["make_folder", "/gone/folder"],
                        ["rename", "/workspace/sub/in.txt", "/gone/in.txt"],
                        ["append", "/workspace/sub/in.txt", "!"],
                    ]),
                ),
                ["read", "/workspace/sub/in.txt"],
            ]);
            let ran = shared.run(&program(effects, steps));
            let tried = steps_of(&ran.outcomes()[1]);
            assert!(tried[..4].iter().all(|outcome| !code(outcome).is_empty()), "{case}: {tried:?}");
            assert_eq!((&tried[4], &ran.outcomes()[2]), (&Value::Null, &json!("inside!")), "{case}");
            shared.settle(&ran);
            assert_eq!(
                shared.files(),
                before_but(&[("a.txt", "ONE"), ("sub/in.txt", "inside!")], &[]),
                "{case}"
            );
            assert!(!gone.path().exists(), "{case}");
        }
    }
}

/// The folder of an area is replaced while a call waits for a person: what the program and its calls have is the folder of
/// its start.
#[test]
fn an_area_that_is_replaced_meanwhile_is_not_changed() {
    let other = folder(&[("in.txt", "other")]);
    let away = folder(&[]);
    let options = Options::new().mount("/other", other.path());
    let shared = Shared::start_with(with_trees(options, &["/other"]));
    let escalated = json!(["start", "c", TOOL, {
        "grant": { "scope": ["/other/**"], "verdict": "ESCALATE" },
        "steps": [["append", "/other/in.txt", "!"]],
    }]);
    let waiting = granted(
        Staged,
        json!({ "scope": ["/workspace/**", "/other/**"] }),
        json!([["write", "/workspace/a.txt", "ONE"], escalated, ["wait", "c"], ["list", "/other"]]),
    );
    let answer = call_in_background(&shared.executor, "a2g/intent", &waiting);
    let id = nested(waiting["intent_id"].as_str().expect("an id"), 1);
    shared.wait_until(&id, "escalated");
    let moved = away.path().join("moved");
    std::fs::rename(other.path(), &moved).unwrap();
    std::fs::create_dir(other.path()).unwrap();
    write_entries(other.path(), &[("in.txt", "another one")]);
    let directive = json!({ "intent_id": id, "decision": "APPROVED" });
    assert_eq!(result(&shared.executor.rpc("g2a/directive", &directive))["accepted"], true);
    let answer = answer.join().unwrap();
    // Whether the program can go on or not, nothing of the other folder is changed, neither now nor by a commit.
    if answer["result"]["report"]["status"] == "STAGED" {
        let digest = &answer["result"]["report"]["usage"]["effects"]["digest"];
        let params = json!({ "intent": waiting["intent_id"], "digest": digest });
        let _whatever_it_says = shared.executor.rpc("a2g/commit", &params);
    }
    assert_eq!(read_entries(other.path()), entries(&[("in.txt", "another one")]), "{answer}");
    let found = read_entries(&moved);
    let kept = ["other", "other!"].map(|content| entries(&[("in.txt", content)]));
    assert!(kept.contains(&found), "{found:?}: {answer}");
}

/// Two areas become one folder of the host while the server runs: a file would have two places.
#[test]
fn areas_that_are_one_folder_on_the_host_are_refused() {
    let view = folder(&[]);
    let options = Options::new().mount("/view", view.path());
    let shared = Shared::start_with(with_trees(options, &["/view"]));
    let steps =
        json!([["write", "/workspace/a.txt", "ONE"], call(json!([["append", "/workspace/a.txt", "!"]]))]);
    let workspace = shared.executor.workspace();
    for target in [workspace.join("sub"), workspace.clone(), workspace.parent().unwrap().to_owned()] {
        std::fs::remove_dir(view.path()).unwrap();
        symlink(&target, view.path()).unwrap();
        for effects in Effects::APART {
            shared.set_files(BEFORE);
            let refused = shared.executor.rpc("a2g/intent", &program(effects, steps.clone()));
            let message = expect_blocked(&refused, "scope_unenforceable");
            for part in ["one folder on the host", "`/view`", "`/workspace`"] {
                assert!(message.contains(part), "{message}");
            }
            assert_eq!(shared.files(), entries(BEFORE), "{effects:?} {target:?}");
        }
        // A program that changes its files at once has no table of them.
        let direct = shared.run(&program(Direct, steps.clone()));
        assert_eq!(direct.outcomes()[1], json!({ "steps": [null] }));
        std::fs::remove_file(view.path()).unwrap();
        std::fs::create_dir(view.path()).unwrap();
        shared.set_files(BEFORE);
        let ran = shared.run(&program(Staged, steps.clone()));
        shared.settle(&ran);
        assert_eq!(shared.files(), before_but(&[("a.txt", "ONE!")], &[]));
    }
}
