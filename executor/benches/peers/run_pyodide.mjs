// pyodide: an interpreter for each call. For the attempts it runs in a thread, so that another can interrupt it, and
// with `jsglobals`, which hides the globals of JavaScript.

import { Worker, isMainThread, parentPort, workerData } from "node:worker_threads";
import { loadPyodide } from "pyodide";
import { main, python, version } from "./common.mjs";

const JAVASCRIPT = (port) => ({
  read: "process.getBuiltinModule('fs').readFileSync('/etc/passwd', 'utf8')",
  connect: `String(process.getBuiltinModule('net').connect(${port}, '127.0.0.1'))`,
});

/** In Python, and through a function of JavaScript that Python sees all the same. */
function ways(action, port) {
  const code = JAVASCRIPT(port)[action];
  const call = `import pyodide_js\nprint(pyodide_js.runPython.constructor(${JSON.stringify(`return ${code}`)})())`;
  return code ? [python(action, port), call] : [python(action, port)];
}

async function run(code) {
  return String((await loadPyodide()).runPython(code));
}

async function runInThread({ programs, interrupt }) {
  const output = [];
  const interpreter = await loadPyodide({ jsglobals: {}, stdout: (line) => output.push(line) });
  interpreter.setInterruptBuffer(interrupt);
  parentPort.postMessage({ isReady: true });
  for (const program of programs) {
    try {
      interpreter.runPython(program);
    } catch (error) {
      output.push(String(error));
    }
  }
  // A connection that was begun is seen by then.
  setTimeout(() => parentPort.postMessage({ output: output.join("\n") }), 500);
}

function attempt(action, port, seconds, begin) {
  const interrupt = new Uint8Array(new SharedArrayBuffer(1));
  const worker = new Worker(new URL(import.meta.url), { workerData: { programs: ways(action, port), interrupt } });
  return new Promise((resolve, reject) => {
    let timer;
    worker.on("error", reject);
    worker.on("message", ({ isReady, output }) => {
      if (isReady) {
        begin();
        timer = setTimeout(() => (interrupt[0] = 2), seconds * 1000);
      } else {
        clearTimeout(timer);
        resolve(output);
      }
    });
  });
}

if (isMainThread) {
  await main({
    version: version("pyodide"),
    fresh: "an interpreter",
    workloads: { python: async () => () => run("1 + 1") },
    attempt,
    settings: ["time"],
    clients: 0,
  });
} else await runInThread(workerData);
