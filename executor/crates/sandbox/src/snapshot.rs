//! The memory of an interpreter after one program, from which it starts faster than it would run that program
//! again.
//!
//! The module runs once, in this process, without files, arguments and network, and with a clock and random
//! bytes that are the same each time: the same module and program give the same memory on every machine. Only
//! for modules whose digest is pinned: neither their time nor their memory is limited.

use super::engine::{self, CodeFeatures};
use a2g_types::error_chain::BoxedError;
use wasmtime::error::Context as _;
use wasmtime::{Caller, Extern, ExternType, Func, Instance, Memory, Module, Result, Store, Val, bail};

/// The preview-1 error `badf`: there are no files.
const BAD_DESCRIPTOR: i32 = 8;
/// The last descriptor of the standard streams, and their type.
const STANDARD_ERROR: u32 = 2;
const CHARACTER_DEVICE: u64 = 2;
/// The time at which the clock starts, in nanoseconds since 1970, and its step at each reading.
const START_NANOSECONDS: u64 = 1_767_225_600_000_000_000;
const STEP_NANOSECONDS: u64 = 1_000;
/// The value of each random byte. Programs that run from the memory have to seed their generators anew.
const RANDOM_BYTE: u8 = 0x42;
/// The end of the text that the module writes, which is kept.
const MAX_LOG_BYTES: usize = 4 << 10;
/// The guest's stack is a part of it.
const THREAD_STACK_BYTES: usize = 16 << 20;
/// More epochs than any program takes. Nothing advances them here.
const NO_DEADLINE: u64 = 1 << 40;

/// The memory of the module could not be taken.
#[derive(Debug, thiserror::Error)]
#[error("the interpreter cannot be started to take its memory")]
pub struct SnapshotError(#[source] BoxedError);

/// The answer to a request of `host::call`; `None` for a request that cannot be answered, which ends the
/// program.
pub type HostCall = Box<dyn Fn(&[u8]) -> Option<Vec<u8>> + Send + Sync>;

struct State {
    now: u64,
    log: Vec<u8>,
}

/// The memory, in bytes, that `interpreter` has after `program`. `host_call` answers its calls of
/// `host::call`.
///
/// The module exports `memory`, `host_alloc(bytes) -> address` and `turn(source, length) -> status`, of which
/// 0 is success. `host::call(request, length, *answer, *answer_length) -> 0` is its only import outside of
/// WASI preview 1.
///
/// # Errors
/// If the module is not of this form, or the program fails: with what it wrote.
pub fn take_memory(
    interpreter: &[u8],
    program: &[u8],
    host_call: HostCall,
) -> std::result::Result<Vec<u8>, SnapshotError> {
    // The calling thread may have less stack than the guest may use.
    std::thread::scope(|scope| {
        let spawned = std::thread::Builder::new().stack_size(THREAD_STACK_BYTES).spawn_scoped(scope, || {
            run(interpreter, program, host_call).map_err(|error| SnapshotError(error.into()))
        });
        let thread = spawned.map_err(|error| SnapshotError(error.into()))?;
        thread.join().map_err(|_| SnapshotError("its thread has panicked".into()))?
    })
}

fn run(interpreter: &[u8], program: &[u8], host_call: HostCall) -> Result<Vec<u8>> {
    let engine = engine::snapshot_engine(CodeFeatures { meters_fuel: false, exceptions: true })?;
    let module = Module::new(&engine, interpreter)?;
    let mut store = Store::new(&engine, State { now: START_NANOSECONDS, log: Vec::new() });
    store.set_epoch_deadline(NO_DEADLINE);
    let instance = instantiate(&module, &mut store, host_call)?;
    let memory = instance.get_memory(&mut store, "memory").context("it has no memory")?;
    let allocate = instance.get_typed_func::<u32, u32>(&mut store, "host_alloc")?;
    let turn = instance.get_typed_func::<(u32, u32), i32>(&mut store, "turn")?;
    let length = u32::try_from(program.len())?;
    let source = allocate.call(&mut store, length)?;
    memory.write(&mut store, offset(source)?, program)?;
    let ended = turn.call(&mut store, (source, length));
    let written = || format!("its program failed, and wrote: {}", String::from_utf8_lossy(&store.data().log));
    match ended {
        Ok(0) => Ok(memory.data(&store).to_vec()),
        Ok(status) => bail!("the status is {status}: {}", written()),
        Err(error) => Err(error.context(written())),
    }
}

fn instantiate(module: &Module, store: &mut Store<State>, host_call: HostCall) -> Result<Instance> {
    let mut untaken = Some(host_call);
    let mut imports = Vec::new();
    for import in module.imports() {
        let ExternType::Func(ty) = import.ty() else { bail!("it imports something that is no function") };
        let function: Import = match (import.module(), import.name()) {
            ("host", "call") => {
                let host_call = untaken.take().context("it imports `host::call` twice")?;
                Box::new(move |caller, parameters| answer_host_call(caller, parameters, &host_call))
            }
            ("wasi_snapshot_preview1", name) => wasi(name),
            (from, name) => bail!("it imports `{from}::{name}`"),
        };
        imports.push(Extern::Func(Func::new(&mut *store, ty, move |mut caller, parameters, results| {
            let parameters = parameters.iter().map(word).collect::<Vec<_>>();
            let value = function(&mut caller, &parameters)?;
            if let Some(result) = results.first_mut() {
                *result = Val::I32(value);
            }
            Ok(())
        })));
    }
    Instance::new(store, module, &imports)
}

type Import = Box<dyn Fn(&mut Caller<'_, State>, &[u32]) -> Result<i32> + Send + Sync>;

/// A parameter as an address or number. No function here needs one of 64 bits.
fn word(value: &Val) -> u32 {
    value.i32().unwrap_or_default().cast_unsigned()
}

fn parameter(parameters: &[u32], index: usize) -> u32 {
    parameters.get(index).copied().unwrap_or_default()
}

fn offset(address: u32) -> Result<usize> {
    Ok(usize::try_from(address)?)
}

fn memory_of(caller: &mut Caller<'_, State>) -> Result<Memory> {
    caller.get_export("memory").and_then(Extern::into_memory).context("it has no memory")
}

/// The function of WASI preview 1 with this name.
fn wasi(name: &str) -> Import {
    match name {
        "clock_time_get" => Box::new(|caller, parameters| {
            caller.data_mut().now += STEP_NANOSECONDS;
            let now = caller.data().now;
            write(caller, parameter(parameters, 2), &now.to_le_bytes())
        }),
        "clock_res_get" => Box::new(|caller, parameters| {
            write(caller, parameter(parameters, 1), &STEP_NANOSECONDS.to_le_bytes())
        }),
        "random_get" => Box::new(|caller, parameters| {
            let bytes = vec![RANDOM_BYTE; offset(parameter(parameters, 1))?];
            write(caller, parameter(parameters, 0), &bytes)
        }),
        "args_sizes_get" | "environ_sizes_get" => Box::new(|caller, parameters| {
            write(caller, parameter(parameters, 0), &[0; 4])?;
            write(caller, parameter(parameters, 1), &[0; 4])
        }),
        "args_get" | "environ_get" | "sched_yield" => Box::new(|_, _| Ok(0)),
        "fd_fdstat_get" => Box::new(describe_descriptor),
        "fd_write" => Box::new(write_log),
        "poll_oneoff" => Box::new(poll),
        "proc_exit" => Box::new(|_, parameters| bail!("it exited with {}", parameter(parameters, 0))),
        _ => Box::new(|_, _| Ok(BAD_DESCRIPTOR)),
    }
}

fn write(caller: &mut Caller<'_, State>, address: u32, bytes: &[u8]) -> Result<i32> {
    memory_of(caller)?.write(&mut *caller, offset(address)?, bytes)?;
    Ok(0)
}

fn read(caller: &mut Caller<'_, State>, address: u32, length: u32) -> Result<Vec<u8>> {
    let memory = memory_of(caller)?;
    let start = offset(address)?;
    let bytes = memory.data(&*caller).get(start..).and_then(|bytes| bytes.get(..offset(length).ok()?));
    Ok(bytes.context("it passed an address outside of its memory")?.to_vec())
}

/// `fd_fdstat_get`: descriptor, and where to write its 24 bytes, which begin with the type.
fn describe_descriptor(caller: &mut Caller<'_, State>, parameters: &[u32]) -> Result<i32> {
    if parameter(parameters, 0) > STANDARD_ERROR {
        return Ok(BAD_DESCRIPTOR);
    }
    // The type without flags, and two words with all rights.
    let words = [CHARACTER_DEVICE, u64::MAX, u64::MAX].map(u64::to_le_bytes);
    write(caller, parameter(parameters, 1), words.as_flattened())
}

/// `poll_oneoff`: subscriptions, where to write events, the number of subscriptions, and where to write that
/// of events. The first subscription is at once an event without an error.
fn poll(caller: &mut Caller<'_, State>, parameters: &[u32]) -> Result<i32> {
    let mut event = read(caller, parameter(parameters, 0), 8)?;
    event.resize(32, 0);
    write(caller, parameter(parameters, 1), &event)?;
    write(caller, parameter(parameters, 3), &1_u32.to_le_bytes())
}

/// `fd_write`: descriptor, buffers, their number, where to write the number of bytes.
fn write_log(caller: &mut Caller<'_, State>, parameters: &[u32]) -> Result<i32> {
    let count = parameter(parameters, 2);
    let buffers = read(caller, parameter(parameters, 1), count.saturating_mul(8))?;
    let mut written = 0_u32;
    for buffer in buffers.chunks_exact(8) {
        let (address, length) = buffer.split_at(4);
        let [address, length] = [address, length].map(|word| word.try_into().map_or(0, u32::from_le_bytes));
        let text = read(caller, address, length)?;
        let log = &mut caller.data_mut().log;
        log.extend(text);
        // The end says why a program failed.
        log.drain(..log.len().saturating_sub(MAX_LOG_BYTES));
        written = written.saturating_add(length);
    }
    write(caller, parameter(parameters, 3), &written.to_le_bytes())
}

/// `host::call`: request, its length, and where to write address and length of the answer.
fn answer_host_call(caller: &mut Caller<'_, State>, parameters: &[u32], host_call: &HostCall) -> Result<i32> {
    let request = read(caller, parameter(parameters, 0), parameter(parameters, 1))?;
    let answer = host_call(&request).context("its program made a request that has no answer here")?;
    let allocate =
        caller.get_export("host_alloc").and_then(Extern::into_func).context("it has no `host_alloc`")?;
    let length = u32::try_from(answer.len())?;
    let address = allocate.typed::<u32, u32>(&*caller)?.call(&mut *caller, length)?;
    write(caller, address, &answer)?;
    write(caller, parameter(parameters, 2), &address.to_le_bytes())?;
    write(caller, parameter(parameters, 3), &length.to_le_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An interpreter whose program is a request, and which keeps the answer, the time and a random byte at
    /// addresses 8, 16 and 24.
    const INTERPRETER: &str = r#"(module
        (import "host" "call" (func $host_call (param i32 i32 i32 i32) (result i32)))
        (import "wasi_snapshot_preview1" "clock_time_get" (func $time (param i32 i64 i32) (result i32)))
        (import "wasi_snapshot_preview1" "random_get" (func $random (param i32 i32) (result i32)))
        (import "wasi_snapshot_preview1" "fd_close" (func $close (param i32) (result i32)))
        (memory (export "memory") 1)
        (global $next (mut i32) (i32.const 1024))
        (func (export "host_alloc") (param i32) (result i32)
            global.get $next
            (global.set $next (i32.add (global.get $next) (local.get 0))))
        (func (export "turn") (param $source i32) (param $length i32) (result i32)
            (drop (call $time (i32.const 0) (i64.const 0) (i32.const 16)))
            (drop (call $random (i32.const 24) (i32.const 1)))
            (if (i32.ne (call $close (i32.const 3)) (i32.const 8)) (then unreachable))
            (call $host_call (local.get $source) (local.get $length) (i32.const 8) (i32.const 12))))"#;

    fn taken(interpreter: &str) -> std::result::Result<Vec<u8>, String> {
        let wasm = wat::parse_str(interpreter).unwrap();
        let host_call = Box::new(|request: &[u8]| (request == b"ask").then(|| b"answer".to_vec()));
        take_memory(&wasm, b"ask", host_call).map_err(|error| format!("{:?}", error.0))
    }

    #[test]
    fn the_memory_is_that_after_the_program_and_the_same_each_time() {
        let memory = taken(INTERPRETER).unwrap();
        assert_eq!(&memory[1024..1033], b"askanswer");
        assert_eq!(memory[8..16], [[3, 4, 0, 0], [6, 0, 0, 0]].concat());
        assert_eq!(memory[16..24], (START_NANOSECONDS + STEP_NANOSECONDS).to_le_bytes());
        assert_eq!(memory[24], RANDOM_BYTE);
        assert_eq!(taken(INTERPRETER).unwrap(), memory);
    }

    #[test]
    fn a_program_that_fails_and_another_module_are_refused() {
        for (from, to, says) in [
            ("(i32.const 8) (i32.const 12))))", "(i32.const -4) (i32.const 12))))", "its program failed"),
            (
                "(i32.const 8) (i32.const 12))))",
                "(i32.const 8) (i32.const 12)) drop i32.const 1))",
                "the status is 1",
            ),
            ("\"host\" \"call\"", "\"host\" \"ask\"", "it imports `host::ask`"),
            ("\"turn\"", "\"step\"", "turn"),
        ] {
            let error = taken(&INTERPRETER.replace(from, to)).unwrap_err();
            assert!(error.contains(says), "{error}");
        }
    }
}
