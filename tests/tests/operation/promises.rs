//! The tests that the tables of `SPECIFICATION.md` and `docs/security.md` name exist.

use std::path::Path;

/// Adds the functions of all test files below `folder` with their modules, such as `::hostile::cpu::busy`.
fn list_tests(folder: &Path, modules: &str, known: &mut String) {
    for path in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        let name = path.file_stem().unwrap().to_string_lossy();
        let is_module = !["src", "crates", "mod"].contains(&&*name);
        let modules = if is_module { format!("{modules}::{name}") } else { modules.to_owned() };
        if path.is_dir() {
            list_tests(&path, &modules, known);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(&path).unwrap();
            for function in text
                .split("fn ")
                .skip(1)
                .filter(|_| ["test]", "::test("].iter().any(|mark| text.contains(mark)))
            {
                let function = function.split(['(', '<']).next().unwrap();
                // A unit test is in the module `tests` of its file, unless the file is that module.
                *known += &format!("{modules}::{function}\n{modules}::tests::{function}\n");
            }
        }
    }
}

#[test]
fn every_named_test_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut known = String::new();
    ["executor", "tests/tests", "tools"]
        .iter()
        .for_each(|folder| list_tests(&root.join(folder), "", &mut known));
    for document in ["SPECIFICATION.md", "docs/security.md"] {
        let text = std::fs::read_to_string(root.join(document)).unwrap();
        let names_tests = |head: &str| head.ends_with("| shown by |") || head.ends_with("| tests |");
        let tables = text.split("\n\n").filter(|table| table.lines().next().is_some_and(names_tests));
        let cells = tables.flat_map(|table| table.lines().skip(2)).filter_map(|row| row.rsplit("| ").next());
        let names = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2));
        let exists = |name: &&str| ["\n", "::"].iter().any(|end| known.contains(&format!("::{name}{end}")));
        let (found, missing) = names.filter(|name| !name.contains(' ')).partition::<Vec<_>, _>(exists);
        assert!(found.len() > 150 && missing.is_empty(), "{document}: no test {missing:?}, but {found:?}");
    }
}
