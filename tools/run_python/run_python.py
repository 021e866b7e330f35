"""The tool run_python: CPython in a component that componentize-py makes."""

import gc
import json
import os
import random
import sys

import a2g_about
import a2g_artifacts
import a2g_files
import a2g_packages
import a2g_program
import a2g_stdlib
import a2g_tools
import wit_world
from componentize_py_types import Err
from wit_world.imports import calls, host
from wit_world.imports.types import Descriptor, ToolError

DESCRIPTION = (
    f"Runs a Python program in a sandbox, with the whole standard library and {a2g_about.PACKAGES}, with files (relative "
    "paths start in the first granted folder, and /tmp is in memory), and with other tools: tools.NAME(argument=...) calls "
    "one and returns its result, tools.parallel([...]) calls several at once, tools.list() and tools.describe(name) say "
    "which there are. There are no threads, processes and sockets. Variables, imports, open files and the working folder "
    'stay for a later call only in a session: call with session "new", and then with the handle that it returns. Returns '
    "the variable `result`, or else the value of the last expression, as JSON or else as text, and what was printed. Files "
    "written to /artifacts are returned as artifacts."
)
SCHEMA = {
    "type": "object",
    "properties": {
        "code": {
            "type": "string",
            "description": "The program. It ends with an expression, or sets `result`, to return a value.",
        },
        "input": {"description": "Any JSON value: the variable `input` of the program."},
    },
    "required": ["code"],
    "additionalProperties": False,
}
WARM_UPS = 8
WARM_UP = """
def add(numbers, *, more=1):
    return [number + more for number in numbers]

for number in add([1, 2]):
    print(f"{number:2}", {"a": number})
try:
    add("a")
except TypeError as error:
    str(error)
{"a": [1, 1.5, None, "x"], "b": sum(add([1])), "c": input, "d": True}
"""


class WitWorld(wit_world.WitWorld):
    def describe(self):
        return Descriptor(a2g_about.NAME, "0.1.0", DESCRIPTION, json.dumps(SCHEMA))

    def invoke(self, arguments):
        try:
            return run(json.loads(arguments))
        except a2g_program.Failure as failure:
            a2g_artifacts.send_of_failed(failure, send_artifacts)
            raise Err(ToolError(failure.code, failure.message, failure.detail_text())) from None


TOOLS = a2g_tools.Tools(calls, Err)


def run(arguments):
    if a2g_program.count == 0:
        # A generator that was seeded while the component was made would repeat itself in every run.
        random.seed()
        a2g_files.start(json.loads(os.environ.get("A2G_FOLDERS", "[]")))
    value, stdout = a2g_program.run(arguments["code"], arguments.get("input"), TOOLS, a2g_tools.ToolError)
    try:
        return a2g_program.result_text(value, stdout, send_artifacts)
    except MemoryError:
        raise a2g_program.no_memory() from None


def send_artifacts():
    return a2g_artifacts.send(host.artifact, Err)


def warm_up():
    """Runs programs while the component is made: the interpreter adapts the code that it has run several times, and the
    component keeps that, so that a run changes and copies less of its memory."""
    for _ in range(WARM_UPS):
        for arguments in ({"code": WARM_UP, "input": [None]}, {"code": "1 + 1"}):
            WitWorld().invoke(json.dumps(arguments))
            # Each is the only program of a run, so that no later one finds its names.
            a2g_program.forget()


# Before the library, whose modules keep some of the functions that are replaced.
a2g_files.install_roots(a2g_files.WRITABLE, (a2g_files.PACKAGES,))
a2g_stdlib.load_all()
a2g_stdlib.adapt()
a2g_packages.load()
warm_up()
sys.excepthook = a2g_program.print_own_error
sys.modules.pop("__mp_main__", None)
gc.collect()
a2g_stdlib.erase_freed_memory()
# The objects that exist now are never garbage: a collection would touch, and so copy, all of their memory.
gc.freeze()
