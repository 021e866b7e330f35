//! The tools as zygotes and children receive them, and the choice of those that a zygote keeps loaded.
//!
//! ```text
//! a kept tool:     server ── Load ──▶ zygote ── fork ──▶ child has it ── job ──▶ runs it
//! any other tool:                     zygote ── fork ──▶ child ── job with the code ──▶ loads it, runs it
//! ```
//! Every mapping of a zygote is copied by each fork, and removed by the end of each child, so a zygote keeps only a
//! constant number of tools.

use super::Module;
use super::channel::{CodeForm, ToZygote};
use a2g_sandbox::Code;
use a2g_types::ident::ToolName;
use a2g_types::tool::Contract;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Result;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::Arc;

/// Maximum number of tools that a zygote keeps loaded.
// A tool has up to two files of code, each with three mappings and one descriptor, which every child inherits. With 1,000
// tools, copying and removing their mappings took 70 % of the time of a call.
const MAX_KEPT_TOOLS: usize = 32;
/// The number of runs without a use of a kept tool, after which another tool may take its place.
// If every use changed the kept tools, more tools than places that are used in turns would be loaded twice for each run:
// by the child, and by the zygote for nothing. With ten runs for each place, one run in ten changes them at most.
const MIN_UNUSED_RUNS: u64 = 320;

/// One tool in the form in which zygotes and children receive it.
pub(super) struct ToolImage {
    pub(super) name: ToolName,
    compiled: File,
    is_component: bool,
    componentised: Option<File>,
    contract: Contract,
}

impl ToolImage {
    fn new(Module { name, code, .. }: &Module<'_>) -> Result<Self> {
        Ok(Self {
            name: (*name).clone(),
            compiled: code.compiled_file().try_clone()?,
            is_component: code.is_component(),
            componentised: code.componentised_file().map(File::try_clone).transpose()?,
            contract: code.expected_contract(),
        })
    }

    pub(super) fn code(&self) -> Code<'_> {
        let compiled = &self.compiled;
        let code = if self.is_component { Code::component(compiled) } else { Code::module(compiled) };
        let with_contract = code.contract(self.contract);
        match &self.componentised {
            Some(component) => with_contract.componentised(component),
            None => with_contract,
        }
    }

    /// The message by which a zygote receives the tool to keep it.
    pub(super) fn load_message(&self) -> ToZygote {
        ToZygote::Load { tool: self.name.to_string(), form: CodeForm::of(self.code()) }
    }

    /// The message by which a zygote receives the tool to check it.
    pub(super) fn check_message(&self) -> ToZygote {
        ToZygote::Check { form: CodeForm::of(self.code()) }
    }

    /// The files that are attached to either message.
    pub(super) fn files(&self) -> Vec<BorrowedFd<'_>> {
        std::iter::once(&self.compiled).chain(&self.componentised).map(File::as_fd).collect()
    }
}

/// All tools of a pool of zygotes.
pub(super) struct ToolImages {
    images: BTreeMap<ToolName, Arc<ToolImage>>,
    kept: Mutex<KeptTools>,
}

/// The difference between the tools that a zygote has loaded and those that are to be kept.
pub(super) struct KeptChange {
    pub(super) removed: Vec<ToolName>,
    pub(super) added: Vec<Arc<ToolImage>>,
}

impl ToolImages {
    /// All `tools`, of which the first ones are kept until others are used.
    pub(super) fn new(tools: &[Module<'_>]) -> Result<Self> {
        let images = tools.iter().map(|tool| {
            let image = ToolImage::new(tool)?;
            Ok((image.name.clone(), Arc::new(image)))
        });
        let kept = KeptTools::new(tools.iter().map(|tool| tool.name.clone()));
        Ok(Self { images: images.collect::<Result<BTreeMap<_, _>>>()?, kept: Mutex::new(kept) })
    }

    pub(super) fn get(&self, tool: &ToolName) -> Option<Arc<ToolImage>> {
        self.images.get(tool).map(Arc::clone)
    }

    /// All tools, in the order of their names.
    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<ToolImage>> {
        self.images.values()
    }

    /// The names of the tools that are kept now.
    pub(super) fn kept(&self) -> BTreeSet<ToolName> {
        self.kept.lock().last_uses.keys().cloned().collect()
    }

    /// Notes a run of `tool` in a new child, which may change the tools that are kept.
    pub(super) fn note_run(&self, tool: &ToolName) {
        self.kept.lock().note_run(tool);
    }

    /// No longer keeps a tool, which cannot run.
    pub(super) fn forget(&self, tool: &ToolName) {
        self.kept.lock().last_uses.remove(tool);
    }

    /// The changes that let a zygote, which has `loaded` these tools, have those that are kept now.
    pub(super) fn change_from(&self, loaded: &BTreeSet<ToolName>) -> KeptChange {
        let kept = self.kept.lock();
        let removed = loaded.iter().filter(|tool| !kept.last_uses.contains_key(*tool)).cloned();
        let added = kept.last_uses.keys().filter(|tool| !loaded.contains(*tool));
        KeptChange {
            removed: removed.collect(),
            added: added.filter_map(|tool| self.images.get(tool).map(Arc::clone)).collect(),
        }
    }
}

/// The tools that are kept: those that were used last, as long as not more of them are in use than there are places.
struct KeptTools {
    /// The number of the last run of each.
    last_uses: BTreeMap<ToolName, u64>,
    /// The number of the last run.
    runs: u64,
}

impl KeptTools {
    /// Keeps the first of `tools`. Any other tool may take the place of one that was never used.
    fn new(tools: impl Iterator<Item = ToolName>) -> Self {
        let last_uses = tools.take(MAX_KEPT_TOOLS).map(|tool| (tool, 0)).collect();
        Self { last_uses, runs: MIN_UNUSED_RUNS }
    }

    fn note_run(&mut self, tool: &ToolName) {
        self.runs += 1;
        if let Some(last_use) = self.last_uses.get_mut(tool) {
            *last_use = self.runs;
            return;
        }
        if self.last_uses.len() >= MAX_KEPT_TOOLS {
            let oldest = self.last_uses.iter().min_by_key(|(_, last_use)| **last_use);
            let unused = oldest.filter(|(_, last_use)| self.runs - **last_use > MIN_UNUSED_RUNS);
            let Some(replaced) = unused.map(|(tool, _)| tool.clone()) else { return };
            self.last_uses.remove(&replaced);
        }
        self.last_uses.insert(tool.clone(), self.runs);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tool(number: usize) -> ToolName {
        ToolName::parse(&format!("tool{number:04}")).unwrap()
    }

    fn keeping(count: usize) -> KeptTools {
        KeptTools::new((0..count).map(tool))
    }

    /// Runs tools with these numbers one after another. Returns how many of the runs changed the kept tools.
    fn run(kept: &mut KeptTools, numbers: impl Iterator<Item = usize>) -> usize {
        let changes = |number| {
            let before = kept.last_uses.contains_key(&tool(number));
            kept.note_run(&tool(number));
            assert!(kept.last_uses.len() <= MAX_KEPT_TOOLS);
            !before && kept.last_uses.contains_key(&tool(number))
        };
        numbers.map(changes).filter(|has_changed| *has_changed).count()
    }

    #[test]
    fn all_of_a_few_tools_are_kept() {
        let mut kept = keeping(MAX_KEPT_TOOLS);
        assert_eq!(run(&mut kept, (0..10_000).map(|n| n % MAX_KEPT_TOOLS)), 0);
        assert_eq!(kept.last_uses.len(), MAX_KEPT_TOOLS);
    }

    #[test]
    fn a_tool_is_kept_at_once_if_another_one_was_never_used() {
        let mut kept = keeping(1000);
        assert_eq!(kept.last_uses.len(), MAX_KEPT_TOOLS);
        assert_eq!(run(&mut kept, 900..900 + MAX_KEPT_TOOLS), MAX_KEPT_TOOLS);
        assert!((900..900 + MAX_KEPT_TOOLS).all(|number| kept.last_uses.contains_key(&tool(number))));
    }

    #[test]
    fn a_tool_that_is_no_longer_used_gives_its_place_to_the_next_one() {
        let mut kept = keeping(MAX_KEPT_TOOLS);
        run(&mut kept, 0..MAX_KEPT_TOOLS);
        let only_new = std::iter::repeat_n(500, 320);
        assert_eq!(run(&mut kept, only_new), 1);
        assert!(kept.last_uses.contains_key(&tool(500)));
        assert!(!kept.last_uses.contains_key(&tool(0)), "the one whose last run is the longest ago");
    }

    #[test]
    fn tools_that_take_turns_do_not_displace_each_other_at_each_run() {
        let mut kept = keeping(40);
        assert_eq!(run(&mut kept, (0..10_000).map(|n| n % 40)), 0);
        let mut kept_of_many = keeping(1000);
        let changes = run(&mut kept_of_many, (0..10_000).map(|n| n % 1000));
        assert!((1..=10_000 / 10 + MAX_KEPT_TOOLS).contains(&changes), "{changes}");
    }
}
