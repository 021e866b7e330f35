"""The files below /artifacts, which are returned beside the result."""

import a2g_files
import a2g_program

MEDIA_TYPES = {
    "csv": "text/csv",
    "gif": "image/gif",
    "html": "text/html",
    "jpeg": "image/jpeg",
    "jpg": "image/jpeg",
    "json": "application/json",
    "md": "text/markdown",
    "pdf": "application/pdf",
    "png": "image/png",
    "svg": "image/svg+xml",
    "txt": "text/plain",
    "webp": "image/webp",
    "xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
    "xml": "application/xml",
}
CHUNK_BYTES = 1 << 20
# Beside a failure, they stay below the usual output limit.
MAX_BYTES_OF_FAILED = 512 << 10


def extension(name):
    return name.rpartition(".")[2].lower()


def send(send_chunk, error_type=()):
    """The names of the files that no earlier program of the session has sent as they are; they are sent.

    A file that the executor refuses raises a `Failure` after all others are sent, and is refused once.
    """
    names = []
    refused = []
    for path, name, content in a2g_files.new_artifacts():
        # Also if it is refused: the next program of the session has not written it.
        content.is_sent = True
        try:
            send_file(send_chunk, name, content)
        except error_type as error:
            refused.append(refusal(path, error.value.message))
        except UnicodeEncodeError:
            refused.append(refusal(path, "its name is not Unicode"))
        except BaseException:
            content.is_sent = False
            raise
        else:
            names.append(name)
    if refused:
        raise a2g_program.Failure("invalid", a2g_program.shorten("; ".join(refused)), {"artifacts": names})
    return names


def send_of_failed(failure, send_new):
    """Adds the files that a failed program has written to its failure: the next call of the session has not written them.

    `send_new` sends new files, and returns their names.
    """
    new = a2g_files.new_artifacts()
    try:
        # Too many of them would end the run, and leave the reason of the failure untold.
        names = send_new() if sum(content.size() for _, _, content in new) <= MAX_BYTES_OF_FAILED else None
    except a2g_program.Failure as refused:
        failure.message += f"\n{refused.message}"
        names = refused.detail["artifacts"]
    except MemoryError:
        names = None
    if names is None:
        for _, _, content in new:
            content.is_sent = True
        failure.message += f"\n{len(new)} new file(s) in /artifacts were not returned, because the call failed: write them again"
    elif names:
        failure.detail = {**(failure.detail or {}), "artifacts": names}


def refusal(path, reason):
    return f"the file {path!r} cannot be returned as an artifact: rename or remove it: {reason}"


def send_file(send_chunk, name, content):
    media_type = MEDIA_TYPES.get(extension(name), "application/octet-stream")
    # A part of a name that no text can hold would end the run.
    name.encode()
    size = content.size()
    for start in range(0, max(size, 1), CHUNK_BYTES):
        end = start + CHUNK_BYTES
        send_chunk(name, media_type, content.read(start, end), end >= size)
