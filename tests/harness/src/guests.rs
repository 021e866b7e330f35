//! Hostile guests in WebAssembly text.
//!
//! A guest is a preview 1 command around a body of its own. It notes numbers (error numbers of host
//! calls, mostly) with `$note`, and prints them as one JSON array when the body comes to its end,
//! so that a test reads what the guest itself saw. In a body, `@"some text"` stands for the two
//! constants that every host call wants: where the text is in memory, and its length.

/// Start of the texts in memory. Below are the scratch of host calls, the notes and the printed array.
const FIRST_TEXT: usize = 16 << 10;

/// The prelude of every guest: the host calls that the tests use, and small wrappers around them.
///
/// Memory: 0 vectors and results of host calls, 1024 notes, 8192 the printed array.
const WORDS: &str = r#"
(func $exit (import "wasi_snapshot_preview1" "proc_exit") (param i32))
(func $fd_write (import "wasi_snapshot_preview1" "fd_write") (param i32 i32 i32 i32) (result i32))
(func $fd_read (import "wasi_snapshot_preview1" "fd_read") (param i32 i32 i32 i32) (result i32))
(func $fd_close (import "wasi_snapshot_preview1" "fd_close") (param i32) (result i32))
(func $fd_renumber (import "wasi_snapshot_preview1" "fd_renumber") (param i32 i32) (result i32))
(func $fd_prestat (import "wasi_snapshot_preview1" "fd_prestat_get") (param i32 i32) (result i32))
(func $fd_prestat_name (import "wasi_snapshot_preview1" "fd_prestat_dir_name") (param i32 i32 i32) (result i32))
(func $fd_fdstat (import "wasi_snapshot_preview1" "fd_fdstat_get") (param i32 i32) (result i32))
(func $fd_set_size (import "wasi_snapshot_preview1" "fd_filestat_set_size") (param i32 i64) (result i32))
(func $fd_pwrite (import "wasi_snapshot_preview1" "fd_pwrite")
  (param i32 i32 i32 i64 i32) (result i32))
(func $fd_set_times (import "wasi_snapshot_preview1" "fd_filestat_set_times")
  (param i32 i64 i64 i32) (result i32))
(func $fd_allocate (import "wasi_snapshot_preview1" "fd_allocate") (param i32 i64 i64) (result i32))
(func $fd_readdir (import "wasi_snapshot_preview1" "fd_readdir") (param i32 i32 i32 i64 i32) (result i32))
(func $path_open (import "wasi_snapshot_preview1" "path_open")
  (param i32 i32 i32 i32 i32 i64 i64 i32 i32) (result i32))
(func $path_stat (import "wasi_snapshot_preview1" "path_filestat_get")
  (param i32 i32 i32 i32 i32) (result i32))
(func $path_set_times (import "wasi_snapshot_preview1" "path_filestat_set_times")
  (param i32 i32 i32 i32 i64 i64 i32) (result i32))
(func $path_readlink (import "wasi_snapshot_preview1" "path_readlink")
  (param i32 i32 i32 i32 i32 i32) (result i32))
(func $path_mkdir (import "wasi_snapshot_preview1" "path_create_directory") (param i32 i32 i32) (result i32))
(func $path_rmdir (import "wasi_snapshot_preview1" "path_remove_directory") (param i32 i32 i32) (result i32))
(func $path_unlink (import "wasi_snapshot_preview1" "path_unlink_file") (param i32 i32 i32) (result i32))
(func $path_rename (import "wasi_snapshot_preview1" "path_rename")
  (param i32 i32 i32 i32 i32 i32) (result i32))
(func $path_link (import "wasi_snapshot_preview1" "path_link")
  (param i32 i32 i32 i32 i32 i32 i32) (result i32))
(func $path_symlink (import "wasi_snapshot_preview1" "path_symlink")
  (param i32 i32 i32 i32 i32) (result i32))
(func $poll (import "wasi_snapshot_preview1" "poll_oneoff") (param i32 i32 i32 i32) (result i32))
(func $random (import "wasi_snapshot_preview1" "random_get") (param i32 i32) (result i32))
(func $clock (import "wasi_snapshot_preview1" "clock_time_get") (param i32 i64 i32) (result i32))
(func $environ_sizes (import "wasi_snapshot_preview1" "environ_sizes_get") (param i32 i32) (result i32))
(func $args_sizes (import "wasi_snapshot_preview1" "args_sizes_get") (param i32 i32) (result i32))
(func $sock_accept (import "wasi_snapshot_preview1" "sock_accept") (param i32 i32 i32) (result i32))
(func $sock_send (import "wasi_snapshot_preview1" "sock_send")
  (param i32 i32 i32 i32 i32) (result i32))
(memory (export "memory") {memory})

(global $noted (mut i32) (i32.const 0))
(global $printed (mut i32) (i32.const 8192))

;; Keeps a number for the printed array; at most a thousand of them.
(func $note (param $number i32)
  (i32.store (i32.add (i32.const 1024) (i32.shl (global.get $noted) (i32.const 2))) (local.get $number))
  (global.set $noted (i32.add (global.get $noted) (i32.const 1))))

(func $write (param $fd i32) (param $at i32) (param $length i32) (result i32)
  (i32.store (i32.const 0) (local.get $at))
  (i32.store (i32.const 4) (local.get $length))
  (call $fd_write (local.get $fd) (i32.const 0) (i32.const 1) (i32.const 8)))
(func $say (param $at i32) (param $length i32)
  (drop (call $write (i32.const 1) (local.get $at) (local.get $length))))
(func $cry (param $at i32) (param $length i32)
  (drop (call $write (i32.const 2) (local.get $at) (local.get $length))))
(func $read (param $fd i32) (param $at i32) (param $length i32) (result i32)
  (i32.store (i32.const 0) (local.get $at))
  (i32.store (i32.const 4) (local.get $length))
  (call $fd_read (local.get $fd) (i32.const 0) (i32.const 1) (i32.const 8)))

;; Opening leaves the new descriptor in `$fd`. Flags: 1 create, 2 directory, 4 exclusive, 8 truncate.
(global $fd (mut i32) (i32.const -1))
(func $open_with (param $root i32) (param $at i32) (param $length i32) (param $flags i32) (param $rights i64)
  (result i32) (local $error i32)
  (local.set $error (call $path_open (local.get $root) (i32.const 1) (local.get $at) (local.get $length)
    (local.get $flags) (local.get $rights) (i64.const 0) (i32.const 0) (i32.const 16)))
  (if (i32.eqz (local.get $error)) (then (global.set $fd (i32.load (i32.const 16)))))
  (local.get $error))
(func $open (param $root i32) (param $at i32) (param $length i32) (result i32)
  (call $open_with (local.get $root) (local.get $at) (local.get $length) (i32.const 0) (i64.const 0x2)))
(func $open_dir (param $root i32) (param $at i32) (param $length i32) (result i32)
  (call $open_with (local.get $root) (local.get $at) (local.get $length) (i32.const 2) (i64.const 0x4000)))
(func $open_rw (param $root i32) (param $at i32) (param $length i32) (result i32)
  (call $open_with (local.get $root) (local.get $at) (local.get $length) (i32.const 0) (i64.const 0x42)))
(func $create (param $root i32) (param $at i32) (param $length i32) (result i32)
  (call $open_with (local.get $root) (local.get $at) (local.get $length) (i32.const 1) (i64.const 0x42)))

;; Waits on the monotonic clock.
(func $sleep (param $nanoseconds i64) (result i32)
  (memory.fill (i32.const 64) (i32.const 0) (i32.const 48))
  (i32.store (i32.const 80) (i32.const 1))
  (i64.store (i32.const 88) (local.get $nanoseconds))
  (call $poll (i32.const 64) (i32.const 128) (i32.const 1) (i32.const 8)))
;; Computes until the monotonic clock has gone on by so much.
(func $be_busy (param $nanoseconds i64) (local $end i64) (local $spin i32)
  (drop (call $clock (i32.const 1) (i64.const 1) (i32.const 32)))
  (local.set $end (i64.add (i64.load (i32.const 32)) (local.get $nanoseconds)))
  (loop $more
    (local.set $spin (i32.const 100000))
    (loop $spinning
      (br_if $spinning (local.tee $spin (i32.sub (local.get $spin) (i32.const 1)))))
    (drop (call $clock (i32.const 1) (i64.const 1) (i32.const 32)))
    (br_if $more (i64.lt_u (i64.load (i32.const 32)) (local.get $end)))))

(func $print_byte (param $byte i32)
  (i32.store8 (global.get $printed) (local.get $byte))
  (global.set $printed (i32.add (global.get $printed) (i32.const 1))))
(func $print_number (param $number i32)
  (if (i32.ge_u (local.get $number) (i32.const 10))
    (then (call $print_number (i32.div_u (local.get $number) (i32.const 10)))))
  (call $print_byte (i32.add (i32.const 48) (i32.rem_u (local.get $number) (i32.const 10)))))
(func $print_notes (local $index i32)
  (call $print_byte (i32.const 91))
  (block $done (loop $next
    (br_if $done (i32.ge_u (local.get $index) (global.get $noted)))
    (if (local.get $index) (then (call $print_byte (i32.const 44))))
    (call $print_number (i32.load (i32.add (i32.const 1024) (i32.shl (local.get $index) (i32.const 2)))))
    (local.set $index (i32.add (local.get $index) (i32.const 1)))
    (br $next)))
  (call $print_byte (i32.const 93))
  (call $say (i32.const 8192) (i32.sub (global.get $printed) (i32.const 8192))))
"#;

/// A preview 1 command, in the making.
pub struct Guest {
    memory: String,
    beside: String,
    body: String,
    prints_notes: bool,
}

impl Guest {
    /// A command that does `body` and then prints its notes. It has two pages of memory.
    pub fn new(body: impl Into<String>) -> Self {
        Self { memory: "2".to_owned(), beside: String::new(), body: body.into(), prints_notes: true }
    }

    /// The limits of its memory, in pages of 64 KiB, instead of `2`.
    pub fn memory(self, pages: impl ToString) -> Self {
        Self { memory: pages.to_string(), ..self }
    }

    /// More memories, tables, functions or globals.
    pub fn beside(self, fields: &str) -> Self {
        Self { beside: fields.to_owned(), ..self }
    }

    /// The body alone says what goes to standard output.
    pub fn silent(self) -> Self {
        Self { prints_notes: false, ..self }
    }

    /// The module.
    pub fn wasm(&self) -> Vec<u8> {
        let Self { memory, beside, body, prints_notes } = self;
        let (texts, body) = place_texts(body);
        let last = if *prints_notes { "(call $print_notes)" } else { "" };
        let words = WORDS.replace("{memory}", memory);
        wasm(&format!("(module {words} {texts} {beside} (func (export \"_start\") {body} {last}))"))
    }
}

/// A module or component from its text.
pub fn wasm(text: &str) -> Vec<u8> {
    wat::parse_str(text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// Does `first`, and then something so often. It begins with the local `$left`, which counts down to 0.
pub fn repeat(first: &str, times: u64, what: &str) -> String {
    format!(
        "(local $left i32)
        (local.set $left (i32.const {times}))
        {first}
        (loop $more {what} (br_if $more (local.tee $left (i32.sub (local.get $left) (i32.const 1)))))"
    )
}

/// Polls a list of so many equal subscriptions: the monotonic clock, in no time at all. It needs 80 bytes of memory
/// from 65,536 on for each.
pub fn poll(count: u32) -> String {
    let fill = "(i32.store offset=16 (local.get $at) (i32.const 1))
        (local.set $at (i32.add (local.get $at) (i32.const 48)))";
    format!(
        "(local $at i32) {}
        (call $note (call $poll (i32.const 65536) (local.get $at) (i32.const {count}) (i32.const 8)))",
        repeat("(local.set $at (i32.const 65536))", count.into(), fill)
    )
}

/// A component, a command whose `run` does `body`. Its core module has what `before` declares under these names:
/// core functions, each with its signature, or a `memory`.
pub fn component(before: &str, imports: &[(&str, &str)], body: &str) -> Vec<u8> {
    let mut imported = String::new();
    let mut given = String::new();
    for (name, signature) in imports {
        let kind = if *name == "memory" { "memory" } else { "func" };
        imported += &format!("(import \"host\" \"{name}\" ({kind} ${name} {signature}))");
        given += &format!("(export \"{name}\" ({kind} ${name}))");
    }
    wasm(&format!(
        r#"(component {before}
            (core module $m {imported} (func (export "run") (result i32) {body} (i32.const 0)))
            (core instance $i (instantiate $m (with "host" (instance {given}))))
            (func $run (result (result)) (canon lift (core func $i "run")))
            (instance $command (export "run" (func $run)))
            (export "wasi:cli/run@0.2.0" (instance $command)))"#
    ))
}

/// Declares pollables, `more` of their functions, and `$subscribe`, which makes one of the monotonic clock.
pub fn pollables(more: &str) -> String {
    format!(
        r#"(import "wasi:io/poll@0.2.0" (instance $poll
          (export "pollable" (type $pollable (sub resource))) {more}))
        (alias export $poll "pollable" (type $pollable))
        (import "wasi:clocks/monotonic-clock@0.2.0" (instance $clock
          (alias outer 1 $pollable (type $outer))
          (export "pollable" (type $pollable (eq $outer)))
          (export "subscribe-duration" (func (param "when" u64) (result (own $pollable))))))
        (core func $subscribe (canon lower (func $clock "subscribe-duration")))"#
    )
}

/// The import of a core function that [`pollables`] declares.
pub const SUBSCRIBE: (&str, &str) = ("subscribe", "(param i64) (result i32)");

/// A component that polls one pollable, listed so many times, and has so many pages of memory, the last half of
/// them for the answer.
pub fn component_poll(times: u32, pages: u32) -> Vec<u8> {
    let poll =
        pollables(r#"(export "poll" (func (param "in" (list (borrow $pollable))) (result (list u32))))"#);
    let before = format!(
        r#"{poll}
        (core module $libc
          (memory (export "memory") {pages})
          (func (export "realloc") (param i32 i32 i32 i32) (result i32) (i32.const {})))
        (core instance $libc (instantiate $libc))
        (alias core export $libc "memory" (core memory $memory))
        (core func $poll (canon lower (func $poll "poll")
          (memory $memory) (realloc (core func $libc "realloc"))))"#,
        u64::from(pages) * 32_768
    );
    let subscribe = "(local.set $handle (call $subscribe (i64.const 0)))";
    let list = "(i32.store (i32.add (i32.const 1024) (i32.shl (local.get $left) (i32.const 2))) (local.get $handle))";
    let body = format!(
        "(local $handle i32) {}
        (call $poll (i32.const 1028) (i32.const {times}) (i32.const 0))",
        repeat(subscribe, times.into(), list)
    );
    component(&before, &[("memory", "1"), ("poll", "(param i32 i32 i32)"), SUBSCRIBE], &body)
}

/// Puts every `@"text"` of a body into a data segment and its place and length where it stood.
fn place_texts(body: &str) -> (String, String) {
    let mut segments = String::new();
    let mut placed = String::new();
    let mut at = FIRST_TEXT;
    let mut pieces = body.split("@\"");
    placed.extend(pieces.next());
    for piece in pieces {
        let (text, rest) = piece.split_once('"').expect("a text ends with a quote");
        segments += &format!("(data (i32.const {at}) \"{text}\")");
        // `\1b` is one byte, written as three.
        let length = text.len() - 2 * text.matches('\\').count();
        placed += &format!("(i32.const {at}) (i32.const {length})");
        placed += rest;
        at += length;
    }
    (segments, placed)
}

/// The error numbers of preview 1 that guests note.
pub mod errno {
    pub const SUCCESS: u64 = 0;
    pub const ACCES: u64 = 2;
    pub const BADF: u64 = 8;
    pub const ILSEQ: u64 = 25;
    pub const INVAL: u64 = 28;
    pub const NOENT: u64 = 44;
    pub const NOMEM: u64 = 48;
    pub const NOTSUP: u64 = 58;
    pub const PERM: u64 = 63;
    pub const NOTCAPABLE: u64 = 76;
}

/// Makes a FIFO, which nobody ever opens at the other end.
pub fn make_fifo(path: &std::path::Path) {
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("a FIFO");
}

/// A file that whoever opens it has to wait for, in the kernel, where nothing interrupts it.
///
/// Another process has a write lease on it, as a file server does. The kernel waits for the lease to
/// be given back, for as long as `/proc/sys/fs/lease-break-time` says (45 seconds).
pub struct Leased(std::process::Child);

impl Leased {
    /// Takes the lease; `None`, with a line on standard error, where there is no Python to do it.
    pub fn take(path: &std::path::Path) -> Option<Self> {
        use std::io::{BufRead, BufReader};
        use std::process::{Command, Stdio};
        const TAKE: &str = "
import fcntl, os, signal, sys
signal.signal(signal.SIGIO, signal.SIG_IGN)
fcntl.fcntl(os.open(sys.argv[1], os.O_RDWR), fcntl.F_SETLEASE, fcntl.F_WRLCK)
print('taken', flush=True)
sys.stdin.read()";
        std::fs::write(path, "").expect("a file");
        let mut python = Command::new("python3");
        python.args(["-c", TAKE]).arg(path).stdin(Stdio::piped()).stdout(Stdio::piped());
        let Ok(mut python) = python.spawn() else {
            super::print_skipped("without python3 no guest can be made to wait in the kernel");
            return None;
        };
        let mut taken = String::new();
        let stdout = python.stdout.take().expect("a pipe");
        BufReader::new(stdout).read_line(&mut taken).expect("an answer");
        let held = Self(python);
        if taken.trim() != "taken" {
            super::print_skipped("this file system gives no leases");
            return None;
        }
        Some(held)
    }
}

impl Drop for Leased {
    fn drop(&mut self) {
        let _gone = self.0.kill();
        let _reaped = self.0.wait();
    }
}
