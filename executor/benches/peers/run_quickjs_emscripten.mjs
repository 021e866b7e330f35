// quickjs-emscripten: a runtime of QuickJS for each call, in one instance of its module.

import { getQuickJS, shouldInterruptAfterDeadline } from "quickjs-emscripten";
import { MEMORY_MB, javascript, main, version } from "./common.mjs";

const quickjs = await getQuickJS();

function run(code, seconds = 30) {
  const runtime = quickjs.newRuntime();
  runtime.setMemoryLimit(MEMORY_MB * 2 ** 20);
  runtime.setInterruptHandler(shouldInterruptAfterDeadline(Date.now() + seconds * 1000));
  const context = runtime.newContext();
  try {
    return context.unwrapResult(context.evalCode(code)).consume(context.dump);
  } finally {
    context.dispose();
    runtime.dispose();
  }
}

await main({
  version: version("quickjs-emscripten"),
  fresh: "a runtime",
  workloads: { javascript: async () => async () => run("1 + 1") },
  attempt: async (action, port, seconds) => run(javascript(action, port), seconds),
  settings: ["memory", "time"],
  clients: 0,
});
