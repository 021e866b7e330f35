"""wasmtime as a program, which is started for each call. The module is compiled before."""

import os

import common
import wasmtime_cli

WASMTIME = os.path.join(os.path.dirname(wasmtime_cli.__file__), "wasmtime")
os.chmod(WASMTIME, 0o755)  # its wheel does not make it a program
MODULE = f"{common.STATE}/guest.cwasm"
FOLDER = ["--dir", f"{common.DATA}::/data"]
common.run_program([WASMTIME, "compile", "-W", "epoch-interruption=y", f"{common.GUEST}/guest.wasm", "-o", MODULE])


def run(request, *options, seconds=30):
    limits = ["-W", f"max-memory-size={common.MEMORY_MB << 20},timeout={seconds}s"]
    return common.run_program([WASMTIME, "run", "--allow-precompiled", *limits, *options, MODULE], request)


WORKLOADS = {
    "json": lambda: lambda: run(common.REQUESTS["json"]),
    "list": lambda: lambda: run(common.REQUESTS["list"], *FOLDER),
}
VERSION = common.run_program([WASMTIME, "--version"]).split()[1]
common.main(
    VERSION,
    "a process",
    WORKLOADS,
    lambda action, port, seconds, _: run(common.request(action, port), seconds=seconds),
    ("memory", "time"),
)
