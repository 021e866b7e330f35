"""pydantic-monty: an interpreter for each call."""

import importlib.metadata

import pydantic_monty

import common


def run(code, seconds=30):
    printed = []
    limits = pydantic_monty.ResourceLimits(max_duration_secs=float(seconds), max_memory=common.MEMORY_MB << 20)
    program = pydantic_monty.Monty(code)
    result = program.run(limits=limits, print_callback=lambda _, text: printed.append(text))
    return f"{result} {''.join(printed)}"


common.main(
    importlib.metadata.version("pydantic-monty"),
    "an interpreter",
    {"python": lambda: lambda: run("1 + 1")},
    lambda action, port, seconds, _: run(common.python(action, port), seconds),
    ("memory", "time"),
)
