//! Generated programs: the same steps with direct effects, and on a copy that takes effect in the end, bring the same and
//! leave the same files.
//!
//! A call that fails leaves nothing on a copy, so the direct program is the one without such calls. By default the test runs
//! some programs, and with `A2G_TORTURE=1000` that many. The seeds are fixed, so that a failure can be reproduced.

use super::Effects::{Direct, Staged};
use super::{Effects, Shared, call, code, program, steps_of};
use harness::times;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

/// The files of the workspace before each program.
const ORIGINALS: &[(&str, &str)] = &[
    ("d0/", ""),
    ("d0/d2/", ""),
    ("d0/d2/f1", "deep"),
    ("d0/f0", "in d0"),
    ("d1/", ""),
    ("f0", "zero"),
    ("f1", "one"),
];

/// The folders and the files that steps name. No file ever has the name of a folder.
const FOLDERS: [&str; 5] = ["d0", "d1", "d0/d2", "d1/d2", "d3"];
const FILES: [&str; 8] = ["f0", "f1", "d0/f0", "d0/f1", "d1/f0", "d0/d2/f1", "d1/d2/f1", "d3/f0"];
/// The names of what is open, by letter: files for reading, and files for reading and writing.
const OPEN: [&str; 2] = ["0", "1"];
/// The number of runs above a call, at most.
const MAX_DEPTH: usize = 3;

/// A generator with a fixed seed: the same numbers in every run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from((self.0 >> 24) % u64::try_from(sides).unwrap()).unwrap()
    }

    fn path(&mut self, paths: &[&str]) -> String {
        format!("/workspace/{}", paths[self.roll(paths.len())])
    }

    fn open(&mut self, letter: &str) -> String {
        format!("{letter}{}", OPEN[self.roll(OPEN.len())])
    }

    fn content(&mut self) -> String {
        format!("{}", self.roll(1_000_000))
    }
}

/// A step of a generated program.
enum Step {
    /// One of the run itself.
    Own(Value),
    /// A call that takes these steps.
    Call(Vec<Step>),
    /// A call that takes these steps and fails.
    Failing(Vec<Step>),
}

impl Step {
    fn any(dice: &mut Dice, depth: usize) -> Self {
        let is_call = depth < MAX_DEPTH && dice.roll(4 + 2 * depth) == 0;
        if is_call {
            let steps = Self::some(dice, depth + 1);
            return if dice.roll(4) == 0 { Self::Failing(steps) } else { Self::Call(steps) };
        }
        Self::Own(match dice.roll(22) {
            0 | 1 => json!(["write", dice.path(&FILES), dice.content()]),
            2 => json!(["create", dice.path(&FILES), dice.content()]),
            3 => json!(["append", dice.path(&FILES), dice.content()]),
            4 | 5 => json!(["read", dice.path(&FILES)]),
            6 => json!(["size", dice.path(&FILES)]),
            7 => json!(["remove", dice.path(&FILES)]),
            8 | 9 => json!(["rename", dice.path(&FILES), dice.path(&FILES)]),
            10 => json!(["make_folder", dice.path(&FOLDERS)]),
            11 => json!(["remove_folder", dice.path(&FOLDERS)]),
            12 | 13 => json!(["rename", dice.path(&FOLDERS), dice.path(&FOLDERS)]),
            14 => json!(["list", dice.path(&FOLDERS)]),
            15 => json!(["list", "/workspace"]),
            16 => json!(["open", dice.open("r"), dice.path(&FILES), "r"]),
            17 => json!(["open", dice.open("w"), dice.path(&FILES), "rw"]),
            18 => json!(["read_open", dice.open("r")]),
            19 => json!(["read_open", dice.open("w")]),
            20 => json!(["size_open", dice.open("w")]),
            _write => json!(["write_open", dice.open("w"), dice.roll(6), dice.content()]),
        })
    }

    /// Some steps of one run.
    fn some(dice: &mut Dice, depth: usize) -> Vec<Self> {
        let count = if depth == 0 { 24 } else { 2 + dice.roll(6) };
        (0..count).map(|_| Self::any(dice, depth)).collect()
    }
}

/// The steps as the guest takes them.
fn render(steps: &[Step], effects: Effects) -> Value {
    let render_one = |step: &Step| match step {
        Step::Own(step) => Some(step.clone()),
        Step::Call(steps) => Some(call(render(steps, effects))),
        Step::Failing(_) if effects == Direct => None,
        Step::Failing(steps) => {
            let mut failing = render(steps, effects);
            failing.as_array_mut().expect("steps").push(json!(["fail", "wanted"]));
            Some(call(failing))
        }
    };
    steps.iter().filter_map(render_one).collect()
}

/// What the steps brought, without the calls that had to fail.
fn without_failing(steps: &[Step], effects: Effects, outcomes: &[Value]) -> Vec<Value> {
    let mut left = outcomes.iter();
    let mut brought = Vec::new();
    for step in steps {
        match step {
            Step::Failing(_) if effects == Direct => {}
            Step::Failing(_) => {
                let failed = left.next().expect("an outcome");
                assert_eq!(code(failed), "wanted", "{failed}");
            }
            Step::Own(_) => brought.push(left.next().expect("an outcome").clone()),
            Step::Call(steps) => {
                let outcome = left.next().expect("an outcome");
                assert!(code(outcome).is_empty(), "{outcome}");
                brought.push(without_failing(steps, effects, steps_of(outcome)).into());
            }
        }
    }
    assert_eq!(left.next(), None);
    brought
}

/// All entries of a folder with their permissions and contents.
fn look(folder: &Path) -> BTreeMap<String, (u32, String)> {
    let mut found = BTreeMap::new();
    let mut left = vec![folder.to_owned()];
    while let Some(inner) = left.pop() {
        for entry in std::fs::read_dir(inner).unwrap() {
            let path = entry.unwrap().path();
            let mode = path.metadata().unwrap().permissions().mode() & 0o7777;
            let name = path.strip_prefix(folder).unwrap().to_str().expect("UTF-8").to_owned();
            if path.is_dir() {
                found.insert(name, (mode, "a folder".to_owned()));
                left.push(path);
            } else {
                found.insert(
                    name,
                    (mode, String::from_utf8_lossy(&std::fs::read(path).unwrap()).into_owned()),
                );
            }
        }
    }
    found
}

#[test]
fn a_program_leaves_what_a_direct_run_of_it_leaves() {
    let shared = Shared::start();
    let workspace = shared.executor.workspace();
    for case in 0..times(8) {
        let seed = u64::try_from(case + 1).unwrap().wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let steps = Step::some(&mut Dice(seed), 0);
        let mut direct = None;
        for effects in Effects::ALL {
            let rendered = render(&steps, effects);
            shared.set_files(ORIGINALS);
            let before = look(&workspace);
            let ran = shared.run(&program(effects, rendered.clone()));
            let brought = without_failing(&steps, effects, ran.outcomes());
            if ran.report["status"] == "STAGED" {
                assert_eq!(look(&workspace), before, "{case} {effects:?}: {rendered}");
                shared.decide("commit", &ran);
            }
            let after = look(&workspace);
            if effects != Direct && ran.report["usage"]["effects"]["changes"] != 0 {
                shared.decide("undo", &ran);
                assert_eq!(look(&workspace), before, "{case} {effects:?}: {rendered}");
            }
            match &direct {
                None => direct = Some((brought, after)),
                Some((of_direct, left)) => {
                    for (step, (one, other)) in brought.iter().zip(of_direct).enumerate() {
                        assert_eq!(
                            one, other,
                            "{case} {effects:?}, step {step} of those that count: {rendered}"
                        );
                    }
                    assert_eq!(brought.len(), of_direct.len(), "{case} {effects:?}");
                    assert_eq!(after, *left, "{case} {effects:?}: {rendered}");
                }
            }
        }
    }
    assert!(shared.sets().iter().all(|set| set["mode"] != Staged.word() || set["state"] != "waiting"));
}
