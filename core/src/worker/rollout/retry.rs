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
/// fragments: the same failure at the same place is fatal, and so are five in a row. A sample is not retried if its open
/// episodes cannot be restored, or if the worker reads an input.
pub struct Retries {
    guard: Guard,
    /// Where the sample in progress began; `None` between two samples.
    start: Option<Start>,
    /// Consecutive failures of the sample in progress.
    attempts: u32,
    last: Option<FragmentFailure>,
}

/// Why a sample was given up.
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
struct Start {
    sampler: SamplerStart,
    /// The policies' filters, which count the rows that they have seen.
    filters: BTreeMap<PolicyId, Filter>,
    /// Number of unread episodes.
    episodes: usize,
}

/// Where the sampler returns to.
#[derive(Default)]
enum SamplerStart {
    /// Before this fragment.
    Lockstep(FragmentNo),
    Reader(ResumePoint),
    /// Its open episodes cannot be restored.
    #[default]
    Unknown,
}

/// An attempt's error.
enum Fault {
    Error(RolloutError),
    Panic(String),
}

impl From<PanicWords> for Fault {
    fn from(PanicWords(words): PanicWords) -> Self {
        Self::Panic(words)
    }
}

impl Retries {
    /// Creates it with a guard that turns panics of user code into failures.
    #[must_use]
    pub fn new(guard: Guard) -> Self {
        Self { guard, start: None, attempts: 0, last: None }
    }

    /// Calls `sample` until it does not fail; it may return `None` to be called again later, for the same sample. `note`
    /// gets every failure.
    ///
    /// # Errors
    /// [`SampleFault`].
    pub fn sample<T>(
        &mut self,
        worker: &mut RolloutWorker,
        mut sample: impl FnMut(&mut RolloutWorker) -> Result<Option<T>, RolloutError>,
        mut note: impl FnMut(&FragmentFailure),
    ) -> Result<Option<T>, SampleFault> {
        loop {
            if self.start.is_none() {
                self.start = match guarded(self.guard, || worker.sample_start().map_err(Fault::Error)) {
                    Ok(start) => Some(start),
                    Err(Fault::Error(error)) => return Err(error.into()),
                    // A snapshot has panicked, so this sample cannot be retried.
                    Err(Fault::Panic(_)) => Some(Start::default()),
                };
            }
            let fault = match guarded(self.guard, || sample(worker).map_err(Fault::Error)) {
                Ok(None) => return Ok(None),
                Ok(made) => {
                    (self.start, self.attempts, self.last) = (None, 0, None);
                    return Ok(made);
                }
                Err(fault) => fault,
            };
            let failure = match fault {
                Fault::Error(error) => failure_of(&error, &worker.parts.mark).ok_or(error)?,
                Fault::Panic(words) => failure_at(FailureKind::Panic, &worker.parts.mark, &words),
            };
            note(&failure);
            self.attempts += 1;
            let is_repeated = self.last.as_ref() == Some(&failure);
            let retried = match &self.start {
                Some(start) if !is_repeated && self.attempts < MAX_ATTEMPTS => {
                    let returned = guarded(self.guard, || worker.return_to(start).map_err(Fault::Error));
                    returned.unwrap_or(false)
                }
                _ => false,
            };
            if !retried {
                return Err(FatalFailure { failure, attempts: self.attempts, is_repeated }.into());
            }
            self.last = Some(failure);
        }
    }
}

impl RolloutWorker {
    /// Returns the mark of the env step in progress, which another thread may watch.
    #[must_use]
    pub fn step_mark(&self) -> &StepMark {
        &self.parts.mark
    }

    fn sample_start(&mut self) -> Result<Start, RolloutError> {
        let sampler = match &mut self.parts.opened.source {
            Source::Lockstep(sampler) => sampler.savepoint().map_or(SamplerStart::Unknown, SamplerStart::Lockstep),
            Source::Reader(sampler) if !self.parts.opened.offline => match sampler.resume_point() {
                point if point.continues_episodes => SamplerStart::Reader(point),
                _ => SamplerStart::Unknown,
            },
            Source::Reader(_) | Source::None | Source::Input(_) => SamplerStart::Unknown,
        };
        let can_return = !matches!(sampler, SamplerStart::Unknown);
        let has_filter = self.parts.config.observation_filter != FilterKind::NoFilter;
        let filters = if can_return && has_filter { self.filters(false)? } else { BTreeMap::new() };
        Ok(Start { sampler, filters, episodes: self.metrics.episodes.len() })
    }

    /// Returns to the beginning of a sample that has failed; false if that is impossible.
    fn return_to(&mut self, Start { sampler, filters, episodes }: &Start) -> Result<bool, RolloutError> {
        self.restore_weights()?;
        // Its episodes will end again.
        self.collect_metrics();
        self.metrics.episodes.truncate(*episodes);
        let returned = match (sampler, &mut self.parts.opened.source) {
            (SamplerStart::Lockstep(fragment), Source::Lockstep(sampler)) => {
                sampler.return_to(*fragment).map_err(SampleError::from)?
            }
            (SamplerStart::Reader(point), Source::Reader(sampler)) => {
                sampler.resume(point)?;
                true
            }
            _ => return Ok(false),
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
        RolloutError::Sample(error) => {
            let source = RunnerError::from(error.clone());
            let (kind, message) = (source.failure_kind(), source.to_string());
            match error {
                _ if kind == FailureKind::Fragment => None,
                SampleError::EnvAt { slot, episode, t, .. } => {
                    Some(FragmentFailure::new(kind, Some(*slot), (*episode, *t), &message))
                }
                _ => Some(failure_at(kind, mark, &message)),
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
