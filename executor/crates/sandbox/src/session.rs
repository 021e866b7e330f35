//! Sessions: the store of a typed tool that is kept between its turns.
//!
//! ```text
//! Artifact + Permit ─▶ open_session ─▶ Outcome, SessionStore ─▶ execute_turn ─▶ Outcome, SessionStore ─▶ …
//! ```
//! A turn is an execution of its own: its limits, budgets, output, denials, calls and network are new. From
//! turn to turn the guest keeps its memory and its open files, whose use counts in the turn that uses them.
//! What it has asked of others ends with the turn. The guest's standard input is empty in every turn.

use super::files::Files;
use super::state::{Deadline, EffectiveLimits, StoreState};
use super::{Artifact, Execution, Input, PreparedGuest, Sandbox, record_fuel, throttle, typed, typed_end};
use a2g_capability::{GrantView, Permit};
use a2g_types::outcome::{End, Outcome};
use std::sync::Arc;
use wasmtime::Store;

/// The store of a typed tool between two turns of a session. It serves turns under the grant of the first one
/// only, except that each has its own time and CPU.
pub struct SessionStore {
    store: Store<StoreState>,
    tool: typed::Tool,
    grant: GrantView,
}

/// The end of a turn, and the store if the guest can go on.
type TurnEnd = (End, Option<SessionStore>);

impl Sandbox {
    /// Runs the first turn of a session, as [`Self::execute`] runs a guest. Starts no guest that is not a
    /// typed tool, or whose grant keeps file changes apart. Also returns the store if the tool has answered
    /// its call, with a result or its own error, and not if it trapped or was stopped.
    pub async fn open_session(
        &self,
        artifact: &Artifact,
        permit: Permit,
        arguments: String,
        execution: &Execution,
    ) -> (Outcome, Option<SessionStore>) {
        self.supervise(execution, self.start_session(artifact, permit, &arguments, execution)).await
    }

    /// Runs a further turn, with a permit of the grant of the first one, of which only the time and the CPU
    /// may differ; starts no guest under another one. Returns the store as [`Self::open_session`] does.
    pub async fn execute_turn(
        &self,
        session: SessionStore,
        permit: Permit,
        arguments: String,
        execution: &Execution,
    ) -> (Outcome, Option<SessionStore>) {
        self.supervise(execution, self.continue_session(session, permit, &arguments, execution)).await
    }

    async fn start_session(
        &self,
        artifact: &Artifact,
        permit: Permit,
        arguments: &str,
        execution: &Execution,
    ) -> TurnEnd {
        let PreparedGuest::Typed(pre) = &artifact.0 else {
            return (End::NotStarted("a session needs a typed tool".to_owned()), None);
        };
        if !permit.grant().effects().value.is_direct() {
            let reason = "a session needs a grant whose file changes take effect at once";
            return (End::NotStarted(reason.to_owned()), None);
        }
        let grant = permit.grant().clone();
        let mut store = match self.make_store(permit, &Input::Arguments(String::new()), execution) {
            Ok(store) => store,
            Err(error) => {
                return (End::NotStarted(format!("its store cannot be created: {error:#}")), None);
            }
        };
        let has_network = store.data().http.is_on();
        match pre.pick(has_network).instantiate_async(&mut store).await {
            Ok(tool) => SessionStore { store, tool, grant }.run_turn(arguments, execution).await,
            Err(error) => (typed_end(Err(error), &mut store, &execution.stats), None),
        }
    }

    async fn continue_session(
        &self,
        mut session: SessionStore,
        permit: Permit,
        arguments: &str,
        execution: &Execution,
    ) -> TurnEnd {
        let grant = permit.grant();
        if !session.grant.is_of_same_session(grant) || !execution.grant.is_same_grant(grant) {
            return (End::NotStarted("this session was opened under another grant".to_owned()), None);
        }
        // The store has the folders of the first permit.
        drop(permit);
        match self.begin_turn(&mut session.store, execution) {
            Ok(()) => session.run_turn(arguments, execution).await,
            Err(error) => (End::NotStarted(format!("its store cannot be used again: {error:#}")), None),
        }
    }

    /// Replaces in a store what belongs to the execution of the last turn.
    fn begin_turn(&self, store: &mut Store<StoreState>, execution: &Execution) -> wasmtime::Result<()> {
        let grant = &execution.grant;
        let stats = &execution.stats;
        let state = store.data_mut();
        let Some(last_limits) = state.stats.effective_limits.get().cloned() else {
            return Err(wasmtime::Error::msg("it has had no turn"));
        };
        state.stats = Arc::clone(stats);
        state.current.replace(Arc::clone(stats));
        state.http.set_backend(execution.network.backend());
        state.calls.begin_turn(execution.calls.clone());
        state.limiter.begin_turn(Arc::clone(&stats.memory));
        state.throttle = throttle::Throttle::new(grant.cpu(), self.clock.monotonic());
        state.deadline = Deadline { timeout: grant.timeout(), at: execution.deadline() };
        state.files = Files::Direct;
        // The folders and the number of handles are those that the store has had since its first turn.
        stats.report_limits(EffectiveLimits {
            memory: state.limiter.limit(),
            cpu: state.throttle.limit(),
            timeout: state.deadline.timeout,
            ..last_limits
        });
        self.limit_execution(store, execution)
    }
}

impl SessionStore {
    /// Calls the tool, and gives the store back if the tool has answered.
    async fn run_turn(mut self, arguments: &str, execution: &Execution) -> TurnEnd {
        let Self { store, tool, .. } = &mut self;
        let answer = tool.call_invoke(&mut *store, arguments).await;
        let has_answered = answer.is_ok();
        let end = typed_end(answer, store, &execution.stats);
        record_fuel(store, &end, &execution.stats);
        let state = store.data_mut();
        state.files = Files::Ended;
        state.calls.end_turn();
        state.http.set_backend(None);
        (end, has_answered.then_some(self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::egress::{Network, test_authority};
    use crate::{Abort, Contract};
    use a2g_capability::{Ceilings, Claims, Grant, Mounts};
    use a2g_types::limit::{Layer, Limit};

    /// A tool that answers every call with `null`.
    const TOOL: &str = r#"(component
        (type $descriptor-record (record (field "name" string) (field "version" string)
            (field "description" string) (field "arguments-schema" string)))
        (export $descriptor "descriptor" (type $descriptor-record))
        (type $error-record (record (field "code" string) (field "message" string)
            (field "detail" (option string))))
        (export $tool-error "tool-error" (type $error-record))
        (core module $module
            (memory (export "memory") 1)
            (data (i32.const 4) "\40\00\00\00\04\00\00\00")
            (data (i32.const 64) "null")
            (func (export "realloc") (param i32 i32 i32 i32) (result i32) (i32.const 1024))
            (func (export "describe") (result i32) (i32.const 128))
            (func (export "invoke") (param i32 i32) (result i32) (i32.const 0)))
        (core instance $code (instantiate $module))
        (alias core export $code "memory" (core memory $memory))
        (alias core export $code "realloc" (core func $realloc))
        (func $describe (result $descriptor)
            (canon lift (core func $code "describe") (memory $memory) (realloc $realloc)))
        (func $invoke (param "arguments" string) (result (result string (error $tool-error)))
            (canon lift (core func $code "invoke") (memory $memory) (realloc $realloc)))
        (export "describe" (func $describe))
        (export "invoke" (func $invoke)))"#;

    fn permit(memory_mb: u64) -> Permit {
        let limits = [(Limit::Memory, memory_mb << 20)].into_iter().collect();
        let layers = [(Layer::Verdict, Claims { limits, ..Claims::default() })];
        let grant = Grant::meet(test_authority(), layers, &Ceilings::closed()).unwrap();
        Permit::open(grant, &Mounts::new(Vec::new()).unwrap(), &[], |_| true).unwrap()
    }

    #[tokio::test]
    async fn a_turn_has_the_grant_of_its_session_and_an_execution_of_its_own_permit() {
        let sandbox = Sandbox::builder().authority(test_authority()).build().unwrap();
        let tool = sandbox.compile(&wat::parse_str(TOOL).unwrap(), Contract::Typed).unwrap();
        let begin = |permit: &Permit| sandbox.begin(permit, Network::Off, Arc::<Abort>::default());
        let other = "this session was opened under another grant".to_owned();
        for (what, turn, begun_for, refusal) in [
            ("an equal grant", permit(8), None, None),
            ("another grant", permit(9), None, Some(&other)),
            ("an execution of another permit", permit(8), Some(permit(8)), Some(&other)),
        ] {
            let first = permit(8);
            let execution = begin(&first);
            let (outcome, opened) = sandbox.open_session(&tool, first, "{}".to_owned(), &execution).await;
            assert!(outcome.end.is_answer(), "{what}: {:?}", outcome.end);
            let execution = begin(begun_for.as_ref().unwrap_or(&turn));
            let (outcome, kept) =
                sandbox.execute_turn(opened.unwrap(), turn, "{}".to_owned(), &execution).await;
            match refusal {
                None => assert!(outcome.end.is_answer(), "{what}: {:?}", outcome.end),
                Some(reason) => assert_eq!(outcome.end, End::NotStarted(reason.clone()), "{what}"),
            }
            assert_eq!(kept.is_some(), refusal.is_none(), "{what}");
        }
    }
}
