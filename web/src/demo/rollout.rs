//! The rollout itself: core's worker, and what it did as the messages of a hub.

use std::collections::VecDeque;

use rollmesh_core::{
    batch::{BatchError, OBS, SlotFragment},
    env::EnvRegistry,
    kernels::Kernels,
    protocol::{
        Message, Phase,
        message::{EnvTrace, Iteration, RunStatus},
    },
    worker::{RolloutConfig, RolloutError, RolloutWorker},
};

const ENV: &str = "CartPole-v1";
const NUM_ENVS: u32 = 64;
/// CartPole's time step is 20 ms.
pub(super) const STEPS_PER_S: u32 = 50;
/// Steps of each environment at a time.
pub(super) const FRAGMENT_LENGTH: u32 = 40;
/// Episodes in a mean, as in a run.
const EPISODES_IN_MEAN: usize = 100;

/// Environments under the first, untrained weights of a policy.
pub(super) struct Rollout {
    worker: RolloutWorker,
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
    pub(super) fn new(seed: u64) -> Result<Self, RolloutError> {
        let envs = EnvRegistry::builtin();
        let goal = envs.spec(ENV)?.reward_threshold.map_or(f32::NAN, |goal| goal as f32);
        let config = RolloutConfig::new(ENV).num_envs(NUM_ENVS).rollout_fragment_length(FRAGMENT_LENGTH).seed(seed);
        Ok(Self {
            worker: RolloutWorker::new(config, &envs, Kernels::PORTABLE)?,
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
        self.watched = slot.min(NUM_ENVS - 1);
    }

    /// Goes on for one fragment of each environment; `wall_ms` is the time since the start.
    pub(super) fn sample(&mut self, wall_ms: u64) -> Result<[Message; 3], RolloutError> {
        let fragments = self.worker.sample_fragments(FRAGMENT_LENGTH)?;
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
        let trace = trace(&fragments[self.watched as usize])?;
        Ok([
            Message::RunStatus(self.status(wall_ms, steps_per_s)),
            Message::Iteration(self.point(wall_ms, steps_per_s)),
            Message::EnvTrace(trace),
        ])
    }

    fn status(&self, wall_ms: u64, steps_per_s: f32) -> RunStatus {
        RunStatus {
            run: 1,
            phase: Phase::Running.to_wire(),
            env: ENV.into(),
            seed: self.seed,
            num_slots: NUM_ENVS,
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
            run: 1,
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

    fn mean(&self, of: impl Fn(&(f64, u32)) -> f64) -> f32 {
        (self.recent.iter().map(of).sum::<f64>() / self.recent.len() as f64) as f32
    }
}

fn trace(fragment: &SlotFragment) -> Result<EnvTrace, BatchError> {
    let obs = fragment.rows.data(OBS)?;
    let obs_len = obs.values().len().checked_div(obs.rows()).unwrap_or(0);
    Ok(EnvTrace {
        run: 1,
        slot: fragment.slot.0,
        episode: fragment.first_episode,
        t: fragment.first_t,
        obs_len: obs_len as u32,
        obs: obs.values().iter().flat_map(|value| value.to_le_bytes()).collect(),
        dones: fragment.rows.dones()?.into_iter().map(u8::from).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_demo_tells_what_a_hub_would() {
        let mut rollout = Rollout::new(3).expect("CartPole is built in");
        rollout.sample(0).expect("a fragment");
        rollout.watch(5);
        let [status, point, trace] = rollout.sample(1_000).expect("a fragment");
        let (Message::RunStatus(status), Message::Iteration(point), Message::EnvTrace(trace)) = (status, point, trace)
        else {
            panic!("other messages");
        };
        let per_fragment = u64::from(NUM_ENVS * FRAGMENT_LENGTH);
        assert_eq!((status.env_steps, point.env_steps), (2 * per_fragment, 2 * per_fragment));
        assert_eq!(status.steps_per_s, per_fragment as f32);
        assert!(status.episodes > 0 && (8.0..60.0).contains(&status.episode_return_mean), "{status:?}");
        assert_eq!(status.granted, status.committed);
        assert_eq!((trace.slot, status.watched_slot, trace.obs_len), (5, 5, 4));
        assert_eq!((trace.obs.len(), trace.dones.len()), (FRAGMENT_LENGTH as usize * 16, FRAGMENT_LENGTH as usize));
    }
}
