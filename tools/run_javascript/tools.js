// `tools`: calls to other tools, each an intent of its own that the governor decides on.
import { encode, NotJson } from "./json.js";
import { here, setOrigin } from "./stack.js";

/** A call that did not succeed: `code` and `message` say why and what to change, `detail` has the facts. */
export class ToolError extends Error {
  constructor(tool, code, message, detail) {
    super(`${tool}: ${message} (${code})`);
    this.name = "ToolError";
    this.tool = tool;
    this.code = code;
    this.reason = message;
    this.detail = detail;
  }
}

/** The object whose properties are the tools that a program may call. */
export function makeTools(calls, loop) {
  const own = {
    __proto__: null,
    call: (name, input) => pendingCall(loop, name, input),
    list: () => calls.list().map(({ name, description }) => ({ name, description })),
    describe: (name) => describeTool(calls, name),
    parallel: () => {
      throw new TypeError("there is no tools.parallel: use await Promise.all([tools.NAME({ ... }), ...])");
    },
  };
  return new Proxy(own, {
    get(_, name) {
      // The language asks any object for these.
      if (typeof name === "symbol" || name === "then" || name === "toJSON") return undefined;
      if (name in Object.prototype) return Object.prototype[name];
      return own[name] ?? ((...input) => pendingCall(loop, name, ...input));
    },
  });
}

/** The promise of a call, which refuses to be used in place of the result. */
function pendingCall(loop, name, ...input) {
  const promise = callTool(loop, name, ...input);
  const markAwaited = loop.watch(promise);
  const refuse = () => {
    throw new TypeError(`${shownName(name)} returns a promise: write await before the call`);
  };
  return new Proxy(promise, {
    get(target, property) {
      if (property === "then" || property === "catch" || property === "finally") {
        markAwaited();
        return target[property].bind(target);
      }
      // The language and the conversion to JSON ask for these.
      const isInternal = typeof property === "symbol" && property !== Symbol.toPrimitive;
      if (isInternal || property === "constructor" || property === "toJSON") return target[property];
      return refuse();
    },
    ownKeys: refuse,
  });
}

function shownName(name) {
  return /^[\w$]+$/.test(name) ? `tools.${name}` : `tools[${JSON.stringify(name)}]`;
}

async function callTool(loop, name, input = {}, ...more) {
  const stack = here();
  const outcome = await start(loop, name, input, more);
  if (outcome.tag === "ok") return JSON.parse(outcome.val);
  const error = toError(name, outcome.val);
  // The stack of the call in the program; that of the rejection would name this file.
  setOrigin(error, stack);
  throw error;
}

function start(loop, name, input, more) {
  try {
    return loop.start(name, argumentsText(name, input, more));
  } catch (error) {
    // The engine throws this text, and no Error.
    if (error !== "out of memory") throw error;
    throw new RangeError(`${name}: the arguments do not fit into the memory of this run: send less`);
  }
}

function argumentsText(name, input, more) {
  const shown = shownName(name);
  if (typeof input !== "object" || input === null || Array.isArray(input) || more.length > 0) {
    throw new TypeError(`${shown} takes one object, as in ${shown}({ path: "..." })`);
  }
  try {
    return encode(input, "arguments");
  } catch (error) {
    throw error instanceof NotJson ? new TypeError(`${shown}: ${error.message}`) : error;
  }
}

function describeTool(calls, name) {
  let found;
  try {
    found = calls.describe(name);
  } catch (error) {
    throw error.payload ? toError(name, error.payload) : error;
  }
  return {
    name: found.name,
    description: found.description,
    arguments: JSON.parse(found.argumentsSchema),
    result: found.resultSchema ? JSON.parse(found.resultSchema) : null,
  };
}

function toError(name, { code, message, detail }) {
  return new ToolError(name, code, message, parseDetail(detail));
}

function parseDetail(text) {
  try {
    return text == null ? null : JSON.parse(text);
  } catch {
    return text;
  }
}
