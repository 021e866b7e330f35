"""firejail: a program in new namespaces, with a filter of system calls."""

import common

OPTIONS = ["--quiet", "--noprofile", "--private", "--private-dev", "--private-tmp", "--private-etc=ld.so.cache"]
OPTIONS += ["--net=none", "--caps.drop=all", "--seccomp", "--nonewprivs"]
LIMITS = [f"--rlimit-as={common.MEMORY_MB << 20}"]
GUEST = f"{common.GUEST}/guest"


def run(*arguments, text="", limits=()):
    return common.run_program(["firejail", *OPTIONS, *limits, *arguments], text)


def attempt(action, port, seconds, _):
    limits = [*LIMITS, f"--timeout=00:00:{seconds:02}"]
    return run(GUEST, text=common.request(action, port), limits=limits)


WORKLOADS = {
    "json": lambda: lambda: run(GUEST, text=common.REQUESTS["json"], limits=LIMITS),
    "list": lambda: lambda: run(GUEST, common.DATA, text=common.REQUESTS["list"], limits=LIMITS),
    "python": lambda: lambda: run(common.system_program("python3"), "-c", "print(1 + 1)"),
    "javascript": lambda: lambda: run(common.system_program("node"), "-p", "1 + 1"),
}
VERSION = common.run_program(["firejail", "--version"]).split()[2]
common.main(VERSION, "a process", WORKLOADS, attempt, ("memory", "time"))
