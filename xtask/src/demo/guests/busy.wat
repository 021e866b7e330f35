;; A Command tool that computes for a fixed number of rounds, some tenths of a second on one core, and
;; answers with its number of rounds.
(module
  (import "wasi_snapshot_preview1" "fd_write"
    (func $fd_write (param i32 i32 i32 i32) (result i32)))
  (memory (export "memory") 1)
  (data (i32.const 16) "{\"rounds\":400000000}")
  (func (export "_start") (local $left i32) (local $x i64)
    (local.set $left (i32.const 400000000))
    (loop $again
      (local.set $x (i64.add (i64.mul (local.get $x) (i64.const 6364136223846793005)) (i64.const 1)))
      (local.set $left (i32.sub (local.get $left) (i32.const 1)))
      (br_if $again (local.get $left)))
    ;; Storing the outcome keeps the work from being optimised away.
    (i64.store (i32.const 64) (local.get $x))
    (i32.store (i32.const 0) (i32.const 16))
    (i32.store (i32.const 4) (i32.const 20))
    (drop (call $fd_write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8)))))
