;; A Command tool that takes one MiB after the other, writes to each, and traps when it gets no more.
(module
  (memory (export "memory") 1)
  (func (export "_start") (local $pages i32)
    (loop $again
      (local.set $pages (memory.grow (i32.const 16)))
      (if (i32.eq (local.get $pages) (i32.const -1)) (then (unreachable)))
      (i32.store (i32.mul (local.get $pages) (i32.const 65536)) (i32.const 1))
      (br $again))))
