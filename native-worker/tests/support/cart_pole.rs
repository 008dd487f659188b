//! CartPole as a client's game: its driver steps it, with the random numbers that an environment in a
//! worker's process has in the same slot.

use rollmesh::external::{ExternalEnvError, ExternalMultiAgentEnv};
use rollmesh_core::{
    env::{
        CartPole, EnvRegistry, EnvSpaces, Moment, Moments, RowsRef, StepOut, VectorEnv as _,
        multi_agent::{AgentRows, Outcome},
    },
    ids::{AgentId, SlotId},
    kernels::Kernels,
    rng::{Purpose, Streams},
};

/// Steps after which an episode is truncated.
pub(crate) const LIMIT: u32 = 500;

/// Returns the spaces of the game.
pub(crate) fn spaces() -> EnvSpaces {
    EnvRegistry::builtin().spec("CartPole-v1").unwrap().spaces().unwrap()
}

/// The games of one slot, one after the other.
pub(crate) struct Game {
    env: CartPole,
    seed: u64,
    next: Moment,
    pub(crate) obs: [f32; 4],
}

/// The result of a step of a game.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Step {
    pub(crate) reward: f64,
    pub(crate) terminated: bool,
    pub(crate) truncated: bool,
}

impl Game {
    /// Returns the games of a slot, from the first episode on. The seed is the worker's.
    pub(crate) fn new(seed: u64, slot: u32) -> Self {
        let env = CartPole::new(1, Kernels::PORTABLE);
        Self { env, seed, next: Moment { slot: SlotId(slot), ..Moment::default() }, obs: [0.0; 4] }
    }

    /// Begins the next episode.
    pub(crate) fn reset(&mut self) {
        let Moment { slot, episode, .. } = self.next;
        let mut rng = Streams::new(self.seed, Purpose::Reset).at(slot, episode, 0, 0);
        self.env.reset_at(0, &mut rng, &mut self.obs).unwrap();
        self.next.t = 0;
    }

    pub(crate) fn step(&mut self, action: i64) -> Step {
        let (mut reward, mut terminated, mut truncated) = ([0.0], [false], [false]);
        let out = StepOut { rewards: &mut reward, terminateds: &mut terminated, truncateds: &mut truncated };
        let streams = Streams::new(self.seed, Purpose::EnvStep);
        self.env.step(&[action], Moments { streams, lanes: &[self.next], mark: None }, &mut self.obs, out).unwrap();
        self.next.t += 1;
        let truncated = self.next.t == LIMIT;
        if terminated[0] || truncated {
            self.next.episode += 1;
        }
        Step { reward: reward[0], terminated: terminated[0], truncated }
    }

    pub(crate) fn row(&self) -> AgentRows {
        AgentRows::single(RowsRef::F32(&self.obs))
    }
}

/// Plays in all lanes sequentially, until the environment is stopped. Results of steps, ends included, are passed on in
/// the lanes' order: so fragments are complete in the order in which an environment in the worker's process completes
/// them.
pub(crate) fn play(env: &ExternalMultiAgentEnv, seed: u64) -> Result<(), ExternalEnvError> {
    let mut games: Vec<Game> = (0..env.num_envs()).map(|slot| Game::new(seed, slot as u32)).collect();
    let mut episodes = Vec::new();
    for game in &mut games {
        game.reset();
        episodes.push(env.start_episode(true)?);
    }
    let mut ends = vec![None; games.len()];
    let mut actions = AgentRows::new();
    loop {
        for ((game, episode), end) in games.iter_mut().zip(&mut episodes).zip(&mut ends) {
            if let Some(truncated) = end.take() {
                env.end_episode(*episode, &game.row(), truncated)?;
                game.reset();
                *episode = env.start_episode(true)?;
            }
            env.request_actions(*episode, &game.row())?;
        }
        for ((game, episode), end) in games.iter_mut().zip(&episodes).zip(&mut ends) {
            env.wait_for_actions(*episode, &mut actions)?;
            let Some(&[action]) = actions.row_of::<i64>(&AgentId::SINGLE) else { panic!("{actions:?}") };
            let Step { reward, terminated, truncated } = game.step(action);
            env.log_returns(*episode, &AgentId::SINGLE, Outcome { reward, terminated, truncated }, None)?;
            *end = (terminated || truncated).then_some(!terminated);
        }
    }
}
