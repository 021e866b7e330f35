//! The webhooks of tasks: the push notification configurations of the protocol.

use super::Answer;
use super::tasks::{TaskHandle, TaskStore, TaskWebhooks};
use a2g_core::run::Executor;
use a2g_govern::Caller;
use a2g_types::ident::IntentId;
use a2g_wire::a2a::fault::Problem;
use a2g_wire::a2a::push::{self, PushConfig};
use a2g_wire::jsonrpc::Id;
use std::sync::Arc;

/// Maximum number of webhooks of a task.
const MAX_WEBHOOKS: usize = 8;

/// Changes and lists the webhooks of tasks.
pub(super) struct Push {
    executor: Arc<Executor>,
    store: Arc<TaskStore>,
    /// `None` if webhooks are disabled.
    hooks: Option<TaskWebhooks>,
}

impl Push {
    pub(super) fn new(executor: Arc<Executor>, store: Arc<TaskStore>, hooks: Option<TaskWebhooks>) -> Self {
        Self { executor, store, hooks }
    }

    pub(super) async fn set(&self, caller: &Caller, id: &Id, task: &str, config: PushConfig) -> Answer {
        let handle = self.find_task(caller, task).await?;
        let config = self.complete(config, "/pushNotificationConfig/url")?;
        let webhook = config.clone();
        self.change(&handle, |webhooks| add_webhook(webhooks, webhook)).await?;
        Ok(push::set_response(id, task, &config, self.require_enabled()?.dialect))
    }

    pub(super) async fn get(&self, caller: &Caller, id: &Id, task: &str, config: Option<&str>) -> Answer {
        let record = self.find_task(caller, task).await?.record();
        let matches = |webhook: &&PushConfig| config.is_none_or(|id| webhook.id == id);
        let webhook = record.webhooks.iter().find(matches).ok_or(Problem::PushNotFound)?;
        Ok(push::get_response(id, task, webhook))
    }

    pub(super) async fn list(&self, caller: &Caller, id: &Id, task: &str) -> Answer {
        let record = self.find_task(caller, task).await?.record();
        Ok(push::list_response(id, task, &record.webhooks))
    }

    pub(super) async fn delete(&self, caller: &Caller, id: &Id, task: &str, config: &str) -> Answer {
        let handle = self.find_task(caller, task).await?;
        self.change(&handle, |webhooks| {
            let before = webhooks.len();
            webhooks.retain(|webhook| webhook.id != config);
            if webhooks.len() < before { Ok(()) } else { Err(Problem::PushNotFound) }
        })
        .await?;
        Ok(push::delete_response(id))
    }

    /// Checks the URL of a webhook, and adds an id and the time of creation.
    pub(super) fn complete(&self, config: PushConfig, pointer: &str) -> Result<PushConfig, Problem> {
        self.require_enabled()?.poster.check(&config.url).map_err(|error| {
            let message = format!(
                "the URL cannot receive webhooks ({error}): `doors.a2a.webhook_domains` lists the allowed hosts"
            );
            Problem::invalid(pointer, &message)
        })?;
        let id = if config.id.is_empty() { IntentId::random().to_string() } else { config.id };
        Ok(PushConfig { id, created_at: self.executor.clock().now().truncate_to_millisecond(), ..config })
    }

    /// The settings of webhooks, if they are enabled.
    fn require_enabled(&self) -> Result<&TaskWebhooks, Problem> {
        self.hooks.as_ref().ok_or(Problem::PushUnsupported)
    }

    /// A task of the caller, if webhooks are enabled.
    async fn find_task(&self, caller: &Caller, task: &str) -> Result<Arc<TaskHandle>, Problem> {
        self.require_enabled()?;
        self.store.find_for(caller, task, &[]).await
    }

    /// Changes the webhooks of a task. On return the change is on the disk.
    async fn change(
        &self,
        handle: &TaskHandle,
        change: impl FnOnce(&mut Vec<PushConfig>) -> Result<(), Problem>,
    ) -> Result<(), Problem> {
        let pending_write = handle.try_change(|record| change(&mut record.webhooks).map(|()| Vec::new()))?;
        pending_write.await.map_err(|error| Problem::Core(error.into()))
    }
}

/// Adds a webhook; one with the same id is replaced.
pub(super) fn add_webhook(webhooks: &mut Vec<PushConfig>, config: PushConfig) -> Result<(), Problem> {
    webhooks.retain(|before| before.id != config.id);
    if webhooks.len() >= MAX_WEBHOOKS {
        return Err(Problem::invalid(
            "/pushNotificationConfig",
            &format!("the task has {MAX_WEBHOOKS} webhooks, which is the maximum: delete one first"),
        ));
    }
    webhooks.push(config);
    Ok(())
}
