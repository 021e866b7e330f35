// Runs one program: its result and standard output, or what went wrong on which line.
import { makeConsole, inspect, Stdout } from "./console.js";
import { encode, NotJson } from "./json.js";
import { returnLastExpression } from "./last_expression.js";
import { Loop } from "./loop.js";
import { makeTools, ToolError } from "./tools.js";

const AsyncFunction = (async () => {}).constructor;
const MAX_MESSAGE_CHARS = 2000;
const MAX_TRACEBACK_CHARS = 8000;
const MAX_STDOUT_TAIL_CHARS = 1000;
const MAX_FRAMES = 20;
const NO_NETWORK = "run_javascript has no network: call a tool for it, such as tools.http_fetch({ url })";
const NO_THREADS =
  "run_javascript has no threads and no processes: to call several tools at once, use Promise.all([...])";
const NO_MODULES = "run_javascript has no modules: use the globals of JavaScript, fs and tools";

/** A program that failed, as the parts of a tool error. */
export class Failure extends Error {
  constructor(code, message, detail) {
    super(message);
    this.code = code;
    this.detail = detail;
  }
}

/**
 * Runs `code` with `input`. `host` has `calls`, `fs`, `log(level, line)` and `overflow(text)`.
 * Returns the result as JSON text, or throws a `Failure`.
 */
export async function run(code, input, host) {
  const loop = new Loop(host.calls);
  const stdout = new Stdout(host.overflow);
  const program = compile(code);
  setGlobals({ input, fs: host.fs, tools: makeTools(host.calls, loop), ToolError, console: makeConsole(stdout, host.log) });
  setTimers(loop);
  let value;
  try {
    value = await loop.run(program());
  } catch (error) {
    throw toFailure(error, stdout.text());
  }
  return `{"result": ${toResult(value)}, "stdout": ${JSON.stringify(stdout.text())}}`;
}

function compile(code) {
  try {
    return new AsyncFunction(returnLastExpression(code));
  } catch (error) {
    throw syntaxFailure(code, error);
  }
}

function toResult(value) {
  try {
    return encode(value, "result");
  } catch (error) {
    if (!(error instanceof NotJson)) throw toFailure(error, "");
    throw new Failure("result_not_json", error.message, null);
  }
}

function setGlobals(values) {
  for (const [name, value] of Object.entries(values)) {
    Object.defineProperty(globalThis, name, { value, writable: true, configurable: true, enumerable: false });
  }
}

function setTimers(loop) {
  const start = (repeats) => (action, delay, ...values) => {
    if (typeof action !== "function") throw new TypeError("a timer takes a function");
    return loop.addTimer(() => action(...values), delay, repeats);
  };
  const stop = (number) => loop.removeTimer(number);
  setGlobals({ setTimeout: start(false), setInterval: start(true), clearTimeout: stop, clearInterval: stop });
}

/** Replaces what cannot work with what says so. */
export function refuseWhatCannotWork() {
  const refusing = (message) =>
    function () {
      throw new Error(message);
    };
  const noNetwork = refusing(NO_NETWORK);
  const fetch = async () => noNetwork();
  setGlobals({ fetch, XMLHttpRequest: noNetwork, WebSocket: noNetwork, EventSource: noNetwork });
  setGlobals({ Worker: refusing(NO_THREADS), SharedWorker: refusing(NO_THREADS), require: refusing(NO_MODULES) });
}

function syntaxFailure(code, error) {
  const reason = textOf(error);
  const line = Number.isInteger(error.lineNumber) ? Math.min(Math.max(error.lineNumber - LINE_OFFSET, 1), code.split("\n").length) : null;
  const source = line === null ? "" : `  program.js, line ${line}\n    ${code.split("\n")[line - 1].trim()}\n`;
  const kind = error.name ?? "SyntaxError";
  const message = shorten(line === null ? `${kind}: ${reason}` : `${kind}: ${reason} (line ${line})`);
  return new Failure("syntax_error", message, detail(kind, reason, line, `${source}${kind}: ${reason}`));
}

function toFailure(error, stdout) {
  const isError = error instanceof Error || (typeof error?.stack === "string" && typeof error?.message === "string");
  const kind = isError ? String(error.name) : "uncaught";
  const reason = isError ? textOf(error) : inspect(error);
  const frames = isError ? userFrames(error.stack) : [];
  const message = shorten(reason === "" ? kind : `${kind}: ${reason}`);
  const lines = [message, ...frames.map(({ name, line }) => `    at ${name} (program.js:${line})`)];
  const facts = detail(kind, reason, frames[0]?.line ?? null, lines.join("\n"));
  if (error instanceof ToolError) facts.tool_error = { tool: error.tool, code: error.code, message: error.reason };
  if (stdout !== "") facts.stdout_tail = stdout.slice(-MAX_STDOUT_TAIL_CHARS).toWellFormed();
  return new Failure("javascript_error", message, facts);
}

function detail(type, message, line, traceback) {
  return { type, message: shorten(message), line, traceback: shorten(traceback, MAX_TRACEBACK_CHARS) };
}

function textOf(error) {
  try {
    const text = String(error.message);
    return text.startsWith("Error loading module") ? NO_MODULES : text;
  } catch {
    return "(its text cannot be made)";
  }
}

/** Lines that the engine puts before the code of a function that is made of text. */
const LINE_OFFSET = (() => {
  try {
    new AsyncFunction("}{");
  } catch (error) {
    return (error.lineNumber ?? 3) - 1;
  }
  return 2;
})();

/** The frames of a stack that are in the program, also in text that it evaluates. */
function userFrames(stack) {
  const frames = [];
  for (const frame of String(stack).split("\n")) {
    const found = /^(.*?)@.* > AsyncFunction(?: line (\d+) > .*)?:(\d+):\d+$/.exec(frame);
    if (!found) continue;
    const [, name, outer, line] = found;
    frames.push({ name: functionName(name), line: Number(outer ?? line) - LINE_OFFSET });
  }
  return frames.length > MAX_FRAMES ? [...frames.slice(0, MAX_FRAMES / 2), ...frames.slice(-MAX_FRAMES / 2)] : frames;
}

/** What the engine calls a function, without where it is and who called it. */
function functionName(name) {
  const own = name.replace(/^.*\*/, "");
  if (own === "anonymous") return "program";
  return own.replace(/(?:\/?<)+$/, "").replace(/^.*\//, "") || "(anonymous)";
}

/** Leaves out the middle of a long text, and what no text can hold. */
function shorten(text, limit = MAX_MESSAGE_CHARS) {
  const cut = text.length - limit;
  if (cut <= 0) return text.toWellFormed();
  const half = limit / 2;
  return `${text.slice(0, half)}\n[... ${cut} characters ...]\n${text.slice(-half)}`.toWellFormed();
}
