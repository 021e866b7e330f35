//! The events of a run, as the node that runs a call sends them to the node at which the call waited.

use crate::run::faults::NodeFault;
use crate::run::fleet::Fleet;
use crate::run::{RunEvent, RunEventSink};
use a2g_fleet::MAX_MESSAGE_BYTES;
use a2g_types::fault::Fault;
use a2g_types::ident::IntentId;
use a2g_types::outcome::{Artifact, LogLine, Progress, Receipt};
use a2g_types::stored::v1;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use tokio::sync::mpsc;

/// The maximum number of events that wait to be sent. More are dropped: the receipt has their log lines and artifacts.
pub(super) const MAX_UNSENT_EVENTS: usize = 256;

/// A message of the node that runs a call to the node at which the call waited.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum PassedEvent {
    Started,
    Progress(#[serde(with = "v1::Progress")] Progress),
    /// The number of earlier log lines, and the line.
    Log(usize, #[serde(with = "v1::LogLine")] LogLine),
    /// The number of earlier artifacts, and the artifact.
    Artifact(usize, #[serde(with = "v1::Artifact")] Artifact),
    /// The sender has not run the call, for this reason. [`Self::Ended`] follows.
    Refused(NodeFault),
    /// No event follows: the receipt is in the fleet, or the call has not run.
    Ended,
}

/// Delivers the events of another node to a sink, each log line and artifact once and in order.
pub(super) struct EventReceiver {
    sink: RunEventSink,
    /// The number of log lines delivered.
    logs: usize,
    /// The number of artifacts delivered.
    artifacts: usize,
    /// The reason for which the other node has not run the call, if it sent one.
    pub(super) refusal: Option<Fault>,
}

impl EventReceiver {
    pub(super) fn new(sink: RunEventSink) -> Self {
        Self { sink, logs: 0, artifacts: 0, refusal: None }
    }

    pub(super) fn deliver(&mut self, event: PassedEvent) {
        let event = match event {
            PassedEvent::Started => RunEvent::Started,
            PassedEvent::Progress(progress) => RunEvent::Progress(progress),
            // If an earlier one was lost, `complete` delivers this one in its order.
            PassedEvent::Log(number, line) if number == self.logs => {
                self.logs += 1;
                RunEvent::Log(line)
            }
            PassedEvent::Artifact(number, artifact) if number == self.artifacts => {
                self.artifacts += 1;
                RunEvent::Artifact(artifact)
            }
            PassedEvent::Log(..) | PassedEvent::Artifact(..) => return,
            PassedEvent::Refused(_) | PassedEvent::Ended => return,
        };
        self.sink.send(event);
    }

    /// Delivers the log lines and artifacts whose events were lost.
    pub(super) fn complete(&self, receipt: &Receipt) {
        let output = &receipt.outcome.output;
        for line in output.logs.iter().skip(self.logs) {
            self.sink.send(RunEvent::Log(line.clone()));
        }
        for artifact in output.artifacts.iter().skip(self.artifacts) {
            self.sink.send(RunEvent::Artifact(artifact.clone()));
        }
    }
}

/// A sink that sends the events of a run to `events`, in the form for another node. Events that find the channel full are
/// dropped.
pub(super) fn event_sink(events: mpsc::Sender<PassedEvent>) -> RunEventSink {
    let logs = AtomicUsize::new(0);
    let artifacts = AtomicUsize::new(0);
    RunEventSink::new(move |event| {
        let event = match event {
            RunEvent::Started => PassedEvent::Started,
            RunEvent::Progress(progress) => PassedEvent::Progress(progress),
            RunEvent::Log(line) => PassedEvent::Log(logs.fetch_add(1, Relaxed), line),
            RunEvent::Artifact(artifact) => PassedEvent::Artifact(artifacts.fetch_add(1, Relaxed), artifact),
        };
        drop(events.try_send(event));
    })
}

/// Sends the events of a run, and then its end, once every sink of the run is dropped.
pub(super) async fn send_events(
    fleet: Arc<Fleet>,
    intent: IntentId,
    mut events: mpsc::Receiver<PassedEvent>,
) {
    let send = async |event: &PassedEvent| {
        let text = match serde_json::to_vec(event) {
            Ok(text) if text.len() <= MAX_MESSAGE_BYTES => text,
            // The receipt has it.
            Ok(_too_long) => return,
            Err(error) => return tracing::error!(%intent, %error, "an event of a run cannot be written"),
        };
        if let Err(error) = fleet.messages.send_event(intent, &text).await {
            tracing::debug!(%error, "an event was not sent");
        }
    };
    while let Some(event) = events.recv().await {
        send(&event).await;
    }
    send(&PassedEvent::Ended).await;
}
