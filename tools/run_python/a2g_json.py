"""JSON that every parser reads alike: values that have no such form are refused, with their place and what to do."""

import datetime
import decimal
import json
import math
import os
import uuid

# The executor accepts 48 levels, and the result is one level below the object that holds it.
MAX_DEPTH = 46
MAX_NUMBER = 1.7976931348623157e308

ADVICE = {
    "bytes": "use .decode() or base64.b64encode(...).decode()",
    "bytearray": "use .decode() or base64.b64encode(...).decode()",
    "memoryview": "use bytes(...).decode() or base64.b64encode(...).decode()",
    "timedelta": "use .total_seconds()",
    "Fraction": "use float(...) or str(...)",
    "complex": "use [z.real, z.imag]",
    "module": "use one of its values",
    "type": "use its __name__",
    "function": "call it",
    "builtin_function_or_method": "call it",
    "method": "call it",
    "coroutine": "run it with asyncio.run(...)",
    "Handle": "use its .result()",
    # Of pandas: what groups, resamples or rolls.
    "BaseGroupBy": "aggregate it, such as with .sum()",
    "BaseWindow": "aggregate it, such as with .sum()",
}


class NotJson(Exception):
    """A value that is not JSON. Its text says where it is, what it is and what to do."""

    def __init__(self, reason):
        super().__init__(reason)
        self.reason = reason
        self.steps = []

    def place(self, name):
        return name + "".join(reversed(self.steps))


class Unfinished(NotJson):
    """A coroutine or a call that the program has not waited for, so that it has no value yet."""


class TooLong(NotJson):
    """A value that is certainly longer than a result may be."""


UNFINISHED = {"coroutine", "Handle"}


def natural(value):
    """The list or text that stands for a value of Python's library; other values are returned as they are."""
    if isinstance(value, (set, frozenset)):
        try:
            return sorted(value)
        except Exception:
            return list(value)
    if isinstance(value, (datetime.date, datetime.time)):
        return str(value.isoformat())
    if isinstance(value, (decimal.Decimal, uuid.UUID)):
        return str(value)
    return os.fspath(value) if hasattr(type(value), "__fspath__") else value


# The functions that make values of libraries plain, the first that knows a value first. Each returns a value that it does
# not know as it is, and a container with values that are not plain.
SIMPLIFIERS = [natural]


def simplify(value):
    """What stands for a value that is none of JSON's types; the value itself if nothing does."""
    return next((plain for one in SIMPLIFIERS if (plain := one(value)) is not value), value)


def refuse_number(value):
    raise NotJson(f"is {value!r}, and JSON has finite numbers only: use None or str(...)")


def encode(value, name, replace=refuse_number):
    """The JSON text of a value that is called `name` in errors. `replace` returns what stands for a number that is not finite."""
    try:
        plain = clean(value, [], replace)
    except NotJson as error:
        error.args = (f"{error.place(name)} {error.reason}",)
        raise
    return json.dumps(plain, ensure_ascii=False, allow_nan=False)


def clean(value, parents, replace):
    """The value with plain values in place of all others."""
    if value is None or value is True or value is False:
        return value
    if isinstance(value, str):
        check_text(value)
        return value
    if isinstance(value, int):
        if not -MAX_NUMBER <= value <= MAX_NUMBER:
            raise NotJson("is an integer beyond 1.8e308, which JSON readers cannot hold: use str(...)")
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else replace(value)
    if isinstance(value, dict):
        return clean_object(value, enter(value, parents), replace)
    if isinstance(value, (list, tuple)):
        return clean_array(value, enter(value, parents), replace)
    if (plain := simplify(value)) is not value:
        return clean(plain, parents, replace)
    name = type(value).__name__
    kind = Unfinished if name in UNFINISHED else NotJson
    raise kind(f"is of type {name}, which JSON does not have: {advice(value)}")


def enter(value, parents):
    if any(parent is value for parent in parents):
        raise NotJson("contains itself: make a copy without the cycle")
    if len(parents) >= MAX_DEPTH:
        raise NotJson(f"is below {MAX_DEPTH} levels of lists and dicts: flatten the value")
    return [*parents, value]


def clean_array(array, parents, replace):
    items = []
    try:
        for item in array:
            items.append(clean(item, parents, replace))
    except NotJson as error:
        error.steps.append(f"[{len(items)}]")
        raise
    return items


def clean_object(items, parents, replace):
    plain = {}
    for key, item in items.items():
        name = key_text(key)
        if name in plain:
            raise NotJson(f"has two keys that are {json.dumps(name)} in JSON: make all keys text")
        try:
            plain[name] = clean(item, parents, replace)
        except NotJson as error:
            error.steps.append(f".{name}" if name.isidentifier() else f"[{json.dumps(name)}]")
            raise
    return plain


def key_text(key):
    """The name that a key has in JSON."""
    plain = key if is_key(key) else simplify(key)
    if not is_key(plain):
        raise NotJson(f"has a key of type {type(key).__name__}, and keys in JSON are text: use str(...)")
    try:
        # As a text, it need not be finite.
        clean(plain, [], float)
    except NotJson as error:
        raise NotJson(f"has a key that {error.reason}") from None
    return str(plain) if isinstance(plain, str) else json.dumps(plain)


def is_key(value):
    return value is None or isinstance(value, (str, int, float))


def check_text(text):
    try:
        # Not the method of a subclass.
        str.encode(text)
    except UnicodeEncodeError as error:
        advice = 'use text.encode("utf-8", "replace").decode()'
        raise NotJson(f"has a lone surrogate at index {error.start}, which is no text: {advice}") from None


def advice(value):
    for kind in type(value).__mro__:
        if kind.__name__ in ADVICE:
            return ADVICE[kind.__name__]
    # The attributes of the type: looking for those of the value may run code of the program.
    if hasattr(type(value), "__dataclass_fields__"):
        return "use dataclasses.asdict(...)"
    if hasattr(type(value), "__iter__"):
        return "use list(...)"
    return "use str(...), or a dict of what matters"
