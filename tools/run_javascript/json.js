// JSON that every parser reads alike: values that have no such form are refused, with their place and what to do.

// The executor accepts 48 levels, and the result is one level below the object that holds it.
const MAX_DEPTH = 46;
const IDENTIFIER = /^[A-Za-z_$][\w$]*$/;
const ADVICE = new Map([
  ["Map", "use Object.fromEntries(...)"],
  ["Set", "use [...set]"],
  ["Promise", "use await"],
  ["RegExp", "use String(...)"],
  ["ArrayBuffer", "use Array.from(new Uint8Array(...)), or text in base64"],
  ["DataView", "use Array.from(new Uint8Array(...)), or text in base64"],
  ["WeakMap", "use an object of what matters"],
  ["WeakSet", "use an array of what matters"],
  ["Iterator", "use [...iterator]"],
]);

/** A value that is not JSON. Its message says where it is, what it is and what to do. */
export class NotJson extends Error {
  /** `isPromise` is true for one that the program has not waited for, so that it has no value yet. */
  constructor(place, reason, isPromise) {
    super(`${place} ${reason}`);
    this.name = "NotJson";
    this.isPromise = isPromise;
  }
}

/** The JSON text of a value that is called `name` in errors. `undefined` is null, or no property. */
export function encode(value, name) {
  return JSON.stringify(clean(value, { name, parents: [], steps: [] }) ?? null);
}

function clean(value, at) {
  switch (typeof value) {
    case "undefined":
    case "boolean":
      return value;
    case "string":
      return checkText(value, at);
    case "number":
      if (Number.isFinite(value)) return value;
      throw refuse(at, `is ${value}, and JSON has finite numbers only: use null or String(...)`);
    case "bigint":
      throw refuse(at, "is a BigInt, which JSON does not have: use Number(...) or String(...)");
    case "symbol":
      throw refuse(at, "is a symbol, which JSON does not have: use its description");
    case "function":
      throw refuse(at, "is a function, which JSON does not have: call it");
    default:
      return value === null ? null : cleanObject(value, at);
  }
}

function cleanObject(value, at) {
  if (at.parents.includes(value)) throw refuse(at, "contains itself: make a copy without the cycle");
  if (at.parents.length >= MAX_DEPTH) throw refuse(at, `is below ${MAX_DEPTH} levels: flatten the value`);
  at.parents.push(value);
  const result = cleanMembers(value, at);
  at.parents.pop();
  return result;
}

function cleanMembers(value, at) {
  if (typeof value.toJSON === "function") return clean(value.toJSON(at.steps.at(-1) ?? ""), at);
  if (Array.isArray(value)) return Array.from(value, (item, index) => within(at, index, item) ?? null);
  if (value instanceof Number || value instanceof String || value instanceof Boolean) {
    return clean(value.valueOf(), at);
  }
  const advice = adviceFor(value);
  const kind = kindOf(value);
  if (advice) throw refuse(at, `is of type ${kind}, which JSON does not have: ${advice}`, kind === "Promise");
  const result = Object.create(null);
  for (const [key, item] of Object.entries(value)) {
    if (!key.isWellFormed()) throw refuse(at, "has a key with a lone surrogate: use key.toWellFormed()");
    result[key] = within(at, key, item);
  }
  return result;
}

function within(at, step, item) {
  at.steps.push(step);
  const result = clean(item, at);
  at.steps.pop();
  return result;
}

function checkText(text, at) {
  if (text.isWellFormed()) return text;
  throw refuse(at, "has a lone surrogate, which is no text: use text.toWellFormed()");
}

function adviceFor(value) {
  if (value instanceof Error) return "use String(error)";
  if (ArrayBuffer.isView(value) && !(value instanceof DataView)) return "use Array.from(...), or text in base64";
  const kind = kindOf(value);
  return ADVICE.get(kind) ?? (typeof value.next === "function" && value[Symbol.iterator] && ADVICE.get("Iterator"));
}

/** The name of the class that a value has whatever its own properties say. */
function kindOf(value) {
  return value instanceof Error ? value.name : Object.prototype.toString.call(value).slice(8, -1);
}

function refuse(at, reason, isPromise = false) {
  const step = (key) => (IDENTIFIER.test(key) ? `.${key}` : `[${JSON.stringify(key)}]`);
  return new NotJson(at.name + at.steps.map(step).join(""), reason, isPromise);
}
