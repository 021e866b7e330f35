"""This executor as a server on this machine: for each run one call of `a2g/execute`, with a verdict, over HTTP or the
server's standard streams."""

import atexit
import functools
import hashlib
import json
import os
import shutil
import socket
import subprocess
import tempfile
import threading
import time
import uuid

import common
import science

ISOLATION, JOURNAL = os.environ["PEERS_VARIANT"].split(", journal ")
EXECUTOR = os.environ["PEERS_EXECUTOR"]
IS_OVER_STDIO = "over stdio" in ISOLATION
LOCAL = threading.local()  # has a connection for each client
# The configuration and the catalogue of science Python.
IS_SCIENCE = "PEERS_SCIENCE" in os.environ
CODE = {"python": ("run_python", "1 + 1"), "javascript": ("run_javascript", "1 + 1")}
if IS_SCIENCE:
    CODE = {name: ("run_python", code) for name, code in science.CODE.items()}
MEMORY_MB = 1024 if IS_SCIENCE else 256


def configure():
    """Writes the configuration and a catalogue of the program and the two interpreters. Returns their folder."""
    folder = tempfile.mkdtemp(dir=common.STATE)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    journal = tempfile.mkdtemp(dir="/dev/shm") if JOURNAL == "in memory" else folder
    atexit.register(shutil.rmtree, journal, ignore_errors=True)
    for tool in ["run_python", "run_javascript"]:
        if os.path.isdir(source := f"{os.environ['PEERS_TOOLS']}/{tool}"):
            shutil.copytree(source, f"{folder}/tools/{tool}", copy_function=os.link)
    os.makedirs(f"{folder}/tools/guest")
    shutil.copy(f"{common.GUEST}/guest.wasm", f"{folder}/tools/guest/tool.wasm")
    with open(f"{common.GUEST}/guest.wasm", "rb") as module:
        digest = hashlib.sha256(module.read()).hexdigest()
    with open(f"{folder}/tools/guest/tool.toml", "w") as file:
        file.write(
            f'sha256 = "{digest}"\nname = "guest"\nversion = "1.0.0"\ndescription = "The program of the peers."\n'
            'contract = "command"\nmodule = "tool.wasm"\n[arguments]\ntype = "object"\n'
            '[capabilities]\nfilesystem = "read"\nnetwork = false\nmax_memory_mb = 64\ntimeout_seconds = 30\n'
        )
    features = "exceptions = true\n" if IS_SCIENCE else ""
    isolation = "inline" if "inline" in ISOLATION else "process"
    durability = "process-crash" if JOURNAL == "not synced" else "power-loss"
    reuse = '[executor.reuse]\ntools = ["guest", "run_python", "run_javascript"]\n' if "reused" in ISOLATION else ""
    with open(f"{folder}/executor.toml", "w") as file:
        file.write(
            f'[executor]\nisolation = "{isolation}"\n{reuse}'
            f'[catalog]\ntools = "{folder}/tools"\ncache = "{os.path.dirname(common.STATE)}/cache"\n{features}'
            f'[journal]\npath = "{journal}/journal.db"\ndurability = "{durability}"\n'
            '[ceilings]\nfilesystem_scope = ["/data/**"]\nmax_memory_mb = 1024\n'
            f'[[mount]]\nguest = "/data"\nhost = "{common.DATA}"\n'
        )
    return folder


FOLDER = configure()
# A build without `executor.reuse` ends here.
subprocess.run([EXECUTOR, "config", "check", "--config", f"{FOLDER}/executor.toml"], stdout=subprocess.DEVNULL, check=True)


def start(*words, **streams):
    """Starts a server, which ends with this process."""
    command = [EXECUTOR, "serve", "--insecure-accept-unsigned", "--config", f"{FOLDER}/executor.toml", *words]
    environment = {**os.environ, "RUST_LOG": "a2g=warn,a2g_executor::cli=info"}
    with open(f"{FOLDER}/log", "w") as log:
        server = subprocess.Popen(command, stderr=log, env=environment, **streams)
    atexit.register(lambda: (server.terminate(), server.wait()))
    return server


@functools.cache
def serve():
    """Starts the server, and returns its address."""
    server = start("--listen", "127.0.0.1:0")
    while True:
        with open(f"{FOLDER}/log") as file:
            if "listens on" in (text := file.read()):
                address, port = text.split("http://", 1)[1].split("/")[0].split()[0].rsplit(":", 1)
                return address, int(port)
        if server.poll() is not None:
            raise SystemExit(text)
        time.sleep(0.01)


@functools.cache
def serve_this_process():
    """Starts the server, and returns the streams to it and from it."""
    server = start("--stdio", stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    return server.stdin, server.stdout


def write_line(body):
    """Sends a request as a line, and returns the line of the answer."""
    requests, answers = serve_this_process()
    requests.write(f"{body}\n".encode())
    requests.flush()
    if not (answer := answers.readline()):
        raise ConnectionError("the server has ended")
    return answer


def post(body):
    """Sends a request over the connection of this thread, and returns the answer's body."""
    if not hasattr(LOCAL, "socket"):
        LOCAL.socket = socket.create_connection(serve())
        LOCAL.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    head = f"POST /jsonrpc HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    LOCAL.socket.sendall(f"{head}\r\n\r\n{body}".encode())
    answer = b""
    while True:
        if not (more := LOCAL.socket.recv(65536)):
            raise ConnectionError("the server has closed the connection")
        answer += more
        head, end, rest = answer.partition(b"\r\n\r\n")
        length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
        if end and len(rest) == int(length):
            return rest


def run(tool, arguments, memory=common.MEMORY_MB, seconds=30, cpu=None, intent=None, scope=()):
    """One run. The first waits until the tool is compiled."""
    intent = intent or str(uuid.uuid4())
    manifest = {"max_memory_mb": memory, "max_cpu_percent": cpu or 100, "timeout_seconds": seconds}
    manifest |= {"network_allowed": False, "filesystem_scope": scope}
    verdict = {"verdict": "APPROVED", "intent_id": intent, "capability_manifest": manifest, "conditions": []}
    call = {"agent_did": "did:a2g:bench:1.0:x", "intent_id": intent, "tool": tool, "arguments": arguments}
    params = {"intent": call, "verdict": {**verdict, "expires_at": "2999-01-01T00:00:00Z"}}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "a2g/execute", "params": params})
    send = write_line if IS_OVER_STDIO else post
    while b"is being prepared" in (answer := send(body)):
        time.sleep(0.1)
    result = json.loads(answer).get("result", {})
    if result.get("status") != "SUCCESS":
        raise RuntimeError(answer.decode())
    return json.dumps(result["result"])


def attempt(action, port, seconds, cpu):
    return run("guest", json.loads(common.request(action, port)), seconds=seconds, cpu=cpu)


def record():
    intent = str(uuid.uuid4())
    run("guest", {}, intent=intent)
    command = [EXECUTOR, "journal", "show", intent, "--config", f"{FOLDER}/executor.toml"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return shown if intent in shown else ""


def call(workload):
    if workload in CODE:
        tool, code = CODE[workload]
        return lambda: run(tool, {"code": code}, memory=MEMORY_MB)
    arguments = json.loads(common.REQUESTS[workload])
    scope = ["/data/**"] if workload == "list" else []
    return lambda: run("guest", arguments, scope=scope)


VERSION = subprocess.run([EXECUTOR, "--version"], capture_output=True, text=True, check=True).stdout.split()[1]
FRESH = "a store, in a thread" if "inline" in ISOLATION else "a store, in a process"
WORKLOADS = {name: lambda name=name: call(name) for name in ["json", "list", *CODE]}
CLIENTS = 0 if IS_OVER_STDIO else common.CLIENTS  # the streams are those of one client
common.main(VERSION, FRESH, WORKLOADS, attempt, ("memory", "time", "cpu"), record, CLIENTS)
