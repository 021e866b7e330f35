"""quickjs-rs: a runtime for each call."""

import importlib.metadata

import quickjs_rs

import common


def run(code, seconds=30):
    with quickjs_rs.Runtime(memory_limit=common.MEMORY_MB << 20) as runtime:
        with runtime.new_context(timeout=seconds) as context:
            return context.eval(code)


common.main(
    importlib.metadata.version("quickjs-rs"),
    "a runtime",
    {"javascript": lambda: lambda: run("1 + 1")},
    lambda action, port, seconds, _: run(common.javascript(action, port), seconds),
    ("memory", "time"),
)
