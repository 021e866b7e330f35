//! Sessions: children that keep the store of a typed tool between two turns.
//!
//! ```text
//! turn ── Ended ──▶ fails what the guest has left open ── Idle ──▶ waits ── arguments, relay, begin ──▶ next turn
//!   └─ any other end, an unexpected message or thread, too many descriptors ──▶ SIGKILL
//! ```
//! A session belongs to one agent, tool, module and grant, as a reused process does. Each turn has the time and
//! the CPU of its own grant, because neither confines the child for longer than a turn. Its owner holds it
//! between two turns, and decides who may continue it, and ends it at a stop, at a revocation, and when the
//! catalogue has another version of its tool.

use super::channel::FromChild;
use super::error::ChildError;
use super::reuse::{FolderId, UsedChild};
use super::supervisor::truncate;
use super::user::User;
use super::zygote_handle::Child;
use a2g_capability::{GrantView, Permit};
use a2g_sandbox::egress::SentSecrets;
use a2g_types::ident::{AgentDid, ToolName};
use a2g_types::tool::Contract;
use std::io::Error;
use std::time::Duration;

/// The session of which a run is a turn.
pub enum SessionUse {
    /// None: the store of the run is dropped after it.
    None,
    /// A new one, which is kept for further turns if the run ends well.
    Opens,
    /// The one that this process has kept.
    Continues(Box<SessionProcess>),
}

/// The process of a run after its end, if it is used again.
pub enum KeptProcess {
    /// Nothing.
    Nothing,
    /// Its child, which may serve another run once the end of this one is settled.
    Child(UsedChild),
    /// That of its session, which another turn may continue.
    Session(SessionProcess),
}

/// The reason why a session cannot be opened, or not be continued.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SessionRefusal {
    /// The tool runs inline.
    #[error(
        "this tool runs inside the executor's own process, where nothing is kept between two calls: call it \
         without a session, or the operator gives it a process (`isolation = \"process\"`)"
    )]
    Inline,
    /// The tool is a command.
    #[error("this tool is a command, which ends with each call: call it without a session")]
    NotTyped,
    /// The file changes of the run take effect only after its end.
    #[error(
        "the file changes of this call are kept apart until its end (`effects`), and those of a session take \
         effect at once: call the tool without a session, or under a grant with the effects `direct`"
    )]
    KeptApart,
    /// The grant of this turn differs from that of the first one in more than time and CPU.
    #[error(
        "the grant of this call is not the one under which the session was opened (files, network, tools that \
         it may call, limits other than time and CPU): call under that grant, or open a new session"
    )]
    GrantDiffers,
    /// Its process has ended.
    #[error("the session has ended, and nothing of it is left: open a new one")]
    Ended,
}

/// A session that a run cannot have.
pub struct RefusedSession {
    /// The reason.
    pub reason: SessionRefusal,
    /// The process of the session that was to be continued, unless it has ended.
    pub process: Option<Box<SessionProcess>>,
}

impl SessionUse {
    pub(super) fn refuse(self, reason: SessionRefusal) -> RefusedSession {
        let process = match self {
            Self::None | Self::Opens => None,
            Self::Continues(process) => Some(process),
        };
        RefusedSession { reason, process }
    }
}

/// Checks that a tool with this contract can have a session under `permit`.
pub(super) fn check_session(contract: Contract, permit: &Permit) -> Result<(), SessionRefusal> {
    match contract {
        Contract::Typed => {}
        Contract::Command => return Err(SessionRefusal::NotTyped),
    }
    let is_direct = permit.grant().effects().value.is_direct() && permit.upper().is_none();
    if is_direct { Ok(()) } else { Err(SessionRefusal::KeptApart) }
}

/// The properties that all turns of a session share. Its owner compares the module.
#[derive(Clone)]
pub(super) struct SessionKey {
    pub(super) agent: AgentDid,
    pub(super) tool: ToolName,
    pub(super) folders: Vec<FolderId>,
    pub(super) user: Option<User>,
    /// The grant of a turn. The limits of the turn are no part of the key.
    pub(super) grant: GrantView,
}

impl SessionKey {
    fn is_of_same_session(&self, other: &Self) -> bool {
        let Self { agent, tool, folders, user, grant } = self;
        *agent == other.agent
            && *tool == other.tool
            && *folders == other.folders
            && *user == other.user
            && grant.is_of_same_session(&other.grant)
    }
}

/// A process that keeps the store of a session between two turns. Dropping it ends the session.
pub struct SessionProcess {
    pub(super) key: SessionKey,
    pub(super) child: Child,
    /// The number of turns that it has served.
    pub(super) turns: u32,
    /// CPU time at the end of its last turn. What it uses afterwards counts in the next one.
    pub(super) cpu: Duration,
    /// The values of secrets that its turns have sent, which its guest may have kept.
    pub(super) sent: SentSecrets,
}

impl SessionProcess {
    /// `true` while it lives.
    // The renewal of its zygote does not end it: its address layout was fixed with its first turn.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.child.is_alive()
    }

    /// Its memory in bytes: what is charged to its control group, or without one its resident memory that no
    /// file backs. `None` if the kernel does not say.
    #[must_use]
    pub fn memory_bytes(&self) -> Option<u64> {
        self.child.memory_bytes()
    }

    /// Checks that a turn with this key continues the session.
    pub(super) fn check_turn(&self, key: &SessionKey) -> Result<(), SessionRefusal> {
        if !self.is_alive() {
            return Err(SessionRefusal::Ended);
        }
        if self.key.is_of_same_session(key) { Ok(()) } else { Err(SessionRefusal::GrantDiffers) }
    }

    /// Waits until it has cleared everything of the last turn.
    ///
    /// # Errors
    /// If it has ended, or has sent anything else.
    pub(super) async fn wait_idle(&mut self) -> Result<(), ChildError> {
        match self.child.channel.receive_only_message().await? {
            Some(FromChild::Idle) => Ok(()),
            Some(FromChild::Failed(reason)) => Err(ChildError::Reported(truncate(reason))),
            Some(
                FromChild::Began { .. } | FromChild::Event(_) | FromChild::Ended(_) | FromChild::Described(_),
            ) => Err(Error::other("it sent a message between two turns of its session").into()),
            None => Err(ChildError::Ended("it ended between two turns of its session".to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cgroup::tests::ceilings;
    use a2g_capability::{Area, Ceilings, Claims, Grant, HostClaims, HostPattern, Mount, Mounts, Tree};
    use a2g_types::limit::{FileEffects, Layer, Limit};
    use a2g_types::tool::CallTargets;
    use std::path::Path;

    #[test]
    fn only_a_typed_tool_whose_file_changes_take_effect_at_once_has_sessions() {
        let permit = |effects| {
            let limits = Ceilings { effects, ..ceilings(64, 100) };
            let grant = Grant::meet(crate::test_authority(), [], &limits).unwrap();
            Permit::open(grant, &Mounts::new(Vec::new()).unwrap(), &limits.areas, |_| true).unwrap()
        };
        for (contract, effects, refusal) in [
            (Contract::Typed, FileEffects::Direct, None),
            (Contract::Command, FileEffects::Direct, Some(SessionRefusal::NotTyped)),
            (Contract::Typed, FileEffects::Atomic, Some(SessionRefusal::KeptApart)),
            (Contract::Typed, FileEffects::Staged, Some(SessionRefusal::KeptApart)),
        ] {
            assert_eq!(check_session(contract, &permit(effects)).err(), refusal, "{effects:?}");
        }
    }

    /// The properties of a turn.
    #[derive(Clone)]
    struct Turn<'a> {
        agent: &'a str,
        tool: &'a str,
        claims: Claims,
        folder: &'a Path,
        user: User,
    }

    impl Turn<'_> {
        fn key(&self) -> SessionKey {
            let everywhere =
                HostClaims { allowed: Some(vec![HostPattern::EveryName]), ..HostClaims::default() };
            let areas = Area::parse("/workspace/**").unwrap();
            let limits = Ceilings { network: true, hosts: everywhere, areas, ..ceilings(64, 100) };
            let layers = [(Layer::Verdict, self.claims.clone())];
            let met = Grant::meet(crate::test_authority(), layers, &limits).unwrap();
            let guest = Tree::parse_path("/workspace").unwrap();
            let mounts = Mounts::new(vec![Mount { guest, host: self.folder.to_owned() }]).unwrap();
            let permit = Permit::open(met, &mounts, &limits.areas, |_| true).unwrap();
            let grant = permit.grant().clone();
            let folders = FolderId::all_of(&permit).unwrap();
            SessionKey {
                agent: AgentDid::parse(self.agent).unwrap(),
                tool: ToolName::parse(self.tool).unwrap(),
                folders,
                user: Some(self.user),
                grant,
            }
        }
    }

    /// Each row but the first fails if one of the two keys no longer has that one thing.
    #[test]
    fn a_turn_that_differs_in_one_thing_has_another_key() {
        let [folder, other_folder] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let own = Turn {
            agent: "did:a:x",
            tool: "t",
            claims: Claims::default(),
            folder: folder.path(),
            user: User::NOBODY,
        };
        let claiming = |claims| Turn { claims, ..own.clone() };
        let limited = |limit, most: u64| {
            claiming(Claims { limits: [(limit, most)].into_iter().collect(), ..Claims::default() })
        };
        let blocked = vec![HostPattern::parse("a.test").unwrap()];
        let fewer_hosts =
            Claims { hosts: HostClaims { blocked, ..HostClaims::default() }, ..Claims::default() };
        let fewer_calls = Claims { calls: Some(CallTargets::none()), ..Claims::default() };
        for (what, turn, is_of_same_session) in [
            ("nothing", own.clone(), true),
            ("time", limited(Limit::Time, 1), true),
            ("CPU", limited(Limit::Cpu, 1), true),
            ("agent", Turn { agent: "did:a:y", ..own.clone() }, false),
            ("tool", Turn { tool: "u", ..own.clone() }, false),
            ("folder", Turn { folder: other_folder.path(), ..own.clone() }, false),
            ("user", Turn { user: User { uid: 1, gid: 1 }, ..own.clone() }, false),
            ("memory", limited(Limit::Memory, 8 << 20), false),
            ("hosts", claiming(fewer_hosts), false),
            ("calls", claiming(fewer_calls), false),
        ] {
            assert_eq!(own.key().is_of_same_session(&turn.key()), is_of_same_session, "{what}");
        }
    }
}
