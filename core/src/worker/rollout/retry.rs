//! Retries of samples that fail, in runs without leases.

use super::{RolloutWorker, Source, WorkerMetrics};
use crate::{
    env::{EnvError, StepMark},
    filter::{Filter, FilterKind},
    ids::{FragmentNo, PolicyId},
    prelude::*,
    protocol::{FailureKind, FatalFailure, FragmentFailure, MAX_ATTEMPTS},
    sampler::{ResumePoint, SampleError},
    worker::{
        Guard, RolloutError, RunnerError,
        command::{PanicWords, guarded},
    },
};

/// Retries failed samples of a worker from where they began, as a [`LeaseGroup`](crate::group::LeaseGroup) retries
/// fragments: the same failure at the same place is fatal, and so are five in a row. Open episodes that cannot be restored,
/// such as those of opaque environments and of environments in processes, are abandoned and counted: the retry begins the
/// next ones. A worker that reads an input is not retried.
pub struct Retries {
    guard: Guard,
    /// Number of abandoned episodes that were not taken yet.
    abandoned: u64,
    /// The beginning of the sample in progress; `None` between two samples.
    start: Option<RetryStart>,
    /// Consecutive failures of the sample in progress.
    attempts: u32,
    last: Option<FragmentFailure>,
}

/// The reason why a sample was given up.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SampleFault {
    /// User code fails.
    #[error(transparent)]
    Fatal(#[from] FatalFailure),
    /// Another error, which no retry would change.
    #[error(transparent)]
    Other(#[from] RolloutError),
}

/// The beginning of a sample.
#[derive(Default)]
struct RetryStart {
    sampler: SamplerStart,
    /// The policies' filters, which count the rows that they have seen.
    filters: BTreeMap<PolicyId, Filter>,
    /// Number of unread episodes.
    episodes: usize,
}

impl RetryStart {
    /// Returns true if a return has abandoned episodes.
    fn has_abandoned(&self) -> bool {
        match &self.sampler {
            SamplerStart::Lockstep(fragment) => fragment.is_none(),
            SamplerStart::Reader(point) => point.lost_episodes != Some(0),
            SamplerStart::Unknown => false,
        }
    }
}

/// The point to which the sampler returns.
#[derive(Default)]
enum SamplerStart {
    /// Before this fragment; `None` if its open episodes cannot be restored.
    Lockstep(Option<FragmentNo>),
    Reader(ResumePoint),
    /// It cannot return.
    #[default]
    Unknown,
}

/// An attempt's error.
enum AttemptError {
    Error(RolloutError),
    Panic(String),
}

impl From<PanicWords> for AttemptError {
    fn from(PanicWords(words): PanicWords) -> Self {
        Self::Panic(words)
    }
}

impl Retries {
    /// Creates it with a guard that turns panics of user code into failures.
    #[must_use]
    pub fn new(guard: Guard) -> Self {
        Self { guard, abandoned: 0, start: None, attempts: 0, last: None }
    }

    /// Returns the number of episodes that were abandoned since the last call.
    pub fn take_abandoned(&mut self) -> u64 {
        core::mem::take(&mut self.abandoned)
    }

    /// Calls `sample` until it does not fail; it may return `None` to be called again later, for the same sample. `record`
    /// gets every failure.
    ///
    /// # Errors
    /// [`SampleFault`].
    pub fn sample<T>(
        &mut self,
        worker: &mut RolloutWorker,
        mut sample: impl FnMut(&mut RolloutWorker) -> Result<Option<T>, RolloutError>,
        mut record: impl FnMut(&FragmentFailure),
    ) -> Result<Option<T>, SampleFault> {
        loop {
            if self.start.is_none() {
                self.start = match guarded(self.guard, || worker.sample_start().map_err(AttemptError::Error)) {
                    Ok(start) => Some(start),
                    Err(AttemptError::Error(error)) => return Err(error.into()),
                    // A snapshot has panicked, so this sample cannot be retried.
                    Err(AttemptError::Panic(_)) => Some(RetryStart::default()),
                };
            }
            let fault = match guarded(self.guard, || sample(worker).map_err(AttemptError::Error)) {
                Ok(None) => return Ok(None),
                Ok(made) => {
                    (self.start, self.attempts, self.last) = (None, 0, None);
                    return Ok(made);
                }
                Err(fault) => fault,
            };
            let mut fault = Some(fault);
            // The replay of an open episode may fail, too.
            while let Some(failed) = fault.take() {
                let failure = match failed {
                    AttemptError::Error(error) => failure_of(&error, &worker.parts.mark).ok_or(error)?,
                    AttemptError::Panic(words) => failure_at(FailureKind::Panic, &worker.parts.mark, &words),
                };
                record(&failure);
                self.attempts += 1;
                let is_repeated = self.last.as_ref() == Some(&failure);
                let returned = match &self.start {
                    Some(start) if !is_repeated && self.attempts < MAX_ATTEMPTS => {
                        guarded(self.guard, || worker.return_to(start).map_err(AttemptError::Error))
                    }
                    _ => Ok(None),
                };
                match returned {
                    Ok(Some(abandoned)) => self.abandoned += abandoned,
                    Ok(None) => return Err(FatalFailure { failure, attempts: self.attempts, is_repeated }.into()),
                    Err(error) => fault = Some(error),
                }
                self.last = Some(failure);
            }
            if self.start.as_ref().is_some_and(RetryStart::has_abandoned) {
                // Abandoned episodes are not open at the next attempt's beginning.
                self.start = None;
            }
        }
    }
}

impl RolloutWorker {
    /// Returns the mark of the env step in progress, which another thread may watch.
    #[must_use]
    pub fn step_mark(&self) -> &StepMark {
        &self.parts.mark
    }

    fn sample_start(&mut self) -> Result<RetryStart, RolloutError> {
        let sampler = match &mut self.parts.opened.source {
            Some(Source::Lockstep(sampler)) => SamplerStart::Lockstep(sampler.savepoint()),
            Some(Source::Reader(sampler)) if !self.parts.opened.offline => match sampler.resume_point() {
                point if point.lost_episodes.is_some() => SamplerStart::Reader(point),
                _ => SamplerStart::Unknown,
            },
            _ => SamplerStart::Unknown,
        };
        let can_return = !matches!(sampler, SamplerStart::Unknown);
        let has_filter = self.parts.config.observation_filter != FilterKind::NoFilter;
        let filters = if can_return && has_filter { self.filters(false)? } else { BTreeMap::new() };
        Ok(RetryStart { sampler, filters, episodes: self.metrics.episodes.len() })
    }

    /// Returns to the beginning of a sample that has failed, and the number of episodes that are abandoned; `None` if that is
    /// impossible.
    fn return_to(
        &mut self,
        RetryStart { sampler, filters, episodes }: &RetryStart,
    ) -> Result<Option<u64>, RolloutError> {
        self.restore_weights()?;
        // Its episodes will end again, unless they are abandoned.
        self.collect_metrics();
        let ended = self.metrics.episodes.len().saturating_sub(*episodes) as u64;
        self.metrics.episodes.truncate(*episodes);
        let returned = match (sampler, &mut self.parts.opened.source) {
            (SamplerStart::Lockstep(Some(fragment)), Some(Source::Lockstep(sampler))) => {
                sampler.return_to(*fragment).map_err(SampleError::from)?.then_some(0)
            }
            (SamplerStart::Lockstep(None), Some(Source::Lockstep(sampler))) => Some(ended + sampler.abandon()),
            (SamplerStart::Reader(point), Some(Source::Reader(sampler))) => {
                sampler.resume(point)?;
                point.lost_episodes
            }
            _ => return Ok(None),
        };
        self.give_up_sample()?;
        if let SamplerStart::Reader(point) = sampler {
            // Batches that were ready at the beginning are ready again, so they are not lost.
            self.collect_metrics();
            let (env_steps, agent_steps) = point.ready_steps();
            let WorkerMetrics { discarded_env_steps, discarded_agent_steps, .. } = &mut self.metrics;
            *discarded_env_steps = discarded_env_steps.saturating_sub(env_steps);
            *discarded_agent_steps = discarded_agent_steps.saturating_sub(agent_steps);
        }
        for (id, filter) in filters {
            self.parts.policies.get_mut(id)?.filter.clone_from(filter);
        }
        Ok(returned)
    }
}

/// Returns an error as a failure of user code; `None` if it is none.
fn failure_of(error: &RolloutError, mark: &StepMark) -> Option<FragmentFailure> {
    match error {
        RolloutError::Sample(SampleError::Env(
            EnvError::AllGivenUp { .. } | EnvError::GivenUp { .. } | EnvError::Stopped,
        )) => None,
        // A retry gets the same observation, and neither the environment nor the policy has failed.
        RolloutError::Sample(SampleError::Preprocess { .. } | SampleError::Filter(_)) => None,
        RolloutError::Sample(error) => {
            let source = RunnerError::from(error.clone());
            let (kind, message) = (source.failure_kind(), source.at_place());
            match (error, source.place()) {
                _ if kind == FailureKind::Fragment => None,
                (_, Some((slot, at))) => Some(FragmentFailure::new(kind, Some(slot), at, &message)),
                (SampleError::EnvAt { slot, episode, t, .. }, None) => {
                    Some(FragmentFailure::new(kind, Some(*slot), (*episode, *t), &message))
                }
                _ => Some(failure_at(kind, mark, &source.to_string())),
            }
        }
        RolloutError::Policy { .. } => Some(failure_at(FailureKind::Policy, mark, &error.to_string())),
        RolloutError::Callback(_) => Some(failure_at(FailureKind::Callback, mark, &error.to_string())),
        _ => None,
    }
}

fn failure_at(kind: FailureKind, mark: &StepMark, message: &str) -> FragmentFailure {
    let position = mark.position();
    FragmentFailure::new(kind, position.map(|(slot, _)| slot), position.unwrap_or_default().1, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{callbacks::CallbackError, filter::FilterError, ids::AgentId, preprocess::PreprocessError};

    #[test]
    fn observations_that_cannot_be_encoded_are_not_retried_and_fail_the_fragment_of_a_lease() {
        let source = PreprocessError::BadObs { space: "Discrete(2)".into(), found: "3".into() };
        let preprocess = SampleError::Preprocess { agent: AgentId::SINGLE, source };
        for error in [preprocess, SampleError::Filter(FilterError::BadClip("-1".into()))] {
            assert_eq!(RunnerError::from(error.clone()).failure_kind(), FailureKind::Policy);
            assert_eq!(failure_of(&RolloutError::Sample(error), &StepMark::default()), None);
        }
        let callback = SampleError::Callback(CallbackError::new("on_episode_step", "no mood"));
        let failure = failure_of(&RolloutError::Sample(callback), &StepMark::default());
        assert_eq!(failure.map(|failure| failure.kind), Some(FailureKind::Callback));
    }
}
