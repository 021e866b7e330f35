"""Capsule: an instance of the interpreter in its adapter for each call."""

import asyncio
import importlib.metadata
import os

import capsule_adapter

import common

os.chdir(common.STATE)  # it makes a folder


def run(function, code):
    return asyncio.run(function(code))


common.main(
    importlib.metadata.version("capsule-run"),
    "an instance",
    {
        "python": lambda: lambda: run(capsule_adapter.run_python, "1 + 1"),
        "javascript": lambda: lambda: run(capsule_adapter.run_javascript, "1 + 1"),
    },
    lambda action, port, *_: run(capsule_adapter.run_python, common.python(action, port)),
)
