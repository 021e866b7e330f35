"""Runs one module of CPython's tests as a program of run_python, with the tests' own folder as `/suite`.

`input` has `module`, the tests to leave out as `leave_out`, and `only`, one test to run alone, or null. The result says
which tests passed, which skipped themselves, and what was wrong with the others.
"""

import importlib
import os
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, "/suite")
# The tests write files of the same names as others do, and there is no folder for temporary files.
tempfile.tempdir = f"/workspace/{input['only'] or input['module']}"
os.mkdir(tempfile.tempdir)
os.chdir(tempfile.tempdir)

from test.support import import_helper


class Absent:
    """A module in pure Python in place of the one in C, which cannot be loaded beside it: there are no files of the
    standard library."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *_, **__):
        return self

    def __iter__(self):
        return iter(())


ABSENT = Absent()


def import_fresh_module(name, fresh=(), blocked=(), **_):
    if blocked:
        return ABSENT
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def needs_absent(case):
    values = (value for kind in type(case).__mro__ for value in vars(kind).values())
    return any(getattr(value, "__func__", value) is ABSENT for value in values)


def cases(suite):
    for one in suite:
        if isinstance(one, unittest.TestSuite):
            yield from cases(one)
        elif is_chosen(one):
            yield one


def is_chosen(case):
    name = name_of(case)
    if input["only"] is not None:
        return name == input["only"]
    return name not in input["leave_out"] and not needs_absent(case)


def name_of(case):
    return case.id().removeprefix("test.")


class Ends(unittest.TestResult):
    """The end of each test."""

    def __init__(self):
        super().__init__()
        self.names = {"passed": [], "skipped": []}
        self.wrong = {}

    def addSuccess(self, test):
        self.names["passed"].append(name_of(test))

    addExpectedFailure = lambda self, test, _: self.addSuccess(test)

    def addSkip(self, test, reason):
        self.names["skipped"].append(name_of(test))

    def addError(self, test, error):
        self.wrong.setdefault(name_of(test), f"{error[0].__name__}: {error[1]}"[:300])

    addFailure = addError

    def addSubTest(self, _, subtest, error):
        if error:
            self.addError(subtest.test_case, error)

    def addUnexpectedSuccess(self, test):
        self.wrong[name_of(test)] = "it passes, and its author expects a failure"


import_helper.import_fresh_module = import_fresh_module
module = importlib.import_module(f"test.{input['module']}")
loader = unittest.TestLoader()
suite = loader.loadTestsFromModule(module)
if loader.errors:
    # It also asks for the examples in the text of an absent module.
    del module.load_tests
    suite = loader.loadTestsFromModule(module)
suite = unittest.TestSuite(cases(suite))
ends = Ends()
suite.run(ends)
passed = [name for name in ends.names["passed"] if name not in ends.wrong]
result = {"passed": len(passed), "skipped": len(ends.names["skipped"]), "wrong": ends.wrong}
