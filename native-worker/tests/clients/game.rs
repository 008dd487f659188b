//! A game without chance, for one agent or two: every player makes the same rows in every place. `game.py` and
//! `game.mjs` are the same game.

use rollmesh::external::{ExternalMultiAgentEnv, agents_of};
use rollmesh_core::{
    env::{
        EnvSpaces, RowsRef,
        multi_agent::{AgentRows, Outcome},
    },
    ids::AgentId,
    protocol::{
        Kind, Message,
        convert::{AgentReturn, AgentTable, RowKind},
        message::{Actions, EndEpisode, EpisodeReply, GetAction, LogAction, LogReturns, StartEpisode},
    },
    worker::{Registry, RolloutConfig},
};

use crate::support::client::Client;

/// The number of players.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Game {
    Single,
    Pair,
}

/// The episode cannot continue; in the end every client gets that error.
#[derive(Debug)]
pub(crate) struct Over;

/// A connection to an environment in which to play.
pub(crate) trait World {
    async fn start(&mut self, episode: u32) -> Result<(), Over>;
    async fn act(&mut self, episode: u32, obs: &AgentRows) -> Result<AgentRows, Over>;
    async fn log(&mut self, episode: u32, obs: &AgentRows, actions: &AgentRows) -> Result<(), Over>;
    async fn give(&mut self, episode: u32, agent: &AgentId, outcome: Outcome, info: Option<&str>) -> Result<(), Over>;
    async fn end(&mut self, episode: u32, obs: &AgentRows, truncated: bool) -> Result<(), Over>;
}

impl Game {
    pub(crate) fn settings(self) -> &'static str {
        match self {
            Self::Single => include_str!("single.json"),
            Self::Pair => include_str!("pair.json"),
        }
    }

    pub(crate) fn config(self) -> RolloutConfig {
        serde_json::from_str(self.settings()).unwrap()
    }

    pub(crate) fn agents(self) -> Vec<(AgentId, EnvSpaces)> {
        agents_of(&self.config().env_config, &Registry::builtin()).unwrap()
    }

    pub(crate) fn env(self, lanes: usize) -> ExternalMultiAgentEnv {
        ExternalMultiAgentEnv::new(lanes, self.agents()).unwrap()
    }

    /// Plays one episode after the other.
    pub(crate) async fn play(self, world: &mut impl World) -> Over {
        let mut episode = 0;
        loop {
            if let Err(over) = self.play_one(world, episode).await {
                return over;
            }
            episode += 1;
        }
    }

    pub(crate) async fn play_one(self, world: &mut impl World, episode: u32) -> Result<(), Over> {
        let (pair, length) = (self == Self::Pair, 4 + episode % 3);
        let left = if pair { AgentId::name("left") } else { AgentId::SINGLE };
        let right = AgentId::name("right");
        let reward = |reward| Outcome { reward, ..Outcome::default() };
        world.start(episode).await?;
        let (mut obs, mut last) = (AgentRows::new(), 0i64);
        for t in 0..length {
            obs.clear();
            obs.set(&left, RowsRef::F32(&[episode as f32, t as f32, last as f32]));
            if pair && [0, 2, 3].contains(&t) {
                obs.set(&right, RowsRef::F32(&[episode as f32, t as f32, 1.0]));
            }
            if !pair && (episode + t) % 5 == 3 {
                last = i64::from((episode + t) % 3);
                world.log(episode, &obs, &AgentRows::single(RowsRef::I64(&[last]))).await?;
            } else {
                last = world.act(episode, &obs).await?.row_of::<i64>(&left).unwrap()[0];
            }
            let info = format!("{{\"t\":{t}}}");
            world.give(episode, &left, reward(last as f64 + 0.5 * f64::from(t)), Some(&info)).await?;
            if pair && t <= 2 {
                world.give(episode, &right, Outcome { terminated: t == 2, ..reward(-1.0) }, None).await?;
            }
        }
        obs.clear();
        obs.set(&left, RowsRef::F32(&[episode as f32, length as f32, last as f32]));
        world.end(episode, &obs, episode % 2 == 1).await
    }
}

impl World for ExternalMultiAgentEnv {
    async fn start(&mut self, episode: u32) -> Result<(), Over> {
        self.start_episode_as(episode.into(), true).map(drop).map_err(|_| Over)
    }

    async fn act(&mut self, episode: u32, obs: &AgentRows) -> Result<AgentRows, Over> {
        self.actions_async(episode.into(), obs).await.map_err(|_| Over)
    }

    async fn log(&mut self, episode: u32, obs: &AgentRows, actions: &AgentRows) -> Result<(), Over> {
        self.log_actions_async(episode.into(), obs, actions).await.map_err(|_| Over)
    }

    async fn give(&mut self, episode: u32, agent: &AgentId, outcome: Outcome, info: Option<&str>) -> Result<(), Over> {
        self.log_returns(episode.into(), agent, outcome, info.map(str::as_bytes)).map_err(|_| Over)
    }

    async fn end(&mut self, episode: u32, obs: &AgentRows, truncated: bool) -> Result<(), Over> {
        self.end_episode_async(episode.into(), obs, truncated).await.map_err(|_| Over)
    }
}

/// A world beyond a socket.
pub(crate) struct Far {
    pub(crate) client: Client,
    pub(crate) table: AgentTable,
}

impl Far {
    /// Returns a world for a client, after its welcome.
    pub(crate) async fn new(mut client: Client) -> Self {
        match client.receive().await {
            Some(Message::Spaces(spaces)) => Self { client, table: AgentTable::of(&spaces).unwrap() },
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn rows(&self, kind: RowKind, rows: &AgentRows) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.table.write_rows(kind, rows, &mut bytes).unwrap();
        bytes
    }

    /// Sends a message and waits for its reply.
    pub(crate) async fn ask(&mut self, message: Message) -> Result<(), Over> {
        let kind = message.kind();
        self.client.say(&message).await;
        match self.client.receive().await {
            Some(Message::EpisodeReply(EpisodeReply { about, code: 0, .. })) if about == kind.to_wire() => Ok(()),
            _ => Err(Over),
        }
    }
}

impl World for Far {
    async fn start(&mut self, episode: u32) -> Result<(), Over> {
        self.ask(Message::StartEpisode(StartEpisode { episode, training: true })).await
    }

    async fn act(&mut self, episode: u32, obs: &AgentRows) -> Result<AgentRows, Over> {
        let observations = self.rows(RowKind::Observation, obs);
        self.client.say(&Message::GetAction(GetAction { episode, observations })).await;
        let mut rows = AgentRows::new();
        match self.client.receive().await {
            Some(Message::Actions(Actions { episode: of, actions })) if of == episode => {
                self.table.read_rows(RowKind::Action, &actions, &mut rows).unwrap();
                Ok(rows)
            }
            _ => Err(Over),
        }
    }

    async fn log(&mut self, episode: u32, obs: &AgentRows, actions: &AgentRows) -> Result<(), Over> {
        let (observations, actions) = (self.rows(RowKind::Observation, obs), self.rows(RowKind::Action, actions));
        self.ask(Message::LogAction(LogAction { episode, observations, actions })).await
    }

    async fn give(&mut self, episode: u32, agent: &AgentId, outcome: Outcome, info: Option<&str>) -> Result<(), Over> {
        let (mut returns, mut infos) = (Vec::new(), Vec::new());
        self.table.write_return(&AgentReturn { agent: agent.clone(), outcome }, &mut returns).unwrap();
        if let Some(info) = info {
            self.table.write_info(agent, info.as_bytes(), &mut infos).unwrap();
        }
        self.client.say(&Message::LogReturns(LogReturns { episode, returns, infos })).await;
        Ok(())
    }

    async fn end(&mut self, episode: u32, obs: &AgentRows, truncated: bool) -> Result<(), Over> {
        let observations = self.rows(RowKind::Observation, obs);
        self.ask(Message::EndEpisode(EndEpisode { episode, truncated, observations })).await
    }
}

/// Returns the code and the reason of a reply about a kind.
pub(crate) fn reply(message: Option<Message>, about: Kind) -> (u8, String) {
    match message {
        Some(Message::EpisodeReply(reply)) if reply.about == about.to_wire() => (reply.code, reply.reason),
        other => panic!("{other:?}"),
    }
}
