//! [`EpisodeDriver`]: the hub's side of a client, without the socket.

use super::{
    EpisodeCode, Kind, Message,
    convert::{AgentReturn, AgentTable, RowKind},
    episode_fault::{Fault, reply},
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

/// Drives the episodes of one client: its messages become calls of [`ExternalEpisodes`], and what comes of those becomes
/// messages to it.
///
/// Nothing in here waits. What cannot be done yet is kept, in order per episode, and tried again by
/// [`poll`](Self::poll): an episode for which there is no lane, a turn that the sampler has no room for. While
/// [`is_full`](Self::is_full) its owner takes no more messages from the client; what is kept needs none of those to
/// go on, only the sampler.
///
/// A client that waits for a lane stands in [line](ExternalEpisodes::start_in_turn) with the others. An episode of which
/// its client says nothing for too long, while the sampler owes it nothing, is given up: others may wait for its lane.
#[derive(Debug)]
pub struct EpisodeDriver {
    client: u32,
    table: Arc<AgentTable>,
    /// How long a client may be silent about an episode.
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
        /// It waits for actions.
        asked: bool,
        /// What is to be said when there is room.
        kept: VecDeque<Message>,
        /// Since when it is the client's turn, if it is.
        since: Micros,
    },
}

impl Driven {
    /// Since when it is the client's turn, if it is.
    fn silent_since(&self) -> Option<Micros> {
        match self {
            Self::Open { asked: false, kept, since } if kept.is_empty() => Some(*since),
            _ => None,
        }
    }
}

/// What came of a message.
enum Done {
    /// It was done, and is answered so.
    Yes,
    /// It was done, and the answer comes later or not at all.
    Silently,
    /// There is no room yet.
    NotYet,
}

impl EpisodeDriver {
    /// The most episodes of a client that are open or wait to begin.
    pub const MAX_EPISODES: usize = 1024;
    /// A client with so many messages that wait has to wait itself, …
    const MAX_KEPT: usize = 256;
    /// … and so has one with so many bytes of them.
    const MAX_KEPT_BYTES: usize = 1 << 20;

    /// For a client without episodes. Of several clients of the same [`ExternalEpisodes`] each has a number of its own.
    /// An episode is given up when nothing was said of it for `timeout`.
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

    /// True while no more messages of the client are to be [handled](Self::handle).
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.kept >= Self::MAX_KEPT || self.kept_bytes >= Self::MAX_KEPT_BYTES
    }

    /// Does what the client asks for, or keeps it for later. Answers are added to `answers`. Messages that clients do not
    /// send are passed over.
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
                answers.push(reply(number, about, Err(Fault::of(number, ExternalError::UnknownEpisode(0)))));
            }
        }
    }

    /// Goes on with what was kept, brings actions that are there, and gives up episodes that are silent for too long. To be
    /// called whenever the sampler or another client has done something, and at the [deadline](Self::deadline). True if the
    /// sampler may have something to hear.
    pub fn poll(&mut self, now: Micros, episodes: &mut ExternalEpisodes, answers: &mut Vec<Message>) -> bool {
        let (mut has_said, was_full, mut has_turn) = (false, self.is_full(), true);
        let numbers: Vec<u32> = self.episodes.keys().copied().collect();
        for number in numbers {
            if let Some(Driven::Starting { training }) = self.episodes.get(&number) {
                // If one has to wait the others have to as well.
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

    /// When it is time to [`poll`](Self::poll) even if nothing happens until then: an episode is silent for too long.
    #[must_use]
    pub fn deadline(&self) -> Option<Micros> {
        self.episodes.values().filter_map(Driven::silent_since).min().map(|since| since + self.timeout)
    }

    /// Adds the episodes that wait for the sampler, by the numbers that [`ExternalEpisodes`] knows them by.
    pub fn waits_for(&self, ids: &mut Vec<u64>) {
        let waits = |driven: &Driven| matches!(driven, Driven::Open { asked, kept, .. } if *asked || !kept.is_empty());
        let waiting = self.episodes.iter().filter(|(_, driven)| waits(driven));
        ids.extend(waiting.map(|(number, _)| self.id(*number)));
    }

    /// True while an episode waits for a lane.
    #[must_use]
    pub fn is_starting(&self) -> bool {
        self.episodes.values().any(|driven| matches!(driven, Driven::Starting { .. }))
    }

    /// How many episodes of the client are open.
    #[must_use]
    pub fn open(&self) -> usize {
        self.episodes.values().filter(|driven| matches!(driven, Driven::Open { .. })).count()
    }

    /// The client is gone: its episodes are abandoned. How many were open.
    pub fn leave(&mut self, episodes: &mut ExternalEpisodes) -> usize {
        let numbers = core::mem::take(&mut self.episodes);
        (self.kept, self.kept_bytes) = (0, 0);
        episodes.leave_line(self.client);
        numbers.keys().filter(|number| episodes.abandon(self.id(**number)).is_ok()).count()
    }

    fn id(&self, number: u32) -> u64 {
        u64::from(self.client) << 32 | u64::from(number)
    }

    fn may_start(&self, number: u32) -> Result<(), Fault> {
        if self.episodes.contains_key(&number) {
            return Err(Fault::of(number, ExternalError::DuplicateEpisode(0)));
        }
        if self.episodes.len() >= Self::MAX_EPISODES {
            let reason = format!("{} episodes are open or wait: end some first", Self::MAX_EPISODES);
            return Err(Fault { code: EpisodeCode::TooMany, reason });
        }
        Ok(())
    }

    /// Begins an episode; false if it has to wait for a lane.
    fn start(
        &mut self,
        number: u32,
        training: bool,
        now: Micros,
        episodes: &mut ExternalEpisodes,
        answers: &mut Vec<Message>,
    ) -> bool {
        let started = match episodes.start_in_turn(self.client, self.id(number), training) {
            Ok(_) => {
                self.episodes.insert(number, Driven::Open { asked: false, kept: VecDeque::new(), since: now });
                Ok(())
            }
            // Somebody will end an episode.
            Err(ExternalError::TooManyEpisodes(_)) => return false,
            Err(error) => {
                self.episodes.remove(&number);
                Err(Fault::of(number, error))
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
        answers.push(reply(number, Kind::AbandonEpisode, abandoned.map_err(|error| Fault::of(number, error))));
    }

    /// Gives an episode up of which the client has said nothing for too long; true if so.
    fn expire(
        &mut self,
        number: u32,
        was_full: bool,
        now: Micros,
        episodes: &mut ExternalEpisodes,
        answers: &mut Vec<Message>,
    ) -> bool {
        let Some(driven) = self.episodes.get_mut(&number) else { return false };
        // What the client may have said was not read.
        if was_full && let Driven::Open { since, .. } = driven {
            *since = now;
        }
        if driven.silent_since().is_none_or(|since| now.since(since) < self.timeout) {
            return false;
        }
        self.forget(number);
        // If the sampler has lost it there is nothing to give up.
        let _ = episodes.abandon(self.id(number));
        let seconds = self.timeout.0 as f64 / 1e6;
        let reason =
            format!("episode {number} was given up: nothing was said of it for {seconds} s; start another one");
        // About what the client cannot be waiting for: that was answered when the episode began.
        answers.push(reply(number, Kind::StartEpisode, Err(Fault { code: EpisodeCode::TimedOut, reason })));
        true
    }

    /// The episode and what is kept of it are no more.
    fn forget(&mut self, number: u32) -> Option<Driven> {
        let driven = self.episodes.remove(&number);
        if let Some(Driven::Open { kept, .. }) = &driven {
            self.kept -= kept.len();
            self.kept_bytes -= kept.iter().map(size_of).sum::<usize>();
        }
        driven
    }

    /// Does what a message says of an open episode. The message is back if there is no room yet.
    fn attempt(
        &mut self,
        number: u32,
        message: Message,
        episodes: &mut ExternalEpisodes,
        answers: &mut Vec<Message>,
    ) -> Option<Message> {
        let about = message.kind();
        let done = match self.do_it(number, &message, episodes) {
            Ok(Done::NotYet) => return Some(message),
            Ok(Done::Silently) => return None,
            Ok(Done::Yes) => Ok(()),
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

    /// Nothing that is kept of an episode that is over can be done.
    fn close(&mut self, number: u32, answers: &mut Vec<Message>) {
        if let Some(Driven::Open { kept, .. }) = self.forget(number) {
            let fault = || Fault::of(number, ExternalError::UnknownEpisode(0));
            answers.extend(kept.iter().map(|message| reply(number, message.kind(), Err(fault()))));
        }
    }

    fn do_it(&mut self, number: u32, message: &Message, episodes: &mut ExternalEpisodes) -> Result<Done, Fault> {
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
                    Done::Silently
                })
            }
            Message::LogAction(LogAction { observations: rows, actions, .. }) => {
                table.read_rows(RowKind::Observation, rows, observations)?;
                table.read_rows(RowKind::Action, actions, &mut self.actions)?;
                episodes.log_actions(id, observations, &self.actions).map(|()| Done::Yes)
            }
            Message::LogReturns(LogReturns { returns, infos, .. }) => {
                let returns = table.read_returns(returns)?;
                let mut infos: BTreeMap<AgentId, &[u8]> = table.read_infos(infos)?.into_iter().collect();
                let nothing = |agent: &AgentId| AgentReturn { agent: agent.clone(), outcome: Outcome::default() };
                let told: Vec<AgentReturn> = infos.keys().map(nothing).collect();
                // All of them or none.
                let all = || returns.iter().chain(&told);
                all()
                    .try_for_each(|of| episodes.check_returns(id, &of.agent, of.outcome))
                    .and_then(|()| {
                        all().try_for_each(|AgentReturn { agent, outcome }| {
                            episodes.log_returns(id, agent, *outcome, infos.remove(agent))
                        })
                    })
                    .map(|()| Done::Silently)
            }
            Message::EndEpisode(end) => {
                table.read_rows(RowKind::Observation, &end.observations, observations)?;
                episodes.end_episode(id, observations, end.truncated).map(|()| Done::Yes)
            }
            _ => Ok(Done::Silently),
        };
        match done {
            Err(ExternalError::QueueFull { .. }) => Ok(Done::NotYet),
            done => done.map_err(|error| Fault::of(number, error)),
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
                    .map_err(Fault::from)
            }
            Err(error) => {
                *asked = false;
                Err(Fault::of(number, error))
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

/// The episode that a client's message is about.
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

/// Bytes that a kept message holds.
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
