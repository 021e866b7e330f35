// just-bash: a shell for each call, with the interpreters of Python and JavaScript that it can have.

import { Bash, OverlayFs } from "just-bash";
import { DATA, MEMORY_MB, javascript, main, python, version } from "./common.mjs";

const bytes = MEMORY_MB * 2 ** 20;
// The limits of numbers of steps are not those of time.
const STEPS = { maxLoopIterations: 1e12, maxCommandCount: 1e12, maxWorkUnits: 1e12 };
const SHELL = (port) => ({
  nothing: "echo 2",
  loop: "while :; do :; done",
  read: "cat /etc/passwd",
  connect: `curl -s http://127.0.0.1:${port}/`,
});

async function run(script, seconds = 60, fs = undefined) {
  const times = { maxExecutionTimeMs: seconds * 1000, maxPythonTimeoutMs: seconds * 1000, maxJsTimeoutMs: seconds * 1000 };
  const executionLimits = { ...STEPS, ...times, maxLiveBytes: bytes, maxFileSystemBytes: bytes };
  const bash = new Bash({ python: true, javascript: true, executionLimits, ...(fs && { fs }) });
  const { stdout, stderr, exitCode } = await bash.exec(script);
  if (exitCode !== 0) throw new Error(stderr);
  return stdout;
}

/** Tries it in each of the three languages at once. One that succeeds is enough. */
async function attempt(action, port, seconds) {
  const quote = (code) => `'${code.replaceAll("'", `'\\''`)}'`;
  const ways = [`python3 -c ${quote(python(action, port))}`, `js-exec -c ${quote(`console.log(${javascript(action, port)})`)}`];
  const shell = SHELL(port)[action];
  const ended = await Promise.allSettled([...ways, ...(shell ? [shell] : [])].map((way) => run(way, seconds)));
  const outputs = ended.filter(({ status }) => status === "fulfilled").map(({ value }) => value);
  if (outputs.length === 0) throw new Error(ended.map(({ reason }) => reason).join("; "));
  return outputs.join("");
}

await main({
  version: version("just-bash"),
  fresh: "a shell and its files",
  workloads: {
    list: async () => () => run("ls /data", 60, new OverlayFs({ root: DATA, mountPoint: "/data" })),
    python: async () => () => run("python3 -c 'print(1 + 1)'"),
    javascript: async () => () => run("js-exec -c 'console.log(1 + 1)'"),
  },
  attempt,
  settings: ["memory", "time"],
});
