//! Sampling with a worker in this process.

use std::{
    process,
    sync::mpsc::{RecvTimeoutError, Sender, channel},
    thread,
    time::{Duration, Instant},
};

use rollmesh_core::worker::{RolloutWorker, SampleFault, config::FragmentLength};

use super::summary::{Speed, Tally};
use crate::{
    cli::{exit::Failure, signals::Interruption},
    runs::{Failures, OwnSampler, RowSource as _, Watchdog},
};

/// A worker, and the time that it has spent sampling.
pub(super) struct Alone {
    own: OwnSampler,
    failures: Failures,
    plain: Option<Plain>,
    sampling: Duration,
    /// Dropped at the end, which ends the watchdog's thread.
    watched: Option<Sender<()>>,
}

/// A plain rollout: raw rows, the same number of each environment, in fragments.
struct Plain {
    length: u32,
    /// Remaining steps of each environment.
    left: u64,
}

impl Plain {
    fn next_steps(&self) -> u32 {
        self.left.min(self.length.into()) as u32
    }
}

impl Alone {
    /// Samples with the worker's settings.
    pub(super) fn new(worker: RolloutWorker) -> Self {
        let (own, failures) = (OwnSampler::new(worker), Failures::default());
        Self { own, failures, plain: None, sampling: Duration::ZERO, watched: None }
    }

    /// Ends the program, with an error, if the worker makes no progress for `patience_s` seconds: its thread cannot be ended. 0 for never.
    pub(super) fn watch(&mut self, patience_s: f64) {
        let rollout = self.own.worker.creation_args().clone();
        let mut dog = Watchdog::new(self.own.watch(), &rollout, patience_s);
        let Some(interval) = dog.interval() else { return };
        let (watched, end) = channel::<()>();
        let watch = move || {
            while let Err(RecvTimeoutError::Timeout) = end.recv_timeout(interval) {
                if let Some(fatal) = dog.check() {
                    Failure::Other(fatal.explain(&rollout)).report();
                    process::exit(1);
                }
            }
        };
        // Without a thread a hung step ends with the program.
        let _ = thread::Builder::new().name("watchdog".into()).spawn(watch);
        self.watched = Some(watched);
    }

    /// Samples `left` steps of each environment.
    pub(super) fn plain(worker: RolloutWorker, left: u64) -> Result<Self, Failure> {
        let FragmentLength::Steps(length) = worker.creation_args().rollout_fragment_length else {
            return Err(Failure::usage("a plain rollout has fragments of a fixed length"));
        };
        Ok(Self { plain: Some(Plain { length, left }), ..Self::new(worker) })
    }

    /// Samples the next rows and passes them on; returns false if there are no more.
    pub(super) fn next(&mut self, tally: &mut Tally, interruption: &Interruption) -> Result<bool, Failure> {
        let (start, steps) = (Instant::now(), self.plain.as_ref().map(Plain::next_steps));
        let Some(steps) = steps else {
            let sampled = self.own.sample(|worker| worker.sample().map(Some));
            self.sampling += start.elapsed();
            self.report_failures(tally);
            tally.metrics(self.own.worker.metrics());
            return match sampled {
                // The clients' environment was stopped by the interruption.
                Err(_) if interruption.is_noticed() => Ok(false),
                sampled => match sampled.map_err(|fault| self.failed(&fault))? {
                    Some(batch) => tally.batch(&batch).map(|()| true).map_err(Failure::other),
                    None => Ok(false),
                },
            };
        };
        if steps == 0 {
            return Ok(false);
        }
        let sampled = self.own.sample(|worker| worker.sample_fragments(steps).map(Some));
        self.sampling += start.elapsed();
        self.report_failures(tally);
        let fragments = sampled.map_err(|fault| self.failed(&fault))?.unwrap_or_default();
        self.plain.iter_mut().for_each(|plain| plain.left -= u64::from(steps));
        tally.fragments(&fragments).map_err(Failure::other)?;
        Ok(true)
    }

    fn report_failures(&mut self, tally: &mut Tally) {
        for failure in self.own.watch().take_failures() {
            tally.failure(&failure);
            self.failures.add(failure);
        }
    }

    fn failed(&self, fault: &SampleFault) -> Failure {
        match fault {
            SampleFault::Fatal(fatal) => Failure::other(fatal.explain(self.own.worker.creation_args())),
            SampleFault::Other(error) => Failure::other(error),
        }
    }

    pub(super) fn finish(mut self, env_steps: u64) -> Result<Speed, Failure> {
        self.own.worker.stop().map_err(Failure::other)?;
        let abandoned_episodes = self.own.take_abandoned();
        let abandoned = (abandoned_episodes > 0).then(|| format!("{abandoned_episodes} open episodes were given up"));
        Ok(Speed {
            env_steps,
            time: self.sampling,
            workers: None,
            failures: self.failures,
            abandoned_episodes,
            not_reproducible: abandoned.into_iter().collect(),
        })
    }
}
