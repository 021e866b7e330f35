"""Extism: an instance of a plugin for each call. The plugin is compiled before."""

import importlib.metadata

import common
import extism.extism as extism


def compile(seconds=30, paths=None):
    manifest = {"wasm": [{"path": f"{common.GUEST}/extism.wasm"}], "timeout_ms": seconds * 1000}
    manifest |= {"memory": {"max_pages": common.MEMORY_MB * 16}, "allowed_paths": paths or {}}
    return extism.CompiledPlugin(manifest, wasi=True)


def run(compiled, request):
    with extism.Plugin(compiled) as plugin:
        return bytes(plugin.call("run", request)).decode()


def call(workload):
    compiled = compile(paths={f"ro:{common.DATA}": "/data"} if workload == "list" else None)
    return lambda: run(compiled, common.REQUESTS[workload])


def attempt(action, port, seconds, _):
    return run(compile(seconds), common.request(action, port))


VERSION = importlib.metadata.version("extism")
WORKLOADS = {name: lambda name=name: call(name) for name in ["json", "list"]}
common.main(VERSION, "an instance", WORKLOADS, attempt, ("memory", "time"))
