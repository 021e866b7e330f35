//! The wall clock of one server, as a test wants it: by libfaketime, of Debian's package `faketime`.
//!
//! The monotonic clock stays the machine's, as it does when somebody sets the time of a real machine. The
//! processes of guests have an empty environment, so they keep the machine's time as well.

use super::{Options, print_skipped, program};
use std::path::PathBuf;
use std::process::{Command, Output};
use tempfile::TempDir;

/// A wall clock that is so and so far from the machine's.
pub struct WallClock {
    folder: TempDir,
    library: PathBuf,
}

impl WallClock {
    /// `None`, with the test named on standard error, where the library is not installed.
    pub fn new() -> Option<Self> {
        let libraries = std::fs::read_dir("/usr/lib").expect("a folder");
        // The one for programs with several threads.
        let library = libraries
            .map(|entry| entry.expect("an entry").path().join("faketime/libfaketimeMT.so.1"))
            .find(|library| library.is_file());
        let Some(library) = library else {
            print_skipped("there is no libfaketime here");
            return None;
        };
        let clock = Self { folder: tempfile::tempdir().expect("a temp folder"), library };
        clock.set(0);
        Some(clock)
    }

    /// Sets it, also for servers that run already: so many seconds from the machine's.
    pub fn set(&self, seconds: i64) {
        let file = self.file();
        let new = self.folder.path().join("new");
        std::fs::write(&new, format!("{seconds:+}\n")).expect("a file");
        // It is read at any moment, and never in part.
        std::fs::rename(new, file).expect("a file");
    }

    /// An executor that goes by it.
    pub fn for_server(&self, options: Options) -> Options {
        self.environment()
            .into_iter()
            .fold(options, |options, (name, value)| options.environment(name, &value))
    }

    /// Runs the binary to its end by it.
    pub fn run(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(program());
        command.args(arguments).envs(self.environment()).env_remove("RUST_LOG");
        command.output().expect("the executor starts")
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("offset")
    }

    fn environment(&self) -> [(&'static str, String); 4] {
        let text = |path: PathBuf| path.to_str().expect("UTF-8").to_owned();
        [
            ("LD_PRELOAD", text(self.library.clone())),
            ("FAKETIME_TIMESTAMP_FILE", text(self.file())),
            ("FAKETIME_NO_CACHE", "1".to_owned()),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
        ]
    }
}
