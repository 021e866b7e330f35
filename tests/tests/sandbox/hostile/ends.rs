//! Guests that break: every end is told apart, and none takes the server along.

use super::bench::Bench;
use harness::guests::Guest;
use serde_json::Value;

#[test]
fn traps_are_failures_with_their_name() {
    let divide = "(drop (i32.div_s (i32.const 1) (i32.const 0)))";
    let overflow = "(drop (i32.div_s (i32.const 0x80000000) (i32.const -1)))";
    let cases = [
        ("unreachable", "(unreachable)", "unreachable"),
        ("divides", divide, "integer divide by zero"),
        ("overflows", overflow, "integer overflow"),
        ("converts", "(drop (i32.trunc_f64_s (f64.const nan)))", "invalid conversion to integer"),
        ("out_of_bounds", "(drop (i32.load (i32.const 131072)))", "out of bounds memory access"),
        ("far_out", "(drop (i32.load offset=0xffffffff (i32.const -1)))", "out of bounds memory access"),
        (
            "copies_out",
            "(memory.copy (i32.const 131071) (i32.const 0) (i32.const 2))",
            "out of bounds memory",
        ),
        ("table", "(drop (table.get $t (i32.const 5)))", "table"),
        ("null", "(call_indirect $t (type $nothing) (i32.const 0))", "uninitialized element"),
        (
            "type",
            "(call_indirect $t (type $number) (i32.const 1) (i32.const 1))",
            "indirect call type mismatch",
        ),
    ];
    let beside = "(type $nothing (func)) (type $number (func (param i32))) (table $t 2 funcref)
        (func $f) (elem (table $t) (i32.const 1) func $f)";
    let bench = Bench::start(cases.map(|(name, body, _)| (name, Guest::new(body).beside(beside))));
    for (name, _, words) in cases {
        let report = bench.call(name).send().failure(words);
        assert!(report.sentence().starts_with("the tool trapped: "), "{report:?}");
        assert!(!report.sentence().contains("backtrace"), "{report:?}");
    }
    bench.assert_well("traps");
}

#[test]
fn a_stack_overflow_ends_only_its_guest() {
    let deep = |levels: u32| format!("(drop (call $down (i32.const {levels})))");
    let down = "(func $down (param $n i32) (result i32)
        (if (result i32) (local.get $n)
          (then (i32.add (i32.const 1) (call $down (i32.sub (local.get $n) (i32.const 1)))))
          (else (i32.const 0))))";
    // At the bottom of the stack a host call needs a stack of its own.
    let down_and_call = "(func $down (param $n i32) (result i32)
        (drop (call $random (i32.const 65536) (i32.const 16)))
        (i32.add (i32.const 1) (call $down (local.get $n))))";
    let bench = Bench::start([
        ("fits", Guest::new(deep(1000)).beside(down)),
        ("does_not", Guest::new(deep(0xffff_ffff)).beside(down)),
        ("calls_the_host", Guest::new(deep(1)).beside(down_and_call)),
        ("in_start", Guest::new("").beside("(func $down (call $down)) (start $down)")),
    ]);
    bench.call("fits").send().success();
    for tool in ["does_not", "calls_the_host", "in_start"] {
        let report = bench.call(tool).send().limit("stack");
        assert_eq!(report.sentence(), "the tool used up its call stack", "{tool}");
        bench.assert_well(tool);
    }
}

#[test]
fn exit_codes_are_reported_unchanged() {
    let exits = |code: u32| {
        Guest::new(format!(r#"(call $cry @"first\0aof\09all\0a") (call $exit (i32.const {code}))"#))
    };
    let codes = [1, 2, 42, 125, 126, 134, 255];
    let names = codes.map(|code| format!("exits_{code}"));
    let guests = names.iter().map(String::as_str).zip(codes.map(exits));
    let bench = Bench::start(guests.chain([
        ("exits_0", Guest::new(r#"(call $say @"[1]") (call $exit (i32.const 0))"#).silent()),
        ("mute", Guest::new("(call $exit (i32.const 9))")),
    ]));
    for (name, code) in names.iter().zip(codes) {
        let report = bench.call(name).send().failure(&format!("the tool exited with code {code}: "));
        assert_eq!(report.logs(), ["first", "of\tall"]);
    }
    assert_eq!(bench.call("mute").send().failure("").sentence(), "the tool exited with code 9");
    assert_eq!(bench.call("exits_0").send().success().notes(), [1]);
}

#[test]
fn only_one_json_value_is_a_result() {
    let brackets = "[".repeat(100_000);
    let deep = "[".repeat(49) + &"]".repeat(49);
    let good = [
        ("", "null"),
        ("\n \t\r\n", "null"),
        ("null", "null"),
        (" 42\n", "42"),
        (r#"{"a":[1,{}]}"#, r#"{"a":[1,{}]}"#),
        ("{\n  \"a\" : [ 1.50 , \"b \\\" c\" ]\n}\n", r#"{"a":[1.5,"b \" c"]}"#),
    ];
    // A result is passed on as text, so it has to be one that every reader of the report reads alike.
    let bad = [
        b"done".as_slice(),
        b"{",
        br#"{"a":"#,
        b"1 2",
        b"[1],",
        b"\"\xff\"",
        b"NaN",
        brackets.as_bytes(),
        br#"{"a":1,"a":2}"#,
        br#"{"a":1,"\u0061":2}"#,
        b"[1e400]",
        br#""\ud800""#,
        deep.as_bytes(),
    ];
    let says = |text: &[u8], end: &str| {
        let escaped: String = text.iter().map(|byte| format!("\\{byte:02x}")).collect();
        Guest::new(format!(r#"(call $say @"{escaped}") {end}"#)).memory(4).silent()
    };
    let names = |kind: &str, count: usize| (0..count).map(|nth| format!("{kind}_{nth}")).collect::<Vec<_>>();
    let good_names = names("good", good.len());
    let bad_names = names("bad", bad.len());
    let good_guests = good.map(|(text, _)| says(text.as_bytes(), ""));
    // Also from one that says that all went well.
    let bad_guests = bad.map(|text| says(text, "(call $exit (i32.const 0))"));
    let guests = good_names.iter().zip(good_guests).chain(bad_names.iter().zip(bad_guests));
    let bench = Bench::start(guests.map(|(name, guest)| (name.as_str(), guest)));
    for (name, (text, value)) in good_names.iter().zip(good) {
        let report = bench.call(name).send().success();
        assert_eq!(report.0.get("result").unwrap_or(&Value::Null).to_string(), value, "{text}");
    }
    for (name, text) in bad_names.iter().zip(bad) {
        let report = bench.call(name).send().failure("standard output is not one JSON value");
        assert!(report.0.get("result").is_none(), "{}", String::from_utf8_lossy(text));
    }
}

#[test]
fn invalid_host_call_arguments_harm_only_their_guest() {
    let cases = [
        (
            "vector_outside",
            "(call $note (call $fd_write (i32.const 1) (i32.const -8) (i32.const 1) (i32.const 8)))",
        ),
        (
            "many_vectors",
            "(call $note (call $fd_write (i32.const 1) (i32.const 0) (i32.const -1) (i32.const 8)))",
        ),
        ("buffer_outside", "(call $note (call $write (i32.const 1) (i32.const -16) (i32.const -1)))"),
        ("path_outside", "(call $note (call $open (i32.const 3) (i32.const -16) (i32.const 64)))"),
        ("path_without_end", "(call $note (call $open (i32.const 3) (i32.const 0) (i32.const -1)))"),
        ("result_outside", "(call $note (call $clock (i32.const 1) (i64.const 1) (i32.const -4)))"),
        ("unaligned", "(call $note (call $clock (i32.const 1) (i64.const 1) (i32.const 33)))"),
        ("no_clock", "(call $note (call $clock (i32.const 99) (i64.const 1) (i32.const 32)))"),
        ("no_descriptor", "(call $note (call $open (i32.const 1234) @\"x\"))"),
        ("negative_descriptor", "(call $note (call $open (i32.const -1) @\"x\"))"),
        ("flags", "(call $note (call $open_with (i32.const 3) @\"x\" (i32.const -1) (i64.const -1)))"),
        (
            "closes_all",
            "(drop (call $fd_close (i32.const 0))) (drop (call $fd_close (i32.const 3)))
            (drop (call $fd_close (i32.const 4))) (call $note (call $fd_close (i32.const 3)))",
        ),
    ];
    let bench = Bench::start(cases.map(|(name, body)| (name, Guest::new(body))));
    for (name, _) in cases {
        let answer = bench.call(name).scope("/workspace/**").send();
        // An error number or the end of the guest: both are answers.
        match answer.response.get("result") {
            Some(_) => assert_ne!(answer.success().notes(), [0], "{name}"),
            None => drop(answer.failure("the tool trapped: ")),
        }
    }
    bench.assert_well("nonsense");
}

#[test]
fn a_guest_has_no_environment_arguments_or_sockets() {
    let bench = Bench::start([(
        "asks",
        Guest::new(
            "(call $note (call $environ_sizes (i32.const 512) (i32.const 516)))
            (call $note (i32.load (i32.const 512)))
            (call $note (call $args_sizes (i32.const 512) (i32.const 516)))
            (call $note (i32.load (i32.const 512)))
            (call $note (i32.ne (call $sock_accept (i32.const 3) (i32.const 0) (i32.const 16)) (i32.const 0)))
            (call $note (i32.ne (i32.const 0)
              (call $sock_send (i32.const 1) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 16))))",
        ),
    )]);
    assert_eq!(bench.call("asks").send().success().notes(), [0, 0, 0, 0, 1, 1]);
    // One variable names the granted folders.
    let with_files = bench.call("asks").scope("/workspace/**").send().success();
    assert_eq!(with_files.notes(), [0, 1, 0, 0, 1, 1]);
}
