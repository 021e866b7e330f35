"""pyeryx: a sandbox for each call, from the snapshot in its package."""

import importlib.metadata

import eryx

import common


def run(code, seconds=30):
    memory = common.MEMORY_MB << 20
    limits = eryx.ResourceLimits(execution_timeout_ms=seconds * 1000, max_memory_bytes=memory)
    return eryx.Sandbox(resource_limits=limits).execute(code).stdout


common.main(
    importlib.metadata.version("pyeryx"),
    "a sandbox",
    {"python": lambda: lambda: run("print(1 + 1)")},
    lambda action, port, seconds, _: run(common.python(action, port), seconds),
    ("memory", "time"),
)
