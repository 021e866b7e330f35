//! `policy test`: decides on the cases beside policies, and compares.

use super::{Workplace, folder_and_name};
use crate::cli::UsageError;
use crate::cli::layout::{Listing, status_cell, text, wrap};
use crate::cli::output::{columns, one_line, print};
use a2g_capability::Area;
use a2g_govern::local::{Trial, TrialOutcome, risk_of};
use a2g_journal::NounCount;
use a2g_policy::{Case, CedarSet, Coverage, Observed, PolicySources, TestFile};
use a2g_types::call::{Call, Priority};
use a2g_types::ident::{IntentId, did_you_mean};
use a2g_types::memory::Charge;
use a2g_types::session::SessionRequest;
use anyhow::{Context as _, bail};
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The end of the name of a file of cases.
const CASES: &str = ".test.toml";
/// The end of the name of a file of policies.
const POLICIES: &str = ".cedar";
/// The maximum number of characters of a case's name in the table, so that a line fits into 80 columns.
const MAX_NAME_CHARS: usize = 50;

pub(super) fn test(workplace: &Workplace, paths: &[PathBuf]) -> anyhow::Result<ExitCode> {
    let mut has_failed = false;
    for path in case_files(paths)? {
        has_failed |= !run_file(workplace, &path)?;
    }
    Ok(ExitCode::from(u8::from(has_failed)))
}

/// The files of cases that these paths name, sorted within each folder.
fn case_files(paths: &[PathBuf]) -> anyhow::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for path in paths {
        if path.is_dir() {
            let mut found = Vec::new();
            for entry in
                std::fs::read_dir(path).with_context(|| format!("`{}` cannot be read", path.display()))?
            {
                found.push(entry?.path());
            }
            found.retain(|path| path.to_str().is_some_and(|path| path.ends_with(CASES)));
            found.sort();
            if found.is_empty() {
                bail!(UsageError(format!("`{}` has no file `*{CASES}`", path.display())));
            }
            files.extend(found);
            continue;
        }
        let (folder, name) = folder_and_name(path)?;
        let cases = match name.strip_suffix(POLICIES) {
            Some(stem) => format!("{stem}{CASES}"),
            None if name.ends_with(CASES) => name,
            None => bail!(UsageError(format!(
                "`{}` is neither a file of policies (`*{POLICIES}`) nor one of cases (`*{CASES}`)",
                path.display()
            ))),
        };
        files.push(folder.join(cases));
    }
    Ok(files)
}

/// Runs the cases of a file. Returns `true` if all of them are as expected.
fn run_file(workplace: &Workplace, path: &Path) -> anyhow::Result<bool> {
    let text =
        std::fs::read_to_string(path).with_context(|| format!("`{}` cannot be read", path.display()))?;
    let invalid = |error: &dyn std::fmt::Display| UsageError(format!("`{}`: {error}", path.display()));
    let TestFile { policies, cases } = TestFile::parse(&text).map_err(|error| invalid(&error))?;
    let set = compile_named(workplace, path, &policies)?;
    for Case { name, tool, .. } in &cases {
        let known = || workplace.tools.iter().map(|tool| tool.name.as_str());
        if !known().any(|known| known == tool.as_str()) {
            let advice = did_you_mean(tool.as_str(), known());
            bail!(invalid(&format_args!(
                "the case `{}` calls `{tool}`, which the catalogue does not have{advice}",
                one_line(name)
            )));
        }
    }
    let areas = workplace.config.open_areas();
    let mut coverage = Coverage::of(set.rules().map(|rule| rule.name.clone()));
    let mut listing = Listing::new(&["case", "expected", "result"]);
    let mut failures = Vec::new();
    for case in &cases {
        let TrialOutcome { verdict, decided_by, granted } = decide(&set, case, &areas);
        coverage.add(&decided_by);
        let differences = case.expected.differences(&Observed {
            decision: verdict.decision,
            reason: verdict.reason.as_deref(),
            decided_by: &decided_by,
            folders: &verdict.manifest.filesystem_scope,
            granted: granted.as_deref(),
        });
        let is_good = differences.is_empty();
        let result = status_cell(if is_good { "ok" } else { "FAILED" }, is_good);
        let name = case.name.chars().take(MAX_NAME_CHARS).collect::<String>();
        listing.row([self::text(name), self::text(case.expected.decision), result]);
        if !is_good {
            failures.push((case.name.as_str(), differences));
        }
    }
    print(path.display());
    listing.show(std::io::stdout());
    show_failures(&failures);
    show_coverage(&coverage);
    let all = u64::try_from(cases.len()).unwrap_or(u64::MAX);
    let failed = failures.len();
    print(format_args!("{}, {failed} failed", NounCount(all, "case")));
    Ok(failures.is_empty())
}

/// The set of the files that are tested together: those that the cases name, or else the one beside them.
fn compile_named(workplace: &Workplace, path: &Path, policies: &[String]) -> anyhow::Result<CedarSet> {
    let (folder, name) = folder_and_name(path)?;
    let own = format!("{}{POLICIES}", name.strip_suffix(CASES).unwrap_or(&name));
    let names = if policies.is_empty() { vec![own] } else { policies.to_vec() };
    let mut sources = PolicySources::read(&folder)?;
    if let Some(missing) = names.iter().find(|name| !sources.files.iter().any(|file| file.name == **name)) {
        bail!(UsageError(format!(
            "`{}` tests `{}`, which is not beside it",
            path.display(),
            one_line(missing)
        )));
    }
    sources.files.retain(|file| names.contains(&file.name));
    workplace.compile(&sources)
}

/// Decides on a case as the built-in governor of this executor would.
pub(super) fn decide(set: &CedarSet, case: &Case, areas: &[Area]) -> TrialOutcome {
    let risk = case.risk.as_ref().map(|(score, threats)| risk_of(*score, threats));
    let trial =
        Trial { call: &call(case), at: case.at, past: &case.facts, risk: risk.as_ref(), open: Some(areas) };
    trial.decide_by(set)
}

fn call(case: &Case) -> Call {
    Call {
        door: case.door,
        agent: case.agent.clone(),
        intent: IntentId::random(),
        is_new: true,
        tool: case.tool.clone(),
        arguments: case.arguments.clone(),
        context: parent_context(case),
        caller_timeout: None,
        priority: Priority::Normal,
        charge: Charge::default(),
        parent: None,
        caller_tools: None,
        session: case.is_in_session.then(|| SessionRequest::New.into()),
    }
}

/// The run above the call, in the form in which an executor tells its governor.
fn parent_context(case: &Case) -> Option<Map<String, Value>> {
    let mut parent = Map::from_iter([("depth".to_owned(), json!(case.depth))]);
    parent.extend(case.parent.as_ref().map(|tool| ("tool".to_owned(), json!(tool.as_str()))));
    (case.depth > 0).then(|| Map::from_iter([("parent".to_owned(), Value::Object(parent))]))
}

fn show_failures(failures: &[(&str, Vec<String>)]) {
    let width = columns(&std::io::stdout());
    for (name, differences) in failures {
        print(wrap("", &format!("FAILED {}", one_line(name)), width));
        for difference in differences {
            print(wrap("    ", &one_line(difference), width));
        }
    }
}

/// The rules, each with the number of cases that it decided. One without a case is marked.
fn show_coverage(coverage: &Coverage) {
    let mut listing = Listing::new(&["rule", "decided"]);
    for (rule, cases) in coverage.rules() {
        let decided = if cases == 0 { "no case".to_owned() } else { NounCount(cases, "case").to_string() };
        listing.row([text(rule), status_cell(&decided, cases > 0)]);
    }
    listing.show(std::io::stdout());
}
