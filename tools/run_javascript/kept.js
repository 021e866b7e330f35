// The declarations at the top level of a program are there for the next program of a session, as in a console.
//
// A program is the body of a function, so its declarations are no properties of `globalThis`. They become such when the
// next program begins: with accessors, so that functions of both programs see the same variable.

const AsyncFunction = (async () => {}).constructor;
// Names that a program has no reason to use.
const KEEP = "a2g_keep$";
const TEXT = "a2g_text$";
const VALUE = "a2g_value$";
const DECLARATION = /\b(?:let|const|var|function|class)\b/;
const NAMES = /[A-Za-z_$\u0080-\uffff][\w$\u0080-\uffff]*/g;
// Words that cannot be declared with `let` in the body of an async function.
const RESERVED = new Set(
  (
    "arguments await break case catch class const continue debugger default delete do else enum eval export extends " +
    "false finally for function if implements import in instanceof interface let new null package private protected " +
    "public return static super switch this throw true try typeof var void while with yield"
  ).split(" "),
);
// The engine's words about a name that is declared twice; the second are those of V8, where this file is tested.
const REDECLARED = /^redeclaration of .*?(\S+)$|^Identifier '(\S+)' has already been declared$/;
// Each costs a look at the whole program.
const MAX_NAMES = 300;

/** The declarations of the last program, and of those before it. */
export class Kept {
  #builtIn;
  #last = null;

  /** To be made before the first program, of which no global may be replaced: this tool needs them. */
  constructor() {
    this.#builtIn = new Set(Object.getOwnPropertyNames(globalThis));
  }

  /** Makes the function of a program. `text` is what is run for `code`, below some empty lines. */
  compile(code, text, emptyLines) {
    const above = "\n".repeat(emptyLines);
    const program = DECLARATION.test(code) ? functionOf(KEEP, `${above}${prefix(code)}${text}`) : null;
    if (program === null) return new AsyncFunction(above + text);
    return () => {
      const last = (this.#last = { code, reach: null });
      return program((reach) => (last.reach = reach));
    };
  }

  /** Makes the declarations of the last program available to the next one. */
  publish() {
    const { code, reach } = this.#last ?? {};
    this.#last = null;
    if (!reach) return;
    const names = declaredNames(code).filter((name) => !this.#builtIn.has(name));
    if (names.length === 0) return;
    const accessor = (name) => `get ${name}() { return ${name} }, set ${name}(${VALUE}) { ${name} = ${VALUE} }`;
    const properties = Object.getOwnPropertyDescriptors(reach(`({ ${names.map(accessor).join(", ")} })`));
    for (const [name, property] of Object.entries(properties)) {
      if (isReached(property.get)) Object.defineProperty(globalThis, name, { ...property, enumerable: false });
    }
  }
}

/** A first statement that lets declarations be reached later, and leaves the program as strict as it is. */
function prefix(code) {
  const isStrict = code.includes("use strict") && functionOf(`${code}\n;with ({}) {}`) === null;
  return `${isStrict ? '"use strict";' : ""}${KEEP}((${TEXT}) => eval(${TEXT}));`;
}

/**
 * The names that a program declares at its top level. No parser is at hand but the engine's own, which tells the first
 * name that is declared twice.
 */
export function declaredNames(code) {
  const found = [];
  const names = new Set(code.match(NAMES).filter(isName));
  while (names.size > 0 && found.length < MAX_NAMES) {
    const name = redeclared(`${code}\n;let ${[...names].join(",")};`);
    if (name === null || !names.delete(name)) break;
    found.push(name);
  }
  return found;
}

function isName(text) {
  if (RESERVED.has(text)) return false;
  // Not all characters beyond ASCII can be in a name.
  return /^[\w$]+$/.test(text) || functionOf(`let ${text}`) !== null;
}

function redeclared(text) {
  try {
    new AsyncFunction(text);
    return null;
  } catch (error) {
    const found = REDECLARED.exec(error.message);
    return found ? (found[1] ?? found[2]) : null;
  }
}

/** False for a variable that the program did not get to: one of an earlier program remains. */
function isReached(read) {
  try {
    read();
    return true;
  } catch {
    return false;
  }
}

/** The function of these texts, or null if they are none. */
function functionOf(...texts) {
  try {
    return new AsyncFunction(...texts);
  } catch {
    return null;
  }
}
