"""Files in memory, in front of those of the system: /artifacts, /tmp unless a granted folder has it, and /packages where
the tool has packages. A granted folder below one of them is in front of it. In the tool with the scientific packages also Python's library and matplotlib's data. And the working
folder, which may be one of them.

That library is one zip, which the module has outside of the interpreter's memory. Functions of Python that take a path
find these files; libraries in C that open a path by themselves, such as sqlite3 and lxml, do not.
"""

import builtins
import errno
import io
import itertools
import os
import posix
import stat
import sys
import time

import _io

LIBRARY = next((path for path in sys.path if path.endswith(".zip")), None)
PLOT_DATA = f"{LIBRARY}/matplotlib/mpl-data"
PACKAGES = "/packages"
# Paths at which Python and its packages look for themselves, fonts, time zones, media types and settings: the library is
# there, and all else does not exist. A look at the granted files would be refused, and be in the report of a program that
# did nothing wrong.
LOOKED_AT = ("/usr", "/etc/mime.types", "/etc/httpd/mime.types", "/etc/httpd/conf/mime.types")
LOOKED_AT += ("/etc/apache/mime.types", "/etc/apache2/mime.types", "matplotlibrc")
ARTIFACTS = "/artifacts"
TEMPORARY = "/tmp"
WRITABLE = (TEMPORARY, ARTIFACTS)
# Above every descriptor of WASI.
FIRST_DESCRIPTOR = 1 << 20
# That of the clock with which the tool is made.
STARTED = int(time.time())

# The folders of which all files are in memory, and those of them that a program can write to.
roots = ()
writable = ()
# The names of the granted folders, and those of them that are these or below these.
granted = ()
granted_inside = ()
contents = {}
folders = set()
descriptors = {}
# The working folder if it is one of these; `None` while it is one of the C library.
here = None
# The paths of artifacts by their names: a file of a session keeps its name.
artifact_paths = {}
next_descriptor = FIRST_DESCRIPTOR


class Content:
    """The bytes of a file."""

    def __init__(self, data=b""):
        self.data = bytearray(data)
        self.note_change()

    def note_change(self):
        self.changed = time.time()
        # As an artifact.
        self.is_sent = False

    def size(self):
        return len(self.data)

    def read(self, start, end):
        return bytes(memoryview(self.data)[start:end])


class Stored:
    """Bytes outside of the interpreter's memory."""

    changed = STARTED

    def __init__(self, size, read):
        self.size = lambda: size
        self.read = lambda start, end: read(start, max(0, min(end, size) - start))


class File(io.RawIOBase):
    """An open file."""

    def __init__(self, content, name, mode):
        self.content, self.name, self.mode = content, name, mode
        self.at = 0
        self.appends = "a" in mode
        self.reads = "r" in mode or "+" in mode
        self.writes = "r" not in mode or "+" in mode
        if self.appends:
            self.at = content.size()

    def readable(self):
        return self.reads

    def writable(self):
        return self.writes

    def seekable(self):
        return True

    def tell(self):
        return self.at

    def seek(self, offset, whence=0):
        self.at = max(0, offset + (0, self.at, self.content.size())[whence])
        return self.at

    def read(self, size=-1):
        if not self.reads:
            raise io.UnsupportedOperation("not readable")
        end = self.content.size()
        data = self.content.read(self.at, end if size is None or size < 0 else min(end, self.at + size))
        self.at += len(data)
        return data

    readall = read

    def readinto(self, buffer):
        view = memoryview(buffer).cast("B")
        data = self.read(len(view))
        view[: len(data)] = data
        return len(data)

    def write(self, buffer):
        if not self.writes:
            raise io.UnsupportedOperation("not writable")
        view = memoryview(buffer).cast("B")
        data = self.content.data
        if self.appends:
            self.at = len(data)
        elif self.at > len(data):
            data.extend(bytes(self.at - len(data)))
        data[self.at : self.at + len(view)] = view
        self.at += len(view)
        self.content.note_change()
        return len(view)

    def truncate(self, size=None):
        size = self.at if size is None else size
        data = self.content.data
        del data[size:]
        data.extend(bytes(size - len(data)))
        self.content.note_change()
        return size


def error(number, path):
    return OSError(number, os.strerror(number), path)


def from_root(path):
    """The path from the root, if the working folder is in memory: the C library does not know that folder."""
    if here is None:
        return path
    try:
        text = os.fsdecode(path)
    except TypeError:
        return path
    return path if not text or text.startswith("/") else os.path.normpath(f"{here}/{text}")


def place(path):
    """The normal form of the path, from the root, of one of these files; `None` for any other path."""
    if type(path) is not str:
        try:
            path = os.fsdecode(path)
        except TypeError:
            # A descriptor, or no path at all, about which the real function has its own error.
            return None
    if not path.startswith(roots):
        return None
    path = os.path.normpath(path)
    return path if is_below(path, roots) and not is_below(path, granted_inside) else None


def is_below(path, parents):
    return any(path == parent or path.startswith(f"{parent}/") for parent in parents)


def load_plot_data(at):
    """matplotlib looks for its data beside its modules, and as files: they are a zip in the zip."""
    if PLOT_DATA in folders or not at.startswith(PLOT_DATA):
        return
    import zipfile

    packed = sys.path_importer_cache[LIBRARY].get_data("matplotlib/mpl-data.zip")
    folders.add(PLOT_DATA)
    with zipfile.ZipFile(io.BytesIO(packed)) as archive:
        for member in archive.infolist():
            name = f"{PLOT_DATA}/{member.filename}".rstrip("/")
            parent = name if member.is_dir() else os.path.dirname(name)
            while parent not in folders:
                folders.add(parent)
                parent = os.path.dirname(parent)
            if not member.is_dir():
                contents[name] = Packed(packed, member)


class Packed:
    """A file of matplotlib's data, read when it is needed."""

    changed = STARTED

    def __init__(self, packed, member):
        self.packed, self.member, self.data = packed, member, None

    def size(self):
        return self.member.file_size

    def read(self, start, end):
        if self.data is None:
            import zipfile

            with zipfile.ZipFile(io.BytesIO(self.packed)) as archive:
                self.data = archive.read(self.member)
        return self.data[start:end]


def is_writable(at):
    return is_below(at, writable)


def find(at):
    """The content of a file; `None` for a folder."""
    load_plot_data(at)
    content = contents.get(at)
    if content is None and at not in folders:
        raise error(errno.ENOENT, at)
    return content


def prepare(at, mode):
    """The content for an open file."""
    if at in folders:
        raise error(errno.EISDIR, at)
    if "r" in mode and "+" not in mode:
        return find(at)
    if not is_writable(at):
        raise error(errno.EROFS, at)
    if "x" in mode and at in contents:
        raise error(errno.EEXIST, at)
    if "r" in mode:
        return find(at)
    if os.path.dirname(at) not in folders:
        raise error(errno.ENOENT, at)
    if "a" not in mode or at not in contents:
        # The same object, so that a file which is open sees the change.
        content = contents.setdefault(at, Content())
        content.data.clear()
        content.note_change()
    return contents[at]


def open_file(real):
    def open(file, mode="r", buffering=-1, encoding=None, errors=None, newline=None, closefd=True, opener=None):
        if isinstance(file, int):
            raw = descriptors.get(file)
            if raw is None:
                return real(file, mode, buffering, encoding, errors, newline, closefd, opener)
            if closefd:
                del descriptors[file]
            else:
                raw = File(raw.content, raw.name, raw.mode)
            return wrap(raw, mode, buffering, encoding, errors, newline)
        path = from_root(file)
        at = place(path)
        if at is None:
            return real(path, mode, buffering, encoding, errors, newline, closefd, opener)
        if opener is not None:
            return open(opener(file, posix.O_RDWR), mode, buffering, encoding, errors, newline)
        plain = mode.replace("b", "").replace("t", "")
        return wrap(File(prepare(at, plain), file, plain), mode, buffering, encoding, errors, newline)

    return open


def wrap(raw, mode, buffering, encoding, errors, newline):
    if "b" in mode and buffering == 0:
        return raw
    reads, writes = "r" in mode or "+" in mode, "r" not in mode or "+" in mode
    kind = io.BufferedRandom if reads and writes else io.BufferedWriter if writes else io.BufferedReader
    buffered = kind(raw)
    if "b" in mode:
        return buffered
    text = io.TextIOWrapper(buffered, encoding or "utf-8", errors, newline, line_buffering=buffering == 1)
    text.mode = mode
    return text


def open_code(real):
    return lambda path: real(path) if place(path) is None else File(prepare(place(path), "r"), path, "r")


def open_descriptor(at, flags, mode=0o777, *, dir_fd=None):
    global next_descriptor
    kind = {posix.O_RDONLY: "r", posix.O_WRONLY: "w", posix.O_RDWR: "r+"}[flags & (posix.O_RDONLY | posix.O_RDWR)]
    if at in contents and flags & posix.O_CREAT and flags & posix.O_EXCL:
        raise error(errno.EEXIST, at)
    if at in contents and flags & posix.O_TRUNC or at not in contents and flags & posix.O_CREAT:
        prepare(at, "w")
    # Without another truncation.
    raw = File(prepare(at, "r" if kind == "r" else "r+"), at, "r" if kind == "r" else "r+")
    next_descriptor += 1
    descriptors[next_descriptor] = raw
    return next_descriptor


def describe(at, *, dir_fd=None, follow_symlinks=True):
    content = find(at)
    return facts(at, stat.S_IFDIR | 0o755, 0, STARTED) if content is None else describe_content(content, at)


def describe_content(content, at):
    mode = stat.S_IFREG | (0o644 if is_writable(at) else 0o444)
    return facts(at, mode, content.size(), int(content.changed))


def facts(at, mode, size, changed):
    # Without them, they would be `None`, and what copies times would fail.
    in_nanoseconds = dict.fromkeys(("st_atime_ns", "st_mtime_ns", "st_ctime_ns"), changed * 10**9)
    numbers = (mode, hash(at) & 0x7FFFFFFF, 1, 1, 0, 0, size, changed, changed, changed)
    return os.stat_result(numbers, in_nanoseconds)


def list_folder(at="."):
    if find(at) is not None:
        raise error(errno.ENOTDIR, at)
    start = f"{at}/"
    names = {name[len(start) :].partition("/")[0] for name in (*contents, *folders) if name.startswith(start)}
    return sorted(names)


class Entry:
    """An entry of `os.scandir`: `folder` is where it is, and `given` what the program called that."""

    def __init__(self, folder, given, name):
        self.name, self.path, self.at = name, os.path.join(given, name), f"{folder}/{name}"

    def __fspath__(self):
        return self.path

    def is_dir(self, *, follow_symlinks=True):
        return self.at in folders

    def is_file(self, *, follow_symlinks=True):
        return self.at in contents

    def is_symlink(self):
        return False

    def is_junction(self):
        return False

    def stat(self, *, follow_symlinks=True):
        return describe(self.at)

    def inode(self):
        return self.stat().st_ino


class Entries:
    """The iterator that `os.scandir` returns."""

    def __init__(self, entries):
        self.entries = iter(entries)

    def __iter__(self):
        return self.entries

    def __next__(self):
        return next(self.entries)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None

    def close(self):
        return None


def scan_folder(real):
    def scandir(path="."):
        from_here = from_root(path)
        at = place(from_here)
        if at is None:
            return real(from_here)
        return Entries([Entry(at, os.fsdecode(path), name) for name in list_folder(at)])

    return scandir


def check_change(at):
    if not is_writable(at) or at in writable:
        raise error(errno.EROFS, at)


def make_folder(at, mode=0o777, *, dir_fd=None):
    if at in folders or at in contents:
        raise error(errno.EEXIST, at)
    check_change(at)
    if os.path.dirname(at) not in folders:
        raise error(errno.ENOENT, at)
    folders.add(at)


def remove_folder(at, *, dir_fd=None):
    if list_folder(at):
        raise error(errno.ENOTEMPTY, at)
    check_change(at)
    folders.discard(at)


def remove_file(at, *, dir_fd=None):
    if find(at) is None:
        raise error(errno.EISDIR, at)
    check_change(at)
    del contents[at]


def check_replaced(old, new, is_folder):
    """Refuses what rename refuses: a folder goes to a new name or in place of an empty folder, and a file not in place of
    a folder."""
    if new.startswith(f"{old}/"):
        raise error(errno.EINVAL, new)
    if is_folder and new in contents:
        raise error(errno.ENOTDIR, new)
    if is_folder and new in folders and list_folder(new):
        raise error(errno.ENOTEMPTY, new)
    if not is_folder and new in folders:
        raise error(errno.EISDIR, new)


def rename(real):
    def function(src, dst, *, src_dir_fd=None, dst_dir_fd=None):
        source = src if src_dir_fd is not None else from_root(src)
        target = dst if dst_dir_fd is not None else from_root(dst)
        old, new = place(source), place(target)
        if old is None and new is None:
            return real(source, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
        if old is None or new is None:
            raise error(errno.EXDEV, src)
        check_change(old)
        check_change(new)
        if os.path.dirname(new) not in folders:
            raise error(errno.ENOENT, new)
        content = find(old)
        if old == new:
            return None
        check_replaced(old, new, is_folder=content is None)
        if content is not None:
            contents[new] = contents.pop(old)
            contents[new].is_sent = False
            return None
        for names in (contents, folders):
            for name in [name for name in names if name == old or name.startswith(f"{old}/")]:
                moved = new + name[len(old) :]
                if names is folders:
                    folders.discard(name)
                    folders.add(moved)
                else:
                    contents[moved] = contents.pop(name)
                    contents[moved].is_sent = False
        return None

    return function


def is_accessible(at, mode, *, dir_fd=None, effective_ids=False, follow_symlinks=True):
    try:
        find(at)
    except OSError:
        return False
    return not mode & os.W_OK or is_writable(at)


def keep(at, *_, **__):
    """Modes and times are not kept."""
    find(at)


def read_link(at, *, dir_fd=None):
    find(at)
    raise error(errno.EINVAL, at)


def route_descriptor(name, mine):
    """Replaces a function of `os` that takes a descriptor."""
    real = getattr(posix, name)

    def function(fd, *arguments):
        raw = descriptors.get(fd)
        return real(fd, *arguments) if raw is None else mine(raw, fd, *arguments)

    function.__name__ = name
    replace(name, function)


def route(name, mine):
    """Replaces a function of `os` that takes one path."""
    real = getattr(posix, name, None)
    if real is None:
        return

    def function(path=".", *arguments, **named):
        # A path below an open folder does not depend on the working folder.
        seen = path if named.get("dir_fd") is not None else from_root(path)
        at = place(seen)
        return real(seen, *arguments, **named) if at is None else mine(at, *arguments, **named)

    function.__name__ = name
    replace(name, function)


def replace(name, function):
    # As the one in C: a class that has it as an attribute does not pass its instances to it.
    unbound = staticmethod(function)
    setattr(os, name, unbound)
    setattr(posix, name, unbound)


def name_folder(real, coded):
    return lambda: real() if here is None else coded(here)


def change_folder(real):
    def chdir(path):
        global here
        seen = from_root(path)
        at = place(seen)
        if at is None:
            real(seen)
        elif find(at) is not None:
            raise error(errno.ENOTDIR, path)
        here = at

    return chdir


def start(names):
    """Gives a run its working folder: the first of the granted folders, or /tmp if there is none.

    /tmp is in memory, unless a granted folder has it: then programs find the files that are there. Of the other folders in
    memory, a granted folder hides only its own part, and nothing of Python's library.
    """
    global here, roots, writable, granted, granted_inside
    granted = tuple(name for name in names if name.startswith("/"))
    names = [name.rstrip("/") for name in granted]
    if any(is_below(name, (TEMPORARY,)) or is_below(TEMPORARY, (name,)) for name in names):
        roots = tuple(name for name in roots if name != TEMPORARY)
        writable = tuple(name for name in writable if name != TEMPORARY)
    granted_inside = tuple(name for name in names if is_below(name, roots) and not is_below(LIBRARY or "", (name,)))
    here = None if names else TEMPORARY
    try:
        if names:
            os.chdir(names[0] or "/")
    except OSError:
        # The folder was removed since the run began: relative paths start at the root.
        pass


def install(library_size, read_library):
    """Puts these files in front of the granted ones: those of the tool with the scientific packages."""
    contents[LIBRARY] = Stored(library_size, read_library)
    # The time zones are those of the package tzdata.
    os.environ["PYTHONTZPATH"] = ""
    install_roots(WRITABLE, LOOKED_AT)


def install_roots(writable_roots, read_only_roots):
    """Puts the files of these folders in front of the granted ones."""
    global roots, writable
    writable = writable_roots
    roots = (*writable_roots, *read_only_roots)
    folders.update(writable_roots)
    for name, mine in {
        "stat": describe,
        "lstat": describe,
        "listdir": list_folder,
        "mkdir": make_folder,
        "rmdir": remove_folder,
        "unlink": remove_file,
        "remove": remove_file,
        "access": is_accessible,
        "open": open_descriptor,
        "utime": keep,
        "chmod": keep,
        "readlink": read_link,
    }.items():
        route(name, mine)
    for name in ("rename", "replace"):
        replace(name, rename(getattr(posix, name)))
    replace("scandir", scan_folder(posix.scandir))
    replace("chdir", change_folder(posix.chdir))
    for name, coded in {"getcwd": str, "getcwdb": os.fsencode}.items():
        replace(name, name_folder(getattr(posix, name), coded))
    for name, mine in {
        "close": lambda raw, fd: descriptors.pop(fd) and None,
        "read": lambda raw, fd, size: raw.read(size),
        "write": lambda raw, fd, data: raw.write(data),
        "lseek": lambda raw, fd, offset, whence: raw.seek(offset, whence),
        "ftruncate": lambda raw, fd, size: raw.truncate(size) and None,
        "fstat": lambda raw, fd: describe_content(raw.content, raw.name),
        "fsync": lambda raw, fd: None,
    }.items():
        route_descriptor(name, mine)
    builtins.open = io.open = _io.open = staticmethod(open_file(_io.open))
    # It may be loaded already, and keeps the function for the sources that `inspect` and tracebacks show.
    if "tokenize" in sys.modules:
        sys.modules["tokenize"]._builtin_open = builtins.open
    io.open_code = _io.open_code = staticmethod(open_code(_io.open_code))


def add(at, data):
    """Adds a file, and the folders above it."""
    contents[at] = Content(data)
    while (at := os.path.dirname(at)) not in folders and at != "/":
        folders.add(at)


def new_artifacts():
    """The files below /artifacts that have not been sent: their paths, names as artifacts, and contents."""
    start = f"{ARTIFACTS}/"
    found = sorted(name for name in contents if name.startswith(start) and not contents[name].is_sent)
    return [(path, artifact_name(path, path[len(start) :].replace("/", "-")), contents[path]) for path in found]


def artifact_name(path, wanted):
    """The wanted name, or one with a number if another file of the session has that."""
    base, extension = os.path.splitext(wanted)
    numbered = (f"{base}-{number}{extension}" for number in itertools.count(2))
    return next(name for name in itertools.chain((wanted,), numbered) if artifact_paths.setdefault(name, path) == path)
