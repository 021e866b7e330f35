//! `fleet`: lists the nodes of the configured fleet, and asks one to leave.

use super::UsageError;
use super::arguments::FleetCommand;
use super::layout::{Listing, text};
use super::output::{note, one_line, print};
use super::setup::config;
use a2g_fleet::{FleetKey, FleetSettings, FleetView, NatsStore, NodeName, NodeStatus};
use a2g_govern::read_secret;
use anyhow::{Context as _, bail};
use sha2::{Digest as _, Sha256};
use std::path::Path;
use std::process::ExitCode;

pub(super) fn main(command: FleetCommand) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    match command {
        FleetCommand::Status { setup, json } => runtime.block_on(async {
            let (settings, view) = open_view(&config(&setup)?.fleet).await?;
            let (nodes, unreadable) = view.status().await?;
            for error in unreadable {
                note(format_args!("warning: {error}"));
            }
            if nodes.is_empty() {
                note(format_args!("no node has joined the fleet `{}`", settings.name));
            }
            print_status(&settings, &nodes, json)
        }),
        FleetCommand::Drain { setup, node } => runtime.block_on(async {
            let (settings, view) = open_view(&config(&setup)?.fleet).await?;
            let name = NodeName::try_from(node.clone());
            let name = name.map_err(|error| UsageError(format!("`{}` {error}", one_line(&node))))?;
            if !view.request_drain(&name).await? {
                bail!(
                    "the fleet `{}` has no running node `{name}`: see `a2g-executor fleet status`",
                    settings.name
                );
            }
            note(format_args!("`{name}` was asked to finish its runs and to end. It checks this every 3 s."));
            Ok(ExitCode::SUCCESS)
        }),
    }
}

async fn open_view(
    settings: &Option<FleetSettings>,
) -> anyhow::Result<(FleetSettings, FleetView<NatsStore>)> {
    let Some(settings) = settings else {
        bail!(UsageError("the configuration has no `[fleet]`: name the file with `--config`".to_owned()));
    };
    let key = read_key(&settings.key_file)?;
    let store = a2g_fleet::open_store(settings).await?;
    Ok((settings.clone(), FleetView::new(store, key, settings.name.clone())))
}

/// Reads the key of a fleet.
pub(super) fn read_key(path: &Path) -> anyhow::Result<FleetKey> {
    let text = read_secret(path).context("`fleet.key_file`")?;
    FleetKey::parse(text.trim_ascii_end()).with_context(|| {
        format!(
            "`{}` (`fleet.key_file`) has to contain 64 hexadecimal digits in lower case: make one with \
             `(umask 077; openssl rand -hex 32 > FILE)`, and copy it to all nodes",
            path.display()
        )
    })
}

fn print_status(settings: &FleetSettings, nodes: &[NodeStatus], json: bool) -> anyhow::Result<ExitCode> {
    let hash = hash_heads(nodes);
    if json {
        let nodes = nodes.iter().map(|node| {
            serde_json::json!({
                "node": node.node.as_str(), "state": node.state_name(),
                "taken_over_by": node.taken_over_by().map(NodeName::as_str), "version": node.version,
                "running": node.load.running, "queued": node.load.queued, "waiting": node.load.waiting,
                "concurrent": node.load.concurrent,
                "undelivered": node.load.undelivered, "open": node.open, "receipts": node.receipts, "head": node.head,
            })
        });
        let nodes = nodes.collect::<Vec<_>>();
        print(serde_json::json!({ "fleet": settings.name.as_str(), "nodes": nodes, "fleet_hash": hash }));
        return Ok(ExitCode::SUCCESS);
    }
    let mut listing = Listing::new(&[
        "NODE", "STATE", "VERSION", "RUNNING", "QUEUED", "WAITING", "OPEN", "UNSENT", "RECEIPTS",
    ]);
    for node in nodes {
        listing.row([
            text(node.node.to_string()),
            text(match node.taken_over_by() {
                None => node.state_name().to_owned(),
                Some(by) => format!("{}, {by} took over", node.state_name()),
            }),
            text(&node.version),
            text(format!("{} of {}", node.load.running, node.load.concurrent)),
            text(node.load.queued.to_string()),
            text(node.load.waiting.to_string()),
            text(node.open.to_string()),
            text(node.load.undelivered.to_string()),
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
