"""Capsule: an instance for each call, of a task in Python that the script builds once, and of its adapter's task in
JavaScript. A task's limits are part of the task; `main` has none, and starts the task that has the wanted ones."""

import asyncio
import importlib.metadata
import os
import sqlite3
import subprocess
import sysconfig
import threading

import capsule
import capsule_adapter

import common

SECONDS = (1, 3, 10, 30)
TASK = f"""import contextlib
import io
from capsule import task

TASKS = dict()

def execute(code):
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(code, dict())
    return output.getvalue()

for seconds in {SECONDS}:
    limits = dict(compute="1000000000000000", ram="{common.MEMORY_MB}MB", timeout=f"{{seconds}}s")
    TASKS[seconds] = task(name=f"python_{{seconds}}", **limits)(execute)

@task(name="main")
def main(seconds, code):
    return TASKS[int(seconds)](code)
"""
os.chdir(common.STATE)  # it makes a folder
os.environ["PATH"] = f"{sysconfig.get_path('scripts')}:{os.environ['PATH']}"
LOOP = asyncio.new_event_loop()  # one for all clients, because they share a process of Capsule
threading.Thread(target=LOOP.run_forever, daemon=True).start()


def wait(coroutine):
    return asyncio.run_coroutine_threadsafe(coroutine, LOOP).result()


def build():
    if not os.path.exists("built.txt") or open("built.txt").read() != TASK:
        with open("main.py", "w") as file:
            file.write(TASK)
        subprocess.run(["capsule", "build", "main.py", "--export"], stdout=2, check=True)
        os.rename("main.py", "built.txt")


def run(code, seconds=30):
    build()
    answer = wait(capsule.run(file="main.wasm", args=[str(seconds), code]))
    inner = answer["result"] if answer["success"] else answer
    if not inner["success"]:
        raise RuntimeError(inner["error"])
    return inner["result"]


def record():
    """The last line of its log, if a call adds one."""

    def lines():
        with sqlite3.connect(".capsule/trace.db") as log:
            query = "SELECT rowid, task_name, state FROM instance_log ORDER BY rowid"
            return list(log.execute(query))

    run("print(1 + 1)")
    before = lines()
    run("print(1 + 1)")
    added = lines()[len(before) :]
    return str(added or "")


common.main(
    importlib.metadata.version("capsule-run"),
    "an instance",
    {
        "python": lambda: lambda: run("print(1 + 1)"),
        "javascript": lambda: lambda: wait(capsule_adapter.run_javascript("1 + 1")),
    },
    lambda action, port, seconds, _: run(common.python(action, port), seconds),
    ("memory", "time"),
    record,
)
