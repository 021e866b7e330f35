"""bubblewrap: a program in new namespaces. It has no limits of its own."""

import common

SEES = [
    *["--ro-bind", "/usr", "/usr", "--symlink", "usr/lib", "/lib", "--symlink", "usr/lib64", "/lib64"],
    *["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"],
    *["--ro-bind", common.DATA, "/data", "--ro-bind", f"{common.GUEST}/guest", "/guest"],
]


def run(*arguments, text=""):
    command = ["bwrap", "--unshare-all", "--die-with-parent", "--new-session", "--clearenv", *SEES, *arguments]
    return common.run_program(command, text)


WORKLOADS = {
    "json": lambda: lambda: run("/guest", text=common.REQUESTS["json"]),
    "list": lambda: lambda: run("/guest", text=common.REQUESTS["list"]),
    "python": lambda: lambda: run(common.system_program("python3"), "-c", "print(1 + 1)"),
    "javascript": lambda: lambda: run(common.system_program("node"), "-p", "1 + 1"),
}
VERSION = common.run_program(["bwrap", "--version"]).split()[-1]
common.main(VERSION, "a process", WORKLOADS, lambda action, port, *_: run("/guest", text=common.request(action, port)))
