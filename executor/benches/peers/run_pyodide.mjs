// pyodide: an interpreter for each call, with the globals that it has by default.

import { loadPyodide } from "pyodide";
import { main, version } from "./common.mjs";

const CODE = (port) => ({
  nothing: "str(1 + 1)",
  read: "import js\njs.process.getBuiltinModule('fs').readFileSync('/etc/passwd', 'utf8')",
  connect: `import js\nstr(js.process.getBuiltinModule('net').connect(${port}, '127.0.0.1'))`,
});

async function run(code) {
  const python = await loadPyodide();
  return String(python.runPython(code));
}

await main({
  version: version("pyodide"),
  fresh: "an interpreter",
  workloads: { python: async () => () => run("1 + 1") },
  attempt: (action, port) => run(CODE(port)[action]),
});
