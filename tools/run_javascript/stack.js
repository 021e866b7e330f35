// The origin of an error, in lines of the program: the engine's own stacks also name this tool's files.

const AsyncFunction = (async () => {}).constructor;
const MAX_FRAMES = 20;
const engineStack = Object.getOwnPropertyDescriptor(Error.prototype, "stack")?.get;
const origins = new WeakMap();

/** Lines that the engine puts before the code of a function that is made of text. */
export const LINES_BEFORE = (() => {
  try {
    new AsyncFunction("}{");
  } catch (error) {
    if (error.lineNumber) return error.lineNumber - 1;
  }
  return 2;
})();

/** The stack of this moment, for `setOrigin`. */
export function here() {
  return rawStack(new Error());
}

/** Gives an error the stack of another moment. */
export function setOrigin(error, stack) {
  origins.set(error, stack);
}

/** The frames of an error that are in the program, also in text that it evaluates: names and lines. */
export function userFrames(error) {
  const frames = [];
  for (const frame of String(origins.get(error) ?? rawStack(error)).split("\n")) {
    const found = /^(.*?)@.* > AsyncFunction(?: line (\d+) > .*)?:(\d+):\d+$/.exec(frame);
    if (!found) continue;
    const [, name, outer, line] = found;
    frames.push({ name: functionName(name), line: Number(outer ?? line) - LINES_BEFORE });
  }
  return frames.length > MAX_FRAMES ? [...frames.slice(0, MAX_FRAMES / 2), ...frames.slice(-MAX_FRAMES / 2)] : frames;
}

/** The error and its frames as text. */
export function traceback(title, frames) {
  return [title, ...frames.map(({ name, line }) => `    at ${name} (program.js:${line})`)].join("\n");
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
