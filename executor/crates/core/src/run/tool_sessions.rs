//! Sessions: the processes that keep the store of a typed tool between two calls, by their handles. In memory
//! only.
//!
//! ```text
//! open ─▶ a turn ─ its receipt is stored ─▶ waits ─ the next turn takes it ─▶ a turn ─▶ …
//!           └─ any other end than an answer     └─ idle for too long, a stop, another version of the tool, a request
//!                      └──────────── the session has ended ────────┘
//! ```
//! A turn has the session alone: [`SessionLease`]. What ends a session during a turn lets the turn go on, and
//! is noted, so that the turn is the last one.

use super::faults::busy_fault;
use a2g_capability::Grant;
use a2g_isolate::{SessionProcess, SessionRefusal, SessionUse};
use a2g_runtime::{spawn, timer_now};
use a2g_types::call::Call;
use a2g_types::fault::{BlockedBy, Fault};
use a2g_types::ident::{AgentDid, ToolName};
use a2g_types::outcome::End;
use a2g_types::quantity::BYTES_PER_MB;
use a2g_types::session::{CallSession, SessionEnd, SessionHandle, SessionRequest, SessionState, SessionTurn};
use a2g_types::tool::{Descriptor, Digest};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::time::Instant;

/// The refusal of a handle that continues nothing. It does not say whether there is such a session.
const LOST: &str = "there is no such session of this caller, agent and tool: it was never opened, or it has \
     ended (a turn that reached a limit of time, memory or output or crashed, idle for longer than \
     `sessions.idle_seconds`, another version of the tool, a stop, or a restart). Open another session; \
     nothing of an earlier one is in it";
const BUSY: &str =
    "another turn of this session has not ended: wait for its result, and then send this call again";
const OFF: &str =
    "this executor keeps no sessions, because `sessions.max` is 0: send the call without `session`";
/// Maximum number of sessions that a refusal names.
const MAX_NAMED: usize = 8;
const NESTED: &str = "a call that a run makes cannot have a session: call the tool without `session`";

/// The operator's limits on sessions. By default, there are none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SessionSettings {
    /// Maximum number of sessions; 0 if the executor keeps none.
    pub max: usize,
    /// Maximum number of sessions of one agent.
    pub max_per_agent: usize,
    /// The time for which a session waits for its next turn.
    pub idle: Duration,
    /// Maximum sum of the memory that is granted to the sessions, in bytes. One agent has half of it.
    pub max_memory_bytes: u64,
}

/// The sessions of an executor.
pub(super) struct ToolSessions {
    settings: SessionSettings,
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    sessions: HashMap<SessionHandle, Session>,
    phase: Phase,
    /// `true` while a task ends the sessions that are idle for too long.
    is_watched: bool,
}

#[derive(Default)]
enum Phase {
    #[default]
    Open,
    /// The executor ends: no session is opened or kept.
    Closed,
}

struct Session {
    owner: Owner,
    /// The memory that is granted to it, in bytes.
    memory_bytes: u64,
    /// The number of turns that have begun.
    turns: u32,
    state: State,
}

/// The only calls that continue a session are those with the same owner.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Owner {
    caller: String,
    agent: AgentDid,
    tool: ToolName,
    module: Digest,
}

enum State {
    /// It waits for its next turn until the time.
    Idle(Box<SessionProcess>, Instant),
    /// A turn runs.
    InTurn,
    /// A turn runs, and is the last one for this reason.
    InLastTurn(SessionEnd),
}

impl ToolSessions {
    pub(super) fn new(settings: SessionSettings) -> Self {
        Self { settings, table: Mutex::default() }
    }

    /// The number of sessions.
    pub(super) fn count(&self) -> usize {
        self.end_unusable();
        self.table.lock().sessions.len()
    }

    /// Checks early that a call can have the session that it asks for. Its turn checks again.
    ///
    /// # Errors
    /// [`Fault::Refused`] with `session_refused`, `session_lost`, `session_busy` or `sessions_exhausted`.
    pub(super) fn check(&self, call: &Call, tool: &Descriptor) -> Result<(), Fault> {
        let Some(session) = &call.session else { return Ok(()) };
        self.check_tool(call, tool)?;
        let owner = Owner::of(call, session, tool);
        let table = self.table.lock();
        match session.request {
            SessionRequest::Continue(handle) => {
                let found = table.sessions.get(&handle).filter(|found| found.owner == owner);
                match found.map(|found| &found.state) {
                    Some(State::Idle(..)) => Ok(()),
                    Some(State::InTurn | State::InLastTurn(_)) => {
                        Err(refusal(call, BlockedBy::SessionBusy, BUSY))
                    }
                    None => Err(refusal(call, BlockedBy::SessionLost, LOST)),
                }
            }
            // Those that are to be ended may make room.
            SessionRequest::New => Ok(()),
        }
    }

    fn check_tool(&self, call: &Call, tool: &Descriptor) -> Result<(), Fault> {
        let refused = |message: &str| Err(refusal(call, BlockedBy::SessionRefused, message));
        if self.settings.max == 0 {
            return refused(OFF);
        }
        if call.parent.is_some() {
            return refused(NESTED);
        }
        if !tool.has_sessions {
            return refused(&format!(
                "the tool `{}` has no sessions, because its `tool.toml` does not declare `session = true`: \
                 send the call without `session`",
                tool.name
            ));
        }
        Ok(())
    }

    /// Opens the session that a call asks for, or takes the one that it continues, for one turn. `None` for a
    /// call that asks for none.
    ///
    /// # Errors
    /// As for [`Self::check`]; [`Fault::Busy`] while the executor ends.
    pub(super) fn begin_turn(
        self: &Arc<Self>,
        call: &Call,
        tool: &Descriptor,
        grant: &Grant,
    ) -> Result<Option<SessionLease>, Fault> {
        let Some(session) = &call.session else { return Ok(None) };
        self.check_tool(call, tool)?;
        // Before the session is taken, which goes on without this call.
        if !grant.effects().value.is_direct() {
            return Err(refused_session_fault(call, SessionRefusal::KeptApart));
        }
        let owner = Owner::of(call, session, tool);
        match session.request {
            SessionRequest::New => self.open(call, owner, grant.memory().value.bytes()).map(Some),
            SessionRequest::Continue(handle) => self.take(call, handle, &owner).map(Some),
        }
    }

    fn open(self: &Arc<Self>, call: &Call, owner: Owner, memory_bytes: u64) -> Result<SessionLease, Fault> {
        self.end_unusable();
        let mut table = self.table.lock();
        if let Phase::Closed = table.phase {
            return Err(busy_fault("the executor is shutting down"));
        }
        let next_step = self.next_step(&table, &owner);
        let exhausted = |reason: String| {
            Err(refusal(call, BlockedBy::SessionsExhausted, &format!("{reason}: {next_step}")))
        };
        let SessionSettings { max, max_per_agent, max_memory_bytes, idle: _ } = self.settings;
        let of_agent = table.sessions.values().filter(|other| other.owner.agent == owner.agent).count();
        if of_agent >= max_per_agent {
            return exhausted(format!(
                "this agent has {of_agent} sessions, the maximum that the operator sets with `sessions.max_per_agent`"
            ));
        }
        if table.sessions.len() >= max {
            return exhausted(format!(
                "the executor has {max} sessions, the maximum that the operator sets with `sessions.max`"
            ));
        }
        let granted = |agent: Option<&AgentDid>| {
            let counted =
                table.sessions.values().filter(|other| agent.is_none_or(|agent| other.owner.agent == *agent));
            counted.map(|other| other.memory_bytes).sum::<u64>()
        };
        // One agent never takes the room of all others.
        for (whose, granted, max) in [
            ("the sessions of this agent", granted(Some(&owner.agent)), max_memory_bytes / 2),
            ("the sessions", granted(None), max_memory_bytes),
        ] {
            if granted.saturating_add(memory_bytes) > max {
                return exhausted(format!(
                    "{whose} are granted {} MB of memory, this call is granted {} MB, and the operator allows them {} MB \
                     together with `sessions.max_memory_mb`, of which one agent has half",
                    granted / BYTES_PER_MB,
                    memory_bytes / BYTES_PER_MB,
                    max / BYTES_PER_MB
                ));
            }
        }
        let handle = SessionHandle::random();
        table.sessions.insert(handle, Session { owner, memory_bytes, turns: 1, state: State::InTurn });
        Ok(SessionLease { sessions: Arc::clone(self), handle, turn: 1, process: None })
    }

    /// What a caller may do that can open no other session.
    // With the beginnings of the handles: the refusal is recorded, and the caller was told the whole ones.
    fn next_step(&self, table: &Table, owner: &Owner) -> String {
        let seconds = self.settings.idle.as_secs();
        let is_own = |other: &Owner| other.caller == owner.caller && other.agent == owner.agent;
        let own = table.sessions.iter().filter(|(_, session)| is_own(&session.owner));
        let named = own.map(|(handle, session)| format!("{handle:?} of `{}`", session.owner.tool));
        let named = named.take(MAX_NAMED).collect::<Vec<_>>().join(", ");
        let others =
            format!("wait until a session has been idle for {seconds} s, or end one with `a2g/session/end`");
        if named.is_empty() { others } else { format!("go on in one of yours ({named}), {others}") }
    }

    fn take(
        self: &Arc<Self>,
        call: &Call,
        handle: SessionHandle,
        owner: &Owner,
    ) -> Result<SessionLease, Fault> {
        let mut table = self.table.lock();
        let found = table.sessions.get_mut(&handle).filter(|found| found.owner == *owner);
        let Some(session) = found else { return Err(refusal(call, BlockedBy::SessionLost, LOST)) };
        match std::mem::replace(&mut session.state, State::InTurn) {
            State::Idle(process, expires_at) if expires_at > timer_now() && process.is_alive() => {
                session.turns = session.turns.saturating_add(1);
                let turn = session.turns;
                Ok(SessionLease { sessions: Arc::clone(self), handle, turn, process: Some(process) })
            }
            State::Idle(process, _expired) => {
                table.sessions.remove(&handle);
                drop(table);
                // The process is killed when it is dropped, which is a system call: not under the lock.
                drop(process);
                Err(refusal(call, BlockedBy::SessionLost, LOST))
            }
            running @ (State::InTurn | State::InLastTurn(_)) => {
                session.state = running;
                Err(refusal(call, BlockedBy::SessionBusy, BUSY))
            }
        }
    }

    /// Ends the sessions of the selected agents and tools: those that wait now, and the others after their
    /// turns.
    pub(super) fn end_all(&self, is_ended: impl Fn(&AgentDid, &ToolName) -> bool, end: SessionEnd) {
        self.end_selected(|_, session| is_ended(&session.owner.agent, &session.owner.tool), end);
    }

    /// Ends the sessions of tools that the catalogue has no longer with the same module.
    pub(super) fn end_changed(&self, module_of: impl Fn(&ToolName) -> Option<Digest>) {
        let is_changed = |owner: &Owner| module_of(&owner.tool) != Some(owner.module);
        self.end_selected(|_, session| is_changed(&session.owner), SessionEnd::ToolChanged);
    }

    /// Ends one session of an agent, on behalf of its caller, or of an operator if `caller` is `None`.
    /// Returns `false` if there is no such session.
    pub(super) fn end_one(&self, handle: SessionHandle, agent: &AgentDid, caller: Option<&str>) -> bool {
        let is_owner =
            |owner: &Owner| owner.agent == *agent && caller.is_none_or(|name| owner.caller == name);
        let is_selected = |of: &SessionHandle, session: &Session| *of == handle && is_owner(&session.owner);
        self.end_selected(is_selected, SessionEnd::Closed) > 0
    }

    /// Ends all sessions, and opens no others.
    pub(super) fn close(&self) {
        self.table.lock().phase = Phase::Closed;
        self.end_selected(|_, _| true, SessionEnd::Shutdown);
    }

    /// Ends the sessions that have been idle for too long, or whose processes have ended.
    fn end_unusable(&self) {
        let now = timer_now();
        let is_unusable = |_: &SessionHandle, session: &Session| match &session.state {
            State::Idle(process, expires_at) => *expires_at <= now || !process.is_alive(),
            State::InTurn | State::InLastTurn(_) => false,
        };
        // None of them has a turn to which the reason would be told.
        self.end_selected(is_unusable, SessionEnd::ProcessEnded);
    }

    /// Ends the selected sessions, and returns their number.
    fn end_selected(&self, is_selected: impl Fn(&SessionHandle, &Session) -> bool, end: SessionEnd) -> usize {
        let mut table = self.table.lock();
        let mut count = 0;
        for (handle, session) in &mut table.sessions {
            if !is_selected(handle, session) {
                continue;
            }
            count += 1;
            if let State::InTurn = session.state {
                session.state = State::InLastTurn(end);
            }
        }
        let is_waiting = |handle: &SessionHandle, session: &mut Session| {
            matches!(session.state, State::Idle(..)) && is_selected(handle, session)
        };
        let waiting = table.sessions.extract_if(is_waiting).collect::<Vec<_>>();
        drop(table);
        // As in `take`.
        drop(waiting);
        count
    }

    /// Keeps a session after a turn, unless it has ended meanwhile.
    fn keep(self: &Arc<Self>, handle: SessionHandle, turn: u32, process: Box<SessionProcess>) {
        let mut table = self.table.lock();
        let session = table.sessions.get_mut(&handle).filter(|session| session.turns == turn);
        let Some(session) = session.filter(|session| matches!(session.state, State::InTurn)) else {
            drop(table);
            drop(process);
            return;
        };
        session.state = State::Idle(process, timer_now() + self.settings.idle);
        let was_watched = std::mem::replace(&mut table.is_watched, true);
        drop(table);
        if !was_watched {
            spawn::spawn_run_task(end_expired(Arc::downgrade(self)));
        }
    }

    /// Ends the sessions that are unusable. Returns the time at which the next one has been idle for too
    /// long.
    fn end_expired(&self) -> Option<Instant> {
        self.end_unusable();
        let mut table = self.table.lock();
        let expiry = |session: &Session| match &session.state {
            State::Idle(_, expires_at) => Some(*expires_at),
            State::InTurn | State::InLastTurn(_) => None,
        };
        let next = table.sessions.values().filter_map(expiry).min();
        table.is_watched = next.is_some();
        next
    }
}

async fn end_expired(sessions: Weak<ToolSessions>) {
    while let Some(next) = sessions.upgrade().and_then(|sessions| sessions.end_expired()) {
        tokio::time::sleep_until(next).await;
    }
}

impl Owner {
    fn of(call: &Call, session: &CallSession, tool: &Descriptor) -> Self {
        Self {
            caller: session.caller.clone(),
            agent: call.agent.clone(),
            tool: call.tool.clone(),
            module: tool.digest,
        }
    }
}

/// A turn's right to a session. The session ends when it is dropped, unless it is given back.
pub(super) struct SessionLease {
    sessions: Arc<ToolSessions>,
    handle: SessionHandle,
    turn: u32,
    /// The process that the session has before the turn, or keeps after it. The run of the turn takes it.
    process: Option<Box<SessionProcess>>,
}

impl SessionLease {
    /// The session for the run of this turn.
    pub(super) fn begin(&mut self) -> SessionUse {
        self.process.take().map_or(SessionUse::Opens, SessionUse::Continues)
    }

    /// The turn of a session that has ended for this reason.
    pub(super) fn ended(&self, end: SessionEnd) -> SessionTurn {
        SessionTurn { handle: self.handle, turn: self.turn, state: SessionState::Ended(end) }
    }

    /// Decides whether the session goes on after a turn that ended with `end` and left `process`.
    pub(super) fn settle(&mut self, end: &End, process: Option<SessionProcess>) -> SessionTurn {
        let table = self.sessions.table.lock();
        let ended = match table.sessions.get(&self.handle).map(|session| &session.state) {
            Some(State::InTurn) => None,
            Some(State::InLastTurn(reason)) => Some(*reason),
            // The lease is that of the only turn.
            Some(State::Idle(..)) | None => Some(SessionEnd::ProcessEnded),
        };
        drop(table);
        let kept = process.filter(|process| end.is_answer() && process.is_alive());
        match (ended, kept) {
            (Some(reason), _) => self.ended(reason),
            (None, Some(process)) => {
                self.process = Some(Box::new(process));
                let idle_seconds = self.sessions.settings.idle.as_secs();
                let state = SessionState::Kept { idle_seconds };
                SessionTurn { handle: self.handle, turn: self.turn, state }
            }
            // After an answer, the turn is not the reason.
            (None, None) if end.is_answer() => self.ended(SessionEnd::ProcessEnded),
            (None, None) => self.ended(SessionEnd::TurnFailed),
        }
    }

    /// Lets the session wait again although this turn has not begun. It ends if there is no `process`.
    pub(super) fn put_back(mut self, process: Option<Box<SessionProcess>>) {
        let earlier = self.turn.saturating_sub(1);
        if let Some(session) = self.sessions.table.lock().sessions.get_mut(&self.handle) {
            session.turns = earlier;
        }
        self.turn = earlier;
        self.process = process;
        self.give_back();
    }

    /// Lets the session wait for its next turn. Called once the receipt of this one is stored.
    pub(super) fn give_back(mut self) {
        if let Some(process) = self.process.take() {
            self.sessions.keep(self.handle, self.turn, process);
        }
    }
}

impl Drop for SessionLease {
    fn drop(&mut self) {
        let mut table = self.sessions.table.lock();
        let is_own_turn = table.sessions.get(&self.handle).is_some_and(|session| {
            // Another turn may have begun since the session was given back.
            session.turns == self.turn && !matches!(session.state, State::Idle(..))
        });
        if is_own_turn {
            table.sessions.remove(&self.handle);
        }
    }
}

/// The refusal of a call whose run cannot have the session that was opened or taken for it.
pub(super) fn refused_session_fault(call: &Call, reason: SessionRefusal) -> Fault {
    let blocked_by = match reason {
        SessionRefusal::Inline
        | SessionRefusal::NotTyped
        | SessionRefusal::KeptApart
        | SessionRefusal::GrantDiffers => BlockedBy::SessionRefused,
        // As for any other handle that continues nothing.
        SessionRefusal::Ended => return refusal(call, BlockedBy::SessionLost, LOST),
    };
    refusal(call, blocked_by, &reason.to_string())
}

/// `true` for a refusal that the same call may not get later.
pub(super) fn is_for_now(blocked_by: BlockedBy) -> bool {
    matches!(blocked_by, BlockedBy::SessionBusy | BlockedBy::SessionsExhausted | BlockedBy::SecretMissing)
}

fn refusal(call: &Call, blocked_by: BlockedBy, message: &str) -> Fault {
    Fault::Refused { intent: Some(call.intent), risk_score: None, blocked_by, message: message.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use a2g_types::call::{Door, Priority};
    use a2g_types::ident::IntentId;
    use a2g_types::memory::Charge;
    use serde_json::Map;

    fn call(agent: &str, caller: &str, request: SessionRequest) -> Call {
        Call {
            door: Door::A2g,
            agent: AgentDid::parse(agent).unwrap(),
            intent: IntentId::random(),
            is_new: true,
            tool: ToolName::parse("t").unwrap(),
            arguments: Map::new(),
            context: None,
            caller_timeout: None,
            priority: Priority::Normal,
            charge: Charge::default(),
            parent: None,
            caller_tools: None,
            session: Some(CallSession { request, caller: caller.to_owned() }),
        }
    }

    fn owner(call: &Call) -> Owner {
        Owner {
            caller: call.session.as_ref().unwrap().caller.clone(),
            agent: call.agent.clone(),
            tool: call.tool.clone(),
            module: Digest::compute(b"t"),
        }
    }

    fn sessions() -> Arc<ToolSessions> {
        let idle = Duration::from_secs(60);
        Arc::new(ToolSessions::new(SessionSettings { max: 3, max_per_agent: 2, idle, max_memory_bytes: 40 }))
    }

    fn open(sessions: &Arc<ToolSessions>, agent: &str, bytes: u64) -> Result<SessionLease, BlockedBy> {
        let call = call(agent, "c", SessionRequest::New);
        reason(sessions.open(&call, owner(&call), bytes))
    }

    fn reason(turn: Result<SessionLease, Fault>) -> Result<SessionLease, BlockedBy> {
        match turn {
            Ok(lease) => Ok(lease),
            Err(Fault::Refused { blocked_by, .. }) => Err(blocked_by),
            Err(fault) => panic!("{fault:?}"),
        }
    }

    #[test]
    fn each_limit_refuses_one_session_more() {
        let sessions = sessions();
        let first = open(&sessions, "did:a:x", 10).unwrap();
        let _second = open(&sessions, "did:a:x", 10).unwrap();
        let refused = |agent, bytes| open(&sessions, agent, bytes).err();
        assert_eq!(refused("did:a:x", 1), Some(BlockedBy::SessionsExhausted));
        assert_eq!(refused("did:a:y", 21), Some(BlockedBy::SessionsExhausted));
        let third = open(&sessions, "did:a:y", 10).unwrap();
        assert_eq!(refused("did:a:z", 0), Some(BlockedBy::SessionsExhausted));
        drop(third);
        drop(first);
        assert_eq!(sessions.count(), 1);
        assert!(open(&sessions, "did:a:x", 10).is_ok());
    }

    /// Each row fails if `Owner` no longer has that one thing, or `take` does not compare it.
    #[test]
    fn a_turn_has_its_session_alone_and_others_learn_nothing() {
        let sessions = sessions();
        let lease = open(&sessions, "did:a:x", 10).unwrap();
        let call = call("did:a:x", "c", SessionRequest::Continue(lease.handle));
        let own = owner(&call);
        let refused = |handle, owner: &Owner| reason(sessions.take(&call, handle, owner)).err();
        assert_eq!(refused(lease.handle, &own), Some(BlockedBy::SessionBusy));
        assert_eq!(refused(SessionHandle::random(), &own), Some(BlockedBy::SessionLost));
        for other in [
            Owner { caller: "d".to_owned(), ..own.clone() },
            Owner { agent: AgentDid::parse("did:a:y").unwrap(), ..own.clone() },
            Owner { tool: ToolName::parse("u").unwrap(), ..own.clone() },
            Owner { module: Digest::compute(b"u"), ..own.clone() },
        ] {
            assert_eq!(refused(lease.handle, &other), Some(BlockedBy::SessionLost), "{other:?}");
        }
    }

    #[test]
    fn a_session_ends_once_its_tool_has_another_module() {
        let returned = End::Returned(a2g_types::json::JsonText::null());
        let sessions = sessions();
        for (module, end) in [
            (Some(Digest::compute(b"t")), SessionEnd::ProcessEnded),
            (Some(Digest::compute(b"u")), SessionEnd::ToolChanged),
            (None, SessionEnd::ToolChanged),
        ] {
            let mut lease = open(&sessions, "did:a:x", 10).unwrap();
            sessions.end_changed(|_tool| module);
            // Without a process, no session goes on.
            assert_eq!(lease.settle(&returned, None).state, SessionState::Ended(end));
        }
    }

    #[test]
    fn what_ends_a_session_during_a_turn_is_in_the_report() {
        let sessions = sessions();
        let returned = End::Returned(a2g_types::json::JsonText::null());
        let mut lease = open(&sessions, "did:a:x", 10).unwrap();
        let turn = lease.settle(&End::ResultNotJson, None);
        assert_eq!(turn.state, SessionState::Ended(SessionEnd::TurnFailed));
        assert_eq!(lease.settle(&returned, None).state, SessionState::Ended(SessionEnd::ProcessEnded));
        let agent = AgentDid::parse("did:a:x").unwrap();
        assert!(!sessions.end_one(lease.handle, &agent, Some("d")));
        assert!(sessions.end_one(lease.handle, &agent, Some("c")));
        assert_eq!(lease.settle(&returned, None).state, SessionState::Ended(SessionEnd::Closed));
        lease.give_back();
        assert_eq!(sessions.count(), 0);
    }
}
