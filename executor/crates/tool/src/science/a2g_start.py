"""The program that the interpreter runs once, when the tool is made. Before it stand MODULES and LIBRARY_BYTES.

Each call starts from the memory that the interpreter has after it, and runs only `a2g_science.main()`.
"""

import sys

import _frozen_importlib
import _host
import _struct


def read(start, size):
    """A part of the texts that the module has outside of the interpreter's memory."""
    return _host.call(_struct.pack("<8I", 0, 0, 0, 0, start, size, 0, 0))


class Own:
    """Finds and loads the modules of run_python."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        return _frozen_importlib.ModuleSpec(name, Own) if name in MODULES else None

    @staticmethod
    def create_module(spec):
        return None

    @staticmethod
    def exec_module(module):
        source = read(*MODULES[module.__name__])
        exec(compile(source, f"{module.__name__}.py", "exec"), module.__dict__)


sys.meta_path.insert(0, Own)

import a2g_files

a2g_files.install(LIBRARY_BYTES, read)

import a2g_science

a2g_science.prepare()
