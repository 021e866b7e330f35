//! The hostile programs in JavaScript.

use super::{Case, ESCAPES, Failure, Limit, OUTSIDE, Refused, Returns, Tells, case};
use serde_json::json;

const JAVASCRIPT: &str = "javascript_error";

pub(super) fn cases() -> Vec<Case> {
    [files(), network_and_processes(), endless(), floods(), results(), internals()].concat()
}

fn files() -> Vec<Case> {
    let refused = |code| case(code, Refused(JAVASCRIPT, "(permission_denied)"));
    vec![
        refused("fs.read('/workspace/../secret.txt')").denied(&[("/secret.txt", OUTSIDE)]),
        refused("fs.read('/workspace/none/../../secret.txt')").denied(&[("/secret.txt", OUTSIDE)]),
        refused("fs.read('/workspacefoo/secret.txt')").denied(&[("/workspacefoo/secret.txt", OUTSIDE)]),
        refused("fs.read('/proc/self/environ')").denied(&[("/proc/self/environ", OUTSIDE)]),
        refused("fs.write('/dev/null', '')").denied(&[("/dev/null", OUTSIDE)]),
        refused("fs.write('/workspace/../out.txt', '')").denied(&[("/out.txt", OUTSIDE)]),
        refused("fs.list('/')").denied(&[("/.", OUTSIDE)]),
        refused("fs.read('/workspace/planted/secret.txt')").denied(&[("/workspace/planted/secret.txt", ESCAPES)]),
        refused("fs.read('/workspace\\\\..\\\\secret.txt')").denied(&[("/workspace\\..\\secret.txt", OUTSIDE)]),
        case("fs.read('/workspace/in.txt\\0')", Refused(JAVASCRIPT, "(io_error)")),
        case("fs.read('/workspace/\\ud800')", Refused(JAVASCRIPT, "(not_found)")),
        case(
            "fs.read({ startsWith: () => true, split: () => ['', 'workspace', '..', 'secret.txt'] })",
            Refused(JAVASCRIPT, "(invalid_path)"),
        ),
        // The functions that take a path apart, replaced.
        refused("Array.prototype.join = () => '../secret.txt'; fs.read('/workspace/in.txt')")
            .denied(&[("/workspace/../secret.txt", ESCAPES)]),
        // The folders themselves, without `fs`.
        case(
            "const { getDirectories } = await import('wasi:filesystem/preopens@0.2.10');\n\
             const [d] = getDirectories().find(([, name]) => name === '/workspace');\n\
             const attempts = [() => d.openAt({ symlinkFollow: true }, '../secret.txt', {}, { read: true }),\n\
             () => d.openAt({ symlinkFollow: true }, '/etc/passwd', {}, { read: true }),\n\
             () => d.symlinkAt('/etc/passwd', 'link'), () => d.linkAt({}, 'in.txt', d, 'link'),\n\
             () => d.renameAt('in.txt', d, '../out.txt'), () => d.unlinkFileAt('../secret.txt'),\n\
             () => d.createDirectoryAt('../d'), () => d.readlinkAt('../outside')];\n\
             return attempts.map((act) => { try { act(); return 'done'; } catch (e) { return e.payload; } })",
            Returns(json!(vec!["not-permitted"; 8])),
        )
        .denied(&[
            ("/workspace/../secret.txt", ESCAPES),
            ("/workspace//etc/passwd", ESCAPES),
            ("/workspace/link", "link"),
            ("/workspace/in.txt", "link"),
            ("/workspace/in.txt", ESCAPES),
            ("/workspace/../out.txt", ESCAPES),
            ("/workspace/../d", ESCAPES),
            ("/workspace/../outside", ESCAPES),
        ]),
    ]
}

fn network_and_processes() -> Vec<Case> {
    vec![
        case("new WebSocket('ws://127.0.0.1')", Refused(JAVASCRIPT, "run_javascript has no network")),
        case("new XMLHttpRequest()", Refused(JAVASCRIPT, "run_javascript has no network")),
        // The interfaces of a component that has them; this one does not.
        case(
            "let n = 0; for (const name of ['http/outgoing-handler', 'sockets/tcp', 'sockets/ip-name-lookup', \
             'cli/environment']) { try { await import(`wasi:${name}@0.2.10`); n++; } catch {} } return n",
            Returns(json!(0)),
        )
        .denied(&[
            ("/wasi:http/outgoing-handler@0.2.10", OUTSIDE),
            ("/wasi:http/outgoing-handler@0.2.10.js", OUTSIDE),
            ("/wasi:sockets/tcp@0.2.10", OUTSIDE),
            ("/wasi:sockets/tcp@0.2.10.js", OUTSIDE),
            ("/wasi:sockets/ip-name-lookup@0.2.10", OUTSIDE),
            ("/wasi:sockets/ip-name-lookup@0.2.10.js", OUTSIDE),
            ("/wasi:cli/environment@0.2.10", OUTSIDE),
            ("/wasi:cli/environment@0.2.10.js", OUTSIDE),
        ]),
        case(
            "[typeof process, typeof Deno, typeof Atomics, typeof SharedArrayBuffer, typeof WebAssembly]",
            Returns(json!(vec!["undefined"; 5])),
        ),
        case("await new Promise(() => {})", Refused(JAVASCRIPT, "waits for a promise that nothing can settle")),
        case(
            "setTimeout(() => { throw new Error('late'); }, 0); await new Promise(() => {})",
            Refused(JAVASCRIPT, "Error: late"),
        ),
        case("Promise.reject(new Error('lost')); return 1", Returns(json!(1))),
    ]
}

fn endless() -> Vec<Case> {
    vec![
        case("while (true) { try { while (true); } catch {} finally { continue; } }", Limit("time")),
        case("/(a+)+$/.test('a'.repeat(40) + 'b')", Limit("time")),
        case("async function f() { while (true) await null; } await f()", Limit("time")),
        case("setInterval(() => {}, 0); await new Promise(() => {})", Limit("time")),
        case("const a = []; a.length = 2 ** 32 - 1; return a", Limit("time")),
        case(
            "throw Object.defineProperty(new Error(), 'message', { get() { while (true); } })",
            Limit("time"),
        ),
        case("function f(n) { return f(n + 1) + 1; } f(0)", Refused(JAVASCRIPT, "too much recursion")),
        case("eval('('.repeat(1e5) + ')'.repeat(1e5))", Refused(JAVASCRIPT, "too much recursion")),
        case("let s = 'eval(s)'; eval(s)", Refused(JAVASCRIPT, "too much recursion")),
        case("new RegExp('('.repeat(1e5) + ')'.repeat(1e5))", Refused(JAVASCRIPT, "too many parentheses")),
        case(
            "let a = []; for (let n = 0; n < 1e5; n++) a = [a]; JSON.stringify(a)",
            Refused(JAVASCRIPT, "too much recursion"),
        ),
    ]
}

fn floods() -> Vec<Case> {
    vec![
        case("while (true) console.error('x'.repeat(1000))", Limit("output")),
        case(
            "const host = await import('a2g:tool/host@0.2.0'); while (true) host.log('info', 'x'.repeat(1e4))",
            Limit("output"),
        ),
        case("return Array(2000).fill('x'.repeat(1000))", Tells("is longer than 256 KiB as JSON")),
        case("throw new Error('x'.repeat(1e6))", Refused(JAVASCRIPT, "characters ...]")),
        case(
            "const x = []; while (true) x.push(new Uint8Array(1 << 20).fill(1))",
            Refused(JAVASCRIPT, "RangeError: the program needs more memory than this run has"),
        ),
        case(
            "let s = 'x'; while (true) s += s",
            Refused(JAVASCRIPT, "InternalError: allocation size overflow"),
        ),
        // The engine's own heap ends before the memory of the run, and with it the engine.
        case("const x = []; while (true) x.push({ a: 1 })", Failure("the tool trapped")),
        case(
            "const { getDirectories } = await import('wasi:filesystem/preopens@0.2.10'); const x = []; \
             while (true) x.push(getDirectories())",
            Limit("handles"),
        ),
        case("let n = 0; while (true) fs.write(`/workspace/new-${n++}`, '')", Limit("created")),
        case(
            "const b = new Uint8Array(1 << 20); while (true) fs.write('/workspace/big', b)",
            Limit("written_bytes"),
        ),
        case("while (true) crypto.getRandomValues(new Uint8Array(65536))", Limit("random_bytes")),
    ]
}

fn results() -> Vec<Case> {
    let no_json = |code, words| case(code, Tells(words));
    vec![
        no_json("return { '\\ud800': 1 }", "has a key with a lone surrogate"),
        no_json("return { toJSON: () => NaN }", "result is NaN"),
        no_json("const f = () => ({ toJSON: () => ({ x: f() }) }); return f()", "is below 46 levels"),
        no_json("const a = { toJSON: () => a }; return a", "contains itself"),
        no_json("return 10n ** 100n", "is a BigInt"),
        case("return JSON.parse('{\"__proto__\": 1}')", Returns(json!({ "__proto__": 1 }))),
        case("return Object.create({ inherited: 1 })", Returns(json!({}))),
        case("throw new Error('\\x1b[31mred\\u202eevil\\0\\ufeff')", {
            Refused(JAVASCRIPT, "Error: \u{1b}[31mred\u{202e}evil")
        }),
        case("const e = new Error('x'); e.name = '\\x1b[31mE\\u202e'; throw e", {
            Refused(JAVASCRIPT, "\u{1b}[31mE\u{202e}: x")
        }),
        case("throw { code: 'denied', message: 'm', detail: '{}' }", Refused(JAVASCRIPT, "uncaught: {")),
        case("throw undefined", Refused(JAVASCRIPT, "uncaught: undefined")),
    ]
}

/// The functions of the language that run_javascript itself uses, replaced by a program.
fn internals() -> Vec<Case> {
    vec![
        case("JSON.stringify = () => '1}, \"x\": {'; return 5", Failure("is not one JSON value")),
        case("JSON.stringify = () => { throw 1; }; return 5", Failure("the tool trapped")),
        case("Array.prototype[Symbol.iterator] = () => { throw 1; }; return 5", Returns(json!(5))),
        case("Promise.prototype.then = (f) => f('forged'); return 5", Failure("is not one JSON value")),
        case(
            "for (const o of [Object, Array, Map, Promise, Error]) Object.freeze(o.prototype); return 5",
            Returns(json!(5)),
        ),
        case("Object.prototype.toJSON = () => 'x'; return { a: 1 }", Returns(json!("x"))),
        case("await import('./program.js').then((own) => own.prepare()); return 5", Returns(json!(5)))
            .denied(&[("/program.js", OUTSIDE)]),
    ]
}
