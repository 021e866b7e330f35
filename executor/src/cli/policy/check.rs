//! `policy check`: compiles policies, and lists what they say.

use super::Workplace;
use crate::cli::layout::{Listing, text};
use crate::cli::output::{list, note, one_line, print};
use a2g_journal::NounCount;
use a2g_policy::{CedarSet, RuleScope};
use std::path::Path;
use std::process::ExitCode;

pub(super) fn check(workplace: &Workplace, path: Option<&Path>) -> anyhow::Result<ExitCode> {
    let sources = workplace.sources(path)?;
    let set = workplace.compile(&sources)?;
    list_rules(&set);
    for (rule, remark) in set.remarks() {
        note(format_args!("{}: {}", one_line(rule), one_line(remark)));
    }
    let unused = set.tools_without_permit();
    if !unused.is_empty() {
        print(format_args!("no rule permits: {}", list(unused)));
    }
    print(format_args!(
        "{} in {}, for {}: the policies are valid",
        NounCount(count(set.rules().count()), "rule"),
        NounCount(count(sources.files.len()), "file"),
        NounCount(count(workplace.tools.len()), "tool")
    ));
    Ok(ExitCode::SUCCESS)
}

fn count(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

fn list_rules(set: &CedarSet) {
    let mut listing = Listing::new(&["rule", "effect", "who", "what"]);
    for rule in set.rules() {
        let Some(RuleScope { principal, action, resource }) = set.scope_of(rule.name) else { continue };
        let who = if principal.is_empty() { "anybody".to_owned() } else { principal };
        let action = if action.is_empty() { "anything".to_owned() } else { action };
        let what = if resource.is_empty() { action } else { format!("{action}: {resource}") };
        let effect = if rule.is_permit { "permit" } else { "forbid" };
        listing.row([text(rule.name), text(effect), text(who), text(what)]);
    }
    listing.show(std::io::stdout());
}
