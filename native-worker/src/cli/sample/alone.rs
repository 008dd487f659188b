//! Sampling with a worker in this process.

use std::time::{Duration, Instant};

use rollmesh_core::worker::{RolloutWorker, config::FragmentLength};

use super::summary::{Speed, Tally};
use crate::cli::{exit::Failure, signals::Interruption};

/// A worker, and the time that it has spent sampling.
pub(super) struct Alone {
    worker: RolloutWorker,
    plain: Option<Plain>,
    sampling: Duration,
}

/// A plain rollout: raw rows, the same number of each environment, in fragments.
struct Plain {
    length: u32,
    /// Remaining steps of each environment.
    left: u64,
}

impl Alone {
    /// Samples with the worker's settings.
    pub(super) fn new(worker: RolloutWorker) -> Self {
        Self { worker, plain: None, sampling: Duration::ZERO }
    }

    /// Samples `left` steps of each environment.
    pub(super) fn plain(worker: RolloutWorker, left: u64) -> Result<Self, Failure> {
        let FragmentLength::Steps(length) = worker.creation_args().rollout_fragment_length else {
            return Err(Failure::usage("a plain rollout has fragments of a fixed length"));
        };
        Ok(Self { plain: Some(Plain { length, left }), ..Self::new(worker) })
    }

    /// Samples next and passes the result on; false if there is no more.
    pub(super) fn next(&mut self, tally: &mut Tally, interruption: &Interruption) -> Result<bool, Failure> {
        let start = Instant::now();
        let Some(plain) = &mut self.plain else {
            let sampled = self.worker.sample();
            self.sampling += start.elapsed();
            tally.metrics(self.worker.metrics());
            return match sampled {
                // The clients' environment was stopped by the interruption.
                Err(_) if interruption.is_noticed() => Ok(false),
                sampled => {
                    tally.batch(&sampled.map_err(Failure::other)?).map_err(Failure::other)?;
                    Ok(true)
                }
            };
        };
        let steps = plain.left.min(plain.length.into()) as u32;
        if steps == 0 {
            return Ok(false);
        }
        plain.left -= u64::from(steps);
        let fragments = self.worker.sample_fragments(steps).map_err(Failure::other)?;
        self.sampling += start.elapsed();
        tally.fragments(&fragments).map_err(Failure::other)?;
        Ok(true)
    }

    pub(super) fn finish(mut self, env_steps: u64) -> Result<Speed, Failure> {
        self.worker.stop().map_err(Failure::other)?;
        Ok(Speed { env_steps, time: self.sampling, workers: None })
    }
}
