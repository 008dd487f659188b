//! A client's connection: its messages drive episodes, and the results are its answers. All of it runs in the task of its
//! socket, so that a slow or fast client does not delay others.

use std::{
    future::poll_fn,
    pin::pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use rollmesh_core::{
    hub::PeerConnection as _,
    protocol::{
        EpisodeDriver, Message, MessageFrame as OutFrame,
        convert::{AgentTable, AgentTableError, RowKind},
    },
    time::Micros,
};
use tokio::{
    sync::Notify,
    time::{Instant, sleep},
};

use super::link::PeerLink;
use crate::external::ExternalMultiAgentEnv;

/// Back-pressure limit in bytes: while more is queued for a client, its messages are not read.
const MAX_BACKLOG_BYTES: usize = 1 << 20;
/// Estimated size of an answer: most errors are shorter, and so are the actions of few agents.
const USUAL_ANSWER_BYTES: usize = 512;
/// Polling interval for a free lane, since lanes also become free by other means than clients.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// State shared by all clients.
pub(super) struct ClientsState {
    env: ExternalMultiAgentEnv,
    table: Arc<AgentTable>,
    spaces: OutFrame,
    /// Maximum number of answers queued for a client.
    max_backlog: usize,
    /// Notified when a client's episode began or ended: others may be waiting for a lane.
    freed: Notify,
    epoch: Instant,
}

impl ClientsState {
    pub(super) fn new(env: ExternalMultiAgentEnv) -> Result<Self, AgentTableError> {
        let agents = env.agents().into_iter().filter_map(|agent| env.spaces(&agent).map(|spaces| (agent, spaces)));
        let table = AgentTable::new(agents)?;
        let spaces = Message::Spaces(table.spaces(u32::try_from(env.num_envs()).unwrap_or(u32::MAX))?);
        let spaces = OutFrame::new(&spaces).map_err(|error| AgentTableError::LongText(error.bytes as usize))?;
        let max_backlog = MAX_BACKLOG_BYTES / table.row_bytes(RowKind::Action).max(USUAL_ANSWER_BYTES);
        let table = Arc::new(table);
        Ok(Self { env, table, spaces, max_backlog, freed: Notify::new(), epoch: Instant::now() })
    }
}

/// A client's side of the environment. Dropping it abandons its open episodes.
pub(super) struct Client {
    clients: Arc<ClientsState>,
    driver: EpisodeDriver,
    link: PeerLink,
    /// Scratch buffer for the episodes that wait for the sampler.
    waiting: Vec<u64>,
}

impl Client {
    /// Sends a new client the spaces of all agents.
    pub(super) fn new(peer: u32, clients: Arc<ClientsState>, link: PeerLink) -> Self {
        link.send_frame(clients.spaces.clone());
        let timeout = Micros::from(clients.env.episode_timeout);
        Self { driver: EpisodeDriver::new(peer, clients.table.clone(), timeout), clients, link, waiting: Vec::new() }
    }

    /// Returns whether another message of the client may be read.
    pub(super) fn takes_messages(&self) -> bool {
        !self.driver.is_full() && !self.is_behind()
    }

    /// Returns whether the client is a slow consumer.
    fn is_behind(&self) -> bool {
        self.link.queued_frames() >= self.clients.max_backlog
    }

    /// Handles a message of the client.
    pub(super) fn handle(&mut self, message: Message) {
        let (mut answers, open, now) = (Vec::new(), self.driver.open(), self.now());
        self.clients.env.say(|episodes| self.driver.handle(message, now, episodes, &mut answers));
        self.send(&answers, open);
    }

    /// Waits for changes that concern the client, and sends them.
    pub(super) async fn changed(&mut self) {
        let (clients, link) = (self.clients.clone(), self.link.clone());
        // Registers for the notification before polling, so that none is missed in between.
        let mut freed = pin!(clients.freed.notified());
        freed.as_mut().enable();
        let (is_starting, is_behind) = (self.driver.is_starting(), self.is_behind());
        let patience = self.driver.deadline().map(|deadline| deadline.since(self.now()).into());
        tokio::select! {
            biased;
            () = poll_fn(|context| if self.look(context) { Poll::Ready(()) } else { Poll::Pending }) => {}
            () = freed, if is_starting => {}
            () = sleep(LOOK_AGAIN), if is_starting => {}
            () = link.drained(), if is_behind => {}
            () = sleep(patience.unwrap_or_default()), if patience.is_some() => {}
        }
    }

    fn now(&self) -> Micros {
        self.clients.epoch.elapsed().into()
    }

    /// Polls the episodes and sends the answers. True if there were any, or the driver became full or not full, or got or lost a
    /// deadline.
    fn look(&mut self, context: &Context<'_>) -> bool {
        let (mut answers, open, was_full) = (Vec::new(), self.driver.open(), self.driver.is_full());
        let (now, had_deadline) = (self.now(), self.driver.deadline().is_some());
        self.clients.env.look(context, &mut self.waiting, |episodes, waiting| {
            let has_said = self.driver.poll(now, episodes, &mut answers);
            self.driver.waits_for(waiting);
            has_said
        });
        self.send(&answers, open);
        let has_deadline = self.driver.deadline().is_some();
        !answers.is_empty() || was_full != self.driver.is_full() || has_deadline != had_deadline
    }

    /// Sends answers, and notifies other clients if the number of open episodes has changed: an episode that began may have
    /// been the first in the queue.
    fn send(&self, answers: &[Message], open_before: usize) {
        for answer in answers {
            // The rows of all agents fit into a message: the agent table guarantees it.
            let _ = self.link.send(answer);
        }
        if self.driver.open() != open_before {
            self.clients.freed.notify_waiters();
        }
    }

    /// Ends the client's episodes when it disconnects; returns the number of open ones.
    pub(super) fn leave(&mut self) -> usize {
        let abandoned = self.clients.env.say(|episodes| self.driver.leave(episodes));
        self.clients.freed.notify_waiters();
        abandoned
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.leave();
    }
}
