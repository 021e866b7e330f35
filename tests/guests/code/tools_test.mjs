// Tests of run_javascript's own modules under Node.js, with calls that nobody governs. Argument: the tool's folder.
import assert from "node:assert/strict";
import { pathToFileURL } from "node:url";

const load = (name) => import(pathToFileURL(`${process.argv[2]}/${name}.js`));
const { returnLastExpression } = await load("last_expression");
const { encode } = await load("json");
const { makeFiles } = await load("files");
const { declaredNames } = await load("kept");
const { Programs } = await load("program");
const { setTimeout: later } = globalThis;

/** Calls that end in reverse order, the last that was started first. */
class OneByOne {
  started = [];
  waits = [];
  list = () => [{ name: "echo", description: "Returns its arguments." }];
  describe = (name) => {
    if (name !== "echo") throw Object.assign(new Error(), { payload: REFUSAL });
    return { name, description: "", argumentsSchema: '{"type":"object"}', resultSchema: undefined };
  };
  start = (name, text) => this.started.push(name === "deny" ? { tag: "err", val: REFUSAL } : { tag: "ok", val: text });
  wait = (calls) => {
    this.waits.push([...calls]);
    const call = Math.max(...calls);
    return { call, outcome: this.started[call - 1] };
  };
}

const REFUSAL = { code: "denied", message: "the policy refuses it", detail: '{"intent_id":"i"}' };
const [print, native] = [console.log, console];

/** A function that runs programs one after the other in one instance of the tool. */
function session(calls = new OneByOne()) {
  const programs = new Programs({ calls, fs: {}, log() {}, overflow() {} });
  return async (code, input = null) => {
    try {
      return { ...JSON.parse(await programs.run(code, input)), waits: calls.waits };
    } finally {
      globalThis.console = native;
      globalThis.setTimeout = later;
    }
  };
}

const program = (code) => session()(code);
const failed = (run) => run.then((value) => assert.fail(JSON.stringify(value)), (error) => error);
const failure = (code) => failed(program(code));

const tests = {
  async "a tool is a function that takes one object"() {
    for (const code of ["await tools.echo({a: 1})", 'tools["echo"]({a: 1})', 'tools.call("echo", {a: 1})']) {
      assert.deepEqual((await program(code)).result, { a: 1 }, code);
    }
  },

  async "a call that the program does not wait for is finished, and its error is the program's"() {
    const { result, waits } = await program("tools.echo({ a: 1 }); return 2");
    assert.deepEqual([result, waits], [2, [[1]]]);
    const next = "tools.echo({ a: 1 }).then(() => tools.echo({ a: 2 })); return 2";
    assert.deepEqual((await program(next)).waits, [[1], [2]]);
    const denied = await failure("tools.echo({});\ntools.deny({}); return 2");
    assert.match(denied.message, /the policy refuses it/);
    assert.equal((await program("tools.deny({}).catch(() => {}); return 2")).result, 2);
  },

  async "the promise of a call is not its result"() {
    for (const code of ["tools.echo({}).a", "({ ...tools.echo({}) })", "`${tools.echo({})}`", "JSON.stringify(tools.echo({}))"]) {
      assert.match((await failure(code)).message, /tools.echo returns a promise: write await/, code);
    }
    assert.match((await failure("return { a: tools.echo({}) }")).message, /is of type Promise.*use await/);
    assert.match((await failure("return { a: tools.deny({}) }")).message, /is of type Promise.*use await/);
    assert.equal((await program("return String(tools)")).result, "[object Object]");
    assert.match((await program("console.log(tools.echo({}))")).stdout, /use await/);
  },

  async "calls start at once and are waited for together"() {
    const code = "(await Promise.all([1, 2, 3].map((n) => tools.echo({ n })))).map(({n}) => n)";
    const { result, waits } = await program(code);
    assert.deepEqual([result, waits], [[1, 2, 3], [[1, 2, 3], [1, 2], [1]]]);
  },

  async "a chain goes on while others run, and only idleness waits"() {
    const code = `
      const seen = [];
      const chain = async (name) => { await tools.echo({}); seen.push(name); await tools.echo({}); seen.push(name); };
      await Promise.all([chain("a"), chain("b"), new Promise((done) => setTimeout(done, 1))]);
      return seen;`;
    const { result, waits } = await program(code);
    assert.deepEqual([result, waits], [["b", "b", "a", "a"], [[1, 2], [1, 3], [1], [4]]]);
  },

  async "a refused call is an exception with the facts"() {
    const code = `try { await tools.deny({}) } catch (error) {
      return [error instanceof ToolError, error.message, error.code, error.detail, error.tool]; }`;
    const text = "deny: the policy refuses it (denied)";
    assert.deepEqual((await program(code)).result, [true, text, "denied", { intent_id: "i" }, "deny"]);
    const failed = await failure("await tools.deny({})");
    assert.equal(failed.message, `ToolError: ${text}`);
    assert.deepEqual(failed.detail.tool_error.detail, { intent_id: "i" });
    assert.match((await failure('tools.describe("x")')).message, /the policy refuses it/);
  },

  async "wrong uses say what is right"() {
    assert.match((await failure('await tools.echo("a")')).message, /takes one object, as in tools.echo\({ path/);
    assert.match((await failure("await tools.echo({a: [1n]})")).message, /tools.echo: arguments.a\[0\] is a BigInt/);
    assert.match((await failure("await new Promise(() => {})")).message, /nothing can settle/);
    assert.match((await failure("Deno.cwd()")).message, /Deno is not defined: run_javascript is no Node.js/);
  },

  async "timers run in order, and their exceptions are the program's"() {
    const code = `const seen = []; setTimeout((x) => seen.push(x), 1, "first");
      await new Promise((done) => {
        const every = setInterval(() => { if (seen.push("i") === 3) { clearInterval(every); done(); } }, 20);
      });
      return seen;`;
    assert.deepEqual((await program(code)).result, ["first", "i", "i"]);
    const failed = await failure('setTimeout(() => { throw new TypeError("late") }); await new Promise(() => {})');
    assert.equal(failed.message, "TypeError: late");
  },

  "the names that a program declares at its top level are found"() {
    const cases = [
      ["1 + a", ""],
      ["let a = 1, b;\nconst c = 2; var d", "a b c d"],
      ["const { a, b: [c], ...d } = x; let [e = f] = y", "a c d e"],
      ["function a(b) { let c; }\nasync function d() {}\nfunction* e() {}\nclass f { g() {} }", "a d e f"],
      ["{ let a; var b; function c() {} }\nfor (const d of []) { var e }\ntry {} catch (f) {}", "b e"],
      ["// let a\n'let b'; `let c ${(() => { let d })()}`; /let e/", ""],
      ["let \u00fc = 'it\u2019s \u201cx\u201d'", "\u00fc"],
      ["'use strict'; let a = 1 // let b", "a"],
    ];
    for (const [code, names] of cases) assert.equal(declaredNames(code).sort().join(" "), names, code);
  },

  async "declarations stay for the next program of a session"() {
    const run = session();
    await run("let s1n = 1; const s1list = [1]; function s1up() { return ++s1n } class S1 { two() { return 2 } } s1free = 5");
    assert.deepEqual((await run("[s1up(), s1n, s1list, new S1().two(), s1free]")).result, [2, 2, [1], 2, 5]);
    assert.deepEqual((await run("s1n = 10; s1list.push(2); [s1up(), s1list, typeof s1none]")).result, [11, [1, 2], "undefined"]);
    assert.match((await failed(run("s1list = []"))).message, /TypeError: /);
    await failed(run("let s1kept = 1, s1n = 20; null.x; let s1late = 2"));
    assert.deepEqual((await run("[s1kept, s1n, s1up(), typeof s1late]")).result, [1, 20, 12, "undefined"]);
    assert.equal((await run("'use strict'; var s1strict = (function () { return this })(); s1strict === undefined")).result, true);
    assert.equal((await run("s1strict === undefined && (function () { return this })() === globalThis")).result, true);
    assert.match((await failed(run("s1late"))).message, /nor an earlier one of the session defines it/);
    assert.deepEqual((await run("const JSON = 1, fs = 2; JSON")).result, 1);
    assert.deepEqual((await run("[typeof JSON.parse, typeof fs]")).result, ["function", "object"]);
  },

  async "input, standard output and timers are those of each program"() {
    const run = session();
    const first = await run("console.log(input); setTimeout(() => console.log('late'), 1); var s2log = console.log; 1", "a");
    assert.deepEqual([first.result, first.stdout], [1, "a\n"]);
    const next = await run("s2log(input); await new Promise((done) => setTimeout(done, 20))", "b");
    assert.deepEqual([next.result, next.stdout], [null, "b\n"]);
  },

  async "calls end with their program"() {
    const calls = new OneByOne();
    const run = session(calls);
    await failed(run("var s3call = tools.echo({ n: 1 }); null.x"));
    calls.started.length = 0;
    assert.deepEqual((await run("await tools.echo({ n: 2 })")).result, { n: 2 });
    assert.match((await failed(run("await s3call"))).message, /nothing can settle/);
  },

  "the value of a last expression is returned"() {
    const cases = [
      ["1 + 1", "return (1 + 1\n)"],
      ["let a = 1; a + 1;", "let a = 1;return ( a + 1\n)"],
      ["let a = 1\na // why\n", "let a = 1\nreturn (a // why\n\n)"],
      ["let a = 1;\n({\n  a,\n})", "let a = 1;\nreturn (({\n  a,\n})\n)"],
      ["f()\n  .g()\n  .h()", "return (f()\n  .g()\n  .h()\n)"],
      ["a\n(b)", "return (a\n(b)\n)"],
      ["const f = () => {}\nf()", "const f = () => {}\nreturn (f()\n)"],
      ["if (a) {\n  b;\n}\nawait c; // end", "if (a) {\n  b;\n}\nreturn (await c\n)"],
      ["x = `a;\nb`", "return (x = `a;\nb`\n)"],
    ];
    for (const [code, expected] of cases) assert.equal(returnLastExpression(code), expected);
    const unchanged = [
      "", "let s = 5\n+3", "let a = 1 // note; a", "/* a; */ let b", "return 1", "a; return b", "function f() {}",
      "async function f() {}", "class A {}", "{ a: 1 }", "if (a) b; else c", "for (;;) b", "let a", "// a",
      "label: a", "while (a)\nb",
    ];
    for (const code of unchanged) assert.equal(returnLastExpression(code), code);
    assert.equal(returnLastExpression("x = 1; // y"), "return (x = 1\n)");
    assert.equal(returnLastExpression("s = 'a; b'"), "return (s = 'a; b'\n)");
  },

  async "a long result and long output are told in short"() {
    for (const [code, words] of [
      ["return Array(100000).fill(1234)", "result has 100000 items, and is longer than 256 KiB as JSON"],
      ["return 'ä'.repeat(200000)", "result has 200000 characters, and is longer"],
      ["return { rows: Array(5000).fill('x'.repeat(100)) }", "result is longer"],
    ]) {
      const told = await program(code);
      assert.equal(told.result, null, code);
      assert.ok(told.text.length < 10100 && told.note.startsWith(words), told.note);
    }
    const { result, stdout } = await program("console.log('x'.repeat(2e6)); console.log('last'); return 5");
    assert.equal(result, 5);
    assert.match(stdout, /^x{50000}\n\[\.\.\. 1900006 characters left out: print less.*\]\nx+\nlast\n$/);
  },

  "values that are not JSON are refused with their place"() {
    const cycle = { a: [1] };
    cycle.a.push(cycle);
    let deep = [];
    for (let level = 0; level < 60; level++) deep = [deep];
    const cases = [
      [{ items: [0, NaN] }, "result.items[1] is NaN"],
      [-Infinity, "result is -Infinity"],
      [cycle, "result.a[1] contains itself"],
      [{ "a b": new Set() }, 'result["a b"] is of type Set'],
      ["\ud800", "result has a lone surrogate"],
      [{ "\ud800": 1 }, "result has a key with a lone surrogate"],
      [1n, "result is a BigInt"],
      [() => 1, "result is a function"],
      [{ a: Symbol("x") }, "result.a is a symbol"],
      [[Promise.resolve()], "result[0] is of type Promise, which JSON does not have: use await"],
      [new Map(), "use Object.fromEntries(...)"],
      [new Uint8Array(1), "use Array.from(...)"],
      [new TypeError("x"), "use String(error)"],
      [[1].values(), "use [...iterator]"],
      [deep, "is below 46 levels"],
    ];
    for (const [value, words] of cases) {
      assert.throws(() => encode(value, "result"), (error) => error.message.includes(words), words);
    }
    const value = { a: undefined, b: [undefined, new Date(0)], c: Object(5), __proto__: null };
    assert.equal(encode(value, "result"), '{"b":[null,"1970-01-01T00:00:00.000Z"],"c":5}');
    assert.equal(encode(undefined, "result"), "null");
  },

  "a path leads through the innermost granted folder"() {
    const folder = (name) => ({ statAt: (_, rest) => ({ type: name, size: BigInt(rest.length) }) });
    const files = makeFiles(() => ["/", "/a", "/a/b"].map((name) => [folder(name), name]));
    assert.equal(files.stat("/a/b/../b/c").size, 1);
    assert.equal(files.stat("/a/b").size, 1, "the folder itself is `.`");
    assert.equal(files.stat("/a/bc/d").size, 4);
    assert.throws(() => files.stat("a"), /not absolute/);
    const none = makeFiles(() => [[folder("/a"), "/a"]]);
    assert.throws(() => none.read("x"), /begin it with "\/", as this run has files in \/a only/);
    assert.throws(() => none.read("/etc/x"), /this run has files in \/a only \(permission_denied\)/);
  },
};

for (const [name, test] of Object.entries(tests)) {
  try {
    await test();
  } catch (error) {
    print(`${name}: ${error.stack}`);
    process.exitCode = 1;
  }
}
