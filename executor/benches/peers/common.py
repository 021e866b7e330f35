"""The command line of the peers' scripts, of which each prints one line of JSON:

    SCRIPT describe                   version, workloads, and which limits can be set
    SCRIPT measure WORKLOAD ROUNDS    times calls one after another, and then from 16 clients
    SCRIPT attempt ACTION PORT        tries what a limit should prevent, and reports what came of it

`cargo xtask bench peers` decides from an attempt whether the limit is kept, for all peers alike.
"""

import concurrent.futures
import json
import os
import shutil
import subprocess
import sys
import threading
import time

import science

GUEST = os.environ["PEERS_GUEST"]  # the folder with guest.wasm, extism.wasm and guest
DATA = os.environ["PEERS_DATA"]  # the folder of 100 files
STATE = os.environ["PEERS_STATE"]  # for the script's own files
CLIENTS = 16
MAX_SECONDS = 20  # of the calls one after another, and a quarter of it with 16 clients
MIN_CALLS = 5
MEMORY_MB = 64
REQUESTS = {"json": '{"name":"world"}', "list": '{"do":"list"}'}
EXPECTED = {"json": "world", "list": "file-99.txt", "python": "2", "javascript": "2", **science.EXPECTED}


def request(action, port=0):
    """The arguments of the program of guest.rs."""
    return json.dumps({"do": action, "port": port}) if action == "connect" else json.dumps({"do": action})


def python(action, port=0):
    """The same attempts in Python."""
    allocate = "blocks = [str(i % 10) * 2**20 for i in range({})]\nprint('allocated', len(blocks))"
    return {
        "nothing": "print(1 + 1)",
        "allocate a little": allocate.format(8),
        "allocate": allocate.format(1024),
        "loop": "while True:\n    pass",
        "read": "print(open('/etc/passwd').read())",
        # Libraries that stand for sockets may connect only when something is sent or read.
        "connect": f"import socket\nto = socket.create_connection(('127.0.0.1', {port}), 3)\n"
        "to.sendall(b'GET / HTTP/1.0\\r\\n\\r\\n')\nto.recv(1)",
    }[action]


def javascript(action, port=0):
    """The same attempts in JavaScript."""
    allocate = "Array.from({{ length: {} }}, () => new Uint8Array(1 << 20).fill(1)).length + ' allocated'"
    return {
        "nothing": "String(1 + 1)",
        "allocate a little": allocate.format(8),
        "allocate": allocate.format(1024),
        "loop": "for (;;) {}",
        "read": "require('fs').readFileSync('/etc/passwd', 'utf8')",
        "connect": f"require('net').connect({port}, '127.0.0.1')",
    }[action]


def system_program(name):
    """A program below /usr, which sandboxes see."""
    if path := shutil.which(name, path="/usr/local/bin:/usr/bin"):
        return path
    raise SystemExit(f"{name} is not below /usr")


def write_file(name, text):
    """A file for libraries that read standard input from one."""
    with open(path := f"{STATE}/{name}.json", "w") as file:
        file.write(text)
    return path


def run_program(command, text=""):
    """The output of a program, which has to succeed."""
    ended = subprocess.run(command, input=text, capture_output=True, text=True)
    if ended.returncode:
        raise RuntimeError(f"exit {ended.returncode}: {ended.stderr}")
    return ended.stdout


def main(version, fresh, workloads, attempt, settings=(), record=None, clients=CLIENTS):
    """`workloads` has for each a function that returns the call. `attempt(action, port, seconds, cpu)` returns the
    output of a program that runs with a limit of MEMORY_MB, or raises."""
    peer = os.path.basename(sys.argv[0])
    match sys.argv[1:]:
        case ["describe"]:
            described = {"workloads": list(workloads), "settings": [*settings, *(["record"] if record else [])]}
            result = {"version": version, "fresh": fresh, **described}
        case ["measure", workload, rounds]:
            # Each of these takes seconds and hundreds of megabytes.
            clients = 0 if workload in science.EXPECTED else clients
            result = {"workload": workload, **measure(workload, workloads[workload](), int(rounds), clients)}
        case ["attempt", "record", _]:
            result = {"output": record()}
        case ["attempt", action, port]:
            control = try_control(attempt, action)
            print(json.dumps({"peer": peer, **control}), flush=True)
            result = control if "runs_nothing" in control else try_out(attempt, action, int(port))
    print(json.dumps({"peer": peer, **result}), flush=True)


def measure(workload, call, rounds, clients):
    def timed():
        started = time.perf_counter_ns()
        answer = call()
        took = time.perf_counter_ns() - started
        if EXPECTED[workload] not in str(answer):
            raise RuntimeError(f"an unexpected answer: {answer!r}")
        return took / 1000

    def repeat(seconds, least, times):
        end = time.monotonic() + seconds
        while len(times) < rounds and (len(times) < least or time.monotonic() < end):
            times.append(timed())

    timed()
    micros, per_second = [], None
    repeat(MAX_SECONDS, MIN_CALLS, micros)
    if clients:
        of_clients = [[] for _ in range(clients)]
        started = time.monotonic()
        with concurrent.futures.ThreadPoolExecutor(clients) as pool:
            # The list raises what a client raised.
            list(pool.map(lambda times: repeat(MAX_SECONDS / 4, 1, times), of_clients))
        per_second = sum(map(len, of_clients)) / (time.monotonic() - started)
    return {"micros": micros, "per_second": per_second}


def try_control(attempt, action):
    """A program that has to run under the limits that the next one should break."""
    control, expected = ("allocate a little", "allocated") if action == "allocate" else ("nothing", "")
    try:
        output = str(attempt(control, 0, 10, 10 if action == "throttle" else None))
    except Exception as error:  # each library has its own
        return {"runs_nothing": str(error)[:500]}
    return {"control": output} if expected in output else {"runs_nothing": f"an unexpected answer: {output}"}


def try_out(attempt, action, port):
    cpu = 10 if action == "throttle" else None
    seconds = {"loop": 1, "throttle": 3}.get(action, 10)
    result = {"output": "", "error": ""}
    shares = []
    sampler = threading.Thread(target=lambda: shares.append(cpu_share()))
    if cpu:
        sampler.start()
    started = time.monotonic()
    try:
        result["output"] = str(attempt("loop" if cpu else action, port, seconds, cpu))
    except Exception as error:
        result["error"] = f"{type(error).__name__}: {error}"[:500]
    result["seconds"] = time.monotonic() - started
    if cpu:
        sampler.join()
        result["cpu"] = shares[0]
    return result


def cpu_share():
    """The share of a core that this process and those below it take between 0.5 and 2.5 s from now."""
    time.sleep(0.5)
    before = cpu_seconds()
    time.sleep(2)
    return (cpu_seconds() - before) / 2


def cpu_seconds():
    total, tree = 0, [os.getpid()]
    for process in tree:
        try:
            with open(f"/proc/{process}/stat") as stat:
                fields = stat.read().rsplit(")", 1)[1].split()
            total += sum(map(int, fields[11:13]))
            for thread in os.listdir(f"/proc/{process}/task"):
                with open(f"/proc/{process}/task/{thread}/children") as children:
                    tree.extend(map(int, children.read().split()))
        except OSError:
            continue  # it has ended
    return total / os.sysconf("SC_CLK_TCK")
