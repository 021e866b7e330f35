"""Tests of run_python's own modules under the machine's Python, with a fake of the interface `calls`."""

import dataclasses
import importlib
import datetime
import decimal
import json
import math
import os
import pathlib
import unittest
import unittest.mock
import uuid

import a2g_artifacts
import a2g_files
import a2g_json
import a2g_program
import a2g_tools


@dataclasses.dataclass
class Record:
    code: str = ""
    message: str = ""
    detail: str = None
    name: str = ""
    description: str = ""
    arguments_schema: str = "{}"
    result_schema: str = None
    call: int = 0
    outcome: object = None


@dataclasses.dataclass
class Ok:
    value: str


class Err(Exception):
    def __init__(self, value):
        super().__init__()
        self.value = value


class OneByOne:
    """Calls that end in reverse order, the last that was started first."""

    def __init__(self):
        self.started = {}
        self.waits = []

    def list(self):
        return [Record(name="echo", description="Returns its arguments.")]

    def describe(self, name):
        if name != "echo":
            raise Err(Refusal)
        return ECHO

    def call(self, name, arguments):
        outcome = self.outcome(name, arguments)
        if isinstance(outcome, Err):
            raise outcome
        return outcome.value

    def start(self, name, arguments):
        number = len(self.started) + 1
        self.started[number] = self.outcome(name, arguments)
        return number

    def wait(self, calls):
        self.waits.append(sorted(calls))
        number = max(calls)
        return Record(call=number, outcome=self.started[number])

    def outcome(self, name, arguments):
        return Err(Refusal) if name == "deny" else Ok(arguments)


Refusal = Record(code="denied", message="the policy refuses it", detail='{"intent_id": "i"}')
ECHO = Record(name="echo", description="Returns its arguments.", arguments_schema='{"type": "object"}')


class Started(unittest.TestCase):
    def setUp(self):
        # As a new instance of the tool has it.
        importlib.reload(a2g_program)
        self.calls = OneByOne()
        self.tools = a2g_tools.Tools(self.calls, Err)

    def run_program(self, code):
        return a2g_program.run(code, None, self.tools, a2g_tools.ToolError)[0]


class Programs(Started):
    def test_a_tool_is_a_function_with_named_arguments_or_one_dict(self):
        for code in ('tools.echo(a=1)', 'tools.echo({"a": 1})', 'tools["echo"](a=1)', 'tools.call("echo", {"a": 1})'):
            self.assertEqual(self.run_program(code), {"a": 1}, code)
        self.assertEqual(self.run_program("from tools import echo\necho({'a': 1}, b=2)"), {"a": 1, "b": 2})

    def test_parallel_starts_all_calls_before_it_waits_and_keeps_their_order(self):
        code = 'tools.parallel([tools.start.echo(n=1), ("echo", {"n": 2}), tools.start("echo", n=3)])'
        self.assertEqual(self.run_program(code), [{"n": 1}, {"n": 2}, {"n": 3}])
        self.assertEqual(self.calls.waits, [[1, 2, 3], [1, 2], [1]])

    def test_an_outcome_is_taken_once_and_kept(self):
        self.run_program("call = tools.start.echo(n=1)\n[call.result(), call.result(), tools.parallel([call, call])]")
        self.assertEqual(self.calls.waits, [[1]])

    def test_a_call_that_the_program_does_not_wait_for_is_finished(self):
        self.assertEqual(self.run_program("tools.start.echo(n=1)\n2"), 2)
        self.assertEqual(self.calls.waits, [[1]])
        with self.assertRaises(a2g_program.Failure) as failed:
            self.run_program("tools.start.deny()\n2")
        self.assertIn("the policy refuses it", failed.exception.message)
        for handled in (
            "tools.parallel([('deny', {}), ('deny', {})], return_exceptions=True)",
            "try: tools.parallel([('deny', {}), ('deny', {})])\nexcept ToolError: pass",
        ):
            self.assertEqual(self.run_program(handled + "\n2"), 2)

    def test_a_started_call_is_not_its_result(self):
        for code in ("tools.start.echo(n=1)['n']", "tools.start.echo(n=1).n"):
            with self.assertRaises(a2g_program.Failure) as failed:
                self.run_program(code)
            self.assertIn("use its .result() (line 1)", failed.exception.message)

    def test_a_call_that_was_refused_is_an_exception_with_the_facts(self):
        code = """
try:
    tools.parallel([("deny", {}), ("echo", {})])
except ToolError as error:
    result = [str(error), error.code, error.message, error.detail, error.tool]
"""
        text = "deny: the policy refuses it (denied)"
        expected = [text, "denied", "the policy refuses it", {"intent_id": "i"}, "deny"]
        self.assertEqual(self.run_program(code), expected)
        self.assertEqual(self.calls.waits, [[1, 2], [1]], "all calls have ended")
        returned = self.run_program('tools.parallel([("deny", {}), ("echo", {})], return_exceptions=True)')
        self.assertEqual((returned[0].code, returned[1]), ("denied", {}))
        with self.assertRaises(a2g_program.Failure) as failed:
            self.run_program("1\ntools.deny(a=1)")
        self.assertEqual((failed.exception.detail["line"], failed.exception.message), (2, f"ToolError: {text} (line 2)"))
        self.assertEqual(failed.exception.detail["tool_error"]["detail"], {"intent_id": "i"})

    def test_an_error_of_a_file_is_told_without_the_number_of_the_system(self):
        text = "No such file or directory: '/none/a'"
        for code, message, kind in [
            ("open('/none/a')", f"FileNotFoundError: {text} (line 1)", "FileNotFoundError"),
            ("try: open('/none/a')\nexcept OSError as e: raise ValueError('no') from e", "ValueError: no (line 2)", "ValueError"),
        ]:
            with self.assertRaises(a2g_program.Failure, msg=code) as failed:
                self.run_program(code)
            self.assertEqual((failed.exception.message, failed.exception.detail["type"]), (message, kind))
            self.assertIn(f"FileNotFoundError: {text}", failed.exception.detail["traceback"])
            self.assertNotIn("Errno", failed.exception.detail["traceback"])
        # The text of an error that is none of the system's is the program's.
        with self.assertRaises(a2g_program.Failure) as failed:
            self.run_program("raise ValueError('[Errno 2] mine')")
        self.assertEqual(failed.exception.message, "ValueError: [Errno 2] mine (line 1)")

    def test_errors_of_files_name_the_folders_of_the_run(self):
        refused = "raise PermissionError(2, 'Permission denied', '/')"
        missing = f"raise FileNotFoundError(2, 'No such file', {os.getcwd() + '/orders.csv'!r})"
        for granted, code, words in [
            (("/workspace",), refused, "it has files in '/workspace', and in memory in '/tmp' and '/artifacts'"),
            ((), refused, "no folder is granted, so it has files in memory only, in '/tmp' and '/artifacts'"),
            ((), missing, f"no folder is granted to this run, so relative paths start in {os.getcwd()!r}"),
            (("/workspace",), missing, "orders.csv' (line 1)"),
        ]:
            given = {"granted": granted, "writable": a2g_files.WRITABLE}
            with unittest.mock.patch.multiple(a2g_files, **given), self.assertRaises(a2g_program.Failure) as failed:
                self.run_program(code)
            self.assertIn(words, failed.exception.message)

    def test_an_array_that_does_not_fit_is_told_the_limit(self):
        for code, words in [
            ("class TooLarge(MemoryError): pass\nraise TooLarge('8 MiB')", "TooLarge: 8 MiB: the program needs more memory"),
            ("raise MemoryError('too complex')", "MemoryError: too complex (line 1)"),
        ]:
            with self.assertRaises(a2g_program.Failure, msg=code) as failed:
                self.run_program(code)
            self.assertIn(words, failed.exception.message)

    def test_a_value_without_json_is_told_as_text(self):
        def ended(code):
            run = a2g_program.run(code, None, self.tools, a2g_tools.ToolError)
            return json.loads(a2g_program.result_text(*run, lambda: []))

        note = "result[0] is of type bytes, which JSON does not have: use .decode()"
        told = ended("print('seen')\n[b'x']")
        self.assertEqual(told.pop("note")[: len(note)], note)
        self.assertEqual(told, {"result": None, "text": "[b'x']", "stdout": "seen\n"})
        for code, text in [
            ("a = []\na.append(a)\na", "[[...]]"),
            ("{'\\ud800': 1}", "{'\\ud800': 1}"),
            ("class A:\n    def __repr__(self): raise SystemExit\nA()", "(its text cannot be made)"),
            ("class S(str):\n    def encode(self, *_): return self\nclass A:\n    def __repr__(self): return S('a')\nA()", "a"),
        ]:
            self.assertEqual(ended(code)["text"], text, code)
        refers = "class A:\n    def __init__(self): self.d = {}\n    def __getattr__(self, name): return self.d[name]\n"
        self.assertIn("result is of type A", ended(f"{refers}    def __repr__(self): return 'a'\nA()")["note"])
        for code in (
            "import weakref\nclass A: pass\nweakref.proxy(A())",
            "class A:\n    def __fspath__(self): raise ValueError\nA()",
            "class A:\n    def __fspath__(self): return A()\nA()",
            "class A(dict):\n    def items(self): raise ValueError\nA(a=1)",
        ):
            self.assertIn("result ", ended(code)["note"], code)
        missing = {"result": [1, None, None], "stdout": "", "note": "NaN, NaT and infinite values are null in the result (2 of them)"}
        self.assertEqual(ended("import math\n[1, math.nan, -math.inf]"), missing)
        long = ended("[b'12345'] * 10000")["text"]
        self.assertTrue(len(long) < 11_000 and "characters ...]" in long, long)
        with self.assertRaises(a2g_program.Failure) as failed:
            ended("[tools.start.echo()]")
        self.assertEqual(failed.exception.code, "result_not_json")

    def test_a_long_result_and_long_output_are_told_in_short(self):
        def ended(code):
            run = a2g_program.run(code, None, self.tools, a2g_tools.ToolError)
            return json.loads(a2g_program.result_text(*run, lambda: []))

        for code, text, words in [
            ("list(range(100_000))", "[0, 1, 2,", "result has 100000 items, and is longer than 256 KiB as JSON"),
            ("'ä' * 200_000", "'ää", "result has 200000 characters, and is longer"),
            ("{'rows': [{'a': 'x' * 100}] * 5000}", "{'rows': [{'a': 'xxx", "result is longer"),
        ]:
            told = ended(code)
            self.assertIsNone(told["result"], code)
            self.assertTrue(told["text"].startswith(text) and len(told["text"]) < 10_100, told)
            self.assertIn(words, told["note"])
        self.assertEqual(len(ended("'x' * 200_000")["result"]), 200_000)
        told = ended("print('first')\nprint('x' * 2_000_000)\nprint('last')\n5")
        self.assertEqual(told["result"], 5)
        self.assertTrue(told["stdout"].startswith("first\n") and told["stdout"].endswith("x\nlast\n"))
        self.assertIn("\n[... 1900012 bytes left out: print less, or write to a file ...]\n", told["stdout"])
        self.assertLess(len(told["stdout"]), 100_100)
        self.assertEqual(ended("print('y')")["stdout"], "y\n")

    def test_a_value_is_deep_only_by_its_levels(self):
        cycle = []
        cycle.append(cycle)
        doubled, chain = {}, ()
        for _ in range(100):
            doubled = {"a": doubled, "b": [doubled]}
        for _ in range(2000):
            chain = (b"x", chain)
        found = [a2g_program.is_deep(value) for value in (cycle, doubled, [b"x"] * 10000, lambda: chain, chain)]
        self.assertEqual(found, [False, False, False, False, True])

    def test_wrong_uses_say_what_is_right(self):
        for code, words in [
            ("tools.echo('a')", "takes named arguments, as in tools.echo(path=...)"),
            ("tools.echo(a=b'x')", "arguments.a is of type bytes, which JSON does not have: use .decode()"),
            ("tools.echo(a=float('inf'))", "arguments.a is inf, and JSON has finite numbers only"),
            ("tools.parallel([1])", "item 0 is of type int, and must be a call"),
            ("tools.describe('x')", "the policy refuses it (denied)"),
            ("x + 1", "NameError: name 'x' is not defined: a run has nothing of the runs before it"),
            ("import csv\n!pip install requests", "without a shell or the commands of notebooks"),
            ("pip install requests", "nothing can be installed (line 1)"),
            ("open('data.csv')", f"No such file or directory: 'data.csv': the working folder is {os.getcwd()!r}"),
        ]:
            self.setUp()
            with self.assertRaises(a2g_program.Failure, msg=code) as failed:
                self.run_program(code)
            self.assertIn(words, failed.exception.message)

    def test_tools_describe_themselves(self):
        self.assertEqual(self.run_program("[one['name'] for one in tools.list()]"), ["echo"])
        self.assertEqual(self.run_program("tools.describe('echo')['arguments']"), {"type": "object"})
        self.assertIn("echo", dir(self.tools))


class Sessions(Started):
    """Programs that follow each other in one instance of the tool."""

    def failure(self, code):
        with self.assertRaises(a2g_program.Failure, msg=code) as failed:
            self.run_program(code)
        return failed.exception

    def test_names_stay_also_of_a_program_that_failed(self):
        self.run_program("import math\nx = 1\ndef half(n):\n    return n / x")
        self.assertEqual(self.run_program("math.floor(half(2.5))"), 2)
        self.failure("x = 2\n1 / 0")
        self.assertEqual(self.run_program("half(2)"), 1)
        self.run_program("import pickle\nclass A: pass\nkept = pickle.dumps(A())")
        self.assertTrue(self.run_program("type(pickle.loads(kept)) is A"))

    def test_result_input_and_standard_output_are_those_of_each_program(self):
        run = lambda code, given: a2g_program.run(code, given, self.tools, a2g_tools.ToolError)
        self.assertEqual(run("print(input)\nresult = 1", "a"), (1, "a\n"))
        self.assertEqual(run("input", "b"), ("b", ""))
        self.assertEqual(run("pass", None), (None, ""))
        self.assertIn("begins without `result`", self.failure("result + 1").message)
        run("import sys\nprint_to = sys.stdout\nsys.stdout.close()", None)
        self.assertEqual(run("print('late', file=print_to)", None), (None, "late\n"))

    def test_errors_tell_programs_apart(self):
        self.run_program("def half(n):\n    return n / 0")
        failed = self.failure("\n\nhalf(1)")
        self.assertEqual((failed.message, failed.detail["line"]), ("ZeroDivisionError: division by zero (line 3)", 3))
        self.assertIn('File "program-2.py", line 3', failed.detail["traceback"])
        self.assertIn('File "program.py", line 2, in half\n    return n / 0', failed.detail["traceback"])
        self.assertIn('File "program-3.py", line 1', self.failure("x = (").detail["traceback"])
        self.assertIn("nor an earlier one of the session", self.failure("x").message)

    def test_the_sources_of_earlier_programs_are_bounded(self):
        self.run_program("def half(n):\n    return n / 0")
        for _ in range(a2g_program.MAX_SOURCES):
            self.run_program("1")
        trace = self.failure("half(1)").detail["traceback"]
        self.assertIn('File "program.py", line 2, in half\n', trace)
        self.assertNotIn("return n / 0", trace)

    def test_calls_end_with_their_program(self):
        self.failure("call = tools.start.echo(n=1)\n1 / 0")
        self.calls.started.clear()
        self.assertEqual(self.run_program("tools.start.echo(n=2).result()"), {"n": 2})
        self.assertIn("the call ended with the program that started it", self.failure("call.result()").message)


class Artifacts(unittest.TestCase):
    def setUp(self):
        importlib.reload(a2g_files)
        self.sent = []

    def send_chunk(self, name, media_type, chunk, is_last):
        if "\n" in name:
            raise Err(Record("invalid", "no control character"))
        self.sent.append((name, chunk, is_last))

    def send(self):
        return a2g_artifacts.send(self.send_chunk, Err)

    def test_a_refused_file_is_reported_once_and_others_are_sent(self):
        for name in ("a\nb", "c", "d\udc80"):
            a2g_files.add(f"/artifacts/{name}", b"x")
        with self.assertRaises(a2g_program.Failure) as failed:
            self.send()
        for words in (r"'/artifacts/a\nb'", "rename or remove it: no control character", r"'/artifacts/d\udc80'"):
            self.assertIn(words, failed.exception.message)
        self.assertEqual((failed.exception.detail, self.sent), ({"artifacts": ["c"]}, [("c", b"x", True)]))
        self.assertEqual(self.send(), [])

    def failed(self, message="no", detail=None):
        failure = a2g_program.Failure("python_error", message, detail)
        a2g_artifacts.send_of_failed(failure, self.send)
        return failure

    def test_files_of_a_failed_program_are_returned_with_its_failure(self):
        a2g_files.add("/artifacts/a", b"x")
        failure = self.failed(detail={"line": 1})
        self.assertEqual((failure.message, failure.detail), ("no", {"line": 1, "artifacts": ["a"]}))
        self.assertEqual((self.sent, self.send()), ([("a", b"x", True)], []))
        self.assertEqual((self.failed().message, self.failed().detail), ("no", None))
        a2g_files.add("/artifacts/b\nc", b"x")
        a2g_files.add("/artifacts/d", b"x")
        failure = self.failed()
        self.assertIn("no control character", failure.message)
        self.assertEqual(failure.detail, {"artifacts": ["d"]})

    def test_large_files_of_a_failed_program_are_not_returned(self):
        a2g_files.add("/artifacts/large", bytes(600 << 10))
        failure = self.failed()
        self.assertIn("1 new file(s) in /artifacts were not returned", failure.message)
        self.assertEqual((failure.detail, self.sent, self.send()), (None, [], []))

    def test_no_two_files_have_the_same_name(self):
        a2g_files.add("/artifacts/d/e.csv", b"")
        self.assertEqual(self.send(), ["d-e.csv"])
        a2g_files.add("/artifacts/d-e.csv", b"")
        a2g_files.add("/artifacts/d/e.csv", b"x")
        self.assertEqual(self.send(), ["d-e-2.csv", "d-e.csv"])


class Json(unittest.TestCase):
    def test_values_are_encoded_as_json_dumps_does(self):
        for value in [None, True, 1, -(2**70), 1.5, "ä", [], (1, [2]), {"a": {"b": 1}}, {1: 2, None: 3}]:
            self.assertEqual(json.loads(a2g_json.encode(value, "result")), json.loads(json.dumps(value)))

    def test_sets_dates_decimals_and_paths_are_lists_and_text(self):
        for value, plain in [
            ({3, 1, 2}, [1, 2, 3]),
            ({"a": frozenset()}, {"a": []}),
            (datetime.date(2026, 1, 2), "2026-01-02"),
            ([datetime.datetime(2026, 1, 2, 3), datetime.time(4)], ["2026-01-02T03:00:00", "04:00:00"]),
            (decimal.Decimal("1.10"), "1.10"),
            (pathlib.Path("/a"), "/a"),
            (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
            ({datetime.date(2026, 1, 2): 1, decimal.Decimal("1.10"): 2, math.nan: 3}, {"2026-01-02": 1, "1.10": 2, "NaN": 3}),
        ]:
            self.assertEqual(json.loads(a2g_json.encode(value, "result")), plain)
        self.assertCountEqual(json.loads(a2g_json.encode({1, "a"}, "result")), [1, "a"])

    def test_others_are_refused_with_their_place(self):
        cycle = {"a": [1]}
        cycle["a"].append(cycle)
        deep = []
        for _ in range(60):
            deep = [deep]
        for value, words in [
            ({"items": [0, math.nan]}, "result.items[1] is nan"),
            (math.inf, "result is inf"),
            (cycle, "result.a[1] contains itself"),
            ({"a b": {b"x"}}, 'result["a b"][0] is of type bytes'),
            (["\ud800"], "result[0] has a lone surrogate at index 0"),
            ({"\ud800": 1}, "result has a key that has a lone surrogate"),
            ({(1, 2): 3}, "result has a key of type tuple"),
            ({1: 2, "1": 3}, 'result has two keys that are "1"'),
            (10**400, "result is an integer beyond"),
            (deep, "is below 46 levels"),
            (b"x", "result is of type bytes, which JSON does not have: use .decode()"),
            (print, "result is of type builtin_function_or_method, which JSON does not have: call it"),
            (Record(), "use dataclasses.asdict(...)"),
            ({}.keys(), "use list(...)"),
        ]:
            with self.assertRaises(a2g_json.NotJson) as refused:
                a2g_json.encode(value, "result")
            self.assertIn(words, str(refused.exception))


if __name__ == "__main__":
    unittest.main()
