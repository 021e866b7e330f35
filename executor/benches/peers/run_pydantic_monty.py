"""pydantic-monty: an interpreter for each call, in a process from a pool."""

import importlib.metadata

import pydantic_monty

import common

POOL = pydantic_monty.Monty(min_processes=2, max_processes=common.CLIENTS)


def run(code, seconds=30):
    printed = pydantic_monty.CollectString()
    limits = pydantic_monty.ResourceLimits(max_feed_duration_secs=seconds, max_memory=common.MEMORY_MB << 20)
    with POOL.checkout(limits=limits) as session:
        result = session.feed_run(code, print_callback=printed)
    return f"{result} {printed.output}"


with POOL:
    common.main(
        importlib.metadata.version("pydantic-monty"),
        "an interpreter, in a reused process",
        {"python": lambda: lambda: run("1 + 1")},
        lambda action, port, seconds, _: run(common.python(action, port), seconds),
        ("memory", "time"),
    )
