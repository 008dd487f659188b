//! The sampling thread: batches one after the other, and the worker's changes between them.

use std::{
    collections::VecDeque,
    sync::mpsc::{Receiver, SyncSender, TryRecvError},
};

use rollmesh_core::{
    batch::{AnyBatch, SampleBatch},
    episode::{Losses, RolloutMetrics},
    filter::Filter,
    ids::PolicyId,
    policy::{PolicyEntry, PolicyMapError},
    sampler::{Interrupt, ResumePoint, SampleError, SamplerHost},
    worker::AsyncSampling,
};

use super::changes::ThreadUpdate;

/// Commands to the thread, which reads them between two batches.
pub(super) enum SamplerCommand {
    /// Something in the worker has changed.
    Change(Box<ThreadUpdate>),
    /// This many items have been taken.
    Taken(u64),
    /// The error has been returned.
    GoOn,
    /// The engine is called back.
    ComeBack,
}

/// The result of one call of the sampler.
pub(super) struct Item {
    pub(super) batch: Result<AnyBatch, SampleError>,
    pub(super) metrics: Vec<RolloutMetrics>,
    pub(super) losses: Losses,
    /// The observations of the filters meanwhile, in their buffers.
    pub(super) seen: Seen,
    /// Number of the latest change that had been applied.
    pub(super) change: u64,
    /// The sampler's position after it.
    pub(super) point: ResumePoint,
}

type Seen = Vec<(PolicyId, Filter)>;

/// A sampler with all its parts.
pub(super) struct SamplerParts {
    pub(super) sampling: AsyncSampling,
    /// Number of the latest item, from 1.
    made: u64,
    /// The observations of the filters for items that, as far as the thread knows, have not been taken.
    pub(super) ahead: VecDeque<(u64, Seen)>,
    /// Number of the latest change.
    change: u64,
    /// The error of a change that could not be applied.
    trouble: Option<SampleError>,
    /// True after an error, until it has been returned.
    waits: bool,
}

impl SamplerParts {
    pub(super) fn new(sampling: AsyncSampling) -> Self {
        Self { sampling, made: 0, ahead: VecDeque::new(), change: 0, trouble: None, waits: false }
    }

    /// Samples until it is stopped or called back, or the receiver of batches is dropped.
    pub(super) fn run(
        mut self,
        commands: &Receiver<SamplerCommand>,
        items: &SyncSender<Item>,
        interrupt: &Interrupt,
    ) -> Self {
        while self.listen(commands) && !interrupt.is_set() {
            let item = self.make(interrupt);
            if items.send(item).is_err() {
                break;
            }
        }
        self
    }

    /// Executes pending commands. False if the thread has to end.
    fn listen(&mut self, commands: &Receiver<SamplerCommand>) -> bool {
        loop {
            let command = match self.waits {
                true => commands.recv().map_err(|_| TryRecvError::Disconnected),
                false => commands.try_recv(),
            };
            match command {
                Ok(SamplerCommand::Change(change)) => {
                    if let Err(error) = self.apply(*change) {
                        self.trouble = Some(error);
                    }
                }
                Ok(SamplerCommand::Taken(count)) => self.ahead.retain(|(number, _)| *number > count),
                Ok(SamplerCommand::GoOn) => self.waits = false,
                Ok(SamplerCommand::ComeBack) | Err(TryRecvError::Disconnected) => return false,
                Err(TryRecvError::Empty) => return true,
            }
        }
    }

    fn make(&mut self, interrupt: &Interrupt) -> Item {
        let mut batch = match self.trouble.take() {
            Some(error) => Err(error),
            None => self.sample(interrupt),
        };
        let mut seen = Vec::new();
        if let Err(error) = self.take_seen(&mut seen) {
            batch = batch.and_then(|_| Err(error.into()));
        }
        self.waits = batch.is_err();
        self.made += 1;
        if !seen.is_empty() {
            self.ahead.push_back((self.made, seen.clone()));
        }
        let sampler = self.sampling.sampler.as_mut();
        let (metrics, mut losses, point) = (sampler.metrics(), sampler.losses(), sampler.resume_point());
        if self.sampling.discard_batches {
            batch = batch.map(|batch| {
                losses.blackholed_env_steps += batch.env_steps() as u64;
                losses.blackholed_agent_steps += batch.agent_steps() as u64;
                SampleBatch::new().into()
            });
        }
        Item { batch, metrics, losses, seen, change: self.change, point }
    }

    fn sample(&mut self, interrupt: &Interrupt) -> Result<AnyBatch, SampleError> {
        let sampling = &mut self.sampling;
        sampling.sampler.next(&mut SamplerHost {
            worker: &sampling.worker,
            policies: &mut sampling.policies,
            mapping: &sampling.mapping,
            observation_fn: sampling.observation_fn.as_ref(),
            callbacks: &mut sampling.callbacks,
            clock: &*sampling.clock,
            interrupt: Some(interrupt),
        })
    }

    /// Takes the observations of the filters since the last call.
    fn take_seen(&mut self, seen: &mut Seen) -> Result<(), PolicyMapError> {
        let policies = &mut self.sampling.policies;
        let has_filter = |id| policies.peek(id).is_none_or(|entry: &PolicyEntry| entry.filter.mean_std().is_some());
        if !policies.ids().any(has_filter) {
            return Ok(());
        }
        policies.for_each_mut(|id, entry: &mut PolicyEntry| {
            if entry.filter.mean_std().is_some_and(|filter| filter.buffer().n() > 0) {
                seen.push((id.clone(), entry.filter.flush()));
            }
            Ok(())
        })
    }

    fn apply(&mut self, change: ThreadUpdate) -> Result<(), SampleError> {
        self.change = change.number;
        self.ahead.retain(|(number, _)| *number > change.taken);
        let sampling = &mut self.sampling;
        if let Some(mapping) = change.mapping {
            sampling.mapping = mapping;
        }
        if let Some(observation_fn) = change.observation_fn {
            sampling.observation_fn = observation_fn;
        }
        for id in &change.removed {
            sampling.policies.remove(id)?;
        }
        for (id, twin) in change.added {
            // Those observations were the previous policy's.
            self.ahead.iter_mut().for_each(|(_, seen)| seen.retain(|(of, _)| *of != id));
            sampling.policies.insert(id, twin)?;
        }
        for (id, weights, extra_state) in change.states {
            let policy = sampling.policies.policy_mut(&id)?;
            let set = policy.set_weights(&weights).and_then(|()| policy.set_extra_state(&extra_state));
            set.map_err(|source| SampleError::Policy { id, source })?;
        }
        for (id, mut filter) in change.filters {
            filter.reset_buffer();
            for (_, seen) in self.ahead.iter().flat_map(|(_, seen)| seen).filter(|(of, _)| *of == id) {
                filter.apply_changes(seen, false)?;
            }
            sampling.policies.get_mut(&id)?.filter = filter;
        }
        Ok(())
    }
}
