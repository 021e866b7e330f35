// Runs programs: the result and standard output of each, or what went wrong on which line. A session calls the same
// instance of this tool again, and its next program has what those before it have made.
import { makeConsole, inspect, Stdout } from "./console.js";
import { encode, NotJson } from "./json.js";
import { Kept } from "./kept.js";
import { returnLastExpression } from "./last_expression.js";
import { Loop } from "./loop.js";
import { addProgram, hideOwnFrames, isContinued, LINES_BEFORE, programName, traceback, userFrames } from "./stack.js";
import { makeTools, ToolError } from "./tools.js";

// What is returned of a value and of standard output stays below the usual output limit of 1 MiB, at which the executor ends
// a run, and with it the session.
const MAX_RESULT_BYTES = 256 << 10;
const MAX_TEXT_CHARS = 10000;
const TOO_LONG =
  "is longer than 256 KiB as JSON, so `text` is its short form: return a part of it, or write it to a file with fs.write";
const MAX_MESSAGE_CHARS = 2000;
const MAX_TRACEBACK_CHARS = 8000;
const MAX_STDOUT_TAIL_CHARS = 1000;
const NO_NETWORK =
  "run_javascript has no network: call a tool for it, such as tools.http_fetch({ url }), which returns an object with " +
  "status and body";
const NO_THREADS =
  "run_javascript has no threads and no processes: to call several tools at once, use Promise.all([...])";
const NO_MEMORY = "the program needs more memory than this run has: keep less at once, or work in parts";
const NO_TEXT = "(its text cannot be made)";
const NO_MODULES =
  "run_javascript has no modules, and nothing can be installed: use the globals of JavaScript, fs and tools";
const MEMORY_IS_KEPT = "; what earlier programs of the session made is still there: set what is not needed to null";
const NOT_KEPT =
  "a run has nothing of the runs before it, so define it in this program, or make all calls in one session, which " +
  'begins with "session": "new"';
const NOT_IN_SESSION = "neither this program nor an earlier one of the session defines it";
const NOT_NODE = "run_javascript is no Node.js and no browser: use the globals of JavaScript, fs and tools";
const OF_OTHER_HOSTS = new Set(
  "process Buffer global module exports __dirname __filename window document navigator localStorage Deno Bun".split(" "),
);

/** A program that failed, as the parts of a tool error. */
export class Failure extends Error {
  constructor(code, message, detail) {
    super(message);
    this.code = code;
    this.detail = detail;
  }
}

/** The programs of a session, or the only one of a run. */
export class Programs {
  #kept = new Kept();
  #loop;
  #stdout;
  #globals;

  /** `host` has `calls`, `fs`, `log(level, line)` and `overflow(text)`. */
  constructor(host) {
    this.#loop = new Loop(host.calls);
    this.#stdout = new Stdout(host.overflow);
    const console = makeConsole(this.#stdout, host.log);
    const timers = makeTimers(this.#loop);
    this.#globals = { fs: host.fs, tools: makeTools(host.calls, this.#loop), ToolError, console, ...timers };
  }

  /** Runs `code` with `input`. Returns its result as JSON text, or throws a `Failure`. */
  async run(code, input) {
    const [loop, stdout] = [this.#loop, this.#stdout];
    loop.forgetAll();
    stdout.clear();
    this.#kept.publish();
    const program = this.#compile(code);
    setGlobals({ input, ...this.#globals });
    let value;
    try {
      value = await loop.run(program());
      if (loop.hasIgnoredCalls()) {
        // Checked before the calls end: a promise in the result is reported, and not the failure of its call.
        resultMembers(value, stdout.text());
        await loop.finishCalls();
      }
    } catch (error) {
      throw error instanceof Failure ? error : toFailure(error, stdout.text());
    }
    return `{${resultMembers(value, stdout.text())}, "stdout": ${JSON.stringify(stdout.text())}}`;
  }

  #compile(code) {
    const emptyLines = addProgram(code);
    try {
      return this.#kept.compile(code, returnLastExpression(code), emptyLines);
    } catch (error) {
      throw syntaxFailure(code, error, emptyLines);
    }
  }
}

/** The members that tell the value of a program: as JSON, or else as text with a note that says why. */
function resultMembers(value, stdout) {
  try {
    const text = encode(value, "result");
    if (new TextEncoder().encode(text).length <= MAX_RESULT_BYTES) return `"result": ${text}`;
    return toldAsText(value, `result ${countOf(value)}${TOO_LONG}`);
  } catch (error) {
    if (!(error instanceof NotJson)) throw toFailure(error, stdout);
    if (error.isPromise) throw new Failure("result_not_json", error.message + printed(stdout), null);
    return toldAsText(value, shorten(error.message));
  }
}

function toldAsText(value, note) {
  return `"result": null, "text": ${JSON.stringify(show(value))}, "note": ${JSON.stringify(note)}`;
}

function countOf(value) {
  if (typeof value === "string") return `has ${value.length} characters, and `;
  return Array.isArray(value) ? `has ${value.length} items, and ` : "";
}

/** The text of a value, as `console.log` prints it. */
function show(value) {
  try {
    return shorten(inspect(value), MAX_TEXT_CHARS);
  } catch {
    return NO_TEXT;
  }
}

function setGlobals(values) {
  for (const [name, value] of Object.entries(values)) {
    Object.defineProperty(globalThis, name, { value, writable: true, configurable: true, enumerable: false });
  }
}

function makeTimers(loop) {
  const start = (repeats) => (action, delay, ...values) => {
    if (typeof action !== "function") throw new TypeError("a timer takes a function");
    return loop.addTimer(() => action(...values), delay, repeats);
  };
  const stop = (number) => loop.removeTimer(number);
  return { setTimeout: start(false), setInterval: start(true), clearTimeout: stop, clearInterval: stop };
}

/** Replaces what cannot work with what says so, and what would show this tool's own files. */
export function prepare() {
  hideOwnFrames();
  const refusing = (message) =>
    function () {
      throw new Error(message);
    };
  const noNetwork = refusing(NO_NETWORK);
  const fetch = async () => noNetwork();
  setGlobals({ fetch, XMLHttpRequest: noNetwork, WebSocket: noNetwork, EventSource: noNetwork });
  setGlobals({ Worker: refusing(NO_THREADS), SharedWorker: refusing(NO_THREADS), require: refusing(NO_MODULES) });
}

function syntaxFailure(code, error, emptyLines) {
  const [kind, text, lines] = [String(error.name), textOf(error), code.split("\n")];
  const reason = /^(?:import|export) declarations/.test(text) ? `${text}: ${NO_MODULES}` : text;
  // Of an error at the end of the program, the engine tells the line of what it puts there.
  const line = error.lineNumber ? lineWithin(error.lineNumber - LINES_BEFORE - emptyLines, lines.length) : null;
  const place = line === null ? "" : ` (line ${line})`;
  const source = line === null ? "" : `  ${programName()}, line ${line}\n    ${lines[line - 1].trim()}\n`;
  const facts = detail(kind, reason, line, `${source}${kind}: ${reason}`);
  return new Failure("syntax_error", shorten(`${kind}: ${reason}${place}`), facts);
}

function lineWithin(line, lines) {
  return Math.min(Math.max(line, 1), lines);
}

function toFailure(thrown, stdout) {
  // The engine throws this text, as it has no room for an error.
  const isFull = thrown === "out of memory";
  const error = isFull ? new RangeError(NO_MEMORY + (isContinued() ? MEMORY_IS_KEPT : "")) : thrown;
  const isError = error instanceof Error || error instanceof DOMException;
  const kind = isError ? String(error.name) : "uncaught";
  const reason = isError ? textOf(error) : inspect(error);
  const frames = isError ? userFrames(error) : [];
  const title = shorten(reason === "" ? kind : `${kind}: ${reason}`);
  const line = frames.find(({ isOfThis }) => isOfThis)?.line ?? null;
  const message = line === null ? title : `${title} (line ${line})`;
  const facts = detail(kind, reason, line, traceback(title, frames));
  if (error instanceof ToolError) facts.tool_error = toolFacts(error);
  if (stdout !== "") facts.stdout_tail = tailOf(stdout);
  return new Failure("javascript_error", message + printed(stdout), facts);
}

function tailOf(stdout) {
  return stdout.slice(-MAX_STDOUT_TAIL_CHARS).toWellFormed();
}

/** The end of standard output, for the message of an error: many hosts show a model nothing else of it. */
function printed(stdout) {
  return stdout === "" ? "" : `\nIt had printed:\n${tailOf(stdout)}`;
}

function toolFacts({ tool, code, reason, detail }) {
  const isShort = JSON.stringify(detail).length <= MAX_MESSAGE_CHARS;
  return { tool, code, message: reason, detail: isShort ? detail : null };
}

function detail(type, message, line, traceback) {
  return { type, message: shorten(message), line, traceback: shorten(traceback, MAX_TRACEBACK_CHARS) };
}

function textOf(error) {
  try {
    const text = String(error.message);
    if (text.startsWith("Error loading module")) return NO_MODULES;
    const missing = error instanceof ReferenceError && /^(\S+) is not defined$/.exec(text);
    if (!missing) return text;
    const notDefined = isContinued() ? NOT_IN_SESSION : NOT_KEPT;
    return `${text}: ${OF_OTHER_HOSTS.has(missing[1]) ? NOT_NODE : notDefined}`;
  } catch {
    return NO_TEXT;
  }
}

/** Leaves out the middle of a long text, and what no text can hold. */
function shorten(text, limit = MAX_MESSAGE_CHARS) {
  const cut = text.length - limit;
  if (cut <= 0) return text.toWellFormed();
  const half = limit / 2;
  return `${text.slice(0, half)}\n[... ${cut} characters ...]\n${text.slice(-half)}`.toWellFormed();
}
