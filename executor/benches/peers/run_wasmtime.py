"""wasmtime as a library: a store and an instance for each call. The module is compiled before."""

import importlib.metadata
import threading
import time

import wasmtime

import common

CONFIG = wasmtime.Config()
CONFIG.epoch_interruption = True
ENGINE = wasmtime.Engine(CONFIG)
MODULE = wasmtime.Module.from_file(ENGINE, f"{common.GUEST}/guest.wasm")
LINKER = wasmtime.Linker(ENGINE)
LINKER.define_wasi()
EPOCH_SECONDS = 0.1


def count_epochs():
    while True:
        time.sleep(EPOCH_SECONDS)
        ENGINE.increment_epoch()


threading.Thread(target=count_epochs, daemon=True).start()


def run(request, seconds=30, sees_folder=False):
    output = []
    wasi = wasmtime.WasiConfig()
    wasi.stdin_file = request
    wasi.stdout_custom = output.append
    if sees_folder:
        wasi.preopen_dir(common.DATA, "/data", fs_mutable=False)
    store = wasmtime.Store(ENGINE)
    store.set_limits(memory_size=common.MEMORY_MB << 20)
    store.set_epoch_deadline(int(seconds / EPOCH_SECONDS))
    store.set_wasi(wasi)
    LINKER.instantiate(store, MODULE).exports(store)["_start"](store)
    return b"".join(output).decode()


def call(workload):
    file = common.write_file(workload, common.REQUESTS[workload])
    return lambda: run(file, sees_folder=workload == "list")


def attempt(action, port, seconds, _):
    return run(common.write_file(action, common.request(action, port)), seconds)


VERSION = importlib.metadata.version("wasmtime")
WORKLOADS = {name: lambda name=name: call(name) for name in ["json", "list"]}
common.main(VERSION, "a store and an instance", WORKLOADS, attempt, ("memory", "time"))
