//! The imports, exports and initial memory of a module, read from its bytes.
//!
//! The compiler process collects the facts, because it is the only process that reads a module.

use a2g_types::quantity::BYTES_PER_MB;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use wasmparser::{Parser, Payload};

/// The maximum number of imports and of exports in [`ModuleFacts`], and the maximum length of each in characters: the
/// module chooses these names.
const MAX_NAMES: usize = 500;
const MAX_NAME_CHARS: usize = 200;
/// The host memory of one table element, as the sandbox counts it.
const TABLE_ELEMENT_BYTES: u64 = size_of::<usize>() as u64;
/// The logarithm of the size of a page of memory, if the module sets none.
const PAGE_SIZE_LOG2: u32 = 16;

/// The facts of one module.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModuleFacts {
    /// The sum of its memories and tables when it starts, in bytes. A component may need more, because it can
    /// instantiate one module several times.
    pub start_memory_bytes: u64,
    /// The interfaces of a component, or the modules of a core module, that it imports, sorted.
    pub imports: Vec<String>,
    /// The interfaces that a component exports, sorted.
    pub exports: Vec<String>,
    /// `true` for a component, `false` for a core module.
    pub is_component: bool,
}

impl ModuleFacts {
    /// Reads the facts of a module or component. The facts of bytes that are not WebAssembly are incomplete; such bytes
    /// do not compile.
    #[must_use]
    #[allow(clippy::wildcard_enum_match_arm, reason = "the other sections have no facts")]
    pub fn read(wasm: &[u8]) -> Self {
        let is_component = Parser::is_component(wasm);
        let mut facts = Self { is_component, ..Self::default() };
        let mut imports = BTreeSet::new();
        let mut exports = BTreeSet::new();
        let mut depth = 0_u32;
        for payload in Parser::new(0).parse_all(wasm).map_while(Result::ok) {
            match payload {
                Payload::ModuleSection { .. } | Payload::ComponentSection { .. } => depth += 1,
                Payload::End(_) => depth = depth.saturating_sub(1),
                Payload::MemorySection(memories) => {
                    for memory in memories.into_iter().map_while(Result::ok) {
                        let page = memory.page_size_log2.unwrap_or(PAGE_SIZE_LOG2);
                        facts.add(memory.initial.saturating_mul(1_u64.checked_shl(page).unwrap_or(u64::MAX)));
                    }
                }
                Payload::TableSection(tables) => {
                    for table in tables.into_iter().map_while(Result::ok) {
                        facts.add(table.ty.initial.saturating_mul(TABLE_ELEMENT_BYTES));
                    }
                }
                Payload::ImportSection(section) if !is_component => {
                    let names = section.into_imports().map_while(Result::ok).map(|import| import.module);
                    imports.extend(names.map(str::to_owned));
                }
                Payload::ComponentImportSection(section) if depth == 0 => {
                    // A component also imports the types of its interfaces, whose names have no package.
                    let names = section.into_iter().map_while(Result::ok).map(|import| import.name.name);
                    imports.extend(names.filter(|name| name.contains(':')).map(str::to_owned));
                }
                Payload::ComponentExportSection(section) if depth == 0 => {
                    let names = section.into_iter().map_while(Result::ok).map(|export| export.name.name);
                    exports.extend(names.map(str::to_owned));
                }
                _ => {}
            }
        }
        let short = |name: String| name.chars().take(MAX_NAME_CHARS).collect::<String>();
        let bounded = |names: BTreeSet<String>| names.into_iter().take(MAX_NAMES).map(short).collect();
        facts.imports = bounded(imports);
        facts.exports = bounded(exports);
        facts
    }

    fn add(&mut self, bytes: u64) {
        self.start_memory_bytes = self.start_memory_bytes.saturating_add(bytes);
    }

    /// The memory that the module starts with, in whole MB, rounded up.
    #[must_use]
    pub fn start_memory_mb(&self) -> u64 {
        self.start_memory_bytes.div_ceil(BYTES_PER_MB)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(wat: &str) -> ModuleFacts {
        ModuleFacts::read(&wat::parse_str(wat).unwrap())
    }

    #[test]
    fn memories_and_tables_of_all_modules_are_summed() {
        let module = "(module (memory 272) (table 128 funcref) (func (export \"_start\")))";
        assert_eq!(facts(module).start_memory_bytes, (272 << 16) + 1024);
        assert_eq!(facts(module).start_memory_mb(), 18);
        assert_eq!(facts("(module (memory 272))").start_memory_mb(), 17);
        let component = "(component (core module (memory 1)) (component (core module (memory 2))))";
        assert_eq!(facts(component).start_memory_bytes, 3 << 16);
        let imported = "(module (import \"a\" \"m\" (memory 9)) (import \"b\" \"f\" (func)))";
        assert_eq!(
            facts(imported),
            ModuleFacts { imports: vec!["a".into(), "b".into()], ..Default::default() }
        );
    }
}
