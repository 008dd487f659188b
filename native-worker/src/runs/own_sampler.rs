//! A worker that samples without leases: it retries failed samples, and another thread can watch its progress.

use std::{
    mem,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use rollmesh_core::{
    batch::AnyBatch,
    env::StepMark,
    protocol::{FailureKind, FatalFailure, FragmentFailure},
    time::Micros,
    worker::{Retries, RolloutConfig, RolloutError, RolloutWorker, SampleFault},
};

use super::row_source::RowSource;
use crate::{envs::catch_panics, learner::LearnError};

/// The time for which a run's own worker samples before it checks for an interruption.
const SPAN: Micros = Micros(50_000);

/// A worker with its retries.
pub(crate) struct OwnSampler {
    pub(crate) worker: RolloutWorker,
    retries: Retries,
    watch: SampleWatch,
}

/// The view of an [`OwnSampler`] for other threads. Clones share it.
#[derive(Clone)]
pub(crate) struct SampleWatch {
    mark: StepMark,
    shared: Arc<SharedSampler>,
}

#[derive(Default)]
struct SharedSampler {
    is_sampling: AtomicBool,
    /// Failures that were not taken yet.
    failures: Mutex<Vec<FragmentFailure>>,
}

/// Detects that a worker that samples makes no progress.
pub(crate) struct Watchdog {
    watch: SampleWatch,
    /// The deadline for progress; `None` for none.
    patience: Option<Duration>,
    beats: u32,
    since: Instant,
}

impl OwnSampler {
    pub(crate) fn new(worker: RolloutWorker) -> Self {
        let watch = SampleWatch { mark: worker.step_mark().clone(), shared: Arc::default() };
        Self { worker, retries: Retries::new(catch_panics), watch }
    }

    pub(crate) fn watch(&self) -> SampleWatch {
        self.watch.clone()
    }

    /// Calls `sample`, again if it fails, see [`Retries::sample`].
    pub(crate) fn sample<T>(
        &mut self,
        sample: impl FnMut(&mut RolloutWorker) -> Result<Option<T>, RolloutError>,
    ) -> Result<Option<T>, SampleFault> {
        let Self { worker, retries, watch } = self;
        watch.mark.beat();
        watch.shared.is_sampling.store(true, Ordering::Relaxed);
        let made = retries.sample(worker, sample, |failure| watch.failures().push(failure.clone()));
        watch.shared.is_sampling.store(false, Ordering::Relaxed);
        made
    }
}

impl RowSource for OwnSampler {
    fn learner(&mut self) -> Result<&mut RolloutWorker, LearnError> {
        Ok(&mut self.worker)
    }

    fn next_batches(&mut self, _: usize, is_interrupted: &AtomicBool) -> Result<Option<Vec<AnyBatch>>, LearnError> {
        while !is_interrupted.load(Ordering::Relaxed) {
            let sampled = self.sample(|worker| worker.sample_within(SPAN)).map_err(|fault| match fault {
                SampleFault::Fatal(fatal) => LearnError::Rows(fatal.explain(self.worker.creation_args())),
                SampleFault::Other(error) => error.into(),
            })?;
            if let Some(batch) = sampled {
                return Ok(Some(vec![batch]));
            }
        }
        Ok(None)
    }

    fn can_be_resumed(&self) -> bool {
        self.worker.creation_args().input.is_sampler() || self.worker.input_position().is_some()
    }

    fn own_watch(&self) -> Option<SampleWatch> {
        Some(self.watch())
    }

    fn take_abandoned(&mut self) -> u64 {
        self.retries.take_abandoned()
    }

    fn end(&mut self) {
        _ = self.worker.stop();
    }
}

impl SampleWatch {
    /// Watches a worker with this mark, which is sampling all the time.
    pub(crate) fn of(mark: &StepMark) -> Self {
        let shared = SharedSampler { is_sampling: AtomicBool::new(true), ..SharedSampler::default() };
        Self { mark: mark.clone(), shared: Arc::new(shared) }
    }

    /// Returns the failures since the last call.
    pub(crate) fn take_failures(&self) -> Vec<FragmentFailure> {
        mem::take(&mut *self.failures())
    }

    fn failures(&self) -> MutexGuard<'_, Vec<FragmentFailure>> {
        self.shared.failures.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Watchdog {
    /// Watches a worker with these settings, which may make no progress for `patience_s` seconds; 0 for ever. Inputs may wait
    /// for their data.
    pub(crate) fn new(watch: SampleWatch, rollout: &RolloutConfig, patience_s: f64) -> Self {
        // Environments in other processes have a deadline of their own.
        let own_ms = if rollout.remote_worker_envs { rollout.remote_env_timeout_ms } else { 0 };
        let patience = Some(patience_s).filter(|seconds| *seconds > 0.0 && rollout.input.is_sampler());
        let patience = patience.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        let patience = patience.map(|patience| patience.saturating_add(Duration::from_millis(own_ms.into())));
        Self { beats: watch.mark.beats(), watch, patience, since: Instant::now() }
    }

    pub(crate) fn watch(&self) -> &SampleWatch {
        &self.watch
    }

    /// Returns the interval at which to call [`check`](Self::check), so that a hang is detected at most a tenth later
    /// than its deadline; `None` if nothing is watched.
    pub(crate) fn interval(&self) -> Option<Duration> {
        self.patience.map(|patience| (patience / 10).clamp(Duration::from_millis(10), Duration::from_secs(1)))
    }

    /// Returns the failure of a worker that hangs. Any change since the last call is progress: call it periodically.
    pub(crate) fn check(&mut self) -> Option<FatalFailure> {
        let beats = self.watch.mark.beats();
        if !self.watch.shared.is_sampling.load(Ordering::Relaxed) || beats != self.beats {
            (self.beats, self.since) = (beats, Instant::now());
            return None;
        }
        let patience = self.patience.filter(|patience| self.since.elapsed() >= *patience)?;
        let message = format!("no progress for {}", Micros::from_secs_f64(patience.as_secs_f64()));
        let position = self.watch.mark.position();
        let (slot, at) = (position.map(|(slot, _)| slot), position.unwrap_or_default().1);
        let failure = FragmentFailure::new(FailureKind::Hang, slot, at, &message);
        Some(FatalFailure { failure, attempts: 1, is_repeated: false })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn worker_is_watched_only_while_it_samples() {
        let config = RolloutConfig::new("CartPole-v1").num_envs(2).rollout_fragment_length(8);
        let mut own = OwnSampler::new(RolloutWorker::builder().config(config.clone()).build().unwrap());
        let mut dog = Watchdog::new(own.watch(), &config, 1e-9);
        assert_eq!(dog.check(), None);
        let seen = own.sample(|_| {
            // The first call only records the state.
            Ok(Some((dog.check(), dog.check())))
        });
        let (first, second) = seen.unwrap().unwrap();
        assert_eq!((first, second.unwrap().failure.kind), (None, FailureKind::Hang));
        assert_eq!(dog.check(), None);
    }
}
