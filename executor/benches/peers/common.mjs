// The command line of common.py for the peers in JavaScript.

import { readFileSync } from "node:fs";
import { basename } from "node:path";

export const DATA = process.env.PEERS_DATA;
export const MEMORY_MB = 64;
const CLIENTS = 16;
const MAX_SECONDS = 20;
const MIN_CALLS = 5;
const EXPECTED = { list: "file-99.txt", python: "2", javascript: "2" };

const allocate = (count) =>
  `Array.from({ length: ${count} }, () => new Uint8Array(1 << 20).fill(1)).length + " allocated"`;

/** Attempts in Python, as in common.py. */
export const python = (action, port) => ({
  nothing: "print(1 + 1)",
  "allocate a little": blocks(8),
  allocate: blocks(1024),
  loop: "while True:\n    pass",
  read: "print(open('/etc/passwd').read())",
  connect: `import socket\nto = socket.create_connection(('127.0.0.1', ${port}), 3)\nto.sendall(b'GET /')\nto.recv(1)`,
})[action];

const blocks = (count) => `blocks = [str(i % 10) * 2**20 for i in range(${count})]\nprint('allocated', len(blocks))`;

/** Attempts in JavaScript, as in common.py. The last two try each way out that an embedder is known to leave open. */
export const javascript = (action, port) => ({
  nothing: "String(1 + 1)",
  "allocate a little": allocate(8),
  allocate: allocate(1024),
  loop: "(() => { for (;;); })()",
  read: "(globalThis.process?.getBuiltinModule ?? require)('fs').readFileSync('/etc/passwd', 'utf8')",
  connect: `(globalThis.process?.getBuiltinModule ?? require)('net').connect(${port}, '127.0.0.1') && 'connecting'`,
})[action];

/** The version in a package's manifest, below this script's folder. */
export const version = (name) =>
  JSON.parse(readFileSync(new URL(`node_modules/${name}/package.json`, import.meta.url))).version;

/** `workloads` has for each an async function that returns the call. `attempt(action, port, seconds, begin)` returns
 * the output of a program that runs with a limit of MEMORY_MB, or throws. It calls `begin` if its start takes long. */
export async function main({ version, fresh, workloads, attempt, settings = [], clients = CLIENTS }) {
  const [command, what, number] = process.argv.slice(2);
  let result;
  if (command === "describe") result = { version, fresh, workloads: Object.keys(workloads), settings };
  else if (command === "measure") result = await measure(what, await workloads[what](), Number(number), clients);
  else {
    const control = await tryControl(attempt, what);
    process.stdout.write(JSON.stringify({ peer: basename(process.argv[1]), ...control }) + "\n");
    result = control.runs_nothing ? control : await tryOut(attempt, what, Number(number));
  }
  process.stdout.write(JSON.stringify({ peer: basename(process.argv[1]), ...result }) + "\n", () => process.exit(0));
}

async function measure(workload, call, rounds, clients) {
  const timed = async () => {
    const started = process.hrtime.bigint();
    const answer = await call();
    const took = process.hrtime.bigint() - started;
    if (!String(answer).includes(EXPECTED[workload])) throw new Error(`an unexpected answer: ${answer}`);
    return Number(took) / 1000;
  };
  const repeat = async (seconds, least) => {
    const times = [];
    const end = Date.now() + seconds * 1000;
    while (times.length < rounds && (times.length < least || Date.now() < end)) {
      times.push(await timed());
    }
    return times;
  };
  await timed();
  const micros = await repeat(MAX_SECONDS, MIN_CALLS);
  let perSecond = null;
  if (clients) {
    const started = process.hrtime.bigint();
    const all = await Promise.all(Array.from({ length: clients }, () => repeat(MAX_SECONDS / 4, 1)));
    perSecond = all.flat().length / (Number(process.hrtime.bigint() - started) / 1e9);
  }
  return { workload, micros, per_second: perSecond };
}

/** A program that has to run under the limits that the next one should break. */
async function tryControl(attempt, action) {
  const [control, expected] = action === "allocate" ? ["allocate a little", "allocated"] : ["nothing", ""];
  try {
    const output = String(await attempt(control, 0, 10, () => {}));
    return output.includes(expected) ? { control: output } : { runs_nothing: `an unexpected answer: ${output}` };
  } catch (error) {
    return { runs_nothing: String(error).slice(0, 500) };
  }
}

async function tryOut(attempt, action, port) {
  const seconds = { loop: 1, throttle: 3 }[action] ?? 10;
  const result = { output: "", error: "" };
  let started = Date.now();
  let used = process.cpuUsage();
  const begin = () => {
    started = Date.now();
    used = process.cpuUsage();
  };
  try {
    result.output = String(await attempt(action === "throttle" ? "loop" : action, port, seconds, begin));
  } catch (error) {
    result.error = String(error).slice(0, 500);
  }
  result.seconds = (Date.now() - started) / 1000;
  // The share of a core of all threads, with the start of what does not call `begin`.
  const { user, system } = process.cpuUsage(used);
  result.cpu = (user + system) / 1e6 / result.seconds;
  // A connection that was begun is seen by then.
  if (action === "connect") await new Promise((resolve) => setTimeout(resolve, 500));
  return result;
}
