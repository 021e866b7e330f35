"""run_python with the scientific packages: runs one program, and sends its artifacts."""

import collections
import gc
import json
import math
import os
import random
import sys

from _frozen_importlib_external import PathFinder

import a2g_artifacts
import a2g_door
import a2g_files
import a2g_json
import a2g_program
import a2g_stdlib
import a2g_tools

NO_MODULE = "run_python does not have the module `{}`, and nothing can be installed: it has Python's standard library, \
numpy, pandas, scipy, sklearn, statsmodels, matplotlib, seaborn, PIL, lxml, openpyxl, bs4, sympy, networkx, yaml, jinja2"
PICTURES = {"gif", "jpeg", "jpg", "pdf", "png", "svg", "webp"}


class Missing:
    """The last finder: whatever gets here does not exist."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        root = name.partition(".")[0]
        if root in a2g_stdlib.NEEDS_NETWORK:
            message = a2g_stdlib.NO_NETWORK
        elif root in a2g_stdlib.NEEDS_PROCESSES:
            message = a2g_stdlib.NO_PROCESSES
        elif path is not None:
            # A part of a package that is there: Python's own words name both.
            return None
        else:
            message = NO_MODULE.format(name)
        raise ModuleNotFoundError(message, name=name)


class Asyncio:
    """The finder of asyncio, and the loader that adapts it: its event loops work without sockets."""

    def __init__(self, loader):
        self.loader = loader

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name != "asyncio":
            return None
        sys.meta_path.remove(Asyncio)
        spec = PathFinder.find_spec(name, path)
        spec.loader = Asyncio(spec.loader)
        return spec

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        module.__loader__ = module.__spec__.loader = self.loader
        self.loader.exec_module(module)
        a2g_stdlib.adapt_asyncio()


class Flags:
    """`sys.flags`, of which one would end each failed import with advice about the interpreter's start."""

    no_site = 0

    def __getattr__(self, name):
        return getattr(FLAGS, name)


FLAGS = sys.flags


def prepare():
    """Makes all that calls have in common. It runs when the tool is made, with a fixed clock and fixed random bytes."""
    a2g_stdlib.refuse_threads()
    a2g_stdlib.refuse_processes()
    a2g_stdlib.refuse_network()
    sys.meta_path.insert(0, Asyncio)
    sys.meta_path.append(Missing)
    sys.flags = Flags()
    os.environ.update(HOME="/tmp", TMPDIR="/tmp", MPLBACKEND="agg", MPLCONFIGDIR="/tmp/matplotlib")
    draw_once()
    gc.collect()
    # Later collections leave out, and so do not write to, what all calls share.
    gc.freeze()


def draw_once():
    """Imports what takes longest. A plot finds the fonts, and imports what numpy, pandas and matplotlib import late."""
    import matplotlib.pyplot as pyplot
    import pandas

    table, picture = "/tmp/table.csv", "/tmp/plot.png"
    days = pandas.date_range("2026-01-01", periods=60)
    pandas.DataFrame({"day": days, "name": ["a", "b", "c"] * 20, "sum": range(60)}).to_csv(table, index=False)
    read = pandas.read_csv(table, parse_dates=["day"])
    sums = read.groupby(["day", "name"])["sum"].agg(["sum", "mean"]).unstack()
    sums.plot.bar(title="Bars")
    read.plot.line(x="day", y="sum")
    pyplot.savefig(picture)
    pyplot.close("all")
    os.remove(table)
    os.remove(picture)


def begin():
    """Begins a run, or a session, in which the generators and the working folder stay as its programs leave them."""
    import numpy

    # Fixed random bytes have seeded these generators.
    random.seed()
    numpy.random.seed()
    a2g_files.start(a2g_door.folders())


def main():
    interpreter_main = sys.modules["__main__"]
    if a2g_program.count == 0:
        begin()
    try:
        result = run(json.loads(a2g_door.arguments()))
    except a2g_program.Failure as failure:
        a2g_artifacts.send_of_failed(failure, send_artifacts)
        close_figures()
        a2g_door.fail(failure.code, failure.message, failure.detail_text())
    except a2g_door.Err as error:
        a2g_door.fail(error.value.code, error.value.message, error.value.detail)
    else:
        a2g_door.finish(result)
    finally:
        # The interpreter runs the next call of a session in this module, and not among the names of the programs.
        sys.modules["__main__"] = interpreter_main


TOOLS = a2g_tools.Tools(a2g_door, a2g_door.Err)
# The names of artifacts that are figures, until they are sent.
saved_figures = set()


def run(arguments):
    value, stdout = a2g_program.run(arguments["code"], arguments.get("input"), TOOLS, a2g_tools.ToolError)
    try:
        save_figures()
        shown = None if is_drawing(value) else value
        return a2g_program.result_text(shown, stdout, send_artifacts)
    except MemoryError:
        raise a2g_program.no_memory() from None
    except (a2g_door.Err, a2g_program.Failure):
        raise
    except Exception as error:
        raise failure_of(error) from None


def send_artifacts():
    names = a2g_artifacts.send(a2g_door.artifact, a2g_door.Err)
    close_figures()
    return names


def failure_of(error):
    """The failure of a program whose figures cannot be drawn."""
    kind, reason = type(error).__name__, f"{error}: a figure that the program left open cannot be saved"
    trace = a2g_program.shorten(a2g_program.format_error(error, error.__traceback__), a2g_program.MAX_TRACEBACK_CHARS)
    message = a2g_program.shorten(f"{kind}: {reason}")
    return a2g_program.Failure("python_error", message, a2g_program.detail(kind, reason, None, trace))


def simplify(value):
    """The lists, dicts, numbers and texts that stand for a value of numpy and pandas. What is in them may be such a value."""
    package = type(value).__module__.partition(".")[0]
    size = getattr(value, "size", 0) if package in ("numpy", "pandas") else 0
    if isinstance(size, int):
        # A byte and a comma.
        check_size(size, 2)
    if package == "pandas":
        return plain_of_pandas(value)
    return plain_of_numpy(value) if package == "numpy" else value


def check_size(items, min_bytes):
    """Refuses what is too long for a result in any case: to make all of it would take long, and memory."""
    if items * min_bytes > a2g_program.MAX_RESULT_BYTES:
        raise a2g_json.TooLong(f"has {items} items, which are too many for JSON: pass a part of it")


def plain_of_numpy(value):
    import numpy

    if isinstance(value, numpy.dtype):
        return str(value)
    if not hasattr(value, "tolist"):
        return value
    plain = value.tolist()
    # The numbers that are longer than Python's are lists of themselves.
    return float(plain) if type(plain) is type(value) else plain


def plain_of_pandas(value):
    import pandas

    if isinstance(value, pandas.DataFrame):
        return rows_of(value)
    if isinstance(value, pandas.Series):
        return plain_of_series(value)
    if isinstance(value, (pandas.Period, pandas.Interval, pandas.api.extensions.ExtensionDtype)):
        return str(value)
    if value is pandas.NaT or value is pandas.NA:
        return math.nan
    if hasattr(value, "isoformat"):
        return value.isoformat()
    return value.tolist() if hasattr(value, "tolist") else value


def plain_of_series(series):
    """An object by the labels of its index, a list if they number the values, and rows if there are several levels or repeats."""
    if is_numbered(series.index):
        return series.tolist()
    if series.index.nlevels == 1 and series.index.is_unique:
        return dict(zip(series.index.tolist(), series.tolist()))
    return rows_of(series.to_frame("value" if series.name is None else series.name))


def rows_of(table):
    """Objects by the names of the columns. The labels of the index are columns too, unless they number the rows."""
    # A name in quotation marks, a colon, a byte and a comma.
    check_size(table.size, 5)
    columns = [] if is_numbered(table.index) else columns_of(table.index)
    columns += [(label, table.iloc[:, place].tolist()) for place, label in enumerate(table.columns)]
    names = [column_name(label) for label, _ in columns]
    double = next((name for name, count in collections.Counter(names).items() if count > 1), None)
    if double is not None:
        raise a2g_json.NotJson(f"has two columns that are {json.dumps(double)}, of which one may be its index: rename one")
    return [dict(zip(names, row)) for row in zip(*(cells for _, cells in columns))]


def columns_of(index):
    """The labels of an index, by its levels: pairs of a name and labels."""
    other_names = ["index"] if index.nlevels == 1 else [f"level_{level}" for level in range(index.nlevels)]
    names = [other if name is None else name for name, other in zip(index.names, other_names)]
    return [(name, index.get_level_values(level).tolist()) for level, name in enumerate(names)]


def column_name(label):
    """The name of a column. Labels of several levels, as those of `agg(["sum", "mean"])`, are one after the other."""
    parts = label if isinstance(label, tuple) else (label,)
    return "_".join(filter(None, map(a2g_json.key_text, parts)))


def is_numbered(index):
    return type(index).__name__ == "RangeIndex"


def is_drawing(value):
    """`True` for what functions of matplotlib return, which a program seldom means as its result."""
    if isinstance(value, (list, tuple)) and type(value).__module__ == "builtins":
        return bool(value) and is_drawing(value[0])
    if type(value).__module__ == "numpy" and value.dtype == object:
        return value.size > 0 and is_drawing(value.flat[0])
    return type(value).__module__.partition(".")[0] in ("matplotlib", "mpl_toolkits", "seaborn")


def save_figures():
    """Each figure that is still open becomes an artifact, unless the program wrote pictures itself."""
    pyplot = sys.modules.get("matplotlib.pyplot")
    new = {name for _, name, _ in a2g_files.new_artifacts()}
    if pyplot is None or any(a2g_artifacts.extension(name) in PICTURES for name in new - saved_figures):
        return
    for number in pyplot.get_fignums():
        name = f"figure-{number}.png"
        pyplot.figure(number).savefig(f"{a2g_files.ARTIFACTS}/{name}")
        saved_figures.add(name)


def close_figures():
    """Closes the figures of this program: the next one of a session begins its own."""
    saved_figures.clear()
    pyplot = sys.modules.get("matplotlib.pyplot")
    if pyplot is not None:
        pyplot.close("all")


a2g_json.SIMPLIFIERS.insert(0, simplify)
prepare()
