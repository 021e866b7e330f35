;; A Command tool that appends its arguments, of at most 4,000 bytes, to /workspace/runs.ndjson as one line, waits for
;; 100 ms, and answers with them.
(module
  (import "wasi_snapshot_preview1" "fd_read" (func $fd_read (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "fd_write" (func $fd_write (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "path_open"
    (func $path_open (param i32 i32 i32 i32 i32 i64 i64 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "poll_oneoff" (func $poll_oneoff (param i32 i32 i32 i32) (result i32)))
  (memory (export "memory") 1)
  (data (i32.const 32) "runs.ndjson")
  (func $write (param $fd i32) (param $length i32)
    (i32.store (i32.const 0) (i32.const 1024))
    (i32.store (i32.const 4) (local.get $length))
    (if (call $fd_write (local.get $fd) (i32.const 0) (i32.const 1) (i32.const 8)) (then (unreachable))))
  (func (export "_start") (local $length i32)
    (i32.store (i32.const 0) (i32.const 1024))
    (i32.store (i32.const 4) (i32.const 4000))
    (if (call $fd_read (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 8)) (then (unreachable)))
    (local.set $length (i32.load (i32.const 8)))
    ;; The line end is part of the same write, so that lines of runs at the same time do not mix.
    (i32.store8 (i32.add (i32.const 1024) (local.get $length)) (i32.const 10))
    ;; Create it if it is missing, and write at its end.
    (if (call $path_open (i32.const 3) (i32.const 0) (i32.const 32) (i32.const 11) (i32.const 1)
          (i64.const 64) (i64.const 0) (i32.const 1) (i32.const 16))
      (then (unreachable)))
    (call $write (i32.load (i32.const 16)) (i32.add (local.get $length) (i32.const 1)))
    ;; A subscription to the monotonic clock.
    (i32.store (i32.const 80) (i32.const 1))
    (i64.store (i32.const 88) (i64.const 100000000))
    (drop (call $poll_oneoff (i32.const 64) (i32.const 128) (i32.const 1) (i32.const 192)))
    (call $write (i32.const 1) (local.get $length))))
