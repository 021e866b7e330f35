//! `fleet`: creates the configured fleet, lists its nodes, and drains one.

use super::UsageError;
use super::arguments::FleetCommand;
use super::layout::{Listing, text};
use super::output::{note, one_line, print};
use super::serve::read_fleet_key;
use super::setup::config;
use a2g_config::Config;
use a2g_fleet::{
    FleetError, FleetSettings, FleetView, InitMode, InitReply, LeaseTimes, NodeLoad, NodeState, NodeStatus,
    RememberedFleet, ServerStore, StreamId, StreamIdentity,
};
use a2g_types::clock::{Clock as _, SystemClock};
use a2g_types::node::NodeName;
use anyhow::bail;
use sha2::{Digest as _, Sha256};
use std::process::ExitCode;
use std::time::Duration;

/// The time between two polls of a node that is drained.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// The time between two progress lines.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(5);

pub(super) fn main(command: FleetCommand) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    match command {
        FleetCommand::Init { setup, new, replaces, lease_seconds } => {
            let config = config(&setup)?;
            let settings = settings(&config)?;
            let remembered = remembered(&config)?;
            let mode = init_mode(new, replaces, remembered.as_ref())?;
            let parsed = LeaseTimes::try_from(lease_seconds);
            let times = parsed.map_err(|error| UsageError(format!("`--lease-seconds` {error}")))?;
            let key = read_fleet_key(&settings.key_file)?;
            let init = a2g_fleet::init(settings, key, remembered.as_ref(), &mode, times);
            let name = &settings.name;
            match runtime.block_on(init).map_err(failed(settings))? {
                InitReply::Changed(StreamIdentity { id, .. }) => {
                    note(format_args!("the fleet `{name}` has the stream {id}: start its nodes"));
                }
                InitReply::Unchanged(StreamIdentity { id, .. }) => {
                    note(format_args!("the fleet `{name}` has the stream {id} already: nothing was changed"));
                }
            }
            Ok(ExitCode::SUCCESS)
        }
        FleetCommand::Status { setup, json } => runtime.block_on(async {
            let (settings, view) = open_view(&config(&setup)?).await?;
            let (nodes, unreadable) = view.status().await.map_err(failed(&settings))?;
            for error in unreadable {
                note(format_args!("warning: {error}"));
            }
            if nodes.is_empty() {
                note(format_args!("no node has joined the fleet `{}`", settings.name));
            }
            print_status(&settings, &nodes, json)
        }),
        FleetCommand::Drain { setup, no_wait, node } => runtime.block_on(async {
            let (settings, view) = open_view(&config(&setup)?).await?;
            let parsed = NodeName::try_from(node.clone());
            let name = parsed.map_err(|error| UsageError(format!("`{}` {error}", one_line(&node))))?;
            let asked = view.request_drain(&name).await.map_err(failed(&settings))?;
            let Some(status) = asked else {
                bail!(
                    "the fleet `{}` has no running node `{name}`, and remembers none: `a2g-executor fleet status` lists \
                     its nodes",
                    settings.name
                );
            };
            if !status.is_running() {
                bail!("the fleet `{}` has no running node `{name}`: {}", settings.name, explain_end(&status));
            }
            note(format_args!("`{name}` was asked to finish its runs and to end. It checks this every 3 s."));
            if !no_wait {
                wait_until_left(&settings, &view, &name, status.epoch).await?;
                note(format_args!("`{name}` has left."));
            }
            Ok(ExitCode::SUCCESS)
        }),
    }
}

/// Waits until a node has left the fleet that it joined with this epoch.
async fn wait_until_left(
    settings: &FleetSettings,
    view: &FleetView<ServerStore>,
    name: &NodeName,
    epoch: u64,
) -> anyhow::Result<()> {
    let started_at = SystemClock.monotonic();
    let mut note_after = PROGRESS_INTERVAL;
    while let Some(status) = view.find_node(name).await.map_err(failed(settings))? {
        // A service manager has started the node again, after it had left.
        if status.epoch != epoch {
            break;
        }
        if status.state == NodeState::Left {
            break;
        }
        if !status.is_running() {
            bail!("`{name}` was lost before it left: {}", explain_end(&status));
        }
        let elapsed = SystemClock.monotonic().saturating_duration_since(started_at);
        if elapsed >= note_after {
            note_after += PROGRESS_INTERVAL;
            if let Some(load) = status.load {
                note(format_args!(
                    "`{name}` is draining: {} running, {} queued, after {} s",
                    load.running,
                    load.queued,
                    elapsed.as_secs()
                ));
            }
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    Ok(())
}

/// Why a node does not run, since when, and what becomes of its work.
fn explain_end(status: &NodeStatus) -> String {
    let NodeStatus { node, open, .. } = status;
    let seen = status.seen_text();
    match &status.state {
        NodeState::Left => {
            format!("it left {seen} ago; another node delivers what it had not reported ({open})")
        }
        NodeState::TakenOver(by) => format!(
            "`{by}` took over {seen} ago, ends its runs as ABORTED and delivers its reports. Check the log of `{node}`, \
             then start it again"
        ),
        NodeState::Live | NodeState::Draining => format!(
            "it has not renewed its lease for {seen}. The next node that runs ends what it left open ({open}) as ABORTED \
             and delivers its reports; if no other node runs, that is `{node}` itself. Check its log, then start it again"
        ),
    }
}

/// What `fleet init` may do with these options.
fn init_mode(
    new: bool,
    replaces: Vec<String>,
    remembered: Option<&StreamIdentity>,
) -> anyhow::Result<InitMode> {
    if !new {
        return Ok(InitMode::First);
    }
    if replaces.is_empty() && remembered.is_none() {
        bail!(UsageError(
            "this configuration has no journal that remembers a fleet, so `--new` replaces nothing: name the stream that \
             a refused node names, with `--replaces ID`, or leave `--new` out"
                .to_owned()
        ));
    }
    let parse = |id: String| {
        let shown = one_line(&id).to_string();
        StreamId::try_from(id).map_err(|error| UsageError(format!("`--replaces`: `{shown}` {error}")))
    };
    Ok(InitMode::Replace(replaces.into_iter().map(parse).collect::<Result<_, _>>()?))
}

/// Adds the fleet and its servers to an error.
fn failed(settings: &FleetSettings) -> impl Fn(FleetError) -> anyhow::Error {
    move |error| anyhow::Error::new(error).context(settings.describe_failure())
}

fn settings(config: &Config) -> anyhow::Result<&FleetSettings> {
    let missing =
        || UsageError("the configuration has no `[fleet]`: name the file with `--config`".to_owned());
    Ok(config.fleet.as_ref().ok_or_else(missing)?)
}

/// The identity of the fleet's stream that the journal remembers; `None` without a journal.
fn remembered(config: &Config) -> anyhow::Result<Option<StreamIdentity>> {
    let text = a2g_journal::remembered_fleet(&config.journal)?;
    let remembered = text.as_deref().map(RememberedFleet::parse).transpose()?;
    Ok(remembered.map(|remembered| remembered.stream))
}

async fn open_view(config: &Config) -> anyhow::Result<(FleetSettings, FleetView<ServerStore>)> {
    let settings = settings(config)?;
    let key = read_fleet_key(&settings.key_file)?;
    let opened = a2g_fleet::open_store(settings, &key, remembered(config)?.as_ref()).await;
    let store = opened.map_err(failed(settings))?;
    Ok((settings.clone(), FleetView::new(store, key, settings.name.clone())))
}

fn print_status(settings: &FleetSettings, nodes: &[NodeStatus], json: bool) -> anyhow::Result<ExitCode> {
    let hash = hash_heads(nodes);
    if json {
        let nodes = nodes.iter().map(|node| {
            let figure = |read: fn(NodeLoad) -> usize| node.load.map(read);
            serde_json::json!({
                "node": node.node.as_str(), "state": node.state_name(), "seen_seconds_ago": node.seen.as_secs(),
                "taken_over_by": node.taken_over_by().map(NodeName::as_str), "version": node.version,
                "running": figure(|load| load.running), "queued": figure(|load| load.queued),
                "waiting": figure(|load| load.waiting), "concurrent": figure(|load| load.concurrent),
                "undelivered": figure(|load| load.undelivered), "open": node.open, "receipts": node.receipts,
                "head": node.head,
            })
        });
        let nodes = nodes.collect::<Vec<_>>();
        print(serde_json::json!({ "fleet": settings.name.as_str(), "nodes": nodes, "fleet_hash": hash }));
        return Ok(ExitCode::SUCCESS);
    }
    let mut listing = Listing::new(&[
        "NODE", "STATE", "SEEN", "VERSION", "RUNNING", "QUEUED", "WAITING", "OPEN", "UNSENT", "RECEIPTS",
    ]);
    for node in nodes {
        let figure = |show: fn(NodeLoad) -> String| text(node.load.map_or_else(|| "-".to_owned(), show));
        listing.row([
            text(node.node.to_string()),
            text(match node.taken_over_by() {
                None => node.state_name().to_owned(),
                Some(by) => format!("{}, {by} took over", node.state_name()),
            }),
            text(format!("{} ago", node.seen_text())),
            text(&node.version),
            figure(|load| format!("{} of {}", load.running, load.concurrent)),
            figure(|load| load.queued.to_string()),
            figure(|load| load.waiting.to_string()),
            text(node.open.to_string()),
            figure(|load| load.undelivered.to_string()),
            text(node.receipts.to_string()),
        ]);
    }
    listing.show(std::io::stdout());
    print(format_args!("fleet hash {hash}"));
    Ok(ExitCode::SUCCESS)
}

/// The hash of the latest receipts of all nodes, in hexadecimal. It changes with each new receipt.
fn hash_heads(nodes: &[NodeStatus]) -> String {
    let lines = nodes.iter().map(|node| format!("{} {} {}\n", node.node, node.receipts, node.head));
    a2g_journal::chain::to_hex(&Sha256::digest(lines.collect::<String>()).into())
}
