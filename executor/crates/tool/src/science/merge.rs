//! Makes one core module of the world `a2g:tool/tool` from an interpreter, its library and the program that serves calls.
//!
//! The interpreter's code is kept; only its function indices move. Its memory starts with what a first run
//! has left there (`a2g_sandbox::snapshot`), in which it has imported its packages. Added to it are
//!
//! - a second memory with the texts that it needs: the zip of its library, the Python modules, and their index,
//! - the imports of `a2g:tool` that a program can use,
//! - the functions below, which replace its import `host::call` and are the exports of the world.
//!
//! A request is what Python passes to `_host.call`: eight little-endian words (operation, the lengths of three texts,
//! three numbers, zero), followed by the texts. An answer is what the operation says. Results of imports have the
//! canonical ABI's layout, and Python reads the texts that they point to with [`Operation::Take`].

use anyhow::{Context as _, bail};
use std::convert::Infallible;
use wasm_encoder::reencode::{Error, Reencode, utils};
use wasm_encoder::{
    BlockType, CodeSection, ConstExpr, CustomSection, DataSection, EntityType, ExportKind, ExportSection,
    Function, FunctionSection, GlobalSection, GlobalType, ImportSection, InstructionSink, MemArg,
    MemorySection, MemoryType, Module, TypeSection, ValType,
};
use wasmparser::{ExternalKind, KnownCustom, Name, Parser, Payload, TypeRef};

/// The request of the interpreter. `science/a2g_start.py` and `science/a2g_door.py` have the same numbers.
#[derive(Debug, Clone, Copy)]
enum Operation {
    /// The bytes of the second memory at one offset.
    Read = 0,
    /// The bytes of the interpreter's memory at one address, which are freed.
    Take = 1,
    List = 2,
    Describe = 3,
    Call = 4,
    Start = 5,
    Wait = 6,
    Artifact = 7,
    /// Sets the result of this run: a text, or code, message and details of an error.
    Finish = 8,
    /// The arguments of this run.
    Arguments = 9,
    /// The name of the open folder with one descriptor, or a zero byte if there is none.
    Folder = 10,
}

/// The parts that the module is made of.
#[derive(Debug)]
pub(super) struct Parts<'a> {
    /// The interpreter: a module with the exports `turn` and `host_alloc` and the import `host::call`.
    pub(super) interpreter: &'a [u8],
    /// Its memory at the start of each call.
    pub(super) memory: &'a [u8],
    /// The texts of the second memory, one after the other.
    pub(super) texts: &'a [u8],
    /// The program that the interpreter runs at each call, as a range of `texts`.
    pub(super) program: TextRange,
    /// Name, version, description and argument schema of the tool, as ranges of `texts`.
    pub(super) description: [TextRange; 4],
}

/// A part of the texts in the second memory.
#[derive(Debug, Clone, Copy)]
pub(super) struct TextRange {
    pub(super) start: u32,
    pub(super) length: u32,
}

/// The memory of the interpreter, and that of the texts.
const OWN_MEMORY: u32 = 0;
const TEXT_MEMORY: u32 = 1;
const PAGE_BYTES: usize = 64 << 10;
/// The number of zero bytes for which another segment of data begins: those of the memory are then about
/// 10,000.
const MIN_ZEROS: usize = 128;

const CALLS: &str = "a2g:tool/calls@0.2.0";
const HOST: &str = "a2g:tool/host@0.2.0";
/// The imports that are added, and the number of their parameters. Each parameter is an `i32`; `start` has a result.
const IMPORTS: [(&str, &str, usize); 6] = [
    (CALLS, "list", 1),
    (CALLS, "describe", 3),
    (CALLS, "call", 5),
    (CALLS, "start", 4),
    (CALLS, "wait", 3),
    (HOST, "artifact", 8),
];

/// The bytes of a request before its texts.
const HEADER_BYTES: i32 = 32;
/// The bytes of the largest result of an import: that of `calls.describe` and `calls.wait`.
const RESULT_BYTES: i32 = 40;
/// The bytes of `descriptor` in `tool.wit`, before the texts that it points to.
const DESCRIPTOR_BYTES: i32 = 32;

/// The types that are added, in this order after the interpreter's: parameters and results, all `i32`.
const ARITIES: [(usize, usize); 7] = [(1, 0), (3, 0), (5, 0), (8, 0), (0, 1), (2, 1), (4, 1)];

/// The facts of the interpreter that the merger needs.
#[derive(Debug)]
struct Interpreter {
    types: u32,
    imported_functions: u32,
    functions: u32,
    globals: u32,
    /// The index of the import `host::call`, before all others are moved.
    door: u32,
    turn: u32,
    allocate: u32,
    reallocate: u32,
    free: u32,
    /// The imports that tell the length of a folder's name, and the name.
    measure_folder: u32,
    name_folder: u32,
    /// Forgets that there were no granted folders when the memory was made.
    forget_folders: u32,
}

/// The function of the interpreter's C library that [`Interpreter::forget_folders`] is.
const FORGET_FOLDERS: &str = "__wasilibc_reset_preopens";

/// The module, with its world.
///
/// # Errors
/// If the interpreter is not a module of the expected form.
pub(super) fn merge(parts: &Parts<'_>) -> anyhow::Result<Vec<u8>> {
    let interpreter = Interpreter::read(parts.interpreter)?;
    let mut module = Module::new();
    let mut merger = Merger { interpreter, parts };
    utils::parse_core_module(&mut merger, &mut module, Parser::new(0), parts.interpreter)
        .map_err(|error| anyhow::anyhow!("the interpreter cannot be read: {error}"))?;
    let mut resolve = wit_parser::Resolve::default();
    let package = resolve.push_str("tool.wit", crate::new::WIT)?;
    let world = resolve.select_world(&[package], Some("tool"))?;
    let encoding = wit_component::StringEncoding::UTF8;
    let data = wit_component::metadata::encode(&resolve, world, encoding, None)?;
    module.section(&CustomSection { name: "component-type".into(), data: data.into() });
    Ok(module.finish())
}

/// The answer to a request of the first run, which can only read `texts`.
pub(super) fn answer_read(request: &[u8], texts: &[u8]) -> Option<Vec<u8>> {
    let number = |offset: i32| {
        let bytes = request.get(usize::try_from(offset).ok()?..)?.first_chunk()?;
        usize::try_from(u32::from_le_bytes(*bytes)).ok()
    };
    if number(0)? != Operation::Read as usize {
        return None;
    }
    let text = texts.get(number(FIRST_NUMBER)?..)?.get(..number(SECOND_NUMBER)?)?;
    Some(text.to_vec())
}

impl Interpreter {
    #[allow(
        clippy::wildcard_enum_match_arm,
        reason = "the other sections need no change but that of indices"
    )]
    fn read(wasm: &[u8]) -> anyhow::Result<Self> {
        let mut counts = Counts::default();
        let mut door = None;
        let mut imports = Vec::new();
        let mut exports = Vec::new();
        let mut names = Vec::new();
        for payload in Parser::new(0).parse_all(wasm) {
            match payload? {
                Payload::TypeSection(section) => counts.types = section.count(),
                Payload::ImportSection(section) => {
                    for import in section.into_imports() {
                        let import = import?;
                        let TypeRef::Func(_) = import.ty else {
                            bail!("it imports something that is no function")
                        };
                        if (import.module, import.name) == ("host", "call") {
                            door = Some(counts.imports);
                        }
                        imports.push((import.name.to_owned(), counts.imports));
                        counts.imports += 1;
                    }
                }
                Payload::FunctionSection(section) => counts.defined = section.count(),
                Payload::MemorySection(section) if section.count() != 1 => {
                    bail!("it has more than one memory")
                }
                Payload::GlobalSection(section) => counts.globals = section.count(),
                Payload::ExportSection(section) => {
                    for export in section {
                        let export = export?;
                        if export.kind == ExternalKind::Func {
                            exports.push((export.name.to_owned(), export.index));
                        }
                    }
                }
                Payload::CustomSection(section) => {
                    if let KnownCustom::Name(section) = section.as_known() {
                        for subsection in section {
                            let Name::Function(functions) = subsection? else { continue };
                            for naming in functions {
                                let naming = naming?;
                                if ["free", "realloc", FORGET_FOLDERS].contains(&naming.name) {
                                    names.push((naming.name.to_owned(), naming.index));
                                }
                            }
                        }
                    }
                }
                _ => {}
            }
        }
        let find = |list: &[(String, u32)], wanted: &str| {
            let found = list.iter().find(|(name, _)| name == wanted).map(|(_, index)| *index);
            found.with_context(|| format!("it has no function `{wanted}`"))
        };
        Ok(Self {
            types: counts.types,
            imported_functions: counts.imports,
            functions: counts.imports + counts.defined,
            globals: counts.globals,
            door: door.context("it does not import `host::call`")?,
            turn: find(&exports, "turn")?,
            allocate: find(&exports, "host_alloc")?,
            reallocate: find(&names, "realloc")?,
            free: find(&names, "free")?,
            measure_folder: find(&imports, "fd_prestat_get")?,
            name_folder: find(&imports, "fd_prestat_dir_name")?,
            forget_folders: find(&names, FORGET_FOLDERS)?,
        })
    }

    /// The index of a function in the new module.
    fn moved(&self, function: u32) -> u32 {
        let added = u32::try_from(IMPORTS.len()).unwrap_or(u32::MAX);
        if function < self.door {
            function
        } else if function == self.door {
            self.added_function(Added::Door)
        } else if function < self.imported_functions {
            function - 1
        } else {
            function - 1 + added
        }
    }

    /// The index of an added import.
    fn added_import(&self, position: u32) -> u32 {
        self.imported_functions - 1 + position
    }

    fn added_function(&self, function: Added) -> u32 {
        self.functions - 1 + u32::try_from(IMPORTS.len()).unwrap_or(u32::MAX) + function as u32
    }

    fn added_type(&self, parameters: usize, results: usize) -> u32 {
        let position = ARITIES.iter().position(|arity| *arity == (parameters, results)).unwrap_or_default();
        self.types + u32::try_from(position).unwrap_or(u32::MAX)
    }

    fn added_global(&self, global: Global) -> u32 {
        self.globals + global as u32
    }
}

#[derive(Debug, Default)]
struct Counts {
    types: u32,
    imports: u32,
    defined: u32,
    globals: u32,
}

/// The functions that are added, in this order after the interpreter's.
#[derive(Debug, Clone, Copy)]
enum Added {
    /// The function that the interpreter calls as `host::call`: request and its length, and where to write address and length of the
    /// answer. Returns 0.
    Door,
    Reallocate,
    Describe,
    Invoke,
}

/// Their types: parameters and results.
const ADDED: [(Added, usize, usize); 4] =
    [(Added::Door, 4, 1), (Added::Reallocate, 4, 1), (Added::Describe, 0, 1), (Added::Invoke, 2, 1)];

/// The variables that are added, all `i32` and 0 at the start.
#[derive(Debug, Clone, Copy)]
enum Global {
    /// The address at which imports write their results, and `invoke` its own.
    Result,
    Arguments,
    ArgumentsLength,
    /// The request that set the result of the run.
    Finished,
}

const GLOBALS: u32 = 4;

struct Merger<'a> {
    interpreter: Interpreter,
    parts: &'a Parts<'a>,
}

impl Reencode for Merger<'_> {
    type Error = Infallible;

    fn function_index(&mut self, function: u32) -> Result<u32, Error> {
        Ok(self.interpreter.moved(function))
    }

    fn parse_type_section(
        &mut self,
        types: &mut TypeSection,
        section: wasmparser::TypeSectionReader<'_>,
    ) -> Result<(), Error> {
        utils::parse_type_section(self, types, section)?;
        for (parameters, results) in ARITIES {
            types.ty().function(vec![ValType::I32; parameters], vec![ValType::I32; results]);
        }
        Ok(())
    }

    fn parse_import_section(
        &mut self,
        imports: &mut ImportSection,
        section: wasmparser::ImportSectionReader<'_>,
    ) -> Result<(), Error> {
        for (position, import) in section.into_imports().enumerate() {
            if u32::try_from(position) != Ok(self.interpreter.door) {
                self.parse_import(imports, import?)?;
            }
        }
        for (module, name, parameters) in IMPORTS {
            let ty = self.interpreter.added_type(parameters, usize::from(name == "start"));
            imports.import(module, name, EntityType::Function(ty));
        }
        Ok(())
    }

    fn parse_function_section(
        &mut self,
        functions: &mut FunctionSection,
        section: wasmparser::FunctionSectionReader<'_>,
    ) -> Result<(), Error> {
        utils::parse_function_section(self, functions, section)?;
        for (_, parameters, results) in ADDED {
            functions.function(self.interpreter.added_type(parameters, results));
        }
        Ok(())
    }

    fn parse_memory_section(
        &mut self,
        memories: &mut MemorySection,
        section: wasmparser::MemorySectionReader<'_>,
    ) -> Result<(), Error> {
        for memory in section {
            let own = self.memory_type(memory?)?;
            let minimum = own.minimum.max((self.parts.memory.len() / PAGE_BYTES) as u64);
            memories.memory(MemoryType { minimum, ..own });
        }
        let pages = self.parts.texts.len().div_ceil(PAGE_BYTES) as u64;
        let text_memory = MemoryType {
            minimum: pages,
            maximum: Some(pages),
            memory64: false,
            shared: false,
            page_size_log2: None,
        };
        memories.memory(text_memory);
        Ok(())
    }

    fn parse_global_section(
        &mut self,
        globals: &mut GlobalSection,
        section: wasmparser::GlobalSectionReader<'_>,
    ) -> Result<(), Error> {
        utils::parse_global_section(self, globals, section)?;
        for _ in 0..GLOBALS {
            let ty = GlobalType { val_type: ValType::I32, mutable: true, shared: false };
            globals.global(ty, &ConstExpr::i32_const(0));
        }
        Ok(())
    }

    fn parse_export_section(
        &mut self,
        exports: &mut ExportSection,
        _section: wasmparser::ExportSectionReader<'_>,
    ) -> Result<(), Error> {
        let function = |added| self.interpreter.added_function(added);
        exports.export("memory", ExportKind::Memory, OWN_MEMORY);
        exports.export("cabi_realloc", ExportKind::Func, function(Added::Reallocate));
        exports.export("describe", ExportKind::Func, function(Added::Describe));
        exports.export("invoke", ExportKind::Func, function(Added::Invoke));
        Ok(())
    }

    fn parse_code_section(
        &mut self,
        code: &mut CodeSection,
        section: wasmparser::CodeSectionReader<'_>,
    ) -> Result<(), Error> {
        utils::parse_code_section(self, code, section)?;
        for (added, _, _) in ADDED {
            code.function(&match added {
                Added::Door => door(&self.interpreter),
                Added::Reallocate => reallocate(&self.interpreter),
                Added::Describe => describe(&self.interpreter, self.parts.description),
                Added::Invoke => invoke(&self.interpreter, self.parts.program),
            });
        }
        Ok(())
    }

    fn parse_data_section(
        &mut self,
        data: &mut DataSection,
        _section: wasmparser::DataSectionReader<'_>,
    ) -> Result<(), Error> {
        // The memory has the interpreter's own data.
        for (start, bytes) in segments(self.parts.memory) {
            data.active(OWN_MEMORY, &ConstExpr::i32_const(operand(start)), bytes.iter().copied());
        }
        data.active(TEXT_MEMORY, &ConstExpr::i32_const(0), self.parts.texts.iter().copied());
        Ok(())
    }

    fn parse_custom_section(
        &mut self,
        _module: &mut Module,
        _section: wasmparser::CustomSectionReader<'_>,
    ) -> Result<(), Error> {
        // The names of the interpreter's functions are a seventh of its module.
        Ok(())
    }
}

/// The parts of a memory between its zeros, with their addresses.
fn segments(memory: &[u8]) -> Vec<(u32, &[u8])> {
    let mut segments = Vec::new();
    let mut rest = memory;
    // Addresses have 32 bits.
    let mut address = 0_u32;
    while let Some(zeros) = rest.iter().position(|byte| *byte != 0) {
        let used = rest.get(zeros..).unwrap_or_default();
        let length = used
            .chunks(MIN_ZEROS)
            .position(|chunk| chunk.iter().all(|byte| *byte == 0))
            .map_or(used.len(), |chunks| chunks * MIN_ZEROS);
        let (bytes, others) = used.split_at(length);
        address = address.saturating_add(u32::try_from(zeros).unwrap_or(u32::MAX));
        segments.push((address, bytes));
        address = address.saturating_add(u32::try_from(length).unwrap_or(u32::MAX));
        rest = others;
    }
    segments
}

fn word(offset: i32) -> MemArg {
    MemArg { offset: u64::from(offset.unsigned_abs()), align: 2, memory_index: OWN_MEMORY }
}

fn byte(offset: i32) -> MemArg {
    MemArg { align: 0, ..word(offset) }
}

/// A number of a function, a length or an address in the second memory as the operand of an instruction.
fn operand(value: u32) -> i32 {
    value.cast_signed()
}

/// The words of a request.
const FIRST_LENGTH: i32 = 4;
const SECOND_LENGTH: i32 = 8;
const THIRD_LENGTH: i32 = 12;
const FIRST_NUMBER: i32 = 16;
const SECOND_NUMBER: i32 = 20;

// The locals of the function that `door` makes: its parameters,
const REQUEST: u32 = 0;
const LENGTH: u32 = 1;
const ANSWER_ADDRESS: u32 = 2;
const ANSWER_LENGTH: u32 = 3;
// the texts of the request, and the answer with its source; `TAKEN` is freed.
const FIRST: u32 = 4;
const SECOND: u32 = 5;
const THIRD: u32 = 6;
const SOURCE: u32 = 7;
const SIZE: u32 = 8;
const TAKEN: u32 = 9;
const ANSWER: u32 = 10;

fn door(interpreter: &Interpreter) -> Function {
    let result = interpreter.added_global(Global::Result);
    let mut function = Function::new([(7, ValType::I32)]);
    let mut code = function.instructions();
    code.local_get(REQUEST).i32_const(HEADER_BYTES).i32_add().local_set(FIRST);
    code.local_get(FIRST).local_get(REQUEST).i32_load(word(FIRST_LENGTH)).i32_add().local_set(SECOND);
    code.local_get(SECOND).local_get(REQUEST).i32_load(word(SECOND_LENGTH)).i32_add().local_set(THIRD);
    make_result_area(&mut code, interpreter);
    // Most operations answer with the result of an import.
    code.global_get(result).local_set(SOURCE).i32_const(RESULT_BYTES).local_set(SIZE);
    code.block(BlockType::Empty);
    let case = |code: &mut InstructionSink<'_>,
                operation: Operation,
                body: &dyn Fn(&mut InstructionSink<'_>)| {
        code.local_get(REQUEST).i32_load(word(0)).i32_const(operation as i32).i32_eq().if_(BlockType::Empty);
        body(code);
        code.br(1).end();
    };
    let import = |position| interpreter.added_import(position);
    let number = |code: &mut InstructionSink<'_>, offset| {
        code.local_get(REQUEST).i32_load(word(offset));
    };
    let text = |code: &mut InstructionSink<'_>, local, length| {
        code.local_get(local);
        number(code, length);
    };
    case(&mut code, Operation::Take, &|code| {
        number(code, FIRST_NUMBER);
        code.local_tee(SOURCE).local_set(TAKEN);
        number(code, SECOND_NUMBER);
        code.local_set(SIZE);
    });
    case(&mut code, Operation::List, &|code| {
        code.global_get(result).call(import(0));
    });
    case(&mut code, Operation::Describe, &|code| {
        text(code, FIRST, FIRST_LENGTH);
        code.global_get(result).call(import(1));
    });
    case(&mut code, Operation::Call, &|code| {
        text(code, FIRST, FIRST_LENGTH);
        text(code, SECOND, SECOND_LENGTH);
        code.global_get(result).call(import(2));
    });
    case(&mut code, Operation::Start, &|code| {
        code.global_get(result);
        text(code, FIRST, FIRST_LENGTH);
        text(code, SECOND, SECOND_LENGTH);
        code.call(import(3)).i32_store(word(0));
    });
    case(&mut code, Operation::Wait, &|code| {
        // The first text is the list of numbers, and the first number its length.
        text(code, FIRST, FIRST_NUMBER);
        code.global_get(result).call(import(4));
    });
    case(&mut code, Operation::Artifact, &|code| {
        text(code, FIRST, FIRST_LENGTH);
        text(code, SECOND, SECOND_LENGTH);
        text(code, THIRD, THIRD_LENGTH);
        number(code, FIRST_NUMBER);
        code.global_get(result).call(import(5));
    });
    case(&mut code, Operation::Finish, &|code| {
        // The request is a value of Python, which ends with this call.
        let finished = interpreter.added_global(Global::Finished);
        code.local_get(LENGTH).call(interpreter.moved(interpreter.allocate)).global_set(finished);
        code.global_get(finished).i32_eqz().if_(BlockType::Empty).unreachable().end();
        code.global_get(finished).local_get(REQUEST).local_get(LENGTH).memory_copy(OWN_MEMORY, OWN_MEMORY);
    });
    case(&mut code, Operation::Arguments, &|code| {
        code.global_get(interpreter.added_global(Global::Arguments)).local_set(SOURCE);
        code.global_get(interpreter.added_global(Global::ArgumentsLength)).local_set(SIZE);
    });
    case(&mut code, Operation::Folder, &|code| {
        let call = |function| interpreter.moved(function);
        number(code, FIRST_NUMBER);
        code.global_get(result).call(call(interpreter.measure_folder)).if_(BlockType::Empty);
        code.global_get(result).i32_const(0).i32_store8(byte(0)).i32_const(1).local_set(SIZE).else_();
        // The length is the second word, behind the kind.
        code.global_get(result).i32_load(word(4)).local_tee(SIZE).call(call(interpreter.allocate));
        code.local_tee(SOURCE).local_tee(TAKEN).i32_eqz().if_(BlockType::Empty).unreachable().end();
        number(code, FIRST_NUMBER);
        code.local_get(SOURCE).local_get(SIZE).call(call(interpreter.name_folder)).drop().end();
    });
    case(&mut code, Operation::Read, &|code| {
        number(code, SECOND_NUMBER);
        code.local_set(SIZE);
    });
    code.unreachable().end();
    copy_answer(&mut code, interpreter);
    function
}

/// Copies the answer to memory that the interpreter frees, and ends the function.
fn copy_answer(code: &mut InstructionSink<'_>, interpreter: &Interpreter) {
    code.local_get(SIZE).call(interpreter.moved(interpreter.allocate)).local_tee(ANSWER);
    code.i32_eqz().if_(BlockType::Empty).unreachable().end();
    code.local_get(REQUEST).i32_load(word(0)).i32_const(Operation::Read as i32).i32_eq();
    code.if_(BlockType::Empty).local_get(ANSWER);
    code.local_get(REQUEST).i32_load(word(FIRST_NUMBER));
    code.local_get(SIZE).memory_copy(OWN_MEMORY, TEXT_MEMORY).else_();
    code.local_get(ANSWER).local_get(SOURCE).local_get(SIZE).memory_copy(OWN_MEMORY, OWN_MEMORY).end();
    code.local_get(TAKEN).call(interpreter.moved(interpreter.free));
    code.local_get(ANSWER_ADDRESS).local_get(ANSWER).i32_store(word(0));
    code.local_get(ANSWER_LENGTH).local_get(SIZE).i32_store(word(0));
    code.i32_const(0).end();
}

/// Allocates the area for results, once.
fn make_result_area(code: &mut InstructionSink<'_>, interpreter: &Interpreter) {
    let result = interpreter.added_global(Global::Result);
    code.global_get(result).i32_eqz().if_(BlockType::Empty);
    code.i32_const(RESULT_BYTES).call(interpreter.moved(interpreter.allocate)).global_set(result);
    code.global_get(result).i32_eqz().if_(BlockType::Empty).unreachable().end().end();
}

/// `cabi_realloc`: old address, old size, alignment, new size. The interpreter's allocator aligns all to 16 bytes.
fn reallocate(interpreter: &Interpreter) -> Function {
    let mut function = Function::new([]);
    let mut code = function.instructions();
    // An empty value needs no memory, and nobody frees it.
    code.local_get(3).i32_eqz().if_(BlockType::Empty).local_get(2).return_().end();
    code.local_get(0).local_get(3).call(interpreter.moved(interpreter.reallocate)).local_tee(0);
    code.i32_eqz().if_(BlockType::Empty).unreachable().end().local_get(0).end();
    function
}

fn describe(interpreter: &Interpreter, description: [TextRange; 4]) -> Function {
    const DESCRIPTOR: u32 = 0;
    let mut function = Function::new([(1, ValType::I32)]);
    let mut code = function.instructions();
    let texts: u32 = description.iter().map(|text| text.length).sum();
    code.i32_const(DESCRIPTOR_BYTES + operand(texts)).call(interpreter.moved(interpreter.allocate));
    code.local_tee(DESCRIPTOR).i32_eqz().if_(BlockType::Empty).unreachable().end();
    let mut at = DESCRIPTOR_BYTES;
    for (field, text) in (0..).step_by(8).zip(description) {
        code.local_get(DESCRIPTOR).local_get(DESCRIPTOR).i32_const(at).i32_add().i32_store(word(field));
        code.local_get(DESCRIPTOR).i32_const(operand(text.length)).i32_store(word(field + 4));
        code.local_get(DESCRIPTOR).i32_const(at).i32_add();
        code.i32_const(operand(text.start))
            .i32_const(operand(text.length))
            .memory_copy(OWN_MEMORY, TEXT_MEMORY);
        at += operand(text.length);
    }
    code.local_get(DESCRIPTOR).end();
    function
}

/// `invoke`: passes the program to the interpreter, and returns what it set with [`Operation::Finish`].
fn invoke(interpreter: &Interpreter, program: TextRange) -> Function {
    const ARGUMENTS: u32 = 0;
    const LENGTH: u32 = 1;
    const SOURCE: u32 = 2;
    const TEXT: u32 = 3;
    let result = interpreter.added_global(Global::Result);
    let finished = interpreter.added_global(Global::Finished);
    let mut function = Function::new([(2, ValType::I32)]);
    let mut code = function.instructions();
    // The result of the last call of a session, which the host has read.
    code.global_get(finished).call(interpreter.moved(interpreter.free)).i32_const(0).global_set(finished);
    code.call(interpreter.moved(interpreter.forget_folders));
    code.local_get(ARGUMENTS).global_set(interpreter.added_global(Global::Arguments));
    code.local_get(LENGTH).global_set(interpreter.added_global(Global::ArgumentsLength));
    code.i32_const(operand(program.length)).call(interpreter.moved(interpreter.allocate)).local_tee(SOURCE);
    code.i32_eqz().if_(BlockType::Empty).unreachable().end();
    code.local_get(SOURCE).i32_const(operand(program.start)).i32_const(operand(program.length));
    code.memory_copy(OWN_MEMORY, TEXT_MEMORY);
    code.local_get(SOURCE)
        .i32_const(operand(program.length))
        .call(interpreter.moved(interpreter.turn))
        .drop();
    // An empty value has no memory.
    code.local_get(LENGTH).if_(BlockType::Empty).local_get(ARGUMENTS);
    code.call(interpreter.moved(interpreter.free)).end();
    // The program has written to standard error why it set no result.
    code.global_get(finished).i32_eqz().if_(BlockType::Empty).unreachable().end();
    code.global_get(finished).i32_const(HEADER_BYTES).i32_add().local_set(TEXT);
    // `result<string, tool-error>`: the case, and then the text, or code, message and optional details.
    code.global_get(result).global_get(finished).i32_load(word(FIRST_NUMBER)).i32_store8(byte(0));
    code.global_get(result).global_get(finished).i32_load(word(SECOND_NUMBER)).i32_store8(byte(20));
    for (field, length) in [(4, FIRST_LENGTH), (12, SECOND_LENGTH), (24, THIRD_LENGTH)] {
        code.global_get(result).local_get(TEXT).i32_store(word(field));
        code.global_get(result).global_get(finished).i32_load(word(length)).i32_store(word(field + 4));
        code.local_get(TEXT).global_get(finished).i32_load(word(length)).i32_add().local_set(TEXT);
    }
    code.global_get(result).end();
    function
}

#[cfg(test)]
mod tests {
    use super::*;
    use a2g_core::catalog::{ModuleFacts, componentize};
    use a2g_types::tool::Contract;

    /// An interpreter that asks for what its program says and ends.
    const INTERPRETER: &str = r#"(module
        (import "wasi_snapshot_preview1" "sched_yield" (func $first (result i32)))
        (import "host" "call" (func $door (param i32 i32 i32 i32) (result i32)))
        (import "wasi_snapshot_preview1" "fd_close" (func $last (param i32) (result i32)))
        (import "wasi_snapshot_preview1" "fd_prestat_get" (func (param i32 i32) (result i32)))
        (import "wasi_snapshot_preview1" "fd_prestat_dir_name" (func (param i32 i32 i32) (result i32)))
        (memory (export "memory") 1)
        (table 3 funcref) (elem (i32.const 0) $first $door $last)
        (tag $thrown) (global $next (mut i32) (i32.const 1024))
        (func $malloc (export "host_alloc") (param i32) (result i32)
            global.get $next
            (global.set $next (i32.add (global.get $next) (i32.and (i32.add (local.get 0) (i32.const 31)) (i32.const -16)))))
        (func $free (param i32))
        (func $realloc (param i32 i32) (result i32) (call $malloc (local.get 1)))
        (func $__wasilibc_reset_preopens)
        (func (export "run") (result i32) (call $first))
        (func (export "turn") (param $source i32) (param $length i32) (result i32)
            (block (try_table (catch_all 0) (throw $thrown)))
            (drop (call $last (i32.const 3)))
            (call $door (local.get $source) (local.get $length) (i32.const 0) (i32.const 4)))
        (data (i32.const 16) "own"))"#;

    fn merged(interpreter: &str) -> anyhow::Result<Vec<u8>> {
        let interpreter = wat::parse_str(interpreter).unwrap();
        let text = TextRange { start: 4, length: 2 };
        let mut memory = vec![0; 2 * PAGE_BYTES];
        memory[16..19].copy_from_slice(b"own");
        let parts = Parts {
            interpreter: &interpreter,
            memory: &memory,
            texts: b"zip+{}",
            program: text,
            description: [text; 4],
        };
        merge(&parts)
    }

    #[test]
    fn segments_leave_out_the_zeros_of_a_memory() {
        let mut memory = vec![0; 1000];
        assert_eq!(segments(&memory), []);
        memory[10] = 1;
        memory[10 + MIN_ZEROS] = 2;
        memory[999] = 3;
        let found = segments(&memory);
        assert_eq!(
            found.iter().map(|(start, bytes)| (*start, bytes.len())).collect::<Vec<_>>(),
            [(10, 256), (999, 1)]
        );
        let mut copy = vec![0; 1000];
        for (start, bytes) in found {
            copy[start as usize..][..bytes.len()].copy_from_slice(bytes);
        }
        assert_eq!(copy, memory);
    }

    #[test]
    fn the_module_is_valid_and_of_the_world() {
        let module = merged(INTERPRETER).unwrap();
        wasmparser::Validator::new_with_features(wasmparser::WasmFeatures::all())
            .validate_all(&module)
            .unwrap();
        let component = ModuleFacts::read(&componentize(&module, Contract::Typed).unwrap());
        for import in [CALLS, HOST] {
            assert!(component.imports.iter().any(|name| name == import), "{component:?}");
        }
        assert_eq!(component.exports, ["describe", "invoke"]);
        assert_eq!(ModuleFacts::read(&module).start_memory_bytes, (3 << 16) + 3 * 8);
    }

    #[test]
    fn references_of_the_interpreter_are_moved_with_its_functions() {
        let wasm = wat::parse_str(INTERPRETER).unwrap();
        let interpreter = Interpreter::read(&wasm).unwrap();
        assert_eq!((interpreter.imported_functions, interpreter.functions, interpreter.door), (5, 11, 1));
        // Four imports that stay, six that are added, six functions, and the first of those that are added.
        assert_eq!([0, 1, 2, 5, 10].map(|function| interpreter.moved(function)), [0, 16, 1, 10, 15]);
        assert_eq!(interpreter.added_import(0), 4);
    }

    #[test]
    fn another_module_is_refused() {
        for (change, with, says) in [
            ("\"host\" \"call\"", "\"host\" \"ask\"", "it does not import `host::call`"),
            ("\"turn\"", "\"step\"", "it has no function `turn`"),
            ("$free", "$release", "it has no function `free`"),
            ("fd_prestat_get", "fd_prestat", "it has no function `fd_prestat_get`"),
        ] {
            let error = merged(&INTERPRETER.replace(change, with)).unwrap_err();
            assert_eq!(error.to_string(), says);
        }
    }
}
