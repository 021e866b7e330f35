//! Compilation, in a child process with limits on CPU, memory and time.
//!
//! A small module can take gigabytes and minutes to compile. The child is this same program with the
//! command `compile-module`; it reads the module on standard input and answers on standard output.

use super::CatalogError;
use crate::tool::Contract;
use serde::{Deserialize, Serialize};
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// The largest module that is compiled, in bytes.
pub(super) const MOST_MODULE_BYTES: usize = 64 << 20;

/// Starts the compiler's process.
#[derive(Debug, Clone)]
pub struct Compiler {
    program: PathBuf,
    meters_fuel: bool,
}

/// What is to be compiled.
#[derive(Debug)]
pub struct CompileJob {
    /// The module or component.
    pub wasm: Vec<u8>,
    /// The contract that it should fit.
    pub contract: Contract,
}

/// What a compilation gives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Compiled {
    /// Machine code for one engine.
    pub module: Vec<u8>,
    /// Whether it is a component.
    pub component: bool,
    /// Machine code of the same module as a component, or why it cannot be made one. `None` for what is
    /// a component anyway.
    pub componentised: Option<Result<Vec<u8>, String>>,
    /// A typed tool's own name, version, description and argument schema.
    pub described: Option<[String; 4]>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Header {
    component: bool,
    described: Option<[String; 4]>,
    module_bytes: usize,
    /// How many bytes follow the module.
    componentised: Option<Result<usize, String>>,
}

impl Compiled {
    /// One line of JSON, the module, and the component that was made of it.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let header = Header {
            component: self.component,
            described: self.described.clone(),
            module_bytes: self.module.len(),
            componentised: self.componentised.as_ref().map(|made| match made {
                Ok(component) => Ok(component.len()),
                Err(reason) => Err(reason.clone()),
            }),
        };
        let mut bytes = serde_json::to_vec(&header).unwrap_or_default();
        bytes.push(b'\n');
        bytes.extend_from_slice(&self.module);
        bytes.extend(self.componentised.iter().flatten().flatten());
        bytes
    }

    /// Reads what [`Self::encode`] wrote; `None` when it was cut or is something else.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let end = bytes.iter().position(|&byte| byte == b'\n')?;
        let (header, code) = (bytes.get(..end)?, bytes.get(end + 1..)?);
        let Header { component, described, module_bytes, componentised } =
            serde_json::from_slice(header).ok()?;
        let (module, rest) = code.split_at_checked(module_bytes)?;
        let expected = componentised.as_ref().map_or(0, |made| made.as_ref().map_or(0, |bytes| *bytes));
        let componentised = componentised.map(|made| made.map(|_bytes| rest.to_vec()));
        let whole = rest.len() == expected;
        whole.then(|| Self { module: module.to_vec(), component, componentised, described })
    }
}

impl Compiler {
    /// A compiler that starts `program`, which has to be this program, for an engine that counts
    /// instructions when it `meters_fuel`.
    #[must_use]
    pub fn new(program: PathBuf, meters_fuel: bool) -> Self {
        Self { program, meters_fuel }
    }

    /// Compiles one module.
    ///
    /// # Errors
    /// [`CatalogError::Module`] with the child's own words, or with the limit that ended it.
    pub fn run(&self, job: &CompileJob) -> Result<Compiled, CatalogError> {
        if job.wasm.len() > MOST_MODULE_BYTES {
            return Err(CatalogError::Module(format!(
                "the module has {} bytes, and {MOST_MODULE_BYTES} are the most that is compiled",
                job.wasm.len()
            )));
        }
        let io = |error| CatalogError::io(&self.program, error);
        let mut child = Command::new(&self.program)
            .args(["compile-module", "--contract", job.contract.as_str()])
            .args(self.meters_fuel.then_some("--fuel"))
            .env_clear()
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(io)?;
        // Fed from a thread, while both of its outputs are drained: neither side can lock up. A child
        // that ended early closes the pipe; its own words say why.
        let stdin = child.stdin.take();
        let output = std::thread::scope(|scope| {
            scope.spawn(|| stdin.map(|mut stdin| stdin.write_all(&job.wasm)));
            child.wait_with_output()
        })
        .map_err(io)?;
        if !output.status.success() {
            return Err(CatalogError::Module(reason(&output)));
        }
        Compiled::decode(&output.stdout)
            .ok_or_else(|| CatalogError::Module("the compiler's process gave no answer".to_owned()))
    }
}

fn reason(output: &std::process::Output) -> String {
    use std::os::unix::process::ExitStatusExt;
    let said = String::from_utf8_lossy(&output.stderr);
    match output.status.signal() {
        Some(signal) => {
            format!("compiling the module took more than its limit of CPU, memory or time (signal {signal})")
        }
        None if said.trim().is_empty() => "the compiler's process failed".to_owned(),
        None => said.trim().trim_start_matches("error: ").chars().take(1000).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_file_is_no_compiled_module() {
        let described = Some(["a", "b", "c", "{}"].map(String::from));
        for componentised in [None, Some(Ok(b"more\n".to_vec())), Some(Err("no".to_owned()))] {
            let described = described.clone();
            let compiled =
                Compiled { module: b"\n\0code".to_vec(), component: true, componentised, described };
            let bytes = compiled.encode();
            assert_eq!(Compiled::decode(&bytes), Some(compiled));
            assert_eq!(Compiled::decode(&bytes[..bytes.len() - 1]), None);
        }
        assert_eq!(Compiled::decode(b""), None);
    }
}
