//! Cart-poles side by side, one agent each.

use super::{AgentRows, Turn, discrete_action, over};
use crate::{
    column::DType,
    env::{
        CartPole, EnvContext, EnvError, EnvSpaces, Frame, Moments, MultiAgentEnv, Rng, RowElement as _, StepOut,
        VectorEnv as _,
        render::{
            Canvas, Colour,
            palette::{BLUE, BLUISH_GREEN, INK, LINE, ORANGE, PAPER, REDDISH_PURPLE, SKY_BLUE, VERMILLION},
        },
    },
    ids::AgentId,
    kernels::Kernels,
    math,
    prelude::*,
    rng::{Purpose, Streams},
};

/// Most agents of one environment.
const MAX_AGENTS: u32 = 1024;

/// Independent [`CartPole`]s. The agents are numbered from 0; whose pole falls is out, and the episode ends with the
/// last one.
///
/// Setting `num_agents`: how many there are, 4 by default.
#[doc(alias = "MultiAgentCartPole-v1")]
pub struct MultiAgentCartPole {
    poles: CartPole,
    agents: Vec<AgentId>,
    /// Poles that are up.
    up: Vec<bool>,
    actions: Vec<i64>,
    obs: Vec<f32>,
    rewards: Vec<f64>,
    terminateds: Vec<bool>,
    truncateds: Vec<bool>,
}

impl MultiAgentCartPole {
    /// Makes as many poles as the settings say.
    ///
    /// # Errors
    /// [`EnvError::Config`].
    pub fn new(context: &EnvContext) -> Result<Self, EnvError> {
        context.config.check_known(&["num_agents"]).map_err(EnvError::Config)?;
        let num_agents = super::count(&context.config, "num_agents", 4, 1..=MAX_AGENTS)?;
        let n = num_agents as usize;
        Ok(Self {
            poles: CartPole::new(n, Kernels::PORTABLE),
            agents: (0..num_agents).map(AgentId::Index).collect(),
            up: vec![false; n],
            actions: vec![0; n],
            obs: vec![0.0; n * 4],
            rewards: vec![0.0; n],
            terminateds: vec![false; n],
            truncateds: vec![false; n],
        })
    }
}

impl MultiAgentEnv for MultiAgentCartPole {
    fn agents(&self) -> Vec<AgentId> {
        self.agents.clone()
    }

    fn spaces(&self, agent: &AgentId) -> Option<EnvSpaces> {
        self.agents.contains(agent).then(|| EnvSpaces {
            observation: self.poles.observation_space(),
            observation_type: DType::F32,
            action: self.poles.action_space(),
            action_type: DType::I64,
        })
    }

    fn reset(&mut self, rng: &mut Rng, turn: &mut Turn) -> Result<(), EnvError> {
        for (lane, (agent, row)) in self.agents.iter().zip(self.obs.chunks_exact_mut(4)).enumerate() {
            self.poles.reset_at(lane, rng, row)?;
            turn.observe(agent, f32::erase_rows(row));
        }
        self.up.fill(true);
        Ok(())
    }

    fn step(&mut self, actions: &AgentRows, _: &mut Rng, turn: &mut Turn) -> Result<(), EnvError> {
        if !self.up.contains(&true) {
            return Err(over());
        }
        let up = self.agents.iter().enumerate().filter(|(lane, _)| self.up[*lane]);
        for (hint, (lane, agent)) in up.enumerate() {
            self.actions[lane] = discrete_action(actions, agent, 2, hint)?;
        }
        // No pole draws random numbers when it moves.
        let moments = Moments { streams: Streams::new(0, Purpose::EnvStep), lanes: &[] };
        let out = StepOut {
            rewards: &mut self.rewards,
            terminateds: &mut self.terminateds,
            truncateds: &mut self.truncateds,
        };
        self.poles.step(&self.actions, moments, &mut self.obs, out)?;
        for (lane, (agent, row)) in self.agents.iter().zip(self.obs.chunks_exact(4)).enumerate() {
            if !self.up[lane] {
                continue;
            }
            turn.observe(agent, f32::erase_rows(row));
            turn.reward(agent, self.rewards[lane]);
            if self.terminateds[lane] {
                turn.terminate(agent);
                self.up[lane] = false;
            }
        }
        for lane in (0..self.up.len()).filter(|lane| !self.up[*lane]) {
            // A fallen pole goes on moving unseen, so it starts from somewhere every time.
            self.poles.set_state(lane, [0.0; 4])?;
        }
        if !self.up.contains(&true) {
            turn.terminate_all();
        }
        Ok(())
    }

    /// All on one track; poles that have fallen are out of the picture.
    fn render(&self, frame: &mut Frame) -> bool {
        const COLOURS: [Colour; 6] = [ORANGE, BLUE, BLUISH_GREEN, VERMILLION, REDDISH_PURPLE, SKY_BLUE];
        const SCALE: f64 = 300.0 / 5.2;
        let mut canvas = Canvas::new(frame, [300, 200], PAPER).with_world([150.0, 152.0], SCALE);
        canvas.rectangle([-9.0, -2.0 / SCALE], [9.0, 0.0], LINE);
        for (lane, colour) in (0..self.up.len()).zip(COLOURS.into_iter().cycle()).filter(|(lane, _)| self.up[*lane]) {
            let Some([x, _, theta, _]) = self.poles.state(lane) else { continue };
            let (sin, cos) = math::sin_cos(theta);
            canvas.rectangle([x - 0.28, 0.0], [x + 0.28, 0.3], INK);
            canvas.line([x, 0.3], [x + sin * 1.2, 0.3 + cos * 1.2], 0.1, colour);
        }
        true
    }

    fn as_any(&mut self) -> &mut dyn core::any::Any {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        env::{EnvRegistry, RowsRef},
        ids::SlotId,
        run::HomeIndex,
    };

    fn made(config: &str) -> Result<MultiAgentCartPole, EnvError> {
        let context = EnvContext::new(HomeIndex { worker_index: 1, vector_index: 0 });
        MultiAgentCartPole::new(&context.with_config(config.parse().unwrap()))
    }

    /// Poles stay up for different times, and each as long as it would alone.
    #[test]
    fn poles_fall_one_by_one() {
        let mut env = made(r#"{"num_agents": 5}"#).unwrap();
        let rng = || Streams::new(4, Purpose::Reset).at(SlotId(0), 0, 0, 0);
        let (mut turn, mut random) = (Turn::new(), rng());
        env.reset(&mut random, &mut turn).unwrap();
        let mut alone = CartPole::new(5, Kernels::PORTABLE);
        let (mut random, mut obs) = (rng(), [0.0; 20]);
        obs.chunks_exact_mut(4).enumerate().for_each(|(lane, row)| alone.reset_at(lane, &mut random, row).unwrap());
        let (mut rewards, mut fallen, mut cut, mut lengths) = ([0.0; 5], [false; 5], [false; 5], [0; 5]);
        while !turn.is_over() {
            let mut actions = AgentRows::new();
            for (agent, row) in turn.obs().iter().filter(|(agent, _)| !turn.outcome(agent).is_done()) {
                let RowsRef::F32([_, _, lean, _]) = row else { panic!("not float32") };
                // The even ones play well.
                let even = *agent == AgentId::Index(0) || *agent == AgentId::Index(2) || *agent == AgentId::Index(4);
                actions.set(agent, RowsRef::I64(&[i64::from(even && *lean > 0.0)]));
            }
            let taken: Vec<i64> =
                env.agents.iter().map(|agent| actions.row_of::<i64>(agent).map_or(0, |row| row[0])).collect();
            turn.clear();
            env.step(&actions, &mut random, &mut turn).unwrap();
            let moments = Moments { streams: Streams::new(0, Purpose::EnvStep), lanes: &[] };
            let out = StepOut { rewards: &mut rewards, terminateds: &mut fallen, truncateds: &mut cut };
            alone.step(&taken, moments, &mut obs, out).unwrap();
            for (lane, agent) in env.agents.iter().enumerate() {
                if let Some(row) = turn.obs().row_of::<f32>(agent) {
                    assert_eq!(row, &obs[lane * 4..][..4]);
                    assert_eq!((turn.outcome(agent).terminated, turn.outcome(agent).reward), (fallen[lane], 1.0));
                    lengths[lane] += 1;
                }
            }
        }
        assert!(turn.all_terminated() && lengths.iter().min() < lengths.iter().max(), "{lengths:?}");
        assert_eq!(env.step(&AgentRows::new(), &mut random, &mut turn), Err(over()));
    }

    #[test]
    fn there_are_as_many_as_asked_for() {
        assert_eq!(made("{}").unwrap().agents().len(), 4);
        for bad in ["0", "1025", "-1", "\"two\""] {
            assert!(matches!(made(&format!("{{\"num_agents\": {bad}}}")), Err(EnvError::Config(_))), "{bad}");
        }
        assert!(EnvRegistry::builtin().multi_agent("MultiAgentCartPole-v1").is_some());
    }
}
