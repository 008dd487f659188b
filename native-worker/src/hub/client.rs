//! A client's connection: its messages become episodes, and what comes of those its answers. All in the task of its
//! socket, so that a client that is slow or too fast is in nobody's way.

use std::{
    future::poll_fn,
    pin::pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use rollmesh_core::{
    protocol::{
        EpisodeDriver, Frame as OutFrame, Message,
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

/// A client for which about this much waits to be sent has to take some before it is heard again.
const MAX_BACKLOG_BYTES: usize = 1 << 20;
/// Most errors are shorter, and so are the actions of few agents.
const USUAL_ANSWER_BYTES: usize = 512;
/// Lanes may become free otherwise than by clients: whoever waits for one looks again after this time.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// What clients have in common.
pub(super) struct Clients {
    env: ExternalMultiAgentEnv,
    table: Arc<AgentTable>,
    spaces: OutFrame,
    /// Answers that may wait to be sent to a client.
    max_backlog: usize,
    /// A client's episode has ended or begun: others may wait for a lane.
    freed: Notify,
    epoch: Instant,
}

impl Clients {
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

/// A client's side of the environment. Dropping it abandons what is open.
pub(super) struct Client {
    clients: Arc<Clients>,
    driver: EpisodeDriver,
    link: PeerLink,
    /// Room for the episodes that wait for the sampler.
    waiting: Vec<u64>,
}

impl Client {
    /// Tells a new client what there is.
    pub(super) fn new(peer: u32, clients: Arc<Clients>, link: PeerLink) -> Self {
        link.send_frame(clients.spaces.clone());
        let timeout = Micros(u64::try_from(clients.env.episode_timeout.as_micros()).unwrap_or(u64::MAX));
        Self { driver: EpisodeDriver::new(peer, clients.table.clone(), timeout), clients, link, waiting: Vec::new() }
    }

    /// Whether more of the client can be heard.
    pub(super) fn has_room(&self) -> bool {
        !self.driver.is_full() && !self.is_behind()
    }

    /// Whether the client takes too little.
    fn is_behind(&self) -> bool {
        self.link.queued_frames() >= self.clients.max_backlog
    }

    /// Does what the client says.
    pub(super) fn handle(&mut self, message: Message) {
        let (mut answers, open, now) = (Vec::new(), self.driver.open(), self.now());
        self.clients.env.say(|episodes| self.driver.handle(message, now, episodes, &mut answers));
        self.send(&answers, open);
    }

    /// Waits until something has happened, and tells the client.
    pub(super) async fn changed(&mut self) {
        let (clients, link) = (self.clients.clone(), self.link.clone());
        // Listens before it looks, so that nothing is missed in between.
        let mut freed = pin!(clients.freed.notified());
        freed.as_mut().enable();
        let (is_starting, is_behind) = (self.driver.is_starting(), self.is_behind());
        let patience = self.driver.deadline().map(|deadline| Duration::from_micros(deadline.since(self.now()).0));
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
        Micros(self.clients.epoch.elapsed().as_micros() as u64)
    }

    /// Looks what has become of the episodes; true if that is news to anybody.
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

    /// Sends answers, and tells the others if another number of episodes is open than before: one that began may have been
    /// the first in line.
    fn send(&self, answers: &[Message], open_before: usize) {
        for answer in answers {
            // Rows of all agents fit into a message: the table has seen to that.
            let _ = self.link.send(answer);
        }
        if self.driver.open() != open_before {
            self.clients.freed.notify_waiters();
        }
    }

    /// The client is gone; how many of its episodes were open.
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
