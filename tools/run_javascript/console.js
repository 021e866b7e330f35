// `console`: what goes to standard output is kept for the result, the rest goes to the log line by line.

// A program that prints more is taken to print without end: the executor ends it at the output limit of the run.
const MAX_STDOUT_CHARS = 8 << 20;
const MAX_SHOWN_CHARS = 100000;
const MAX_LINE_CHARS = 4096;
const MAX_DEPTH = 4;
const MAX_ITEMS = 100;
const MAX_WIDTH = 76;

/** Standard output in memory, up to a bound. */
export class Stdout {
  #chunks = [];
  #size = 0;
  #leftOut = 0;
  #overflow;

  /** `overflow` gets what is beyond the bound. */
  constructor(overflow) {
    this.#overflow = overflow;
  }

  clear() {
    this.#chunks = [];
    this.#size = this.#leftOut = 0;
  }

  write(text) {
    if (this.#size + text.length <= MAX_STDOUT_CHARS) {
      this.#chunks.push(text);
      this.#size += text.length;
    } else {
      this.#overflow(text);
      this.#leftOut += text.length;
    }
  }

  text() {
    const text = this.#chunks.join("");
    const leftOut = text.length + this.#leftOut - MAX_SHOWN_CHARS;
    if (leftOut <= 0) return text.toWellFormed();
    const half = MAX_SHOWN_CHARS / 2;
    const note = `\n[... ${leftOut} characters left out: print less, or write to a file ...]\n`;
    return `${text.slice(0, half)}${note}${text.slice(-half)}`.toWellFormed();
  }
}

export function makeConsole(stdout, log) {
  let indent = "";
  const counts = new Map();
  const timers = new Map();
  const text = (values) => format(values).replace(/^/gm, indent);
  const print = (...values) => stdout.write(`${text(values)}\n`);
  const toLog = (level) => (...values) => logLines(log, level, text(values));
  const count = (label = "default") => {
    counts.set(label, (counts.get(label) ?? 0) + 1);
    print(`${label}: ${counts.get(label)}`);
  };
  const timeLog = (label = "default") => {
    if (timers.has(label)) print(`${label}: ${(performance.now() - timers.get(label)).toFixed(3)} ms`);
  };
  return {
    log: print,
    info: print,
    debug: print,
    dir: (value) => print(value),
    table: (value) => print(value),
    group: (...values) => {
      if (values.length > 0) print(...values);
      indent += "  ";
    },
    groupEnd: () => (indent = indent.slice(2)),
    count,
    countReset: (label = "default") => counts.delete(label),
    time: (label = "default") => timers.set(label, performance.now()),
    timeLog,
    timeEnd: (label = "default") => (timeLog(label), timers.delete(label)),
    warn: toLog("warn"),
    error: toLog("error"),
    trace: toLog("debug"),
    assert: (condition, ...values) => condition || toLog("error")("Assertion failed:", ...values),
  };
}

function logLines(log, level, text) {
  for (const line of text.toWellFormed().split("\n")) {
    for (let start = 0; start === 0 || start < line.length; start += MAX_LINE_CHARS) {
      log(level, line.slice(start, start + MAX_LINE_CHARS).toWellFormed());
    }
  }
}

function format(values) {
  const [first, ...rest] = values;
  if (typeof first !== "string" || !first.includes("%")) return values.map(show).join(" ");
  const text = first.replace(/%([sdifjoOc%])/g, (whole, kind) => {
    if (kind === "%") return "%";
    if (rest.length === 0) return whole;
    const value = rest.shift();
    if (kind === "c") return "";
    if (kind === "d" || kind === "f") return String(Number(value));
    if (kind === "i") return String(Number.parseInt(value, 10));
    return kind === "j" ? JSON.stringify(value) : kind === "s" ? show(value) : inspect(value);
  });
  return [text, ...rest.map(show)].join(" ");
}

function show(value) {
  return typeof value === "string" ? value : inspect(value);
}

/** A value as text for people. */
export function inspect(value, parents = []) {
  if (typeof value === "string") return JSON.stringify(value);
  if (typeof value === "bigint") return `${value}n`;
  if (Object.is(value, -0)) return "-0";
  if (typeof value === "function") return inspectFunction(value);
  if (typeof value !== "object" || value === null) return String(value);
  if (parents.includes(value)) return "[Circular]";
  try {
    return inspectObject(value, [...parents, value]);
  } catch {
    return Object.prototype.toString.call(value);
  }
}

function inspectFunction(value) {
  return `[${/^class\b/.test(value) ? "class" : "Function"}: ${value.name || "(anonymous)"}]`;
}

function inspectObject(value, parents) {
  const name = value.constructor?.name ?? "";
  if (value instanceof Error) return `${value.name}: ${value.message}`;
  if (value instanceof Date) return Number.isNaN(value.getTime()) ? "Invalid Date" : value.toISOString();
  if (value instanceof RegExp || value instanceof Number || value instanceof Boolean) return String(value);
  if (value instanceof Promise) return "Promise {}: use await";
  if (parents.length > MAX_DEPTH) return Array.isArray(value) ? "[Array]" : `[${name || "Object"}]`;
  const inner = (item) => inspect(item, parents);
  if (Array.isArray(value)) return list("[", value, inner, "]");
  if (ArrayBuffer.isView(value) && value.length !== undefined) {
    return list(`${name}(${value.length}) [`, value, inner, "]");
  }
  if (value instanceof Set) return list(`Set(${value.size}) {`, value, inner, "}");
  const pair = ([key, item]) => `${inner(key)} => ${inner(item)}`;
  if (value instanceof Map) return list(`Map(${value.size}) {`, value, pair, "}");
  const property = ([key, item]) => `${/^[\w$]+$/.test(key) ? key : JSON.stringify(key)}: ${inner(item)}`;
  return list(name && name !== "Object" ? `${name} {` : "{", Object.entries(value), property, "}");
}

function list(open, items, showItem, close) {
  const all = [...items];
  const shown = all.slice(0, MAX_ITEMS).map(showItem);
  if (all.length > MAX_ITEMS) shown.push(`... ${all.length - MAX_ITEMS} more items`);
  if (shown.length === 0) return `${open}${close}`;
  const line = `${open} ${shown.join(", ")} ${close}`;
  if (line.length <= MAX_WIDTH && !line.includes("\n")) return line;
  return `${open}\n${shown.join(",\n").replace(/^/gm, "  ")}\n${close}`;
}
