//! Modules that ask for what is not there: they are refused when they are compiled, with a
//! sentence, and the executor starts without them.

use super::bench::{Bench, HARMLESS};
use harness::guests::{component, wasm};
use harness::{Options, Tool, error, result};
use serde_json::json;

/// A core module with an empty `_start` and these fields.
fn command(fields: &str) -> Vec<u8> {
    wasm(&format!("(module {fields} (func (export \"_start\")))"))
}

/// An import of one function `f` of an interface.
fn imports(interface: &str) -> Vec<u8> {
    component(&format!(r#"(import "{interface}" (instance (export "f" (func))))"#), &[], "")
}

/// Installs these modules, and checks for each that it cannot be called and that its sentence holds
/// the words, and that the executor is well.
fn assert_refused(modules: Vec<(&str, Vec<u8>, &str)>) {
    let tools = modules.iter().map(|(name, wasm, _)| Tool::command_bytes(name, wasm.clone()));
    let bench = Bench::start_tools(Options::new(), tools);
    let listed = bench.executor.rpc("a2g/tools", &json!({}));
    let listed = result(&listed)["tools"].as_array().expect("tools").iter();
    assert_eq!(listed.map(|tool| &tool["name"]).collect::<Vec<_>>(), [HARMLESS]);
    for (name, _, words) in modules {
        let response = bench.call(name).send().response;
        let refusal = error(&response, -32001);
        assert_eq!(refusal["data"]["tool"], name);
        assert!(refusal["data"].get("report").is_none(), "{name} ran: {response}");
        let sentence = refusal["message"].as_str().expect("a message");
        assert!(sentence.contains(words), "{name}: not `{words}`: {sentence}");
        assert!(!sentence.contains("backtrace") && !sentence.contains(".rs:"), "{name}: {sentence}");
        let home = bench.executor.home().config();
        let folder = home.parent().and_then(std::path::Path::to_str).expect("UTF-8");
        assert!(!sentence.contains(folder), "{name}: {sentence}");
        // The operator finds the reason in the log.
        let line = bench.executor.line_with(&format!(r#""tool":"{name}""#));
        assert!(line.contains(words), "{line}");
    }
    bench.assert_well("modules that are refused");
}

#[test]
fn a_module_that_does_not_fit_its_contract_is_refused() {
    assert_refused(vec![
        ("no_start", wasm("(module (memory (export \"memory\") 1))"), "_start"),
        ("start_is_no_function", wasm("(module (memory (export \"_start\") 1))"), "_start"),
        ("start_takes", wasm("(module (func (export \"_start\") (param i32)))"), "_start"),
        ("start_gives", wasm("(module (func (export \"_start\") (result i32) (i32.const 0)))"), "_start"),
        ("no_run", wasm("(component)"), "wasi:cli/run"),
        ("empty", Vec::new(), "cannot be compiled"),
        ("no_wasm", b"#!/bin/sh\nexit 0\n".to_vec(), "cannot be compiled"),
        ("cut", command("")[..20].to_vec(), "cannot be compiled"),
    ]);
}

#[test]
fn an_unknown_import_is_refused_by_name() {
    let core = |module: &str, name: &str| command(&format!("(import \"{module}\" \"{name}\" (func))"));
    assert_refused(vec![
        ("unknown_module", core("env", "system"), "env"),
        ("unknown_function", core("wasi_snapshot_preview1", "sock_open"), "sock_open"),
        ("wrong_type", core("wasi_snapshot_preview1", "fd_write"), "fd_write"),
        ("older_wasi", core("wasi_unstable", "fd_write"), "wasi_unstable"),
        ("wasix", core("wasix_32v1", "proc_fork"), "wasix_32v1"),
        ("memory", command("(import \"env\" \"memory\" (memory 1))"), "env"),
        ("newer_sockets", imports("wasi:sockets/tcp@0.3.0"), "wasi:sockets/tcp"),
        ("other_sockets", imports("wasi:sockets/raw@0.2.0"), "wasi:sockets/raw"),
        ("http", imports("wasi:http/outgoing-handler@0.2.0"), "wasi:http/outgoing-handler"),
        ("incoming", imports("wasi:http/incoming-handler@0.2.0"), "wasi:http/incoming-handler"),
        ("keyvalue", imports("wasi:keyvalue/store@0.2.0"), "wasi:keyvalue/store"),
    ]);
}

#[test]
fn disabled_wasm_proposals_are_refused() {
    let component_async =
        "(component (core module $m (func (export \"f\"))) (core instance $i (instantiate $m))
        (func (export \"run\") async (canon lift (core func $i \"f\"))))";
    assert_refused(vec![
        ("shared_memory", command("(memory 1 1 shared)"), "threads"),
        ("atomics", command("(memory 1) (func (drop (i32.atomic.load (i32.const 0))))"), "threads"),
        ("memory64", command("(memory i64 1)"), "memory64"),
        ("gc", command("(type (struct (field i32)))"), "gc"),
        ("function_references", command("(type $f (func)) (func (param (ref $f)))"), "function references"),
        ("exceptions", command("(tag)"), "exceptions"),
        ("tail_call", command("(func $f (return_call $f))"), "tail calls"),
        (
            "relaxed_simd",
            command(
                "(func (param v128) (result v128)
                (i8x16.relaxed_swizzle (local.get 0) (local.get 0)))",
            ),
            "relaxed SIMD",
        ),
        ("custom_page_sizes", command("(memory 1 (pagesize 1))"), "custom page sizes"),
        (
            "wide_arithmetic",
            command(
                "(func (param i64) (result i64 i64)
            (i64.mul_wide_s (local.get 0) (local.get 0)))",
            ),
            "wide arithmetic",
        ),
        ("stack_switching", command("(type $f (func)) (type (cont $f))"), "stack switching"),
        ("component_async", wasm(component_async), "async"),
    ]);
}

#[test]
fn modules_over_the_size_caps_are_refused() {
    let several = |what: &str, count: usize| command(&format!("({what})").repeat(count));
    let memories = Tool::command_bytes("memories", several("memory 1", 16));
    let tables = Tool::command_bytes("tables", several("table 1 funcref", 64));
    let bench = Bench::start_tools(Options::new(), [memories, tables]);
    bench.call("memories").send().success();
    bench.call("tables").send().success();
    assert_refused(vec![
        ("more_memories", several("memory 1", 17), "memories"),
        ("more_tables", several("table 1 funcref", 65), "tables"),
        ("large_table", several("table 100001 funcref", 1), "table"),
    ]);
}

#[test]
fn a_component_with_too_many_instances_is_refused() {
    let instances = |count: usize| {
        let more = "(core instance (instantiate $more))".repeat(count);
        component(&format!("(core module $more (memory 0)) {more}"), &[], "")
    };
    let bench = Bench::start_tools(Options::new(), [Tool::command_bytes("sixteen", instances(16))]);
    bench.call("sixteen").send().success();
    // A component of `componentize-py` has fourteen core instances.
    let many = |count: usize| {
        let more = "(core instance (instantiate $more))".repeat(count - 1);
        component(&format!("(core module $more (table 0 funcref)) {more}"), &[], "")
    };
    let bench = Bench::start_tools(Options::new(), [Tool::command_bytes("sixty_four", many(64))]);
    bench.call("sixty_four").send().success();
    assert_refused(vec![
        ("seventeen", instances(17), "memories"),
        ("sixty_five", many(65), "64"),
        ("a_thousand", instances(1000), "instances"),
    ]);
}

#[test]
fn compiling_a_module_takes_no_memory_of_the_server() {
    // Every jump of a hundred goes to any of a thousand places: small, and slow to compile.
    let places = 1000;
    let jumps = 100;
    let targets: String = (0..places).map(|place| format!("{place} ")).collect();
    let jump = format!("(br_table {targets} (local.get 0))");
    let blocks = format!("{}{}", "(block ".repeat(places), format!("(block {jump})").repeat(jumps));
    let bomb = command(&format!("(func (param i32) {blocks} {})", ")".repeat(places)));
    assert!(bomb.len() < 1 << 20, "{} bytes", bomb.len());
    // One byte over what is compiled at all.
    let mut large = command("");
    large.resize((256 << 20) + 1, 0);
    // A cache of its own, so that it is compiled each time.
    let cache = tempfile::tempdir().expect("a temp folder");
    let options = Options::new().set("catalog.cache", json!(cache.path()));
    let tools = [Tool::command_bytes("bomb", bomb), Tool::command_bytes("large", large)];
    let bench = Bench::start_tools(options, tools);
    let most = bench.status("VmHWM") >> 10;
    assert!(most < 400, "the server took {most} MB to start");
    bench.call("bomb").grant("timeout_seconds", 20).send().success();
    let refused = bench.call("large").send().response;
    let sentence = error(&refused, -32001)["message"].as_str().expect("a message");
    assert!(sentence.contains("at most 268435456 are accepted"), "{sentence}");
}
