//! `governor`: the bundled governor in its own process.

use super::UsageError;
use super::arguments::Governor;
use super::serve::{StopSignals, end_sessions, local_governor, open_report_log};
use a2g_door_a2g::governor::{GovernorDoor, NOTIFICATIONS, methods};
use a2g_govern::local::CedarPolicies;
use a2g_govern::{Callers, CurrentCallers, KeyPair};
use a2g_http::{CallerDirectory, ConnectionLimits, HttpServer, HttpSettings, Rpc};
use a2g_runtime::spawn::SessionTasks;
use a2g_types::clock::SystemClock;
use a2g_wire::strict_json::JsonBounds;
use anyhow::{Context as _, bail};
use std::process::ExitCode;
use std::sync::Arc;
use tokio::sync::broadcast;

/// Maximum size of a message; a report contains the tool's result.
const MAX_MESSAGE_BYTES: usize = 64 << 20;

pub(super) fn main(arguments: Governor) -> anyhow::Result<ExitCode> {
    let Governor { listen, policies, reports, key } = arguments;
    if !listen.is_local() {
        bail!(UsageError(format!(
            "`--listen` is {listen}: this governor accepts any caller, so it listens only on loopback addresses and \
             sockets"
        )));
    }
    let governor = Arc::new(local_governor(policies.as_deref(), Arc::new(SystemClock))?);
    // Without a catalogue, policies in Cedar have the schema of their folder.
    governor.use_tools([]);
    if let Some(error) = governor.policies().cedar().and_then(CedarPolicies::error) {
        bail!(UsageError(format!("the policies of `--policies`: {error}")));
    }
    if governor.reads_history() {
        tracing::warn!(
            "what agents did before this start is not known: `context.history` begins empty, and has all of it in 24 hours"
        );
    }
    let records = open_report_log(reports.as_deref())?;
    let key = key.as_deref().map(KeyPair::read).transpose()?;
    if let Some(key) = &key {
        let public = key.public();
        tracing::info!(key = public.id(), issuer = %public.issuer(), "verdicts are signed");
    }
    let (pushes, _) = broadcast::channel(256);
    let methods = methods(GovernorDoor { governor, key, records, pushes: pushes.clone() })?;
    let bounds = JsonBounds { max_bytes: MAX_MESSAGE_BYTES, ..JsonBounds::default() };
    let rpc = Rpc::new(methods.into(), bounds, NOTIFICATIONS);
    let sessions = SessionTasks::default();
    let settings = HttpSettings {
        sessions: sessions.clone(),
        protocols: Vec::new(),
        allowed_hosts: Vec::new(),
        allowed_origins: Vec::new(),
        callers: CallerDirectory::new(CurrentCallers::new(Callers::anonymous(None))),
        clock: Arc::new(SystemClock),
        tls: None,
        connections: ConnectionLimits::default(),
        pushes: Some(pushes),
        executor: None,
    };
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(async {
        let http_server = HttpServer::bind(&listen, rpc, settings)
            .await
            .with_context(|| format!("cannot listen on {listen} (`--listen` of `a2g-executor governor`)"))?;
        let stop_signals = StopSignals::install()?;
        tracing::info!("the governor listens on {}", http_server.url());
        http_server.serve(stop_signals.wait()).await;
        end_sessions(&sessions).await;
        Ok(ExitCode::SUCCESS)
    })
}
