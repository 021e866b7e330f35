"""A typed tool that counts the words of a text."""

# The component has the modules that are imported when it is made. None can be imported later.
import json

import wit_world
from componentize_py_types import Err
from wit_world.imports import host
from wit_world.imports.types import Descriptor, Level, ToolError

from words import count_words

SCHEMA = {
    "type": "object",
    "properties": {"text": {"type": "string", "description": "The text whose words are counted."}},
    "required": ["text"],
    "additionalProperties": False,
}


class WitWorld(wit_world.WitWorld):
    def describe(self):
        return Descriptor("template_tool", "0.1.0", "Counts the words of a text.", json.dumps(SCHEMA))

    def invoke(self, arguments):
        # `tool build` makes an error of the tool, with type, text and line, of any other exception.
        return json.dumps(run(json.loads(arguments)))


def run(arguments):
    words = count_words(arguments["text"])
    host.log(Level.INFO, f"counted {words} words")
    if words == 0:
        raise Err(ToolError("no_words", "`text` has no words", None))
    return {"words": words}
