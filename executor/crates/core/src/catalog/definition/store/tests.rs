use super::*;
use a2g_types::tool::{Contract, DeclaredCapabilities, Digest};
use serde_json::{Value, json};
use std::os::unix::fs::PermissionsExt as _;

fn tool(name: &str, description: &str) -> Descriptor {
    Descriptor {
        name: ToolName::parse(name).unwrap(),
        title: None,
        version: "1.0.0".to_owned(),
        description: description.to_owned(),
        contract: Contract::Typed,
        digest: Digest::compute(b"module"),
        signature: None,
        arguments_schema: json!({ "maximum": 1.5, "minimum": u64::MAX, "const": "\u{1b}ü" }),
        result_schema: Some(json!(true)),
        settings: json!({ "url": "https://a.example", "tries": [1, 2.5] }).as_object().cloned(),
        is_idempotent: true,
        has_sessions: true,
        capabilities: DeclaredCapabilities { network: true, ..Default::default() },
    }
}

fn is_admitted(definitions: &Definitions, tool: &Descriptor) -> bool {
    definitions.admit(&[tool]).unwrap().into_iter().all(|result| result.is_ok())
}

#[test]
fn a_definition_is_remembered_as_it_is_for_its_catalogue_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state/definitions.json");
    let definitions = Definitions::new(&path, Path::new("/srv/tools/"), Access::Record);
    assert!(is_admitted(&definitions, &tool("a", "one")));
    assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o600);
    let again = Definitions::new(&path, Path::new("/srv/./tools"), Access::Record);
    let name = ToolName::parse("a").unwrap();
    assert_eq!(again.accepted(&name).unwrap(), Some(Definition::of(&tool("a", "one"))));
    assert!(!is_admitted(&again, &tool("a", "two")));
    assert!(is_admitted(
        &Definitions::new(&path, Path::new("/srv/other"), Access::Record),
        &tool("a", "two")
    ));
    assert!(is_admitted(&Definitions::none(), &tool("a", "two")));
}

#[test]
fn another_spelling_of_the_path_is_the_same_catalogue() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(folder.path().join("sub")).unwrap();
    std::os::unix::fs::symlink(folder.path().join("sub"), folder.path().join("link")).unwrap();
    let definitions = |catalogue: &str| {
        Definitions::new(&folder.path().join("pins.json"), &folder.path().join(catalogue), Access::Record)
    };
    assert!(is_admitted(&definitions("sub/tools"), &tool("a", "One.")));
    for other in ["sub/../sub/tools", "./sub/./tools", "link/tools", "sub/tools/"] {
        assert!(!is_admitted(&definitions(other), &tool("a", "Two.")), "{other}");
    }
    assert!(is_admitted(&definitions("tools"), &tool("a", "Two.")), "another catalogue");
}

#[test]
fn a_command_that_only_compares_remembers_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("definitions.json");
    let compared = Definitions::new(&path, folder.path(), Access::Compare);
    assert!(is_admitted(&compared, &tool("a", "one")) && is_admitted(&compared, &tool("a", "two")));
    assert!(!path.exists());
    let recorded = Definitions::new(&path, folder.path(), Access::Record);
    assert!(is_admitted(&recorded, &tool("a", "one")) && !is_admitted(&compared, &tool("a", "two")));
}

#[test]
fn a_file_that_cannot_be_trusted_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("definitions.json");
    let definitions = Definitions::new(&path, folder.path(), Access::Record);
    assert!(is_admitted(&definitions, &tool("a", "one")));
    let good = std::fs::read(&path).unwrap();
    let edited = |edit: &dyn Fn(&mut Value)| {
        let mut value: Value = serde_json::from_slice(&good).unwrap();
        edit(&mut value);
        serde_json::to_vec(&value).unwrap()
    };
    let catalogue = folder.path().to_str().unwrap().to_owned();
    for (text, reason) in [
        (Vec::new(), "damaged"),
        (good.get(..good.len() / 2).unwrap().to_vec(), "damaged"),
        (edited(&|file| file["format"] = json!(2)), "format 2"),
        (edited(&|file| file["more"] = json!(1)), "damaged"),
        (
            edited(&|file| file["catalogues"][&catalogue]["a"]["capabilities"]["max_memory_mb"] = json!(0)),
            "`a`",
        ),
    ] {
        std::fs::write(&path, text).unwrap();
        let error = definitions.admit(&[&tool("a", "one")]).unwrap_err().to_string();
        assert!(error.contains(reason) && error.contains("restore it"), "{reason}: {error}");
    }
    std::fs::write(&path, &good).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o660)).unwrap();
    assert!(definitions.admit(&[&tool("a", "one")]).unwrap_err().to_string().contains("chmod go-w"));
    std::fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink(folder.path().join("nothing"), &path).unwrap();
    assert!(definitions.admit(&[&tool("a", "one")]).is_err());
}

/// One tool must not make the file unreadable for the others.
#[test]
fn a_schema_that_could_not_be_read_back_is_refused_alone() {
    let folder = tempfile::tempdir().unwrap();
    let definitions = Definitions::new(&folder.path().join("d.json"), folder.path(), Access::Record);
    let deep = (0..126).fold(json!(1), |inner, _| json!([inner]));
    let deep = Descriptor { arguments_schema: deep, ..tool("deep", "x") };
    let results = definitions.admit(&[&deep, &tool("a", "one")]).unwrap();
    let is_ok = results.iter().map(Result::is_ok).collect::<Vec<_>>();
    assert_eq!(is_ok, [false, true]);
    assert!(!is_admitted(&definitions, &tool("a", "two")));
}

#[test]
fn definitions_of_many_writers_are_all_remembered() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("definitions.json");
    let names = (0..8).map(|nth| format!("t{nth}")).collect::<Vec<_>>();
    std::thread::scope(|scope| {
        for name in &names {
            let path = &path;
            scope.spawn(move || {
                for nth in 0..4 {
                    // A lock descriptor per iteration, as if each were a separate process.
                    let definitions = Definitions::new(path, Path::new("/srv"), Access::Record);
                    assert!(is_admitted(&definitions, &tool(&format!("{name}{nth}"), "one")));
                }
            });
        }
    });
    let definitions = Definitions::new(&path, Path::new("/srv"), Access::Compare);
    for name in names.iter().flat_map(|name| (0..4).map(move |nth| format!("{name}{nth}"))) {
        assert!(definitions.accepted(&ToolName::parse(&name).unwrap()).unwrap().is_some(), "{name}");
    }
}
