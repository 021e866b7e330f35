"""The files below /artifacts, which are returned beside the result."""

import a2g_files

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


def extension(name):
    return name.rpartition(".")[2].lower()


def send(send_chunk):
    """The names of the files that no earlier program of the session has sent as they are; they are sent."""
    names = []
    for _, name, content in a2g_files.new_artifacts():
        media_type = MEDIA_TYPES.get(extension(name), "application/octet-stream")
        size = content.size()
        for start in range(0, max(size, 1), CHUNK_BYTES):
            end = start + CHUNK_BYTES
            send_chunk(name, media_type, content.read(start, end), end >= size)
        content.is_sent = True
        names.append(name)
    return names
