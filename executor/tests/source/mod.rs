//! The executor's sources, as the paths that each file names and the items that it declares.
//!
//! Paths are read from tokens, so that the body of a macro counts like any other code. `use` trees are flattened, and
//! `super` and `self` are resolved to a path from the root of the crate.

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

/// One file.
pub(crate) struct SourceFile {
    /// The first part of its path: the room, or the file of the vocabulary.
    pub(crate) room: String,
    /// Its path below `executor/src`, with `/`.
    pub(crate) path: String,
    pub(crate) names: Vec<Name>,
    pub(crate) text: String,
}

/// A path that code names.
pub(crate) struct Name {
    pub(crate) path: NamePath,
    /// `true` in a `use` declaration.
    pub(crate) imported: bool,
    /// `true` in code for tests.
    pub(crate) test: bool,
}

/// The start of a path.
pub(crate) enum NamePath {
    /// At the root of the crate, which is empty or `*` itself.
    Crate(Vec<String>),
    /// At a name in scope, such as another crate.
    Scope(Vec<String>),
}

impl Name {
    pub(crate) fn segments(&self) -> &[String] {
        let (NamePath::Crate(segments) | NamePath::Scope(segments)) = &self.path;
        segments
    }
}

/// The root of the repository.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// The crates that are one room each. The modules of the others are rooms.
const ROOM_CRATES: [&str; 14] = [
    "capability",
    "config",
    "fleet",
    "govern",
    "intent",
    "isolate",
    "journal",
    "metrics",
    "overlay",
    "policy",
    "redact",
    "sandbox",
    "secrets",
    "wire",
];

/// All files of the executor, read once.
pub(crate) fn files() -> &'static [SourceFile] {
    static FILES: LazyLock<Vec<SourceFile>> = LazyLock::new(read_files);
    &FILES
}

fn read_files() -> Vec<SourceFile> {
    let mut all = read_crate("", &root().join("executor/src"));
    for entry in std::fs::read_dir(root().join("executor/crates")).unwrap() {
        let entry = entry.unwrap();
        all.extend(read_crate(entry.file_name().to_str().unwrap(), &entry.path().join("src")));
    }
    let mut paths = BTreeSet::new();
    for file in all.iter().filter(|file| file.path != "lib.rs") {
        assert!(paths.insert(&file.path), "two crates have the room of {}", file.path);
    }
    all
}

fn read_crate(name: &str, source: &Path) -> Vec<SourceFile> {
    let mut paths = Vec::new();
    rust_files(source, &mut paths);
    paths.into_iter().map(|path| read(name, source, &path)).collect()
}

/// The path of an item of a crate by rooms.
fn by_rooms(name: &str, segments: &[String]) -> Vec<String> {
    // The doors and what they share are one room. A folder's name has a hyphen, where code has an underscore.
    let door = name.strip_prefix("door-").or_else(|| name.strip_prefix("door_"));
    if let Some(part) = door.or(["console", "http"].contains(&name).then_some(name)) {
        return [&["serve".to_owned(), part.to_owned()], segments].concat();
    }
    match segments.first().map(String::as_str) {
        // The sandbox and its way out are one crate and two rooms.
        Some("egress") if name == "sandbox" => segments.to_vec(),
        // Items at the root of a crate of modules belong to the module that they are about.
        Some("spawn" | "aside") if name == "runtime" => segments.to_vec(),
        Some(_) if name == "runtime" => [&["spawn".to_owned()], segments].concat(),
        // The command line is one room in three crates.
        Some(_) | None if name == "command" => [&["cli".to_owned()], segments].concat(),
        Some(_) | None if name == "tool" => [&["cli".to_owned(), name.to_owned()], segments].concat(),
        Some("optional_twin") if name == "types" => [&["stored".to_owned()], segments].concat(),
        Some(_) | None if ROOM_CRATES.contains(&name) => [&[name.to_owned()], segments].concat(),
        Some(_) | None => segments.to_vec(),
    }
}

fn rust_files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            rust_files(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

fn read(name: &str, source: &Path, path: &Path) -> SourceFile {
    let text = std::fs::read_to_string(path).unwrap();
    let inside = path.strip_prefix(source).unwrap().to_str().unwrap();
    let path = by_rooms(name, &inside.split('/').map(str::to_owned).collect::<Vec<_>>()).join("/");
    let mut module: Vec<String> = path.trim_end_matches(".rs").split('/').map(str::to_owned).collect();
    let room = module[0].clone();
    if module.last().is_some_and(|last| ["mod", "lib", "main"].contains(&last.as_str())) {
        module.pop();
    }
    let test = path.contains("/tests/") || path.ends_with("/tests.rs");
    SourceFile { room, names: names(&text, name, module, test), path, text }
}

/// The paths that `text` names, as a file of a crate that is `module`.
pub(crate) fn names(text: &str, own: &str, module: Vec<String>, test: bool) -> Vec<Name> {
    let mut scanner = Scanner { own: own.to_owned(), module, test, names: Vec::new() };
    scanner.code(text.parse().unwrap(), false);
    scanner.names
}

struct Scanner {
    /// The crate of the file.
    own: String,
    module: Vec<String>,
    test: bool,
    names: Vec<Name>,
}

impl Scanner {
    /// Reads code, or an attribute, whose strings may be paths.
    fn code(&mut self, tokens: TokenStream, attribute: bool) {
        let tokens = tokens.into_iter().collect::<Vec<_>>();
        let mut rest = tokens.as_slice();
        // The items after a `cfg(test)` are code for tests up to their end.
        let outside = self.test;
        while let Some((first, after)) = rest.split_first() {
            rest = match (first, after) {
                (TokenTree::Punct(hash), [TokenTree::Group(group), after @ ..])
                    if hash.as_char() == '#' && group.delimiter() == Delimiter::Bracket =>
                {
                    self.attribute(group.stream());
                    after
                }
                (TokenTree::Ident(keyword), [TokenTree::Group(group), after @ ..])
                    if keyword == "pub" && is_visibility(group.stream()) =>
                {
                    after
                }
                (
                    TokenTree::Ident(keyword),
                    [TokenTree::Ident(name), TokenTree::Group(group), after @ ..],
                ) if keyword == "mod" => {
                    self.module.push(name.to_string());
                    self.code(group.stream(), false);
                    self.module.pop();
                    self.test = outside;
                    after
                }
                (TokenTree::Ident(keyword), [next, ..]) if keyword == "use" && !is_punct(next, '<') => {
                    let end = after.iter().position(|token| is_punct(token, ';')).unwrap_or(after.len());
                    self.imports(&[], &after[..end]);
                    &after[end..]
                }
                (TokenTree::Ident(_), _) => {
                    let (segments, after) = path(rest);
                    self.name(segments, false);
                    after
                }
                (TokenTree::Group(group), _) => {
                    self.code(group.stream(), attribute);
                    if group.delimiter() == Delimiter::Brace {
                        self.test = outside;
                    }
                    after
                }
                (TokenTree::Literal(literal), _) if attribute => {
                    let text = syn::parse_str::<syn::LitStr>(&literal.to_string()).ok();
                    if let Some(tokens) = text.and_then(|text| text.value().parse().ok()) {
                        self.code(tokens, false);
                    }
                    after
                }
                (TokenTree::Literal(_), _) => after,
                (TokenTree::Punct(punct), _) => {
                    if punct.as_char() == ';' {
                        self.test = outside;
                    }
                    after
                }
            };
        }
        self.test = outside;
    }

    fn attribute(&mut self, tokens: TokenStream) {
        let text = tokens.to_string().replace(' ', "");
        assert!(!text.starts_with("path="), "a file is the module that its place says: {text}");
        if text == "cfg(test)" {
            self.test = true;
        }
        if !text.starts_with("doc") {
            self.code(tokens, true);
        }
    }

    /// Flattens a list of `use` trees.
    fn imports(&mut self, prefix: &[String], trees: &[TokenTree]) {
        for tree in trees.split(|token| is_punct(token, ',')).filter(|tree| !tree.is_empty()) {
            let begin =
                tree.iter().position(|token| !matches!(token, TokenTree::Punct(_))).unwrap_or(tree.len());
            let (segments, after) = path(&tree[begin..]);
            let mut whole = [prefix, &segments].concat();
            let after = after.iter().find(|token| !is_punct(token, ':'));
            match after {
                Some(TokenTree::Group(group)) => {
                    self.imports(&whole, &group.stream().into_iter().collect::<Vec<_>>());
                }
                Some(TokenTree::Punct(star)) if star.as_char() == '*' => {
                    whole.push("*".to_owned());
                    self.name(whole, true);
                }
                Some(TokenTree::Ident(_) | TokenTree::Punct(_) | TokenTree::Literal(_)) | None => {
                    self.name(whole, true);
                }
            }
        }
    }

    fn name(&mut self, mut segments: Vec<String>, imported: bool) {
        if imported && segments.len() > 1 && segments.last().is_some_and(|last| last == "self") {
            segments.pop();
        }
        let path = match segments.first().map(String::as_str) {
            Some("crate") => NamePath::Crate(by_rooms(&self.own, &segments[1..])),
            Some(used) if used.starts_with("a2g_") => {
                NamePath::Crate(by_rooms(used.trim_start_matches("a2g_"), &segments[1..]))
            }
            Some("super") => self.relative(&segments),
            Some("self") if segments.len() > 1 => self.relative(&segments),
            Some(_) if imported || segments.len() > 1 => NamePath::Scope(segments),
            // A name alone is a keyword, a variable, or something that was imported.
            Some(alone) if alone == "unsafe" || alone.starts_with(char::is_uppercase) => {
                NamePath::Scope(segments)
            }
            Some(_) | None => return,
        };
        self.names.push(Name { path, imported, test: self.test });
    }

    fn relative(&self, segments: &[String]) -> NamePath {
        let up = segments.iter().take_while(|segment| ["self", "super"].contains(&segment.as_str())).count();
        let ups = segments[..up].iter().filter(|segment| *segment == "super").count();
        let base = self.module.get(..self.module.len().saturating_sub(ups)).unwrap_or_default();
        NamePath::Crate([base, &segments[up..]].concat())
    }
}

/// The path at the start of `tokens`, without generic arguments, and what follows it.
fn path(tokens: &[TokenTree]) -> (Vec<String>, &[TokenTree]) {
    let mut segments = Vec::new();
    let mut rest = tokens;
    while let [TokenTree::Ident(segment), after @ ..] = rest {
        segments.push(segment.to_string().trim_start_matches("r#").to_owned());
        rest = after;
        match after {
            [one, two, TokenTree::Ident(_), ..] if is_punct(one, ':') && is_punct(two, ':') => {
                rest = &after[2..];
            }
            _ => break,
        }
    }
    (segments, rest)
}

fn is_punct(token: &TokenTree, punct: char) -> bool {
    matches!(token, TokenTree::Punct(found) if found.as_char() == punct)
}

/// `crate`, `super`, `self` or `in …`, as they stand after `pub`.
fn is_visibility(tokens: TokenStream) -> bool {
    let tokens = tokens.into_iter().collect::<Vec<_>>();
    match tokens.as_slice() {
        [TokenTree::Ident(only)] => ["crate", "super", "self"].iter().any(|word| only == word),
        [TokenTree::Ident(first), ..] => first == "in",
        _ => false,
    }
}

// --- items ---

/// A type that carries authority: its declaration, and all that hands one out by value.
#[derive(Default)]
pub(crate) struct AuthorityItems {
    /// The types that were found.
    pub(crate) declared: BTreeSet<String>,
    /// Ways around their makers: a public field, a trait that makes one.
    pub(crate) open: Vec<String>,
    /// `Kind from function`, for each function that others can call.
    pub(crate) makers: BTreeSet<String>,
}

/// Reads the items of a file that are no tests.
pub(crate) fn authority_items(file: &SourceFile, kinds: &[&str], found: &mut AuthorityItems) {
    if file.path.contains("/tests/") || file.path.ends_with("/tests.rs") {
        return;
    }
    let syntax = syn::parse_file(&file.text).unwrap_or_else(|error| panic!("{}: {error}", file.path));
    items(&syntax.items, &file.path, kinds, found);
}

fn items(items: &[syn::Item], path: &str, kinds: &[&str], found: &mut AuthorityItems) {
    for item in items {
        match item {
            syn::Item::Mod(module) if !is_for_tests(&module.attrs) => {
                let inner = module.content.as_ref().map(|(_, items)| items.as_slice());
                self::items(inner.unwrap_or_default(), path, kinds, found);
            }
            syn::Item::Struct(declared) if kinds.iter().any(|kind| declared.ident == kind) => {
                structure(declared, found);
            }
            syn::Item::Impl(implementation) if !is_for_tests(&implementation.attrs) => {
                methods(implementation, path, kinds, found);
            }
            syn::Item::Fn(function) if !is_private(&function.vis) && !is_for_tests(&function.attrs) => {
                maker(&function.sig, "", kinds, found);
            }
            _ => {}
        }
    }
}

fn structure(declared: &syn::ItemStruct, found: &mut AuthorityItems) {
    let kind = declared.ident.to_string();
    if declared.fields.iter().any(|field| !is_private(&field.vis)) {
        found.open.push(format!("`{kind}` has a public field"));
    }
    for attribute in declared.attrs.iter().filter(|attribute| attribute.path().is_ident("derive")) {
        attribute
            .parse_nested_meta(|meta| {
                let name = meta.path.segments.last().unwrap().ident.to_string();
                if ["Clone", "Copy", "Default", "Deserialize"].contains(&name.as_str()) {
                    found.makers.insert(format!("{kind} from derive({name})"));
                }
                Ok(())
            })
            .unwrap();
    }
    found.declared.insert(kind);
}

fn methods(implementation: &syn::ItemImpl, path: &str, kinds: &[&str], found: &mut AuthorityItems) {
    let owner = last_segment(&implementation.self_ty).unwrap_or_default();
    let of_trait = implementation.trait_.as_ref().map(|(_, of_trait, _)| of_trait);
    if let Some(of_trait) = of_trait {
        let name = of_trait.segments.last().unwrap().ident.to_string();
        let makes = ["Clone", "Copy", "Default", "Deserialize", "FromStr", "From", "TryFrom", "DerefMut"];
        if kinds.contains(&owner.as_str()) && makes.contains(&name.as_str()) {
            found.open.push(format!("{path}: `{name}` for `{owner}`"));
        }
    }
    for item in &implementation.items {
        let syn::ImplItem::Fn(method) = item else { continue };
        if (of_trait.is_some() || !is_private(&method.vis)) && !is_for_tests(&method.attrs) {
            maker(&method.sig, &owner, kinds, found);
        }
    }
}

fn maker(signature: &syn::Signature, owner: &str, kinds: &[&str], found: &mut AuthorityItems) {
    let syn::ReturnType::Type(_, output) = &signature.output else { return };
    let mut owned = Owned { owner, names: BTreeSet::new() };
    syn::visit::Visit::visit_type(&mut owned, output);
    for kind in owned.names.iter().filter(|name| kinds.contains(&name.as_str())) {
        let separator = if owner.is_empty() { "" } else { "::" };
        found.makers.insert(format!("{kind} from {owner}{separator}{}", signature.ident));
    }
}

/// The types that a value of a type owns.
struct Owned<'a> {
    owner: &'a str,
    names: BTreeSet<String>,
}

impl<'ast> syn::visit::Visit<'ast> for Owned<'_> {
    fn visit_type_reference(&mut self, _: &'ast syn::TypeReference) {}

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if let Some(last) = path.segments.last() {
            let name = last.ident.to_string();
            self.names.insert(if name == "Self" { self.owner.to_owned() } else { name });
        }
        syn::visit::visit_path(self, path);
    }
}

fn last_segment(named: &syn::Type) -> Option<String> {
    let syn::Type::Path(path) = named else { return None };
    Some(path.path.segments.last()?.ident.to_string())
}

fn is_private(visibility: &syn::Visibility) -> bool {
    matches!(visibility, syn::Visibility::Inherited)
}

fn is_for_tests(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let mut test = false;
        if attribute.path().is_ident("cfg") {
            let _other_condition = attribute.parse_nested_meta(|meta| {
                test |= meta.path.is_ident("test");
                Ok(())
            });
        }
        test
    })
}
