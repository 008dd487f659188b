//! A program's handles of its hub's runs: their state, their summaries and their batches.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use rollmesh_core::{batch::SlotFragment, protocol::message::RunStatus};
use tokio::{
    runtime::Handle,
    sync::{mpsc, oneshot, watch},
};

use super::actor::Event;
use crate::runs::Summary;

/// The hub has stopped, and with it the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the hub has stopped, and its run with it: start another hub")]
pub struct HubStopped;

/// The summary of a run, a future that is ready when the run is over. Dropping it has no effect on the run.
#[derive(Debug)]
#[must_use = "a future does nothing unless it is awaited"]
pub struct PendingSummary(pub(super) oneshot::Receiver<Summary>);

impl PendingSummary {
    /// Returns true once the summary has been received.
    pub(crate) fn is_terminated(&self) -> bool {
        self.0.is_terminated()
    }
}

impl Future for PendingSummary {
    type Output = Result<Summary, HubStopped>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context).map_err(|_| HubStopped)
    }
}

/// Follows the state of a hub's current run.
#[derive(Clone, Debug)]
pub struct StatusWatch(pub(super) watch::Receiver<RunStatus>);

impl StatusWatch {
    /// Returns the current state.
    #[must_use]
    pub fn current(&self) -> RunStatus {
        self.0.borrow().clone()
    }

    /// Waits for a change since the latest call, and returns the state then; states in between may be skipped.
    ///
    /// # Errors
    /// [`HubStopped`].
    pub async fn changed(&mut self) -> Result<RunStatus, HubStopped> {
        self.0.changed().await.map_err(|_| HubStopped)?;
        Ok(self.0.borrow_and_update().clone())
    }

    /// Waits for a state of which the condition is true, the current one included, and returns it.
    ///
    /// # Errors
    /// [`HubStopped`].
    pub async fn wait_for(&mut self, condition: impl FnMut(&RunStatus) -> bool) -> Result<RunStatus, HubStopped> {
        self.0.wait_for(condition).await.map(|status| status.clone()).map_err(|_| HubStopped)
    }
}

/// Stops the current run of a hub from any thread, also while another one waits for the run. Clones share the hub.
#[derive(Clone, Debug)]
pub struct RunStopper {
    pub(super) events: mpsc::WeakSender<Event>,
    pub(super) runtime: Handle,
}

impl RunStopper {
    /// Works like [`Hub::stop_run`](super::Hub::stop_run), without waiting for the hub.
    pub fn stop(&self) {
        // A hub that has stopped has no run.
        let Some(events) = self.events.upgrade() else { return };
        self.runtime.spawn(async move { _ = events.send(Event::ask(|actor| actor.hub.stop_run())).await });
    }
}

/// The handle of a run without a learner. Dropping it ends the run.
#[derive(Debug)]
pub struct Sampling {
    pub(super) batches: mpsc::Receiver<Vec<SlotFragment>>,
    pub(super) summary: PendingSummary,
}

impl Sampling {
    /// Waits for the next batch: the fragments of all slots, in slot order, one batch per iteration. The run waits until its
    /// batch is taken. Returns `None` when the run is over. Nothing is lost if the future is dropped.
    pub async fn next_batch(&mut self) -> Option<Vec<SlotFragment>> {
        self.batches.recv().await
    }

    /// Ends the run, unless it is over, and returns its summary.
    pub fn end(self) -> PendingSummary {
        self.summary
    }
}
