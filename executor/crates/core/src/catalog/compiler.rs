//! The client of the compiler process, which has limits on CPU, memory and time, no files and no network.
//!
//! A small module can take gigabytes and minutes to compile, and the output is machine code. The process runs
//! this program with the command `compile-module`. Its standard input is the module, and its standard output
//! the code; both are memory files. After a failure, up to [`MAX_ERROR_BYTES`] of standard error are read.

use super::code::{copy, create_sealed, create_sealed_copy, memory_file, seal};
use super::{CatalogError, LARGE_MODULE_BYTES, ModuleFacts};
use a2g_types::quantity::{BYTES_PER_MB, MemoryLimit};
use a2g_types::tool::Contract;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

/// The maximum size of a module, in bytes. `run_python` with its scientific packages has 210 MB.
pub const MAX_MODULE_BYTES: u64 = 256 << 20;
/// The maximum size of a module that is downloaded from a registry, in bytes. A larger one can only be added from a file,
/// and gets more to compile it than the configuration says.
pub const MAX_PULLED_MODULE_BYTES: u64 = 64 << 20;
/// The CPU time, in seconds, and the memory, in MB, that a module above [`MAX_PULLED_MODULE_BYTES`] gets at least.
const MIN_CPU_SECONDS_IF_LARGE: u64 = 300;
const MIN_MEMORY_MB_IF_LARGE: u64 = 3072;
/// The maximum size of the code of one module, in bytes. The compiler process cannot write more.
pub const MAX_CODE_BYTES: u64 = 512 << 20;
/// The maximum number of bytes of standard error that are read.
const MAX_ERROR_BYTES: usize = 4 << 10;
/// The maximum size of the header of [`Compiled`], most of which is a schema.
const MAX_HEADER_BYTES: usize = 2 << 20;
/// The interval between progress messages of a long compilation.
const PROGRESS_INTERVAL: Timespec = Timespec { tv_sec: 5, tv_nsec: 0 };
/// The wall-time limit of a compilation, as a multiple of its CPU-time limit: the process may share its core.
const WALL_PER_CPU: u32 = 10;

/// Limits on one compilation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CompileLimits {
    /// CPU time, in seconds.
    pub cpu_seconds: u64,
    /// The memory limit of the process.
    pub memory: MemoryLimit,
}

impl CompileLimits {
    /// The limits for a module of `bytes` bytes.
    fn for_module(self, bytes: u64) -> Self {
        if bytes <= MAX_PULLED_MODULE_BYTES {
            return self;
        }
        let memory =
            MemoryLimit::from_mb(self.memory.mb().max(MIN_MEMORY_MB_IF_LARGE)).unwrap_or(self.memory);
        Self { cpu_seconds: self.cpu_seconds.max(MIN_CPU_SECONDS_IF_LARGE), memory }
    }
}

/// Compiles modules in separate processes.
#[derive(Debug, Clone)]
pub struct Compiler {
    program: PathBuf,
    options: &'static [&'static str],
    limits: CompileLimits,
}

/// A module to compile.
#[derive(Debug)]
pub struct CompileJob {
    /// The bytes of the module or component.
    pub wasm: Vec<u8>,
    /// The contract that the module must fulfil.
    pub contract: Contract,
}

/// The result of a compilation.
#[derive(Debug)]
pub struct Compiled {
    /// Machine code for one engine, in a sealed memory file.
    pub module: File,
    /// `true` if `module` is a component.
    pub component: bool,
    /// Machine code of the same module as a component, or the reason why there is none; `None` if the module
    /// is a component itself. A core command runs without conversion when whole trees are granted. Other scopes
    /// are enforced only over WASI 0.2, and so need the component.
    pub componentised: Option<Result<File, String>>,
    /// The name, version, description and argument schema that a typed tool reports; `None` for a command, and
    /// for a typed tool that has not been queried yet.
    pub described: Option<[String; 4]>,
    /// The imports and the start memory of the module.
    pub facts: ModuleFacts,
}

#[derive(Debug, Serialize, Deserialize)]
struct CompiledHeader {
    facts: ModuleFacts,
    component: bool,
    described: Option<[String; 4]>,
    module_bytes: u64,
    /// The size of the component's code, which follows the module's, or the reason why there is none.
    componentised: Option<Result<u64, String>>,
}

/// Writes the machine code of one module in the format of [`Compiled::read`]: one line of JSON, the code of the
/// module, and the code of its component form.
///
/// # Errors
/// If `to` cannot be written.
pub fn write_code(
    to: &mut impl Write,
    module: &[u8],
    component: bool,
    componentised: Option<Result<&[u8], &str>>,
    facts: ModuleFacts,
) -> std::io::Result<()> {
    let header = CompiledHeader {
        facts,
        component,
        described: None,
        module_bytes: module.len() as u64,
        componentised: componentised
            .map(|result| result.map(|code| code.len() as u64).map_err(str::to_owned)),
    };
    write_header(to, &header)?;
    to.write_all(module)?;
    match componentised {
        Some(Ok(code)) => to.write_all(code),
        Some(Err(_)) | None => Ok(()),
    }
}

fn write_header(to: &mut impl Write, header: &CompiledHeader) -> std::io::Result<()> {
    serde_json::to_writer(&mut *to, header)?;
    to.write_all(b"\n")
}

impl Compiled {
    /// Writes the format of [`write_code`].
    pub(super) fn write(&self, to: &mut impl Write) -> std::io::Result<()> {
        let componentised = match &self.componentised {
            Some(Ok(code)) => Some(Ok(code.metadata()?.len())),
            Some(Err(reason)) => Some(Err(reason.clone())),
            None => None,
        };
        let module_bytes = self.module.metadata()?.len();
        let described = self.described.clone();
        let facts = self.facts.clone();
        let component = self.component;
        let header = CompiledHeader { facts, component, described, module_bytes, componentised };
        write_header(to, &header)?;
        copy(&self.module, 0, module_bytes, to)?;
        match &self.componentised {
            Some(Ok(code)) => copy(code, 0, code.metadata()?.len(), to),
            Some(Err(_)) | None => Ok(()),
        }
    }

    /// Reads the format of [`write_code`]; `None` for a truncated file or another format.
    pub(super) fn read(file: &File) -> std::io::Result<Option<Self>> {
        let length = file.metadata()?.len();
        let mut start = vec![0; usize::try_from(length).unwrap_or(usize::MAX).min(MAX_HEADER_BYTES)];
        file.read_exact_at(&mut start, 0)?;
        let Some(end) = start.iter().position(|&byte| byte == b'\n') else { return Ok(None) };
        let header = start.get(..end).and_then(|header| serde_json::from_slice(header).ok());
        let Some(CompiledHeader { facts, component, described, module_bytes, componentised }) = header else {
            return Ok(None);
        };
        let first = end as u64 + 1;
        let second = first.saturating_add(module_bytes);
        let component_bytes = componentised.as_ref().map_or(0, |result| *result.as_ref().unwrap_or(&0));
        if second.saturating_add(component_bytes) != length {
            return Ok(None);
        }
        let componentised = match componentised {
            Some(Ok(bytes)) => Some(Ok(create_sealed_copy(file, second, bytes)?)),
            Some(Err(reason)) => Some(Err(reason)),
            None => None,
        };
        let module = create_sealed_copy(file, first, module_bytes)?;
        Ok(Some(Self { module, component, componentised, described, facts }))
    }
}

impl Compiler {
    /// A compiler that starts `program`, which must be this program. `options` are those of its command
    /// `compile-module` that select the features of the code.
    #[must_use]
    pub fn new(program: PathBuf, options: &'static [&'static str], limits: CompileLimits) -> Self {
        Self { program, options, limits }
    }

    /// Compiles one module. `progress` is called every [`PROGRESS_INTERVAL`] with the elapsed seconds.
    ///
    /// # Errors
    /// [`CatalogError::Module`] with the message of the process, or the limit that ended it.
    pub fn run(&self, job: &CompileJob, progress: &dyn Fn(u64)) -> Result<Compiled, CatalogError> {
        let io = |error| CatalogError::io(&self.program, error);
        let stdin = create_sealed(&job.wasm).map_err(io)?;
        let stdout = memory_file().map_err(io)?;
        let stderr = memory_file().map_err(io)?;
        let handle = |file: &File| file.try_clone().map(Stdio::from).map_err(io);
        let limits = self.limits.for_module(job.wasm.len() as u64);
        let CompileLimits { cpu_seconds, memory } = limits;
        let mut child = Command::new(&self.program)
            .args(["compile-module", "--contract", job.contract.as_str()])
            .args(["--cpu-seconds", &cpu_seconds.to_string(), "--memory-mb", &memory.mb().to_string()])
            .args(self.options)
            .args((job.wasm.len() as u64 >= LARGE_MODULE_BYTES).then_some("--low-priority"))
            .env_clear()
            .current_dir("/")
            .stdin(handle(&stdin)?)
            .stdout(handle(&stdout)?)
            .stderr(handle(&stderr)?)
            .spawn()
            .map_err(io)?;
        let status = wait(&mut child, limits, progress);
        if status.is_err() {
            let _already_ended = (child.kill(), child.wait());
        }
        let Some(status) = status.map_err(io)? else {
            return Err(limit_error("more wall time than ten times its CPU time"));
        };
        if !status.success() {
            return Err(exit_error(status, limits, &stderr));
        }
        seal(&stdout).map_err(io)?;
        let compiled = Compiled::read(&stdout).map_err(io)?;
        compiled.ok_or_else(|| CatalogError::Module("the compiler process wrote no valid output".to_owned()))
    }
}

/// Waits for the process to end. Returns `None` if it was killed because it exceeded its wall-time limit.
fn wait(
    child: &mut std::process::Child,
    limits: CompileLimits,
    progress: &dyn Fn(u64),
) -> std::io::Result<Option<ExitStatus>> {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let pidfd = pidfd_open(pid.ok_or(std::io::ErrorKind::NotFound)?, PidfdFlags::empty())?;
    let timeout = Duration::from_secs(limits.cpu_seconds) * WALL_PER_CPU;
    let mut elapsed = Duration::ZERO;
    while elapsed < timeout {
        match poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&PROGRESS_INTERVAL)) {
            Ok(0) => {
                elapsed += Duration::from_secs(PROGRESS_INTERVAL.tv_sec.unsigned_abs());
                progress(elapsed.as_secs());
            }
            Ok(_) => return child.wait().map(Some),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    child.kill()?;
    child.wait().map(|_status| None)
}

/// The error for the exit status of a failed process.
fn exit_error(status: ExitStatus, limits: CompileLimits, stderr: &File) -> CatalogError {
    use std::os::unix::process::ExitStatusExt;
    match status.signal() {
        Some(libc::SIGXCPU | libc::SIGKILL) => {
            let CompileLimits { cpu_seconds, .. } = limits;
            limit_error(&format!("more than {cpu_seconds} s of CPU time (`catalog.compile_seconds`)"))
        }
        Some(libc::SIGABRT | libc::SIGSEGV) => {
            let memory = limits.memory.bytes() / BYTES_PER_MB;
            limit_error(&format!("more than {memory} MB of memory (`catalog.compile_memory_mb`)"))
        }
        Some(libc::SIGSYS) => limit_error("a system call that no compilation needs"),
        Some(libc::SIGXFSZ) => {
            limit_error(&format!("more than {} MB of code", MAX_CODE_BYTES / BYTES_PER_MB))
        }
        Some(signal) => CatalogError::Module(format!("the compiler process was killed by signal {signal}")),
        None if status.code() == Some(PANIC_EXIT_CODE) => {
            tracing::warn!(panic = error_text(stderr), "the compiler panicked on a module");
            CatalogError::Module(COMPILER_DEFECT.to_owned())
        }
        None => CatalogError::Module(error_text(stderr)),
    }
}

fn limit_error(excess: &str) -> CatalogError {
    CatalogError::Module(format!("compiling the module took {excess}"))
}

/// The exit code of a Rust program that panics.
const PANIC_EXIT_CODE: i32 = 101;
/// The reason for a module on which the compiler panics. The text of the panic names files of the build machine.
const COMPILER_DEFECT: &str = "the compiler has a bug and panicked on this module (the log has the details): build the module \
                               differently, or with other versions of its tools";

/// The message on standard error.
fn error_text(stderr: &File) -> String {
    let mut bytes = vec![0; MAX_ERROR_BYTES];
    let length = stderr.read_at(&mut bytes, 0).unwrap_or(0);
    let text = String::from_utf8_lossy(bytes.get(..length).unwrap_or_default()).into_owned();
    match text.trim().trim_start_matches("error: ") {
        "" => "the compiler process failed".to_owned(),
        message => message.chars().take(1000).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(file: &File) -> Vec<u8> {
        let mut bytes = Vec::new();
        copy(file, 0, file.metadata().unwrap().len(), &mut bytes).unwrap();
        bytes
    }

    #[test]
    fn a_truncated_file_is_not_read_as_a_compiled_module() {
        for componentised in [None, Some(Ok(&b"more\n"[..])), Some(Err("no"))] {
            let mut code = Vec::new();
            let facts = ModuleFacts { start_memory_bytes: 7, ..Default::default() };
            write_code(&mut code, b"\n\0code", true, componentised, facts.clone()).unwrap();
            let read = Compiled::read(&create_sealed(&code).unwrap()).unwrap().unwrap();
            assert_eq!((bytes(&read.module), read.component), (b"\n\0code".to_vec(), true));
            let component =
                read.componentised.as_ref().map(|result| result.as_ref().map(bytes).map_err(String::as_str));
            assert_eq!(component, componentised.map(|result| result.map(<[u8]>::to_vec)));
            let mut copy = Vec::new();
            let described = Some(["a", "b", "c", "{}"].map(String::from));
            Compiled { described: described.clone(), ..read }.write(&mut copy).unwrap();
            let read = Compiled::read(&create_sealed(&copy).unwrap()).unwrap().unwrap();
            assert_eq!((bytes(&read.module), read.described), (b"\n\0code".to_vec(), described));
            assert_eq!(read.facts, facts);
            let truncated = &code[..code.len() - 1];
            assert!(Compiled::read(&create_sealed(truncated).unwrap()).unwrap().is_none());
        }
        assert!(Compiled::read(&create_sealed(b"").unwrap()).unwrap().is_none());
        assert!(Compiled::read(&create_sealed(b"{}\n").unwrap()).unwrap().is_none());
    }

    #[test]
    fn a_large_module_gets_what_it_needs_and_never_less_than_configured() {
        let limits = |cpu_seconds, memory_mb| {
            let memory = MemoryLimit::from_mb(memory_mb).unwrap();
            CompileLimits { cpu_seconds, memory }
        };
        let small = MAX_PULLED_MODULE_BYTES;
        assert_eq!(limits(60, 1024).for_module(small), limits(60, 1024));
        assert_eq!(limits(60, 1024).for_module(small + 1), limits(300, 3072));
        assert_eq!(limits(600, 4096).for_module(MAX_MODULE_BYTES), limits(600, 4096));
    }

    #[test]
    fn sealed_code_cannot_be_changed() {
        let mut file = create_sealed(b"code").unwrap();
        assert!(file.write_all(b"x").is_err() && file.set_len(0).is_err());
    }
}
