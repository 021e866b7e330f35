//! A guest that takes the steps of its arguments, on files and by calls of other tools, and tells what each of them
//! brought. In the tests it is both a program and the calls that the program makes.

use a2g_guest_sdk::prelude::*;
use a2g_guest_sdk::{StartedCall, Tools};
use std::collections::{BTreeMap, HashMap};
use std::fs::{self, DirEntry, File, OpenOptions, ReadDir};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// The time between two looks at a file that is waited for.
const LOOK_INTERVAL: Duration = Duration::from_millis(10);

/// Takes steps.
#[derive(Arguments)]
struct TakeSteps {
    /// The steps, one after another: each is a word, and what it is about.
    #[serde(default)]
    steps: Vec<Vec<Value>>,
    /// The grant that the governor of the tests gives to this call.
    #[serde(default, rename = "grant")]
    _grant: Value,
    /// What a tool with settings gets beside the arguments of a call.
    #[serde(default)]
    settings: Value,
    /// The arguments of such a call.
    #[serde(default)]
    arguments: Value,
}

/// All that stays for the next call of a session.
struct Kept {
    texts: Vec<String>,
    files: BTreeMap<String, File>,
    memory: Vec<Vec<u8>>,
}

static KEPT: Mutex<Kept> = Mutex::new(Kept { texts: Vec::new(), files: BTreeMap::new(), memory: Vec::new() });

fn kept() -> MutexGuard<'static, Kept> {
    KEPT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The reason why a step brought nothing.
enum Failure {
    /// The error of a file or folder.
    File(io::Error),
    /// The error of a call.
    Call(ToolError),
    /// The error with which the run ends.
    Run(ToolError),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::File(error)
    }
}

/// One step.
struct Step<'s>(&'s [Value]);

impl<'s> Step<'s> {
    fn get(&self, index: usize) -> Result<&'s Value, Failure> {
        self.0.get(index).ok_or_else(|| self.invalid())
    }

    fn text(&self, index: usize) -> Result<&'s str, Failure> {
        self.get(index)?.as_str().ok_or_else(|| self.invalid())
    }

    fn number(&self, index: usize) -> Result<u64, Failure> {
        self.get(index)?.as_u64().ok_or_else(|| self.invalid())
    }

    fn invalid(&self) -> Failure {
        Failure::Run(ToolError::new("invalid_step", format!("this is no step: {:?}", self.0)))
    }

    /// The failure of a step that names nothing open: what was to be opened may have been missing.
    fn not_open(&self) -> Failure {
        Failure::File(io::ErrorKind::InvalidInput.into())
    }
}

/// All that a run has open.
struct Walk<'t> {
    settings: Value,
    tools: Tools<'t>,
    files: HashMap<String, File>,
    folders: HashMap<String, ReadDir>,
    calls: HashMap<String, StartedCall<'t>>,
}

impl Walk<'_> {
    fn take(&mut self, step: &Step<'_>) -> Result<Value, Failure> {
        match step.text(0)? {
            // Paths.
            "write" => done(fs::write(step.text(1)?, step.text(2)?)),
            "create" => {
                let mut file = OpenOptions::new().write(true).create_new(true).open(step.text(1)?)?;
                done(file.write_all(step.text(2)?.as_bytes()))
            }
            "append" => {
                let mut file = OpenOptions::new().append(true).open(step.text(1)?)?;
                done(file.write_all(step.text(2)?.as_bytes()))
            }
            "read" => read(&mut File::open(step.text(1)?)?),
            // All files of a folder. Brings their number.
            "read_each" => {
                let mut count = 0_u32;
                for entry in fs::read_dir(step.text(1)?)? {
                    read(&mut File::open(entry?.path())?)?;
                    count += 1;
                }
                Ok(count.into())
            }
            "size" => Ok(fs::metadata(step.text(1)?)?.len().into()),
            "remove" => done(fs::remove_file(step.text(1)?)),
            "rename" => done(fs::rename(step.text(1)?, step.text(2)?)),
            "make_folder" => done(fs::create_dir(step.text(1)?)),
            "remove_folder" => done(fs::remove_dir(step.text(1)?)),
            "list" => list(&mut fs::read_dir(step.text(1)?)?),
            "wait_for" => {
                while fs::metadata(step.text(1)?).is_err() {
                    thread::sleep(LOOK_INTERVAL);
                }
                Ok(Value::Null)
            }
            // Open files and folders: a name, and what is to be opened.
            "open" => {
                let file = OpenOptions::new().read(true).write(step.text(3)? == "rw").open(step.text(2)?)?;
                self.files.insert(step.text(1)?.to_owned(), file);
                Ok(Value::Null)
            }
            "read_open" => {
                let file = self.file(step)?;
                file.seek(SeekFrom::Start(0))?;
                read(file)
            }
            "write_open" => {
                let file = self.file(step)?;
                file.seek(SeekFrom::Start(step.number(2)?))?;
                done(file.write_all(step.text(3)?.as_bytes()))
            }
            "size_open" => Ok(self.file(step)?.metadata()?.len().into()),
            "close" => {
                drop(self.files.remove(step.text(1)?).ok_or_else(|| step.not_open())?);
                Ok(Value::Null)
            }
            "open_folder" => {
                self.folders.insert(step.text(1)?.to_owned(), fs::read_dir(step.text(2)?)?);
                Ok(Value::Null)
            }
            "list_open" => list(self.folders.get_mut(step.text(1)?).ok_or_else(|| step.not_open())?),
            // Calls.
            "call" => self.tools.call(step.text(1)?, step.get(2)?).map_err(Failure::Call),
            "start" => {
                let call = self.tools.start(step.text(2)?, step.get(3)?).map_err(Failure::Call)?;
                self.calls.insert(step.text(1)?.to_owned(), call);
                Ok(Value::Null)
            }
            "wait" => {
                let call = self.calls.remove(step.text(1)?).ok_or_else(|| step.not_open())?;
                call.wait().map_err(Failure::Call)
            }
            "all" => self.call_all(step),
            "settings" => Ok(self.settings.clone()),
            // Computes for so many milliseconds.
            "work" => {
                work(Duration::from_millis(step.number(1)?));
                Ok(Value::Null)
            }
            // Ends.
            "sleep" => {
                thread::sleep(Duration::from_millis(step.number(1)?));
                Ok(Value::Null)
            }
            "fail" => Err(Failure::Run(ToolError::new(step.text(1)?, "this is what the step says"))),
            "exit" => std::process::exit(i32::try_from(step.number(1)?).unwrap_or(1)),
            "trap" => std::process::abort(),
            "spin" => loop {
                std::hint::spin_loop();
            },
            _ => self.keep(step),
        }
    }

    /// Keeps something for the next call of a session, or takes what an earlier one has kept.
    fn keep(&mut self, step: &Step<'_>) -> Result<Value, Failure> {
        match step.text(0)? {
            // A text that stays for the next call of a session. Brings all texts so far.
            "keep" => {
                let mut all = kept();
                all.texts.push(step.text(1)?.to_owned());
                Ok(json!(all.texts))
            }
            "keep_file" => {
                let name = step.text(1)?;
                let file = self.files.remove(name).ok_or_else(|| step.not_open())?;
                kept().files.insert(name.to_owned(), file);
                Ok(Value::Null)
            }
            "kept_file" => {
                let name = step.text(1)?;
                let file = kept().files.remove(name).ok_or_else(|| step.not_open())?;
                self.files.insert(name.to_owned(), file);
                Ok(Value::Null)
            }
            // Megabytes, of which no page is empty.
            "keep_memory" => {
                let megabytes = usize::try_from(step.number(1)?).unwrap_or_default();
                kept().memory.push(vec![1; megabytes << 20]);
                Ok(Value::Null)
            }
            _ => Err(step.invalid()),
        }
    }

    fn file(&mut self, step: &Step<'_>) -> Result<&mut File, Failure> {
        self.files.get_mut(step.text(1)?).ok_or_else(|| step.not_open())
    }

    /// Starts several calls at once, each a tool and its arguments, and waits for all of them.
    fn call_all(&self, step: &Step<'_>) -> Result<Value, Failure> {
        let mut calls = Vec::new();
        for call in step.get(1)?.as_array().ok_or_else(|| step.invalid())? {
            let words = Step(call.as_array().ok_or_else(|| step.invalid())?);
            calls.push((words.text(0)?, words.get(1)?));
        }
        let outcomes = self.tools.all(calls).map_err(Failure::Call)?;
        let told = outcomes.into_iter().map(|outcome| tell(outcome.map_err(Failure::Call)));
        told.collect::<Result<Value, _>>().map_err(Failure::Run)
    }
}

#[allow(clippy::disallowed_methods, reason = "a guest has no other clock")]
fn work(time: Duration) {
    let begun = Instant::now();
    while begun.elapsed() < time {
        std::hint::spin_loop();
    }
}

fn done(result: io::Result<()>) -> Result<Value, Failure> {
    result?;
    Ok(Value::Null)
}

/// Reads a file from where it stands. Nothing is asked of the file but its bytes.
fn read(file: &mut File) -> Result<Value, Failure> {
    let mut bytes = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let length = file.read(&mut buffer)?;
        match buffer.get(..length) {
            Some(piece) if !piece.is_empty() => bytes.extend_from_slice(piece),
            Some(_) | None => return Ok(String::from_utf8_lossy(&bytes).into()),
        }
    }
}

fn list(folder: &mut ReadDir) -> Result<Value, Failure> {
    let name = |entry: DirEntry| entry.file_name().to_string_lossy().into_owned();
    let mut names = folder.map(|entry| entry.map(name)).collect::<io::Result<Vec<_>>>()?;
    names.sort_unstable();
    Ok(names.into())
}

fn tell(outcome: Result<Value, Failure>) -> Result<Value, ToolError> {
    match outcome {
        Ok(value) => Ok(value),
        Err(Failure::File(error)) => Ok(json!({ "failed": format!("{:?}", error.kind()) })),
        Err(Failure::Call(error)) => Ok(json!({
            "failed": error.code(), "message": error.message(), "detail": error.detail(),
        })),
        Err(Failure::Run(error)) => Err(error),
    }
}

fn take_steps(ctx: &mut Context, arguments: TakeSteps) -> Result<Value, ToolError> {
    let TakeSteps { mut steps, settings, arguments, .. } = arguments;
    // A tool with settings.
    for step in arguments.get("steps").and_then(Value::as_array).into_iter().flatten() {
        steps.push(step.as_array().cloned().unwrap_or_default());
    }
    let mut walk = Walk {
        settings,
        tools: ctx.tools(),
        files: HashMap::new(),
        folders: HashMap::new(),
        calls: HashMap::new(),
    };
    let told = steps.iter().map(|step| tell(walk.take(&Step(step))));
    Ok(json!({ "steps": told.collect::<Result<Value, _>>()? }))
}

export_tool!(
    take_steps,
    description = "Takes the steps of its arguments, and tells what each of them brought"
);
