"""Runs programs: the result and standard output of each, or what went wrong on which line.

A session calls the same instance of this tool again, and its next program has the names of those before it. The first
program of a session is as the only one of a run.
"""

import _io
import ast
import gc
import io
import json
import linecache
import os
import re
import reprlib
import sys
import traceback
import types

import a2g_files
import a2g_json

# The names by which tracebacks tell the programs of a session apart.
FIRST_PROGRAM = "program.py"
PROGRAM_NAME = re.compile(r"program(-\d+)?\.py")
# The number of programs whose source a traceback shows. Functions of older ones are seldom in it.
MAX_SOURCES = 50
# A program that prints more is taken to print without end: the executor ends it at the output limit of the run.
MAX_STDOUT_BYTES = 8 << 20
# What is returned of a result and of standard output stays below the usual output limit of 1 MiB, at which the executor ends
# a run, and with it the session: a byte of standard output can be six in JSON.
MAX_RESULT_BYTES = 256 << 10
MAX_SHOWN_STDOUT_BYTES = 100_000
TOO_LONG = (
    "result {}is longer than 256 KiB as JSON, so `text` is its short form: return {}, or write it to a file, which is "
    "returned if it is below /artifacts, and then counts to the output limit of the run"
)
# Containers are shown by their first items, and what is none by the text that notebooks show.
SHORT = reprlib.Repr()
SHORT.maxlevel = 4
SHORT.maxlist = SHORT.maxtuple = SHORT.maxdict = SHORT.maxset = SHORT.maxfrozenset = 20
SHORT.maxstring = 100
SHORT.maxother = 10_000
MAX_TEXT_CHARS = 10_000
MAX_TEXT_LEVELS = 1000
CONTAINERS = (list, tuple, dict, set, frozenset)
MAX_MESSAGE_CHARS = 2000
# The number of granted folders that an error names.
MAX_FOLDERS = 8
MAX_TRACEBACK_CHARS = 8000
MAX_STDOUT_TAIL_CHARS = 1000
MAX_BYTES_OF_A_CHAR = 4
INPUT_IS_DATA = ": `input` is the argument `input` of this call, and there is nobody to ask"
NO_TEXT = "(its text cannot be made)"
NOT_READABLE = "result has a value whose own methods fail: use str(...), or a dict of what matters"
NOT_FINITE = "NaN, NaT and infinite values are null in the result ({} of them)"
NO_MEMORY = "the program needs more memory than this run has: keep less at once, or work in parts"
MEMORY_IS_KEPT = "; what earlier programs of the session made is still there: `del` what is not needed"
# The numbers of WASI, where 2 is EACCES and 44 is ENOENT: readers would take them for those of Linux.
ERROR_NUMBER = re.compile(r"(^|Error: )\[Errno \d+\] ")
SYNTAX_ADVICE = {
    "'await' outside": "a call of a tool returns its result, so leave out `await`; for coroutines, use asyncio.run(...)",
    "'return' outside": "set `result`, or end the program with an expression",
}
# The beginnings of lines that are for a shell or a notebook.
SHELL_LINES = re.compile(r"\s*([!%$]|(pip3?|python3?|uv|conda|apt|apt-get|npm) +[\w-])")
NO_SHELL = "a program is Python alone, without a shell or the commands of notebooks, and nothing can be installed"
NOT_KEPT = (
    "a run has nothing of the runs before it, so define or import it in this program, or make all calls in one session, "
    'which begins with "session": "new"'
)
NOT_IN_SESSION = "neither this program nor an earlier one of the session defines it"
RESULT_NOT_KEPT = "each program of a session begins without `result`, so use another name for what is needed later"


class Failure(Exception):
    """A program that failed, as the parts of a tool error."""

    def __init__(self, code, message, detail):
        super().__init__(message)
        self.code = code
        self.message = message
        self.detail = detail

    def detail_text(self):
        return None if self.detail is None else json.dumps(self.detail, ensure_ascii=False)


class Captured(io.BufferedIOBase):
    """Standard output in memory, up to a bound."""

    def __init__(self):
        self.clear()

    def clear(self):
        self.content = bytearray()
        self.left_out = 0

    def close(self):
        """Stays open: what a program made of `sys.stdout`, such as a handler of logging, also serves the next one."""

    def writable(self):
        return True

    def write(self, data):
        size = memoryview(data).nbytes
        if len(self.content) + size <= MAX_STDOUT_BYTES:
            self.content += data
        else:
            # The executor counts what is written here, and ends the run at its limit.
            os.write(1, data)
            self.left_out += size
        return size

    def text(self):
        left_out = len(self.content) + self.left_out - MAX_SHOWN_STDOUT_BYTES
        if left_out <= 0:
            return self.content.decode("utf-8", "replace")
        half = MAX_SHOWN_STDOUT_BYTES // 2
        start, end = (part.decode("utf-8", "replace") for part in (self.content[:half], self.content[-half:]))
        return f"{start}\n[... {left_out} bytes left out: print less, or write to a file ...]\n{end}"


# All programs of a session share these.
main = types.ModuleType("__main__")
captured = Captured()
count = 0


def forget():
    """Lets the next program be the first one."""
    global main, count
    main, count = types.ModuleType("__main__"), 0
    for name in list(filter(PROGRAM_NAME.fullmatch, linecache.cache)):
        del linecache.cache[name]


def run(code, given, tools, error_type):
    """Runs `code` with `given` as `input`. Returns its result and its standard output, or raises a `Failure`."""
    global count
    count += 1
    captured.clear()
    tools._forget_calls()
    stdout = io.TextIOWrapper(captured, encoding="utf-8", errors="backslashreplace", write_through=True)
    body, last = compile_program(code)
    main.__dict__.pop("result", None)
    main.__dict__.update(input=given, tools=tools, ToolError=error_type, __file__=program_name(count))
    sys.modules["__main__"], sys.modules["tools"] = main, tools
    sys.argv, sys.stdout, sys.__stdout__ = [FIRST_PROGRAM], stdout, stdout
    try:
        value = execute(body, last, main.__dict__)
        tools._finish_all()
        stdout.flush()
        flush_files()
    except BaseException as error:
        raise python_error(error, error_type) from None
    return value, captured.text()


def result_text(value, stdout, send_artifacts):
    """The result of a call as JSON, in which a value without such a form is told as text.

    `send_artifacts` returns names, and is called when the value is known.
    """
    try:
        parts = value_members(value)
    except a2g_json.Unfinished as error:
        raise Failure("result_not_json", str(error) + printed(), None) from None
    except a2g_json.NotJson as error:
        parts = told_as_text(value, shorten(str(error)))
    except MemoryError:
        raise
    except BaseException:
        # Of the value's own methods.
        parts = told_as_text(value, NOT_READABLE)
    parts.append(f'"stdout": {json_text(stdout)}')
    names = send_artifacts()
    if names:
        parts.append(f'"artifacts": {json_text(names)}')
    return f"{{{', '.join(parts)}}}"


def value_members(value):
    """The members of the result that tell a value with a form in JSON."""
    replaced = []
    try:
        text = a2g_json.encode(value, "result", replaced.append)
    except a2g_json.TooLong:
        return too_long(value)
    if len(text) > MAX_RESULT_BYTES or len(text.encode()) > MAX_RESULT_BYTES:
        return too_long(value)
    note = [f'"note": {json_text(NOT_FINITE.format(len(replaced)))}'] if replaced else []
    return [f'"result": {text}', *note]


def too_long(value):
    rows = getattr(value, "shape", None)
    part = "`.head(20)` or an aggregate" if hasattr(type(value), "head") else "a part of it"
    if isinstance(rows, tuple) and rows:
        count = f"has {rows[0]} rows, and "
    elif isinstance(value, str):
        count = f"has {len(value)} characters, and "
    else:
        count = f"has {len(value)} items, and " if isinstance(value, CONTAINERS) and len(value) > 1 else ""
    return told_as_text(value, TOO_LONG.format(count, part), SHORT.repr)


def told_as_text(value, note, make_text=repr):
    return ['"result": null', f'"text": {json_text(show(value, make_text))}', f'"note": {json_text(note)}']


def json_text(value):
    return json.dumps(value, ensure_ascii=False)


def show(value, make_text):
    """The text of a value, which is the one that the interpreter and notebooks show if `make_text` is `repr`."""
    try:
        # The text itself, and not the methods of a subclass of it.
        return NO_TEXT if is_deep(value) else shorten(str.__str__(make_text(value)), MAX_TEXT_CHARS)
    except MemoryError:
        raise
    except BaseException:
        return NO_TEXT


def is_deep(value):
    """True for containers in each other on so many levels that making a text of them would use up the call stack."""
    seen, found = set(), [value]
    for _ in range(MAX_TEXT_LEVELS):
        level = {id(one): one for one in found if issubclass(type(one), CONTAINERS) and id(one) not in seen}
        seen |= level.keys()
        found = gc.get_referents(*level.values())
    return bool(level)


def program_name(number):
    """The file name of a program of the session, from 1."""
    return FIRST_PROGRAM if number == 1 else f"program-{number}.py"


def compile_program(code):
    """The code of all statements but a last expression, and of that expression."""
    name = program_name(count)
    # Tracebacks take the source from here, as there is no such file.
    linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
    if count > MAX_SOURCES:
        # Without an entry, they would look for the file.
        oldest = program_name(count - MAX_SOURCES)
        linecache.cache[oldest] = (0, None, [], oldest)
    try:
        tree = ast.parse(code, name)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        expression = last and compile(ast.Expression(last.value), name, "eval")
        return compile(tree, name, "exec"), expression
    except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError) as error:
        raise syntax_error(error, code) from None


def execute(body, last, names):
    try:
        exec(body, names)
        value = eval(last, names) if last else None
    except SystemExit as stop:
        if stop.code not in (None, 0):
            raise
        value = None
    return names.get("result", value)


def flush_files():
    """A file that the program left open keeps what was written to it, as at the end of a process."""
    for item in gc.get_objects():
        if issubclass(type(item), _io._IOBase) and not item.closed:
            item.flush()


def syntax_error(error, code):
    kind = type(error).__name__
    line = getattr(error, "lineno", None)
    reason = getattr(error, "msg", None) or str(error) or "the program is nested too deep"
    if SHELL_LINES.match("".join(code.splitlines()[line - 1 : line]) if line else ""):
        reason += f": {NO_SHELL}"
    reason += next((f": {advice}" for start, advice in SYNTAX_ADVICE.items() if reason.startswith(start)), "")
    at = f" (line {line})" if line else ""
    text = "".join(traceback.format_exception_only(error))
    return Failure("syntax_error", shorten(f"{kind}: {reason}{at}"), detail(kind, reason, line, text))


def python_error(error, tool_error):
    kind, reason = type(error).__name__, text_of(error) + advice(error)
    trace = drop_own_frames(error.__traceback__)
    name = program_name(count)
    lines = [line for frame, line in traceback.walk_tb(trace) if frame.f_code.co_filename == name]
    facts = detail(kind, reason, lines[-1] if lines else None, format_error(error, trace))
    if isinstance(error, tool_error):
        facts["tool_error"] = tool_facts(error)
    if captured.content:
        facts["stdout_tail"] = stdout_tail()
    at = f" (line {lines[-1]})" if lines else ""
    return Failure("python_error", shorten((f"{kind}: {reason}" if reason else kind) + at) + printed(), facts)


def stdout_tail():
    end = captured.content[-MAX_BYTES_OF_A_CHAR * MAX_STDOUT_TAIL_CHARS :]
    return end.decode("utf-8", "replace")[-MAX_STDOUT_TAIL_CHARS:]


def printed():
    """The end of standard output, for the message of an error: many hosts show a model nothing else of it."""
    return f"\nIt had printed:\n{stdout_tail()}" if captured.content else ""


def no_memory():
    """The failure of a program whose result does not fit into memory as text."""
    kind, reason = MemoryError.__name__, memory_advice()
    return Failure("python_error", f"{kind}: {reason}", detail(kind, reason, None, f"{kind}: {reason}"))


def memory_advice():
    return NO_MEMORY + (MEMORY_IS_KEPT if count > 1 else "")


def advice(error):
    """What to do about an error whose own text does not say it."""
    if isinstance(error, MemoryError) and not error.args:
        return memory_advice()
    if isinstance(error, MemoryError) and type(error) is not MemoryError:
        # That of numpy says which array did not fit. One with a text alone is the parser's, which has memory enough.
        return f": {memory_advice()}"
    if type(error) is NameError:
        return f": {name_advice(error.name)}"
    if type(error) is TypeError and str(error).endswith("object is not callable") and calls_input(error):
        return INPUT_IS_DATA
    return file_advice(error) if isinstance(error, OSError) else ""


def file_advice(error):
    name = error.filename
    if isinstance(name, str) and not os.path.isabs(name):
        return f": the working folder is {os.getcwd()!r}"
    if isinstance(error, PermissionError):
        return f": the files that were granted to this run do not include it, or only for reading: {places()}"
    # Of a file in memory, the error has the whole path.
    if isinstance(error, FileNotFoundError) and not a2g_files.granted:
        here = os.getcwd()
        if a2g_files.is_below(str(name), (here,)):
            return f": no folder is granted to this run, so relative paths start in {here!r}"
    return ""


def places():
    """The folders in which a run has files."""
    in_memory = " and ".join(map(repr, a2g_files.writable))
    if not a2g_files.granted:
        return f"no folder is granted, so it has files in memory only, in {in_memory}"
    folders = ", ".join(map(repr, a2g_files.granted[:MAX_FOLDERS]))
    return f"it has files in {folders}, and in memory in {in_memory}"


def calls_input(error):
    """True if the line of the program that failed calls `input`."""
    places = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    name, line = next(filter(lambda place: PROGRAM_NAME.fullmatch(place[0]), reversed(places)), (FIRST_PROGRAM, 0))
    # Not by functions of the library, which would look for the files of other frames.
    source = linecache.cache.get(name, (0, None, [], name))[2]
    return 0 < line <= len(source) and "input(" in source[line - 1]


def name_advice(name):
    if count == 1:
        return NOT_KEPT
    return RESULT_NOT_KEPT if name == "result" else NOT_IN_SESSION


def tool_facts(error):
    is_short = len(json.dumps(error.detail)) <= MAX_MESSAGE_CHARS
    facts = error.detail if is_short else None
    return {"tool": error.tool, "code": error.code, "message": error.message, "detail": facts}


def detail(kind, reason, line, text):
    return {
        "type": kind,
        "message": shorten(reason),
        "line": line,
        "traceback": shorten(text, MAX_TRACEBACK_CHARS),
    }


def text_of(error):
    try:
        return without_number(str(error)) if isinstance(error, OSError) else str(error)
    except BaseException:
        return NO_TEXT


def without_number(text):
    return ERROR_NUMBER.sub(r"\1", text)


def drop_own_frames(trace):
    while trace and trace.tb_frame.f_code.co_filename != program_name(count):
        trace = trace.tb_next
    return trace


def format_error(error, trace):
    if isinstance(error, ImportError):
        # With a name, a search for similar modules in files would follow.
        error.name = None
    try:
        summary = traceback.TracebackException(type(error), error, trace, lookup_lines=False, compact=True)
        show_program_only(summary)
        return without_number("".join(summary.format()))
    except Exception:
        return type(error).__name__


def show_program_only(summary):
    """Leaves out the frames of this tool, and the source of libraries, which is no file here."""
    frames = [frame for frame in summary.stack if not os.path.basename(frame.filename).startswith("a2g_")]
    summary.stack = traceback.StackSummary.from_list(
        frame if PROGRAM_NAME.fullmatch(frame.filename) else without_source(frame) for frame in frames
    )
    chained = (summary.__cause__, summary.__context__, *(summary.exceptions or ()))
    for one in filter(None, chained):
        show_program_only(one)


def print_own_error(kind, error, trace):
    """Writes an error of this tool itself to the log, without source, which would be looked for in files."""
    summary = traceback.TracebackException(kind, error, trace, lookup_lines=False, compact=True)
    summary.stack = traceback.StackSummary.from_list(without_source(frame) for frame in summary.stack)
    sys.stderr.write("".join(summary.format()))


def without_source(frame):
    return traceback.FrameSummary(frame.filename, frame.lineno, frame.name, lookup_line=False, line="")


def shorten(text, limit=MAX_MESSAGE_CHARS):
    """Leaves out the middle of a long text, and what no text can hold."""
    text = text.encode("utf-8", "backslashreplace").decode()
    if len(text) <= limit:
        return text
    return f"{text[: limit // 2]}\n[... {len(text) - limit} characters ...]\n{text[-limit // 2 :]}"
