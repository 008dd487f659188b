//! Runs that operators ask for.

use rollmesh_core::{group::SamplingMode, protocol::message::StartRun, time::Micros};

use super::actor::Actor;
use crate::train::{Algo, Task, TrainConfig, new_run_dir};

impl Actor {
    /// Begins a run as a page asks for it, in a new directory if the hub has one for such runs.
    pub(super) fn start_from_page(&mut self, start: &StartRun) -> Result<(), String> {
        let mut config = config(start)?;
        config.run_dir = self.runs_dir.as_deref().map(|runs| new_run_dir(runs, &config.env, config.seed));
        self.start_run(Task::Train(Box::new(config))).map_err(|error| error.to_string())?;
        self.begin_first_iteration();
        Ok(())
    }
}

/// What is asked for, where names are what they should be; the rest is checked as of any other run.
fn config(start: &StartRun) -> Result<TrainConfig, String> {
    if start.algo != Algo::Ppo.name() {
        let known = Algo::Ppo.name();
        return Err(format!(
            "there is no algorithm '{}'; known is {known}",
            start.algo.chars().take(100).collect::<String>().escape_debug()
        ));
    }
    let config = TrainConfig {
        seed: start.seed,
        num_workers: start.num_workers,
        num_envs_per_worker: start.num_envs_per_worker,
        stop_return: start.stop_return.is_finite().then_some(f64::from(start.stop_return)),
        max_env_steps: start.max_env_steps,
        observation_filter: start.observation_filter.parse().map_err(|error| format!("{error}"))?,
        ..TrainConfig::new(&*start.env)
    };
    let spec = config.spec();
    let round = u64::from(spec.num_slots) * u64::from(spec.rollout_fragment_length);
    Ok(TrainConfig { mode: mode(start, round)?, ..config })
}

/// The sampling mode, for so many env steps in a fragment of every slot.
fn mode(start: &StartRun, round: u64) -> Result<SamplingMode, String> {
    let max_staleness = start.max_staleness;
    match &*start.mode {
        "sync" => Ok(SamplingMode::Synchronous),
        "async" => {
            let batch_env_steps = if start.batch_env_steps == 0 { round } else { start.batch_env_steps };
            Ok(SamplingMode::Asynchronous { batch_env_steps, max_staleness })
        }
        "deadline" if start.deadline_ms > MAX_DEADLINE_MS => {
            Err(format!("deadline_ms is {}; it must be at most {MAX_DEADLINE_MS}", start.deadline_ms))
        }
        "deadline" => Ok(SamplingMode::Deadline { after: Micros::from_millis(start.deadline_ms), max_staleness }),
        other => Err(format!(
            "there is no sampling mode '{}'; known are sync, async, deadline",
            other.chars().take(100).collect::<String>().escape_debug()
        )),
    }
}

/// A day.
const MAX_DEADLINE_MS: u64 = 86_400_000;
