"""A typed tool in Python, made a component by componentize-py."""

# The component has the modules that are imported when it is made. None can be imported later.
import json
import re
from collections import Counter

import wit_world
from componentize_py_types import Err
from wit_world.imports import host
from wit_world.imports.types import Descriptor, Level, ToolError

SCHEMA = {
    "type": "object",
    "properties": {"path": {"type": "string"}},
    "required": ["path"],
    "additionalProperties": False,
}


class WitWorld(wit_world.WitWorld):
    def describe(self):
        return Descriptor("count_words", "1.0.0", "Counts the words of a file.", json.dumps(SCHEMA))

    def invoke(self, arguments):
        path = json.loads(arguments)["path"]
        host.log(Level.INFO, f"reading {path}")
        try:
            with open(path) as file:
                words = re.findall(r"\w+", file.read().lower())
        except OSError as error:
            raise Err(ToolError("unreadable", f"`{path}`: {error.strerror}", None))
        return json.dumps({"words": len(words), "most": max(Counter(words).items(), key=lambda pair: pair[1])})
