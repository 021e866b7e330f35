"""The imports of `a2g:tool` that the module passes on: see merge.rs, which has the same numbers and layouts."""

import _host
import _struct

TAKE, LIST, DESCRIBE, CALL, START, WAIT, ARTIFACT, FINISH, ARGUMENTS, FOLDER = range(1, 11)
# The descriptors before it are the standard streams.
FIRST_FOLDER = 3
HEADER = _struct.Struct("<8I")


class Err(Exception):
    """An error of an import: `value` has code, message and detail."""

    def __init__(self, value):
        self.value = value


class Record:
    def __init__(self, **fields):
        self.__dict__.update(fields)


def send(operation, first=b"", second=b"", third=b"", number=0, other=0):
    header = HEADER.pack(operation, len(first), len(second), len(third), number, other, 0, 0)
    return _host.call(b"".join((header, first, second, third)))


class Result:
    """The result of an import, whose fields are read at their places."""

    def __init__(self, data):
        self.data = data

    def word(self, at):
        return int.from_bytes(self.data[at : at + 4], "little")

    def is_set(self, at):
        return self.data[at] != 0

    def take(self, at, size=1):
        """The bytes that a field points to. They can be read once."""
        address, count = self.word(at), self.word(at + 4)
        return send(TAKE, number=address, other=count * size) if count else b""

    def text(self, at):
        return self.take(at).decode()

    def error(self, at):
        detail = self.text(at + 20) if self.is_set(at + 16) else None
        return Record(code=self.text(at), message=self.text(at + 8), detail=detail)

    def check(self):
        if self.is_set(0):
            raise Err(self.error(4))
        return self


def list():
    result = Result(send(LIST))
    items = Result(result.take(0, 16))
    return [
        Record(name=items.text(at), description=items.text(at + 8)) for at in range(0, len(items.data), 16)
    ]


def describe(name):
    result = Result(send(DESCRIBE, name.encode())).check()
    return Record(
        name=result.text(4),
        description=result.text(12),
        arguments_schema=result.text(20),
        result_schema=result.text(32) if result.is_set(28) else None,
    )


def call(name, arguments):
    return Result(send(CALL, name.encode(), arguments.encode())).check().text(4)


def start(name, arguments):
    return Result(send(START, name.encode(), arguments.encode())).word(0)


def wait(numbers):
    result = Result(send(WAIT, _struct.pack(f"<{len(numbers)}I", *numbers), number=len(numbers))).check()
    outcome = Record(value=result.error(12) if result.is_set(8) else result.text(12))
    return Record(call=result.word(4), outcome=outcome)


def artifact(name, media_type, chunk, is_last):
    Result(send(ARTIFACT, name.encode(), media_type.encode(), chunk, is_last)).check()


def finish(result):
    send(FINISH, result.encode())


def fail(code, message, detail):
    send(FINISH, code.encode(), message.encode(), (detail or "").encode(), 1, detail is not None)


def arguments():
    return send(ARGUMENTS).decode()


def folders():
    """The names of the granted folders. The last open one is `/`, which stands for all that is not granted."""
    names = []
    while (name := send(FOLDER, number=FIRST_FOLDER + len(names))) != b"\0":
        names.append(name.decode())
    return [name for name in names if name != "/"]
