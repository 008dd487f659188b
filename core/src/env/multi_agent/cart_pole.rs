//! Several cart-poles, one agent each.

use super::{AgentRows, Turn, discrete_action, over};
use crate::{
    column::{DType, Element as _},
    env::{
        CartPole, EnvContext, EnvError, EnvSpaces, Frame, Moments, MultiAgentEnv, Rng, StepOut, VectorEnv as _,
        classic::draw_cart,
        render::{
            Canvas,
            palette::{INK, LIGHT_GREY, LINE, ORANGE, PAPER},
        },
    },
    ids::AgentId,
    kernels::Kernels,
    prelude::*,
    rng::{Purpose, Streams},
};

/// Most agents of one environment.
const MAX_AGENTS: u32 = 1024;

/// Independent [`CartPole`]s. The agents are numbered from 0; an agent whose pole falls has ended, and the episode ends with
/// the last one.
///
/// Setting `num_agents`: their number, 4 by default.
#[doc(alias = "MultiAgentCartPole-v1")]
pub struct MultiAgentCartPole {
    poles: CartPole,
    agents: Vec<AgentId>,
    /// Whether each pole is up.
    up: Vec<bool>,
    /// The states in which the others fell.
    fallen: Vec<[f64; 4]>,
    actions: Vec<i64>,
    obs: Vec<f32>,
    rewards: Vec<f64>,
    terminateds: Vec<bool>,
    truncateds: Vec<bool>,
}

impl MultiAgentCartPole {
    /// Creates as many poles as the settings say.
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
            fallen: vec![[0.0; 4]; n],
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
        // Steps of a pole use no random numbers.
        let moments = Moments { streams: Streams::new(0, Purpose::EnvStep), lanes: &[], mark: None };
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
                self.fallen[lane] = self.poles.state(lane).unwrap_or_default();
            }
        }
        for lane in (0..self.up.len()).filter(|lane| !self.up[*lane]) {
            // A fallen pole was stepped along with the others.
            self.poles.set_state(lane, self.fallen[lane])?;
        }
        if !self.up.contains(&true) {
            turn.terminate_all();
        }
        Ok(())
    }

    fn render(&self, frame: &mut Frame) -> bool {
        draw(&self.poles, &self.up, frame);
        true
    }

    fn as_any(&mut self) -> &mut dyn core::any::Any {
        self
    }
}

/// Draws the carts in rows, those whose poles are down in pale colours where they fell.
fn draw(poles: &CartPole, up: &[bool], frame: &mut Frame) {
    let num_agents = up.len() as u32;
    let columns = (1..MAX_AGENTS).find(|columns| columns * columns >= num_agents).unwrap_or(MAX_AGENTS);
    let width = (480 / columns).clamp(24, 240);
    let height = width / 2;
    // Leaves some space next to the tracks, which end 2.6 m from their middle.
    let scale = f64::from(width) / 6.0;
    let mut canvas = Canvas::new(frame, [width * columns, height * num_agents.div_ceil(columns)], PAPER);
    for (lane, up) in up.iter().enumerate() {
        let Some([x, _, theta, _]) = poles.state(lane) else { continue };
        let [left, top] = [lane as u32 % columns * width, lane as u32 / columns * height].map(f64::from);
        canvas = canvas.with_world([left + f64::from(width) / 2.0, top + f64::from(height) * 0.78], scale);
        let colours = if *up { [INK, ORANGE, PAPER] } else { [LIGHT_GREY, LINE, PAPER] };
        draw_cart(&mut canvas, 1.0 / scale, [x, theta], colours);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        env::{EnvRegistry, RowsRef},
        ids::{HomeIndex, SlotId},
    };

    fn made(config: &str) -> Result<MultiAgentCartPole, EnvError> {
        let context = EnvContext::new(HomeIndex { worker_index: 1, vector_index: 0 });
        MultiAgentCartPole::new(&context.with_config(config.parse().unwrap()))
    }

    /// Poles stay up for different times, each as long as it would alone.
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
                // The even ones balance well.
                let even = *agent == AgentId::Index(0) || *agent == AgentId::Index(2) || *agent == AgentId::Index(4);
                actions.set(agent, RowsRef::I64(&[i64::from(even && *lean > 0.0)]));
            }
            let taken: Vec<i64> =
                env.agents.iter().map(|agent| actions.row_of::<i64>(agent).map_or(0, |row| row[0])).collect();
            turn.clear();
            env.step(&actions, &mut random, &mut turn).unwrap();
            let moments = Moments { streams: Streams::new(0, Purpose::EnvStep), lanes: &[], mark: None };
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

    /// A fallen pole stays pale where it fell, while the others continue.
    #[test]
    fn fallen_poles_are_pale_in_the_picture() {
        let mut env = made(r#"{"num_agents": 2}"#).unwrap();
        let mut random = Streams::new(4, Purpose::Reset).at(SlotId(0), 0, 0, 0);
        let (mut turn, mut frame, mut fallen) = (Turn::new(), Frame::new(), Vec::new());
        env.reset(&mut random, &mut turn).unwrap();
        // The first one is always pushed to one side, the second alternately.
        for t in 0..20 {
            let mut actions = AgentRows::new();
            env.agents.iter().zip([0, t % 2]).for_each(|(agent, action)| actions.set(agent, RowsRef::I64(&[action])));
            turn.clear();
            env.step(&actions, &mut random, &mut turn).unwrap();
            assert!(env.render(&mut frame));
            // Next to each other.
            let halves = frame.rgb().chunks_exact(240 * 3);
            let [left, right] = [0, 1].map(|half| halves.clone().skip(half).step_by(2).collect::<Vec<_>>().concat());
            let is_bright = |half: &[u8]| half.as_chunks().0.contains(&ORANGE);
            assert!(is_bright(&right));
            assert_eq!(is_bright(&left), env.up[0]);
            if !env.up[0] {
                fallen.push(left);
            }
        }
        assert!(fallen.len() > 5);
        fallen.dedup();
        assert_eq!(fallen.len(), 1);
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
