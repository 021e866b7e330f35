"""`tools`: calls to other tools, each an intent of its own that the governor decides on."""

import builtins
import json

from a2g_json import NotJson, encode


USE_RESULT = "use its .result()"
ENDED = "the call ended with the program that started it: make it again"


class ToolError(Exception):
    """A call that did not succeed: `code` and `message` say why and what to change, `detail` has the facts."""

    # The name in a traceback, by which a program can import it.
    __module__ = "tools"

    def __init__(self, tool, code, message, detail=None):
        super().__init__(f"{tool}: {message} ({code})" if tool else f"{message} ({code})")
        self.tool = tool
        self.code = code
        self.message = message
        self.detail = detail


class Handle:
    """A call that was started."""

    def __init__(self, tools, name, number):
        self._tools = tools
        self._number = number
        self._outcome = None
        self.tool = name

    def result(self):
        """Waits for the call. Returns its result or raises a `ToolError`."""
        self._tools._finish([self])
        return self._outcome()

    def __getattr__(self, name):
        refuse_private(name)
        raise AttributeError(f"a started call has no `{name}`: {USE_RESULT}")

    def __getitem__(self, key):
        raise TypeError(f"a started call is not its result: {USE_RESULT}")

    def __repr__(self):
        return f"<call {self._number} of {self.tool}>"


class Starter:
    """`tools.start`: starts calls and does not wait for them."""

    def __init__(self, tools):
        self._tools = tools

    def __getattr__(self, name):
        refuse_private(name)
        return self[name]

    def __getitem__(self, name):
        return Function(self._tools._start, name, "tools.start")

    def __call__(self, name, arguments=None, /, **named):
        return self[name](*given(arguments), **named)


class Function:
    """One tool as a function."""

    def __init__(self, call, name, prefix="tools"):
        self._call = call
        self._prefix = prefix
        self.__name__ = name

    def __call__(self, *positional, **named):
        return self._call(self.__name__, self._arguments(positional, named))

    def _arguments(self, positional, named):
        name = self.__name__
        shown = f"{self._prefix}.{name}" if name.isidentifier() else f'{self._prefix}["{name}"]'
        if len(positional) > 1 or not all(isinstance(one, dict) for one in positional):
            raise TypeError(f"{shown} takes named arguments, as in {shown}(path=...), or one dict")
        arguments = {**positional[0], **named} if positional else named
        try:
            return encode(arguments, "arguments")
        except NotJson as error:
            raise TypeError(f"{shown}: {error}") from None

    def __repr__(self):
        return f"<tool {self.__name__}>"


class Tools:
    """The tools that this program may call: `tools.NAME(argument=...)`."""

    ToolError = ToolError

    def __init__(self, calls, error_type):
        self._calls = calls
        self._error_type = error_type
        self._waiting = {}
        # The calls that the program has not waited for.
        self._untaken = {}
        self.start = Starter(self)

    def __getattr__(self, name):
        refuse_private(name)
        return self[name]

    def __getitem__(self, name):
        return Function(self._call, name)

    def __dir__(self):
        return [*object.__dir__(self), *(tool["name"] for tool in self.list())]

    def call(self, name, arguments=None, /, **named):
        """Calls a tool by its name, which need not be an identifier."""
        return self[name](*given(arguments), **named)

    def parallel(self, calls, *, return_exceptions=False):
        """Waits for several calls, which run at the same time. Returns their results in order.

        A call is what `tools.start.NAME(...)` returns, or a pair `("NAME", {...})`. The first that failed is raised,
        after all have ended; with `return_exceptions` it is returned in place of a result.
        """
        handles = [self._handle(index, call) for index, call in enumerate(calls)]
        self._finish(handles)
        return [settle(handle, return_exceptions) for handle in handles]

    def list(self):
        """The tools that this program may call: dicts with `name` and `description`."""
        return [{"name": tool.name, "description": tool.description} for tool in self._calls.list()]

    def describe(self, name):
        """The interface of a tool: a dict with its `arguments` and its `result` as JSON Schemas."""
        found = self._try(name, self._calls.describe, name)
        return {
            "name": found.name,
            "description": found.description,
            "arguments": json.loads(found.arguments_schema),
            "result": None if found.result_schema is None else json.loads(found.result_schema),
        }

    def _call(self, name, arguments):
        return json.loads(self._try(name, self._calls.call, name, arguments))

    def _start(self, name, arguments):
        number = self._calls.start(name, arguments)
        handle = self._waiting[number] = self._untaken[number] = Handle(self, name, number)
        return handle

    def _forget_calls(self):
        """Forgets the calls of an earlier program of the session, which ended with it. Their numbers come again."""
        for handle in self._waiting.values():
            error = ToolError(handle.tool, "unknown_call", ENDED)
            handle._outcome = lambda error=error: throw(error)
        self._waiting.clear()
        self._untaken.clear()

    def _finish_all(self):
        """Waits for the calls that the program started and did not wait for. Raises the error of the first that failed."""
        handles = builtins.list(self._untaken.values())
        self._finish(handles)
        for handle in handles:
            handle._outcome()

    def _handle(self, index, call):
        if isinstance(call, Handle):
            return call
        if isinstance(call, (builtins.tuple, builtins.list)) and len(call) == 2 and isinstance(call[0], str):
            return self.start(*call)
        raise TypeError(
            f"tools.parallel: item {index} is of type {type(call).__name__}, and must be a call that was started, as "
            f'in tools.start.read_file(path=...), or a pair such as ("read_file", {{"path": ...}})'
        )

    def _finish(self, handles):
        """Waits until all of them have ended."""
        for handle in handles:
            self._untaken.pop(handle._number, None)
        open_calls = {handle._number for handle in handles if handle._outcome is None}
        while open_calls:
            finished = self._try("", self._calls.wait, builtins.list(open_calls))
            open_calls.discard(finished.call)
            handle = self._waiting.pop(finished.call)
            handle._outcome = self._outcome(handle.tool, finished.outcome)

    def _outcome(self, tool, outcome):
        if hasattr(outcome.value, "code"):
            error = self._error(tool, outcome.value)
            return lambda: throw(error)
        text = outcome.value
        return lambda: json.loads(text)

    def _try(self, tool, function, *arguments):
        try:
            return function(*arguments)
        except self._error_type as error:
            raise self._error(tool, error.value) from None

    @staticmethod
    def _error(tool, error):
        return ToolError(tool, error.code, error.message, parse_detail(error.detail))


def refuse_private(name):
    # Python and its libraries look for such attributes on any object.
    if name.startswith("_"):
        raise AttributeError(name)


def given(arguments):
    return () if arguments is None else (arguments,)


def parse_detail(text):
    try:
        return None if text is None else json.loads(text)
    except ValueError:
        return text


def throw(error):
    raise error


def settle(handle, return_exceptions):
    try:
        return handle._outcome()
    except ToolError as error:
        if return_exceptions:
            return error
        raise
