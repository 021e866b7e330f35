// The origin of an error, in lines of the program: the engine's own stacks also name this tool's files.

const AsyncFunction = (async () => {}).constructor;
const MAX_FRAMES = 20;
const engineStack = Object.getOwnPropertyDescriptor(Error.prototype, "stack")?.get;
const origins = new WeakMap();
// The programs of a session: which lines each has, as its text stands below that of the one before.
let programs = [];
const MAX_LINES = 1_000_000;

/** Lines that the engine puts before the code of a function that is made of text. */
export const LINES_BEFORE = (() => {
  try {
    new AsyncFunction("}{");
  } catch (error) {
    if (error.lineNumber) return error.lineNumber - 1;
  }
  return 2;
})();

/**
 * Adds the next program. Returns the number of empty lines to put before its text, by which its frames are told from
 * those of functions that earlier programs made.
 */
export function addProgram(code) {
  const last = programs.at(-1) ?? { number: 0, end: 0 };
  if (last.end > MAX_LINES) programs = [];
  const start = programs.length === 0 ? 0 : last.end;
  // One more for what the return of a last expression adds.
  programs.push({ number: last.number + 1, start, end: start + code.split("\n").length + 1 });
  return start;
}

/** Lets the next program be the first one. */
export function forgetPrograms() {
  programs = [];
}

/** The name of the last program in tracebacks. */
export function programName() {
  return nameOf(programs.at(-1));
}

/** True if there are programs before the last one. */
export function isContinued() {
  return programs.at(-1)?.number > 1;
}

function nameOf(program) {
  return program === undefined || program.number === 1 ? "program.js" : `program-${program.number}.js`;
}

/** The stack of this moment, for `setOrigin`. */
export function here() {
  return rawStack(new Error());
}

/** Gives an error the stack of another moment. */
export function setOrigin(error, stack) {
  origins.set(error, stack);
}

/** The frames of an error that are in programs, also in text that they evaluate: function, file, and line. */
export function userFrames(error) {
  const frames = [];
  for (const frame of String(origins.get(error) ?? rawStack(error)).split("\n")) {
    const found = /^(.*?)@.* > AsyncFunction(?: line (\d+) > .*)?:(\d+):\d+$/.exec(frame);
    if (!found) continue;
    const [, name, outer, line] = found;
    const at = Number(outer ?? line) - LINES_BEFORE;
    const program = programs.findLast(({ start }) => start < at);
    const isOfThis = program === programs.at(-1);
    frames.push({ name: functionName(name), file: nameOf(program), line: at - (program?.start ?? 0), isOfThis });
  }
  return frames.length > MAX_FRAMES ? [...frames.slice(0, MAX_FRAMES / 2), ...frames.slice(-MAX_FRAMES / 2)] : frames;
}

/** The error and its frames as text. */
export function traceback(title, frames) {
  return [title, ...frames.map(({ name, file, line }) => `    at ${name} (${file}:${line})`)].join("\n");
}

/** Shows programs their own frames only. */
export function hideOwnFrames() {
  if (!engineStack) return;
  Object.defineProperty(Error.prototype, "stack", {
    get() {
      return this instanceof Error ? traceback(String(this), userFrames(this)) : undefined;
    },
    set(value) {
      Object.defineProperty(this, "stack", { value, writable: true, configurable: true });
    },
    configurable: true,
  });
}

function rawStack(error) {
  return engineStack && error instanceof Error ? engineStack.call(error) : error.stack;
}

/** What the engine calls a function, without where it is and who called it. */
function functionName(name) {
  const own = name.replace(/^.*\*/, "");
  if (own === "anonymous") return "program";
  return own.replace(/(?:\/?<)+$/, "").replace(/^.*\//, "") || "(anonymous)";
}
