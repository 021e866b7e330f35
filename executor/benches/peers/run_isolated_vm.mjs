// isolated-vm: an isolate of V8 for each call, which has a thread of its own.

import ivm from "isolated-vm";
import { MEMORY_MB, javascript, main, version } from "./common.mjs";

async function run(code, seconds = 30) {
  const isolate = new ivm.Isolate({ memoryLimit: MEMORY_MB });
  try {
    const context = await isolate.createContext();
    return await context.eval(code, { timeout: seconds * 1000 });
  } finally {
    if (!isolate.isDisposed) isolate.dispose();
  }
}

await main({
  version: version("isolated-vm"),
  fresh: "an isolate",
  workloads: { javascript: async () => () => run("1 + 1") },
  attempt: (action, port, seconds) => run(javascript(action, port), seconds),
  settings: ["memory", "time"],
});
