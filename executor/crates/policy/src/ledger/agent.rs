//! The past of one agent: what has ended, in series, and what is in progress.

use super::ended::Done;
use super::possible::Possible;
use super::reach::{Folders, HostLiteral, Hosts, LiteralNames};
use super::series::{DAY, Keyed, MAX_KEYS, Second, Series, is_recent, sum};
use crate::facts::{History, Subject, Window};
use a2g_types::ident::{IntentId, SecretName, ToolName};
use std::collections::BTreeMap;

/// Maximum number of calls in progress that are kept apart. Beyond it, the oldest one counts as having done all that it
/// could: a governor behind a URL is never told of those that do not start.
pub(super) const MAX_OPEN: usize = 512;
/// The time after which a run that has begun is forgotten without an end: longer than any timeout.
const MAX_RUN_TIME: Second = 8 * DAY;

/// The past of one agent.
#[derive(Debug, Default)]
pub(super) struct Agent {
    /// The time of the latest event.
    last_event: Second,
    pruned_at: Second,
    calls: Series,
    denials: Series,
    written_bytes: Series,
    /// The calls of each tool; `None` stands for every tool.
    tools: Keyed<Option<ToolName>>,
    /// The latest SUCCESS of each tool.
    succeeded: BTreeMap<ToolName, Second>,
    /// The calls that were granted these folders.
    folders: Keyed<Folders>,
    /// The requests to these hosts.
    hosts: Keyed<Hosts>,
    /// The requests with each secret; `None` stands for every secret.
    secrets: Keyed<Option<SecretName>>,
    /// By the number of the admission.
    open: BTreeMap<u64, OpenCall>,
}

/// A call that is admitted and has not ended.
#[derive(Debug)]
pub(super) struct OpenCall {
    intent: IntentId,
    tool: ToolName,
    possible: Possible,
    since: Second,
    /// `true` once its run has begun: from then on, only its end says what it has done.
    has_begun: bool,
}

/// What a call has done.
struct Settled {
    /// Its tool; `None` if nobody has named it: then it is perhaps no call, but a decision on file changes, and only what
    /// it has done counts.
    tool: Option<ToolName>,
    done: Done,
}

impl OpenCall {
    /// A call that is admitted now.
    pub(super) fn new(now: Second, intent: IntentId, tool: ToolName, possible: Possible) -> Self {
        Self { intent, tool, possible, since: now, has_begun: false }
    }

    /// `false` for a call that nobody will end.
    fn counts(&self, now: Second) -> bool {
        let max_age = if self.has_begun { MAX_RUN_TIME } else { DAY };
        now.saturating_sub(self.since) <= max_age
    }

    /// The call as if it had done all that it may do.
    fn settle(self) -> Settled {
        let Possible { folders, hosts, secrets, max_requests, max_written_bytes } = self.possible;
        Settled {
            tool: Some(self.tool),
            done: Done {
                folders,
                requests: vec![(hosts, max_requests)],
                // Any secret: the one that stands for every secret is added below.
                secrets: secrets.into_iter().flatten().map(|name| (name, max_requests)).collect(),
                written_bytes: max_written_bytes,
            },
        }
    }
}

impl Agent {
    /// Counts a call in progress.
    pub(super) fn admit(&mut self, now: Second, number: u64, call: OpenCall) {
        self.touch(now);
        self.open.insert(number, call);
        if self.open.len() > MAX_OPEN
            && let Some((_, oldest)) = self.open.pop_first()
        {
            self.settle_as_possible(now, oldest);
        }
    }

    /// Counts a denied call.
    pub(super) fn deny(&mut self, now: Second) {
        self.touch(now);
        self.denials.add(now, 1);
    }

    /// Notes that the run of a call has begun.
    pub(super) fn begin(&mut self, number: u64) {
        if let Some(open) = self.open.get_mut(&number) {
            open.has_begun = true;
        }
    }

    /// Replaces what a call may do.
    pub(super) fn amend(&mut self, number: u64, possible: Possible) {
        if let Some(open) = self.open.get_mut(&number) {
            open.possible = possible;
        }
    }

    /// Forgets a call that has done nothing.
    pub(super) fn forget(&mut self, number: u64) {
        self.open.remove(&number);
    }

    /// Replaces a call in progress by what it has done. An intent runs at most once, so this ends all admissions of it.
    pub(super) fn end(
        &mut self,
        now: Second,
        intent: IntentId,
        tool: Option<&ToolName>,
        is_success: bool,
        done: Option<Done>,
    ) {
        self.touch(now);
        let is_ended = |open: &OpenCall| open.intent == intent && tool.is_none_or(|tool| open.tool == *tool);
        let numbers = self.open.iter().filter(|(_, open)| is_ended(open)).map(|(number, _)| *number);
        let numbers = numbers.collect::<Vec<_>>();
        let ended = numbers.iter().filter_map(|number| self.open.remove(number)).collect::<Vec<_>>();
        let admitted_tool = ended.first().map(|open| open.tool.clone());
        let ended_tool = tool.cloned().or(admitted_tool);
        match done {
            Some(done) => self.settle(now, Settled { tool: ended_tool.clone(), done }),
            None => ended.into_iter().for_each(|open| self.settle_as_possible(now, open)),
        }
        if let Some(tool) = ended_tool.filter(|_| is_success) {
            self.note_success(now, tool);
        }
    }

    /// Notes that a call of a tool has ended with SUCCESS, or that its changes are in force since now.
    pub(super) fn note_success(&mut self, now: Second, tool: ToolName) {
        self.touch(now);
        let has_room = self.succeeded.len() < MAX_KEYS || self.succeeded.contains_key(&tool);
        // A success that is not known lets no call through.
        if has_room {
            let latest = self.succeeded.entry(tool).or_insert(now);
            *latest = now.max(*latest);
        }
    }

    fn settle_as_possible(&mut self, now: Second, open: OpenCall) {
        if open.possible.secrets.is_none() {
            self.secrets.add(None, None, now, open.possible.max_requests);
        }
        self.settle(now, open.settle());
    }

    fn settle(&mut self, now: Second, Settled { tool, done }: Settled) {
        let Done { folders, requests, secrets, written_bytes } = done;
        if tool.is_some() {
            self.calls.add(now, 1);
            self.tools.add(tool, None, now, 1);
        }
        self.written_bytes.add(now, written_bytes);
        if !folders.is_empty() {
            self.folders.add(folders, Folders::every(), now, 1);
        }
        for (hosts, count) in requests {
            self.hosts.add(hosts, Hosts::every(), now, count);
        }
        for (secret, count) in secrets {
            self.secrets.add(Some(secret), None, now, count);
        }
    }

    fn touch(&mut self, now: Second) {
        self.last_event = self.last_event.max(now);
        if now.saturating_sub(self.pruned_at) >= 60 {
            self.pruned_at = now;
            self.prune(now);
        }
    }

    /// Drops what no window has any more.
    fn prune(&mut self, now: Second) {
        self.tools.prune(now);
        self.folders.prune(now);
        self.hosts.prune(now);
        self.secrets.prune(now);
        self.succeeded.retain(|_, at| is_recent(*at, now));
        self.open.retain(|_, open| open.counts(now));
    }

    /// `true` if nothing has happened within a day, and nothing runs.
    pub(super) fn is_over(&self, now: Second) -> bool {
        !is_recent(self.last_event, now) && !self.open.values().any(|open| open.has_begun)
    }

    fn in_progress(&self, now: Second) -> impl Iterator<Item = &OpenCall> + Clone {
        self.open.values().filter(move |open| open.counts(now))
    }

    /// The facts that are the same for every subject.
    pub(super) fn facts(&self, now: Second, literals: &LiteralNames) -> History {
        let open = self.in_progress(now).map(|open| &open.possible);
        let may_write =
            open.clone().fold(0_u64, |total, possible| total.saturating_add(possible.max_written_bytes));
        let is_read = |literal: &str| {
            self.folders.recent(now).any(|folders| folders.concerns(literal))
                || open.clone().any(|possible| possible.folders.concerns(literal))
        };
        let is_reached = |literal: &HostLiteral| {
            self.hosts.recent(now).any(|hosts| hosts.concerns(literal))
                || open.clone().any(|possible| possible.max_requests > 0 && possible.hosts.concerns(literal))
        };
        let LiteralNames { folders, hosts } = literals;
        let reached = hosts.iter().filter(|(_, host)| is_reached(host));
        let succeeded = self.succeeded.iter().filter(|(_, at)| is_recent(**at, now));
        History {
            calls: sum(self.calls.window(now), Window::of_each(count(open.clone().count()))),
            denials: self.denials.window(now),
            same: Window::default(),
            written_bytes: sum(self.written_bytes.window(now), Window::of_each(may_write)),
            succeeded: succeeded.map(|(tool, _)| tool.clone()).collect(),
            reached: reached.map(|(text, _)| text.clone()).collect(),
            read: folders.iter().filter(|folder| is_read(folder)).cloned().collect(),
        }
    }

    /// The counts of one subject.
    pub(super) fn same(&self, now: Second, subject: Subject<'_>) -> Window {
        let open_count = |amount: &dyn Fn(&OpenCall) -> u64| {
            self.in_progress(now).fold(0_u64, |total, open| total.saturating_add(amount(open)))
        };
        let (ended, open) = match subject {
            Subject::Tool(tool) => {
                let of_tool = self.tools.window_of(&Some(tool.clone()), now);
                let of_any = self.tools.window_of(&None, now);
                (sum(of_tool, of_any), open_count(&|open| u64::from(open.tool == *tool)))
            }
            Subject::Folder(literal) => (
                self.folders.window(now, |folders| folders.concerns(literal)),
                open_count(&|open| u64::from(open.possible.folders.concerns(literal))),
            ),
            Subject::Host(text) => {
                let literal = HostLiteral::of(text);
                let may_send = |OpenCall { possible, .. }: &OpenCall| {
                    if possible.hosts.concerns(&literal) { possible.max_requests } else { 0 }
                };
                (self.hosts.window(now, |hosts| hosts.concerns(&literal)), open_count(&may_send))
            }
            Subject::Secret(name) => (
                self.secrets
                    .window(now, |secret| secret.as_ref().is_none_or(|secret| secret.as_str() == name)),
                open_count(&|OpenCall { possible, .. }| {
                    if possible.may_use(name) { possible.max_requests } else { 0 }
                }),
            ),
        };
        sum(ended, Window::of_each(open))
    }

    /// The number of keys of hosts, and of calls in progress.
    #[cfg(test)]
    pub(super) fn sizes(&self) -> (usize, usize) {
        (self.hosts.len(), self.open.len())
    }
}

fn count(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}
