//! [`EpisodeDriver`]: the hub's side of a client connection, without the socket.

use super::{
    EpisodeCode, Kind, Message,
    convert::{AgentReturn, AgentTable, RowKind},
    episode_fault::{EpisodeRefusal, reply},
    message::{Actions, GetAction, LogAction, LogReturns},
};
use crate::{
    env::{
        external::{ExternalEpisodes, ExternalError},
        multi_agent::{AgentRows, Outcome},
    },
    ids::AgentId,
    prelude::*,
    time::Micros,
};

/// Drives the episodes of one client: translates its messages to calls of [`ExternalEpisodes`], and their results to
/// messages for it.
///
/// Nothing in here blocks. An operation that is not possible yet is queued, in order per episode, and retried by
/// [`poll`](Self::poll): an episode without a free lane, a turn while the sampler's queue is full. While
/// [`is_full`](Self::is_full) returns true, the caller must not read further messages of the client (back-pressure);
/// queued messages depend only on the sampler, not on later messages.
///
/// A client that waits for a lane queues [in line](ExternalEpisodes::start_queued) with the others. An episode times out if
/// its client sends nothing for it while no answer of the sampler is pending, since other clients may wait for its lane.
#[derive(Debug)]
pub struct EpisodeDriver {
    client: u32,
    table: Arc<AgentTable>,
    /// The duration for which a client may send nothing for an episode before it times out.
    timeout: Micros,
    episodes: BTreeMap<u32, Driven>,
    kept: usize,
    kept_bytes: usize,
    observations: AgentRows,
    actions: AgentRows,
}

/// An episode of the client.
#[derive(Debug)]
enum Driven {
    /// It waits for a lane.
    Starting { training: bool },
    /// It is open.
    Open {
        /// Whether it waits for actions.
        asked: bool,
        /// Messages queued until the sampler has capacity.
        kept: VecDeque<Message>,
        /// When the hub last handled a message of it or answered one; its timeout counts from then.
        since: Micros,
    },
}

impl Driven {
    /// Returns since when the hub has been waiting for the client, if it is.
    fn silent_since(&self) -> Option<Micros> {
        match self {
            Self::Open { asked: false, kept, since } if kept.is_empty() => Some(*since),
            _ => None,
        }
    }
}

/// Result of handling a message.
enum Handled {
    /// Done, and confirmed by a reply.
    Yes,
    /// Done; the answer follows later, or there is none.
    Silently,
    /// Not possible before the sampler has capacity.
    NotYet,
}

impl EpisodeDriver {
    /// Most episodes of a client that are open or waiting to begin.
    pub const MAX_EPISODES: usize = 1024;
    /// Most queued messages of a client before back-pressure.
    const MAX_KEPT: usize = 256;
    /// Most bytes of queued messages of a client before back-pressure.
    const MAX_KEPT_BYTES: usize = 1 << 20;

    /// Creates a driver for a client without episodes. Each client of the same [`ExternalEpisodes`] needs a number of its
    /// own. An episode times out when the client sends nothing for it for `timeout`.
    #[must_use]
    pub fn new(client: u32, table: Arc<AgentTable>, timeout: Micros) -> Self {
        Self {
            client,
            table,
            timeout,
            episodes: BTreeMap::new(),
            kept: 0,
            kept_bytes: 0,
            observations: AgentRows::new(),
            actions: AgentRows::new(),
        }
    }

    /// Returns true while no more messages of the client may be [handled](Self::handle).
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.kept >= Self::MAX_KEPT || self.kept_bytes >= Self::MAX_KEPT_BYTES
    }

    /// Handles a client's message, or queues it. Adds answers to `answers`. Ignores messages that clients do not send.
    pub fn handle(
        &mut self,
        message: Message,
        now: Micros,
        episodes: &mut ExternalEpisodes,
        answers: &mut Vec<Message>,
    ) {
        let Some(number) = episode_of(&message) else { return };
        let about = message.kind();
        if let Message::StartEpisode(start) = message {
            match self.may_start(number) {
                Ok(()) => {
                    self.episodes.insert(number, Driven::Starting { training: start.training });
                    self.start(number, start.training, now, episodes, answers);
                }
                Err(fault) => answers.push(reply(number, about, Err(fault))),
            }
            return;
        }
        if let Some(Driven::Open { since, .. }) = self.episodes.get_mut(&number) {
            *since = now;
        }
        match self.episodes.get_mut(&number) {
            Some(Driven::Open { kept, .. }) if !kept.is_empty() && about != Kind::AbandonEpisode => {
                self.kept += 1;
                self.kept_bytes += size_of(&message);
                kept.push_back(message);
            }
            Some(_) if about == Kind::AbandonEpisode => self.abandon(number, episodes, answers),
            Some(Driven::Open { .. }) => {
                if let Some(kept) = self.attempt(number, message, episodes, answers) {
                    self.kept += 1;
                    self.kept_bytes += size_of(&kept);
                    if let Some(Driven::Open { kept: queue, .. }) = self.episodes.get_mut(&number) {
                        queue.push_back(kept);
                    }
                }
            }
            Some(Driven::Starting { .. }) | None => {
                answers.push(reply(number, about, Err(EpisodeRefusal::of(number, ExternalError::UnknownEpisode(0)))));
            }
        }
    }

    /// Retries queued messages, delivers actions that are ready, and times out silent episodes. Call it whenever the sampler
    /// or another client has done something, and at the [deadline](Self::deadline). Returns true if the sampler may have new
    /// input.
    pub fn poll(&mut self, now: Micros, episodes: &mut ExternalEpisodes, answers: &mut Vec<Message>) -> bool {
        let (mut has_said, was_full, mut has_turn) = (false, self.is_full(), true);
        let numbers: Vec<u32> = self.episodes.keys().copied().collect();
        for number in numbers {
            if let Some(Driven::Starting { training }) = self.episodes.get(&number) {
                // If one episode has to wait, later ones wait as well, to keep their order.
                has_turn = has_turn && self.start(number, *training, now, episodes, answers);
                continue;
            }
            self.bring_actions(number, now, episodes, answers);
            while let Some(Driven::Open { kept, .. }) = self.episodes.get_mut(&number)
                && let Some(message) = kept.pop_front()
            {
                let size = size_of(&message);
                if let Some(message) = self.attempt(number, message, episodes, answers) {
                    if let Some(Driven::Open { kept, .. }) = self.episodes.get_mut(&number) {
                        kept.push_front(message);
                    }
                    break;
                }
                self.kept -= 1;
                self.kept_bytes -= size;
                has_said = true;
                if let Some(Driven::Open { since, .. }) = self.episodes.get_mut(&number) {
                    *since = now;
                }
            }
            has_said |= self.expire(number, was_full, now, episodes, answers);
        }
        has_said
    }

    /// Returns when to [`poll`](Self::poll) at the latest: when the next episode times out.
    #[must_use]
    pub fn deadline(&self) -> Option<Micros> {
        self.episodes.values().filter_map(Driven::silent_since).min().map(|since| since + self.timeout)
    }

    /// Adds the episodes that wait for the sampler, by their ids in [`ExternalEpisodes`].
    pub fn waits_for(&self, ids: &mut Vec<u64>) {
        let waits = |driven: &Driven| matches!(driven, Driven::Open { asked, kept, .. } if *asked || !kept.is_empty());
        let waiting = self.episodes.iter().filter(|(_, driven)| waits(driven));
        ids.extend(waiting.map(|(number, _)| self.id(*number)));
    }

    /// Returns true while an episode waits for a lane.
    #[must_use]
    pub fn is_starting(&self) -> bool {
        self.episodes.values().any(|driven| matches!(driven, Driven::Starting { .. }))
    }

    /// Returns the number of open episodes of the client.
    #[must_use]
    pub fn open(&self) -> usize {
        self.episodes.values().filter(|driven| matches!(driven, Driven::Open { .. })).count()
    }

    /// Handles the client's disconnect: abandons its episodes. Returns how many were open.
    pub fn leave(&mut self, episodes: &mut ExternalEpisodes) -> usize {
        let numbers = core::mem::take(&mut self.episodes);
        (self.kept, self.kept_bytes) = (0, 0);
        episodes.leave_line(self.client);
        numbers.keys().filter(|number| episodes.abandon(self.id(**number)).is_ok()).count()
    }

    fn id(&self, number: u32) -> u64 {
        u64::from(self.client) << 32 | u64::from(number)
    }

    fn may_start(&self, number: u32) -> Result<(), EpisodeRefusal> {
        if self.episodes.contains_key(&number) {
            return Err(EpisodeRefusal::of(number, ExternalError::DuplicateEpisode(0)));
        }
        if self.episodes.len() >= Self::MAX_EPISODES {
            let reason = format!("{} episodes are open or wait: end some first", Self::MAX_EPISODES);
            return Err(EpisodeRefusal { code: EpisodeCode::TooMany, reason });
        }
        Ok(())
    }

    /// Begins an episode; returns false if it has to wait for a lane.
    fn start(
        &mut self,
        number: u32,
        training: bool,
        now: Micros,
        episodes: &mut ExternalEpisodes,
        answers: &mut Vec<Message>,
    ) -> bool {
        let started = match episodes.start_queued(self.client, self.id(number), training) {
            Ok(_) => {
                self.episodes.insert(number, Driven::Open { asked: false, kept: VecDeque::new(), since: now });
                Ok(())
            }
            // Retry once an episode has ended.
            Err(ExternalError::TooManyEpisodes(_)) => return false,
            Err(error) => {
                self.episodes.remove(&number);
                Err(EpisodeRefusal::of(number, error))
            }
        };
        answers.push(reply(number, Kind::StartEpisode, started));
        true
    }

    fn abandon(&mut self, number: u32, episodes: &mut ExternalEpisodes, answers: &mut Vec<Message>) {
        let abandoned = match self.forget(number) {
            Some(Driven::Open { .. }) => episodes.abandon(self.id(number)),
            _ => Ok(()),
        };
        if !self.is_starting() {
            episodes.leave_line(self.client);
        }
        answers.push(reply(number, Kind::AbandonEpisode, abandoned.map_err(|error| EpisodeRefusal::of(number, error))));
    }

    /// Times out an episode if its client has been silent for too long; returns true if so.
    fn expire(
        &mut self,
        number: u32,
        was_full: bool,
        now: Micros,
        episodes: &mut ExternalEpisodes,
        answers: &mut Vec<Message>,
    ) -> bool {
        let Some(driven) = self.episodes.get_mut(&number) else { return false };
        // The client's messages were not read because of back-pressure, so restart its timeout.
        if was_full && let Driven::Open { since, .. } = driven {
            *since = now;
        }
        if driven.silent_since().is_none_or(|since| now.since(since) < self.timeout) {
            return false;
        }
        self.forget(number);
        // If the sampler has lost the episode, there is nothing to abandon.
        let _ = episodes.abandon(self.id(number));
        let seconds = self.timeout.0 as f64 / 1e6;
        let reason =
            format!("episode {number} was given up: nothing was said of it for {seconds} s; start another one");
        // Refers to `StartEpisode`, which the client cannot be waiting for: it was answered when the episode began.
        answers.push(reply(number, Kind::StartEpisode, Err(EpisodeRefusal { code: EpisodeCode::TimedOut, reason })));
        true
    }

    /// Removes an episode with its queued messages.
    fn forget(&mut self, number: u32) -> Option<Driven> {
        let driven = self.episodes.remove(&number);
        if let Some(Driven::Open { kept, .. }) = &driven {
            self.kept -= kept.len();
            self.kept_bytes -= kept.iter().map(size_of).sum::<usize>();
        }
        driven
    }

    /// Handles a message about an open episode. Returns the message if the sampler has no capacity yet.
    fn attempt(
        &mut self,
        number: u32,
        message: Message,
        episodes: &mut ExternalEpisodes,
        answers: &mut Vec<Message>,
    ) -> Option<Message> {
        let about = message.kind();
        let done = match self.do_it(number, &message, episodes) {
            Ok(Handled::NotYet) => return Some(message),
            Ok(Handled::Silently) => return None,
            Ok(Handled::Yes) => Ok(()),
            Err(fault) => Err(fault),
        };
        let is_over = match &done {
            Ok(()) => about == Kind::EndEpisode,
            Err(fault) => fault.is_final(),
        };
        answers.push(reply(number, about, done));
        if is_over {
            self.close(number, answers);
        }
        None
    }

    /// Closes an episode and answers its queued messages, which can no longer be handled, with an error.
    fn close(&mut self, number: u32, answers: &mut Vec<Message>) {
        if let Some(Driven::Open { kept, .. }) = self.forget(number) {
            let fault = || EpisodeRefusal::of(number, ExternalError::UnknownEpisode(0));
            answers.extend(kept.iter().map(|message| reply(number, message.kind(), Err(fault()))));
        }
    }

    fn do_it(
        &mut self,
        number: u32,
        message: &Message,
        episodes: &mut ExternalEpisodes,
    ) -> Result<Handled, EpisodeRefusal> {
        let id = self.id(number);
        self.observations.clear();
        self.actions.clear();
        let (table, observations) = (&self.table, &mut self.observations);
        let done = match message {
            Message::GetAction(GetAction { observations: rows, .. }) => {
                table.read_rows(RowKind::Observation, rows, observations)?;
                episodes.request_actions(id, observations).map(|()| {
                    if let Some(Driven::Open { asked, .. }) = self.episodes.get_mut(&number) {
                        *asked = true;
                    }
                    Handled::Silently
                })
            }
            Message::LogAction(LogAction { observations: rows, actions, .. }) => {
                table.read_rows(RowKind::Observation, rows, observations)?;
                table.read_rows(RowKind::Action, actions, &mut self.actions)?;
                episodes.log_actions(id, observations, &self.actions).map(|()| Handled::Yes)
            }
            Message::LogReturns(LogReturns { returns, infos, .. }) => {
                let returns = table.read_returns(returns)?;
                let mut infos: BTreeMap<AgentId, &[u8]> = table.read_infos(infos)?.into_iter().collect_ordered();
                let nothing = |agent: &AgentId| AgentReturn { agent: agent.clone(), outcome: Outcome::default() };
                let unrewarded: Vec<AgentReturn> = infos.keys().map(nothing).collect();
                // All of them are checked first, so that either all or none are recorded.
                let all = || returns.iter().chain(&unrewarded);
                all()
                    .try_for_each(|of| episodes.check_returns(id, &of.agent, of.outcome))
                    .and_then(|()| {
                        all().try_for_each(|AgentReturn { agent, outcome }| {
                            episodes.log_returns(id, agent, *outcome, infos.remove(agent))
                        })
                    })
                    .map(|()| Handled::Silently)
            }
            Message::EndEpisode(end) => {
                table.read_rows(RowKind::Observation, &end.observations, observations)?;
                episodes.end_episode(id, observations, end.truncated).map(|()| Handled::Yes)
            }
            _ => Ok(Handled::Silently),
        };
        match done {
            Err(ExternalError::QueueFull { .. }) => Ok(Handled::NotYet),
            done => done.map_err(|error| EpisodeRefusal::of(number, error)),
        }
    }

    fn bring_actions(&mut self, number: u32, now: Micros, episodes: &mut ExternalEpisodes, answers: &mut Vec<Message>) {
        let id = self.id(number);
        let Some(Driven::Open { asked: asked @ true, since, .. }) = self.episodes.get_mut(&number) else { return };
        let taken = match episodes.take_actions(id, &mut self.actions) {
            Ok(false) => return,
            Ok(true) => {
                (*asked, *since) = (false, now);
                let mut actions = Vec::new();
                self.table
                    .write_rows(RowKind::Action, &self.actions, &mut actions)
                    .map(|()| actions)
                    .map_err(EpisodeRefusal::from)
            }
            Err(error) => {
                *asked = false;
                Err(EpisodeRefusal::of(number, error))
            }
        };
        match taken {
            Ok(actions) => answers.push(Message::Actions(Actions { episode: number, actions })),
            Err(fault) => {
                let is_over = fault.is_final();
                answers.push(reply(number, Kind::GetAction, Err(fault)));
                if is_over {
                    self.close(number, answers);
                }
            }
        }
    }
}

/// Returns the episode that a client's message refers to.
fn episode_of(message: &Message) -> Option<u32> {
    Some(match message {
        Message::StartEpisode(message) => message.episode,
        Message::GetAction(message) => message.episode,
        Message::LogAction(message) => message.episode,
        Message::LogReturns(message) => message.episode,
        Message::EndEpisode(message) => message.episode,
        Message::AbandonEpisode(message) => message.episode,
        _ => return None,
    })
}

/// Returns how many bytes a queued message holds.
fn size_of(message: &Message) -> usize {
    match message {
        Message::GetAction(message) => message.observations.len(),
        Message::LogAction(message) => message.observations.len() + message.actions.len(),
        Message::LogReturns(message) => message.returns.len() + message.infos.len(),
        Message::EndEpisode(message) => message.observations.len(),
        _ => 0,
    }
}

#[cfg(test)]
mod tests;
