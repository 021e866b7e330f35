;; A Command tool that never ends by itself.
(module
  (memory (export "memory") 1)
  (func (export "_start")
    (loop $again
      (br $again))))
