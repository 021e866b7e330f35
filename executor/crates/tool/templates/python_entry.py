"""The tool of `tool.py`: an exception that it does not catch is an error of the tool and no trap. `a2g-executor tool
build` puts this file beside the tool's own and builds a component of it."""

import json
import sys
import traceback

import tool
from componentize_py_types import Err
from wit_world.imports.types import ToolError

MAX_MESSAGE_CHARS = 2000
MAX_FRAMES = 20
OWN_FILE = (lambda: None).__code__.co_filename
FOLDER = OWN_FILE.removesuffix("a2g_entry.py")


class WitWorld(tool.WitWorld):
    def invoke(self, arguments):
        try:
            return super().invoke(arguments)
        except Err:
            raise
        except (Exception, SystemExit) as error:
            raise Err(to_tool_error(error)) from None


def to_tool_error(error):
    kind, reason, frames = type(error).__name__, read_text(error), list_frames(error)
    for file, line, name in frames:
        print(f"{file}, line {line}, in {name}", file=sys.stderr)
    file, line, _ = frames[-1] if frames else (None, None, None)
    place = f" ({file}, line {line})" if frames else ""
    title = f"{kind}: {reason}" if reason else kind
    detail = {"type": kind, "message": reason, "file": file, "line": line}
    return ToolError("exception", title + place, json.dumps(detail))


def read_text(error):
    """The text of an exception, without the system's number of an error, and with nothing that no text can hold."""
    try:
        text = str(error)
        if isinstance(error, OSError) and error.strerror:
            text = error.strerror if error.filename is None else f"{error.strerror}: {error.filename!r}"
    except Exception:
        text = "(its text cannot be made)"
    return text[:MAX_MESSAGE_CHARS].encode("utf-8", "backslashreplace").decode()


def list_frames(error):
    """The calls in the tool's own files that led to an exception, the innermost last: file, line and function."""
    frames = []
    for frame, line in traceback.walk_tb(error.__traceback__):
        file = frame.f_code.co_filename
        if file.startswith(FOLDER) and file != OWN_FILE:
            frames.append((file.removeprefix(FOLDER), line, frame.f_code.co_name))
    return frames[-MAX_FRAMES:]
