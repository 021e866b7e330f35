// The tool run_javascript: SpiderMonkey in a component that componentize-js makes.
import * as calls from "a2g:tool/calls@0.2.0";
import { log } from "a2g:tool/host@0.2.0";
import { getDirectories } from "wasi:filesystem/preopens@0.2.10";
import { makeFiles } from "./files.js";
import { Failure, prepare, Programs } from "./program.js";
import { forgetPrograms } from "./stack.js";

const DESCRIPTION =
  "Runs a JavaScript program in a sandbox, with the language and no modules, with files by absolute paths (fs has " +
  "read, write, list and stat), and with other tools: await tools.NAME({ argument: ... }) calls one and returns its " +
  "result, await Promise.all([...]) calls several at once, tools.list() and tools.describe(name) say which there are. " +
  "There are no threads, processes and sockets. Variables and functions stay for a later call only in a session: call " +
  'with session "new", and then with the handle that it returns. Returns what the program returns, or else the value of ' +
  "its last expression, as JSON or else as text, and what it printed with console.log.";
const SCHEMA = {
  type: "object",
  properties: {
    code: {
      type: "string",
      description:
        "The body of an async function: await and return work. It returns a value, or ends with an expression.",
    },
    input: { description: "Any JSON value: the variable `input` of the program." },
  },
  required: ["code"],
  additionalProperties: false,
};
// Standard output of the component itself: the executor counts it and ends the run at its limit.
const overflow = console.log.bind(console);

prepare();
const makePrograms = () => new Programs({ calls, log, overflow, fs: makeFiles(getDirectories) });
let programs = makePrograms();
await warmUp();

export function describe() {
  return {
    name: "run_javascript",
    version: "0.1.0",
    description: DESCRIPTION,
    argumentsSchema: JSON.stringify(SCHEMA),
  };
}

export async function invoke(text) {
  const { code, input = null } = JSON.parse(text);
  try {
    return await programs.run(code, input);
  } catch (error) {
    if (!(error instanceof Failure)) throw error;
    const detail = error.detail === null ? undefined : JSON.stringify(error.detail);
    throw { code: error.code, message: error.message, detail };
  }
}

/**
 * Runs programs while the component is made: the engine compiles a function when it is called for the first time, and
 * the component keeps it.
 */
async function warmUp() {
  const code = 'console.log("%s", { a: [1, "x"] }); const { a } = await { a: [1.5, null] }; ({ a, input })';
  await invoke(JSON.stringify({ code, input: 1 }));
  startAnew();
  await invoke('{"code": "throw new Error()"}').catch(() => {});
  startAnew();
  // The functions that componentize-js puts around this file can reach no host yet: the one that passes texts refuses the
  // second argument before it would, and the one that calls `invoke` has not got it yet.
  try {
    calls.start("text", null);
  } catch {}
  await calls.start.constructor("return export_invoke(0, 0, 0)")().catch(() => {});
}

/** Lets the next program be the only one of a run, which finds no names of those before it. */
function startAnew() {
  forgetPrograms();
  programs = makePrograms();
}
