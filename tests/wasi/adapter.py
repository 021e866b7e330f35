"""Runs the public WASI test suite (WebAssembly/wasi-testsuite) through `a2g-executor run`.

The suite's runner imports this file and asks it for one command line per test. The executable is
`a2g-executor` on the PATH, or what A2G_EXECUTOR names (with options, when it has to be:
`A2G_EXECUTOR="target/release/a2g-executor"`).
"""

import os
import shlex
import subprocess
from typing import Any, Dict, List, Tuple

A2G_EXECUTOR = shlex.split(os.getenv("A2G_EXECUTOR", "a2g-executor"))


def get_name() -> str:
    return "a2g-executor"


def get_version() -> str:
    result = subprocess.run(A2G_EXECUTOR[0:1] + ["--version"],
                            encoding="UTF-8", capture_output=True, check=True)
    return result.stdout.split()[-1]


def get_wasi_versions() -> List[str]:
    return ["wasm32-wasip1"]


def get_wasi_worlds() -> List[str]:
    return ["wasi:cli/command"]


def compute_argv(test_path: str, *described: Any) -> List[str]:
    """The command line of one test.

    What describes a test has had several shapes in the suite; the last arguments (proposals, world,
    version) say nothing that `run` needs:

    - `(args, env, root), …`: one folder, which the test finds as `/`
    - `(args, env, dirs), …` and `args, env, dirs, …`: pairs of a folder and its name in the test
    """
    args, env, folders = described[0] if isinstance(described[0], tuple) else described[0:3]
    argv = A2G_EXECUTOR + ["run", os.path.abspath(test_path)]
    argv += _named(env)
    for host, guest in _mounts(folders):
        argv += ["--mount", f"{host}:{guest}"]
    return argv + ["--"] + list(args)


def _named(env: Dict[str, str]) -> List[str]:
    return [part for name, value in env.items() for part in ("--env", f"{name}={value}")]


def _mounts(folders: Any) -> List[Tuple[str, str]]:
    if folders is None:
        return []
    if isinstance(folders, (str, os.PathLike)):
        return [(os.fspath(folders), "/")]
    return [(os.fspath(host), guest) for host, guest in folders]
