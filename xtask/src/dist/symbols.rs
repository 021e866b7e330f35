//! The report on what makes a program large: its sections, the crates of its symbols, the largest symbols, and the files
//! that the sources embed.
//!
//! GNU binutils read the file. A generic function counts for the first crate in its name that is not Rust's own, which is
//! mostly the crate whose type it works on.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use fs_err as fs;

use super::files;
use crate::run::{self, BOLD, Workspace};

const MAX_SHOWN_SYMBOLS: usize = 40;
/// The smallest size that gets a line of its own, in bytes: that of a crate, a section and an embedded file.
const MIN_CRATE: u64 = 50_000;
const MIN_SECTION: u64 = 1_000;
const MIN_EMBEDDED: u64 = 10_000;
/// The width of a line, less that of a size with its kind.
const NAME_COLUMNS: usize = 64;
/// The crates of Rust itself.
const RUST: [&str; 3] = ["alloc", "core", "std"];
/// The crate for which the names of functions from other compilers count.
const OTHERS: &str = "(C and assembler)";

/// A symbol that takes space in the file.
#[derive(Debug, PartialEq, Eq)]
struct Symbol<'a> {
    address: u64,
    bytes: u64,
    is_code: bool,
    name: &'a str,
}

/// The command `dist --symbols`.
pub(crate) fn run(workspace: &Workspace, program: &Path) -> Result<()> {
    let mut size = Command::new("size");
    let sections = run::output(size.args(["-A", "-d"]).arg(program)).with_context(|| {
        format!("`size` cannot read {}: install binutils, or name an ELF file", program.display())
    })?;
    let mut nm = Command::new("nm");
    nm.args(["--print-size", "--size-sort", "--reverse-sort", "--radix=d", "--demangle"]).arg(program);
    let names = run::output(&mut nm).unwrap_or_default();
    let symbols = symbols(&names);
    ensure!(
        !symbols.is_empty(),
        "{} has no symbols: build it with CARGO_PROFILE_RELEASE_STRIP=false, or leave `--binary` out",
        program.display()
    );
    print_sections(program, &sections)?;
    print_crates(&symbols);
    title(&format!("Largest {MAX_SHOWN_SYMBOLS} symbols"));
    for Symbol { bytes, is_code, name, .. } in symbols.iter().take(MAX_SHOWN_SYMBOLS) {
        let name: String = name.chars().take(NAME_COLUMNS).collect();
        anstream::println!("{bytes:>10} {} {name}", if *is_code { "code" } else { "data" });
    }
    title("Files that the sources embed");
    for (bytes, path) in embedded(&workspace.root)? {
        anstream::println!("{bytes:>10} {path}");
    }
    Ok(())
}

fn title(text: &str) {
    anstream::println!("\n{BOLD}{text}{BOLD:#}");
}

fn print_sections(program: &Path, sections: &str) -> Result<()> {
    let bytes = fs::metadata(program)?.len();
    anstream::println!("{BOLD}{bytes} bytes{BOLD:#} with symbols, in sections:");
    let sections = sections.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let name = words.next()?;
        let bytes = words.next()?.parse().ok()?;
        let address = words.next()?;
        // Without an address, it is not loaded, and stripping removes it.
        (bytes >= MIN_SECTION && address != "0").then_some((bytes, name))
    });
    let sections = BTreeSet::<(u64, &str)>::from_iter(sections);
    sections.iter().rev().for_each(|(bytes, name)| anstream::println!("{bytes:>10} {name}"));
    Ok(())
}

fn print_crates(symbols: &[Symbol<'_>]) {
    let mut crates: BTreeMap<&str, [u64; 2]> = BTreeMap::new();
    for symbol in symbols {
        let [code, data] = crates.entry(owner(symbol.name)).or_default();
        *(if symbol.is_code { code } else { data }) += symbol.bytes;
    }
    let mut rows: Vec<(&str, u64, u64)> =
        crates.into_iter().map(|(name, [code, data])| (name, code, data)).collect();
    let (code, data) = rows.iter().fold((0, 0), |sum, (_, code, data)| (sum.0 + code, sum.1 + data));
    rows.push(("(all symbols)", code, data));
    rows.sort_by_key(|(_, code, data)| std::cmp::Reverse(code + data));
    title("Crates: code, data that has a name");
    for (name, code, data) in rows.iter().filter(|(_, code, data)| code + data >= MIN_CRATE) {
        anstream::println!("{code:>10} {data:>9} {name}");
    }
    let small: u64 = rows.iter().map(|(_, code, data)| code + data).filter(|bytes| *bytes < MIN_CRATE).sum();
    anstream::println!("{small:>10} {:>9} (crates below {MIN_CRATE} bytes)", "");
}

/// The symbols in the output of nm, once for each address.
fn symbols(output: &str) -> Vec<Symbol<'_>> {
    let mut addresses = BTreeSet::new();
    let symbols = output.lines().filter_map(|line| {
        let mut words = line.splitn(4, ' ');
        let address = words.next()?.parse().ok()?;
        let bytes = words.next()?.parse().ok()?;
        // `b` is memory that the file does not have.
        let is_code = match words.next()?.to_ascii_lowercase().as_str() {
            "t" | "w" | "i" => true,
            "d" | "r" | "v" | "u" | "n" => false,
            _ => return None,
        };
        Some(Symbol { address, bytes, is_code, name: words.next()? })
    });
    symbols.filter(|symbol| addresses.insert(symbol.address)).collect()
}

/// The crate that a demangled name counts for.
fn owner(name: &str) -> &str {
    let mut first = None;
    let mut rest = name;
    let is_word = |character: char| character.is_alphanumeric() || character == '_';
    while let Some(start) = rest.find(is_word) {
        let is_inside = rest.get(..start).is_some_and(|before| before.ends_with("::"));
        let word = rest.get(start..).unwrap_or_default();
        let end = word.find(|character| !is_word(character)).unwrap_or(word.len());
        let (head, after) = word.split_at(end);
        // The new mangling adds a hash: `core[1a2b]::fmt`.
        let path =
            after.strip_prefix('[').and_then(|hash| hash.split_once(']')).map_or(after, |(_, path)| path);
        if !is_inside && path.starts_with("::") {
            if !RUST.contains(&head) {
                return head;
            }
            first = first.or(Some(head));
        }
        rest = after;
    }
    first.unwrap_or(OTHERS)
}

/// The files that `include_bytes!` and `include_str!` name in the sources of the executor, the largest first.
fn embedded(root: &Path) -> Result<Vec<(u64, String)>> {
    let sources = root.join("executor");
    let mut found = BTreeSet::new();
    for source in files::list(&sources)?.into_iter().filter(|source| source.path.ends_with(".rs")) {
        let text = fs::read_to_string(&source.file)?;
        let folder = source.file.parent().unwrap_or(&sources);
        for part in text.split("include_").skip(1) {
            let name = part.strip_prefix("bytes!(\"").or_else(|| part.strip_prefix("str!(\""));
            let Some((name, _)) = name.and_then(|name| name.split_once('"')) else { continue };
            let Ok(path) = fs::canonicalize(folder.join(name)) else { continue };
            let bytes = fs::metadata(&path)?.len();
            if bytes >= MIN_EMBEDDED {
                found.insert((bytes, path.strip_prefix(root).unwrap_or(&path).display().to_string()));
            }
        }
    }
    Ok(found.into_iter().rev().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_counts_for_the_first_crate_that_is_not_of_rust() {
        for (name, expected) in [
            ("wasmtime::runtime::Store::new::h0123456789abcdef", "wasmtime"),
            ("core::ptr::drop_in_place<alloc::vec::Vec<regalloc2::Operand>>::h01", "regalloc2"),
            ("<alloc::vec::Vec<T,A> as core::clone::Clone>::clone::h01", "alloc"),
            ("<&mut serde_json::ser::Serializer<W> as serde::Serializer>::serialize_str", "serde_json"),
            (
                "<core[1a2b]::option::Option<a2g_types[9]::Digest> as core[1a2b]::fmt::Debug>::fmt",
                "a2g_types",
            ),
            ("sqlite3VdbeExec", OTHERS),
        ] {
            assert_eq!(owner(name), expected, "{name}");
        }
    }

    #[test]
    fn a_symbol_counts_once_and_only_if_the_file_has_its_bytes() {
        let output = "16 300 T a::f\n16 300 t b::f\n400 20 r a::TABLE\n500 90 b a::MEMORY\n600 T undefined";
        let found = symbols(output);
        let [code, table] = &found[..] else { panic!("{found:?}") };
        assert_eq!((code.bytes, code.is_code, code.name), (300, true, "a::f"));
        assert_eq!((table.bytes, table.is_code, table.name), (20, false, "a::TABLE"));
    }
}
