//! The rollout itself: core's worker, and what it did as the messages of a hub.

use std::collections::VecDeque;

use rollmesh_core::{
    batch::{OBS, SlotFragment},
    column::Column,
    kernels::Kernels,
    protocol::{
        Message, Phase,
        message::{EnvTrace, Iteration, RunStatus},
    },
    worker::{RolloutConfig, RolloutError, RolloutWorker},
};
use rollmesh_web_registry::registry;

use crate::{
    picture::Kind,
    state::{DemoRun, Player},
};

/// Time between fragments.
pub(super) const FRAGMENT_MS: u32 = 800;
/// Pace of an environment without a picture.
const STEPS_PER_S: u32 = 10;
/// Episodes in a mean, as in a run.
const EPISODES_IN_MEAN: usize = 100;

/// Environments under a policy that does not learn.
pub(super) struct Rollout {
    worker: RolloutWorker,
    run: DemoRun,
    /// Steps of each environment at a time.
    fragment_length: u32,
    seed: u64,
    goal: f32,
    watched: u32,
    iteration: u64,
    env_steps: u64,
    episodes: u64,
    /// Return and length of the latest episodes.
    recent: VecDeque<(f64, u32)>,
    last_wall_ms: u64,
}

impl Rollout {
    pub(super) fn new(run: DemoRun, seed: u64) -> Result<Self, RolloutError> {
        let registry = registry();
        let goal = registry.envs.spec(run.env.name).ok().and_then(|spec| spec.reward_threshold);
        let goal = goal.map_or(f32::NAN, |goal| goal as f32);
        let steps_per_s = Kind::of(run.env.name).map_or(STEPS_PER_S, Kind::steps_per_s);
        let fragment_length = steps_per_s * FRAGMENT_MS / 1_000;
        let config = RolloutConfig::new(run.env.name).rollout_fragment_length(fragment_length).seed(seed).raw();
        let config = match run.env.player {
            Player::Untrained => config.num_envs(64),
            // Games are slower, and few of them are watched.
            Player::Random => config.num_envs(16).single_policy("random"),
        };
        Ok(Self {
            worker: RolloutWorker::new(config, &registry, Kernels::PORTABLE)?,
            run,
            fragment_length,
            seed,
            goal,
            watched: 0,
            iteration: 0,
            env_steps: 0,
            episodes: 0,
            recent: VecDeque::new(),
            last_wall_ms: 0,
        })
    }

    pub(super) fn watch(&mut self, slot: u32) {
        self.watched = slot.min(self.num_slots().saturating_sub(1));
    }

    fn num_slots(&self) -> u32 {
        self.worker.num_envs() as u32
    }

    /// Goes on for one fragment of each environment; `wall_ms` is the time since the start.
    pub(super) fn sample(&mut self, wall_ms: u64) -> Result<[Message; 3], RolloutError> {
        let fragments = self.worker.sample_fragments(self.fragment_length)?;
        let steps: u64 = fragments.iter().map(SlotFragment::env_steps).sum();
        self.iteration += 1;
        self.env_steps += steps;
        for episode in fragments.iter().flat_map(|fragment| &fragment.episodes) {
            self.episodes += 1;
            self.recent.push_back((episode.episode_return, episode.len));
        }
        self.recent.drain(..self.recent.len().saturating_sub(EPISODES_IN_MEAN));
        let seconds = wall_ms.saturating_sub(self.last_wall_ms) as f32 / 1_000.0;
        // The first fragment takes no time that could be measured.
        let steps_per_s = if seconds > 0.0 { steps as f32 / seconds } else { f32::NAN };
        self.last_wall_ms = wall_ms;
        let trace = self.trace(&fragments[self.watched as usize])?;
        Ok([
            Message::RunStatus(self.status(wall_ms, steps_per_s)),
            Message::Iteration(self.point(wall_ms, steps_per_s)),
            Message::EnvTrace(trace),
        ])
    }

    fn status(&self, wall_ms: u64, steps_per_s: f32) -> RunStatus {
        RunStatus {
            run: self.run.run,
            phase: Phase::Running.to_wire(),
            env: self.run.env.name.into(),
            seed: self.seed,
            num_slots: self.num_slots(),
            iteration: self.iteration,
            env_steps: self.env_steps,
            episodes: self.episodes,
            episode_return_mean: self.mean(|(value, _)| *value),
            stop_return: self.goal,
            wall_ms,
            steps_per_s,
            watched_slot: self.watched,
            granted: self.env_steps,
            committed: self.env_steps,
            ..RunStatus::default()
        }
    }

    fn point(&self, wall_ms: u64, steps_per_s: f32) -> Iteration {
        Iteration {
            run: self.run.run,
            iteration: self.iteration,
            env_steps: self.env_steps,
            wall_ms,
            episode_return_mean: self.mean(|(value, _)| *value),
            episode_len_mean: self.mean(|(_, len)| f64::from(*len)),
            steps_per_s,
            // Nothing learns here.
            policy_loss: f32::NAN,
            vf_loss: f32::NAN,
            entropy: f32::NAN,
            kl: f32::NAN,
        }
    }

    /// No number before the first episode has ended.
    fn mean(&self, of: impl Fn(&(f64, u32)) -> f64) -> f32 {
        (self.recent.iter().map(of).sum::<f64>() / self.recent.len() as f64) as f32
    }

    /// What a slot did, as 32-bit floats whatever its observations are.
    fn trace(&self, fragment: &SlotFragment) -> Result<EnvTrace, RolloutError> {
        let (obs_len, obs) = match fragment.rows.column(OBS.name()) {
            Some(Column::U8(obs)) => (obs.shape().elements(), le_bytes(obs.values().iter().map(|&value| value.into()))),
            _ => {
                let obs = fragment.rows.data(OBS)?;
                (obs.shape().elements(), le_bytes(obs.values().iter().copied()))
            }
        };
        Ok(EnvTrace {
            run: self.run.run,
            slot: fragment.slot.0,
            episode: fragment.first_episode,
            t: fragment.first_t,
            obs_len: obs_len as u32,
            obs,
            dones: fragment.rows.dones()?.into_iter().map(u8::from).collect(),
        })
    }
}

fn le_bytes(values: impl Iterator<Item = f32>) -> Vec<u8> {
    values.flat_map(f32::to_le_bytes).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::DemoEnv;

    #[test]
    fn the_demo_tells_what_a_hub_would() {
        let run = DemoRun { env: DemoEnv::default(), run: 3 };
        let mut rollout = Rollout::new(run, 3).expect("CartPole is built in");
        rollout.sample(0).expect("a fragment");
        rollout.watch(5);
        let [status, point, trace] = rollout.sample(1_000).expect("a fragment");
        let (Message::RunStatus(status), Message::Iteration(point), Message::EnvTrace(trace)) = (status, point, trace)
        else {
            panic!("other messages");
        };
        let per_fragment = 64 * 40;
        assert_eq!((status.env_steps, point.env_steps), (2 * per_fragment, 2 * per_fragment));
        assert_eq!((status.run, point.run, trace.run), (3, 3, 3));
        assert_eq!(status.steps_per_s, per_fragment as f32);
        assert!(status.episodes > 0 && (8.0..60.0).contains(&status.episode_return_mean), "{status:?}");
        assert_eq!(status.granted, status.committed);
        assert_eq!((trace.slot, status.watched_slot, trace.obs_len), (5, 5, 4));
        assert_eq!((trace.obs.len(), trace.dones.len()), (40 * 16, 40));
    }

    #[test]
    fn every_demo_has_a_picture_of_every_row_of_any_slot() {
        for env in DemoEnv::ALL {
            let mut rollout = Rollout::new(DemoRun { env, run: 1 }, 3).expect("it is built in");
            rollout.watch(u32::MAX);
            let [Message::RunStatus(status), _, Message::EnvTrace(trace)] = rollout.sample(0).expect("a fragment")
            else {
                panic!("other messages");
            };
            assert_eq!((status.env.as_str(), trace.slot), (env.name, status.num_slots - 1));
            let kind = Kind::of(env.name).expect("it can be drawn");
            let obs: Vec<f32> = trace.obs.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
            let rows = obs.chunks(trace.obs_len as usize);
            assert_eq!(rows.len(), trace.dones.len());
            assert!(rows.map(|row| kind.picture(row)).all(|picture| picture.is_some()), "{}", env.name);
        }
    }
}
