"""crun: a container for each call. Its folder is made before."""

import itertools
import json
import os
import shutil
import uuid

import common

NAMESPACES = ["pid", "network", "ipc", "uts", "mount"]
NUMBERS = itertools.count()


def bind(source, target):
    return {"destination": target, "source": source, "type": "bind", "options": ["bind", "ro"]}


def bundle(arguments, memory=None, cpu=None):
    """Makes the folder of a container, and returns its path."""
    path = f"{common.STATE}/{next(NUMBERS)}-{os.getpid()}"
    for folder in ["usr", "proc", "data", "dev", "tmp"]:
        os.makedirs(f"{path}/rootfs/{folder}")
    for link in ["lib", "lib64", "bin"]:
        os.symlink(f"usr/{link}", f"{path}/rootfs/{link}")
    shutil.copy(f"{common.GUEST}/guest", f"{path}/rootfs/guest")
    resources = {"memory": {"limit": memory << 20, "swap": memory << 20}} if memory else {}
    resources |= {"cpu": {"quota": cpu * 1000, "period": 100_000}} if cpu else {}
    process = {"user": {"uid": 65534, "gid": 65534}, "args": arguments, "cwd": "/", "noNewPrivileges": True}
    mounts = [{"destination": "/proc", "type": "proc", "source": "proc"}]
    mounts += [{"destination": "/dev", "type": "tmpfs", "source": "tmpfs"}]
    mounts += [bind("/usr", "/usr"), bind(common.DATA, "/data")]
    config = {"ociVersion": "1.0.2", "process": process, "root": {"path": "rootfs", "readonly": True}, "mounts": mounts}
    config["linux"] = {"namespaces": [{"type": name} for name in NAMESPACES], "resources": resources}
    with open(f"{path}/config.json", "w") as file:
        json.dump(config, file)
    return path


def run(path, text=""):
    command = ["crun", "--cgroup-manager=cgroupfs", "run", "--bundle", path, f"a2g-peers-{uuid.uuid4()}"]
    return common.run_program(command, text)


def call(workload):
    program = {"python": ["python3", "-c", "print(1 + 1)"], "javascript": ["node", "-p", "1 + 1"]}.get(workload)
    if program:
        path = bundle([common.system_program(program[0]), *program[1:]])
        return lambda: run(path)
    path = bundle(["/guest"], common.MEMORY_MB)
    return lambda: run(path, common.REQUESTS[workload])


def attempt(action, port, seconds, cpu):
    memory = common.MEMORY_MB if action.startswith("allocate") else None
    # A container has no time limit, and has to end after the measurement.
    program = ["/usr/bin/timeout", str(seconds), "/guest"] if cpu else ["/guest"]
    return run(bundle(program, memory, cpu), common.request(action, port))


run(bundle(["/guest"]), "{}")  # fails where crun does not know the machine's control groups
VERSION = common.run_program(["crun", "--version"]).split()[2]
WORKLOADS = {name: lambda name=name: call(name) for name in ["json", "list", "python", "javascript"]}
common.main(VERSION, "a container", WORKLOADS, attempt, ("memory", "cpu"))
