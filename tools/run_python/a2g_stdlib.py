"""The standard library: imports all of it while the component is made, because nothing can be imported from a file
later, and gives what cannot work here an error that says what to use instead."""

import importlib
import pkgutil
import sys
import time
import warnings

# They cannot be of use here, and each takes place in the component: they print, wait, build, or belong to the interactive
# interpreter or another system, or stand in for a module in C that is there.
LEFT_OUT = {"antigravity", "this", "idlelib", "turtledemo", "tkinter", "turtle", "test", "ensurepip", "venv", "curses"}
LEFT_OUT |= {"_pyrepl", "pydoc_data", "rlcompleter", "webbrowser", "compileall", "modulefinder"}
LEFT_OUT |= {"_aix_support", "_android_support", "_apple_support", "_ios_support", "_osx_support"}
LEFT_OUT |= {"_pydatetime", "_pydecimal", "_pyio", "concurrent.futures.process"}
PARTS_LEFT_OUT = {"__main__", "test", "tests"}

NO_THREADS = "run_python has no threads: to call several tools at once, use tools.parallel([...])"
NO_PROCESSES = (
    "run_python starts no processes, and nothing can be installed: use Python's standard library, or a tool of tools.list()"
)
NO_NETWORK = (
    "run_python has no sockets: call a tool for the network, such as tools.http_fetch(url=...), which returns a dict with "
    "`status` and `body`"
)
NO_MODULE = (
    "run_python does not have the module `{}`: it has Python's standard library, and nothing can be installed, so use {}"
)
ENDLESS = "the program waits for something that never comes: run_python has no threads, processes or sockets"
NEEDS_NETWORK = {"ssl", "_ssl", "requests", "httpx", "aiohttp", "urllib3"}
NEEDS_NETWORK |= {"ftplib", "imaplib", "poplib", "smtplib", "socketserver", "xmlrpc", "wsgiref"}
NEEDS_PROCESSES = {"_posixsubprocess", "_multiprocessing", "_posixshmem", "_interpreters", "pty", "fcntl"}
NEEDS_PROCESSES |= {"multiprocessing"}
# Replacements in the standard library for packages that programs often import.
INSTEAD = {
    "numpy": "lists, `math` and `statistics`",
    "pandas": "`csv`, `sqlite3` and `collections`",
    "scipy": "`math` and `statistics`",
    "sklearn": "`math` and `statistics`",
    "matplotlib": "text, or a picture that the program writes as SVG",
    "PIL": "text, or a picture that the program writes as SVG",
    "openpyxl": "`zipfile` and `xml.etree.ElementTree`",
    "bs4": "`html.parser`",
    "lxml": "`xml.etree.ElementTree` or `html.parser`",
    "yaml": "`json` or `tomllib`",
    "toml": "`tomllib`",
    "dateutil": "`datetime`",
    "pytz": "`datetime.timezone`",
    "pydantic": "`dataclasses`",
    "attr": "`dataclasses`",
    "regex": "`re`",
    "orjson": "`json`",
    "simplejson": "`json`",
    "pytest": "`unittest`",
}


def load_all():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in sorted(sys.stdlib_module_names - NEEDS_NETWORK - NEEDS_PROCESSES):
            load(name)


def load(name):
    if name in LEFT_OUT:
        return
    try:
        module = importlib.import_module(name)
    except Exception:
        # Made for another system: the import fails in the same way when a program runs.
        return
    for part in pkgutil.iter_modules(getattr(module, "__path__", [])):
        if part.name not in PARTS_LEFT_OUT:
            load(f"{name}.{part.name}")


def adapt():
    """Replaces what cannot work, and forgets where the component was made."""
    refuse_threads()
    refuse_processes()
    refuse_network()
    adapt_asyncio()
    hide_sources()
    sys.addaudithook(keep_from_source_files)
    sys.meta_path.append(Missing)
    # Every path here is one of the machine that made the component, and looking there is refused at run time.
    sys.path.clear()
    sys.path_importer_cache.clear()
    import mimetypes
    import zoneinfo

    mimetypes.knownfiles.clear()
    zoneinfo.reset_tzpath(())


def refusing(error, message):
    def refuse(*_, **__):
        raise error(message)

    return refuse


def refuse_threads():
    import _thread
    import threading

    refuse = refusing(RuntimeError, NO_THREADS)
    _thread.start_new_thread = _thread.start_new = _thread.start_joinable_thread = refuse
    threading._start_joinable_thread = refuse


def refuse_processes():
    # Imported later, it would find `register_at_fork`, and ask locks for what those without threads do not have.
    import concurrent.futures.thread
    import os
    import subprocess

    refuse = refusing(OSError, NO_PROCESSES)
    concurrent.futures.ProcessPoolExecutor = refuse
    for name in ("fork", "forkpty", "system", "popen", "posix_spawn", "posix_spawnp", "execv", "execve", "spawnv"):
        setattr(os, name, refuse)
    # Modules that find `fork` call this too when they are imported.
    os.register_at_fork = lambda **_: None
    subprocess.Popen.__init__ = refuse


def refuse_network():
    import _socket
    import http.client
    import socket
    import urllib.request

    refuse = refusing(OSError, NO_NETWORK)

    class Socket(socket.socket):
        __init__ = refuse

    socket.socket = socket.SocketType = _socket.socket = Socket
    for name in ("getaddrinfo", "gethostbyname", "gethostbyname_ex", "gethostbyaddr", "getnameinfo", "socketpair"):
        for module in (socket, _socket):
            setattr(module, name, refuse)
    socket.create_connection = socket.create_server = socket.fromfd = refuse
    # Without the module ssl, both are missing, and the error of urllib names neither cause nor cure.
    http.client.HTTPSConnection = refuse

    class HTTPSHandler(urllib.request.AbstractHTTPHandler):
        https_open = refuse

    urllib.request.HTTPSHandler = HTTPSHandler


def hide_sources():
    """Leaves the source of the library and of this tool out of tracebacks: their files are not here, and a look for one
    would be in the report of the run as an attempt of the program."""
    import linecache

    names = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    linecache.cache.update((name, (0, None, [], name)) for name in names if name)


def keep_from_source_files(event, arguments):
    """For the text of a syntax error, the interpreter opens a file with the name of the source, such as `<string>`. The
    report of the run would list that as an attempt of the program."""
    # Only the interpreter itself opens a file without flags.
    if event == "open" and arguments[1:] == ("rb", 0):
        raise FileNotFoundError


def adapt_asyncio():
    """Event loops work without sockets: their selector only sleeps."""
    import asyncio
    import asyncio.base_events
    import asyncio.selector_events
    import asyncio.unix_events
    import selectors

    class Sleeper(selectors.SelectSelector):
        def select(self, timeout=None):
            if timeout is None:
                raise RuntimeError(ENDLESS)
            if timeout > 0:
                time.sleep(timeout)
            return []

    base = asyncio.selector_events.BaseSelectorEventLoop
    base._make_self_pipe = base._close_self_pipe = base._write_to_self = lambda self: None
    original = base.__init__

    def init(self, selector=None):
        original(self, selector or Sleeper())

    base.__init__ = init
    asyncio.base_events.BaseEventLoop.getaddrinfo = refusing(OSError, NO_NETWORK)


class Missing:
    """The last finder: whatever gets here does not exist."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        root = name.partition(".")[0]
        if root in NEEDS_NETWORK:
            message = NO_NETWORK
        elif root in NEEDS_PROCESSES:
            message = NO_PROCESSES
        elif path is not None:
            # A part of a package that is there: Python's own words name both.
            return None
        else:
            message = NO_MODULE.format(name, INSTEAD.get(root, "what it has, or a tool of tools.list()"))
        raise ModuleNotFoundError(message, name=name)


def erase_freed_memory():
    """Fills with zeros what was freed: memory of zeros takes no place in the component, and all other memory does."""
    # Memory behind these blocks has not been used yet.
    end = max(id(block) for block in [bytes(1 << 20) for _ in range(4)])
    blocks = []
    # The interpreter has own pools for blocks up to 512 bytes.
    for size in [*(1 << bits for bits in range(20, 9, -1)), *range(512, 32, -16)]:
        while id(block := bytes(size - sys.getsizeof(b""))) < end:
            blocks.append(block)
