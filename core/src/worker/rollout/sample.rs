//! Sampling: reading, joining, the user's last word, writing, estimating, compressing. In this order.

use super::{RolloutWorker, Source};
use crate::{
    batch::{AnyBatch, SampleBatch, SlotFragment},
    callbacks::Callbacks as _,
    column::Granularity,
    ids::PolicyId,
    prelude::*,
    run::{RunSpec, SpecError},
    sampler::{BatchMode, CountStepsBy, InputReader as _, SamplerInput as _},
    worker::{
        RolloutError, SetupError,
        config::{Compression, InputEvaluation},
    },
};

/// Batches without rows that a worker takes in a row before it gives up.
const MAX_EMPTY: u32 = 1_000;

impl RolloutWorker {
    /// The next sample.
    ///
    /// | mode | size |
    /// |---|---|
    /// | `truncate_episodes` | the fragments of all environments: exactly [`steps_per_sample`](Self::steps_per_sample), counted by agent steps at least as many |
    /// | `complete_episodes` | whole episodes, until there are at least as many |
    /// | an input | batches, until there are at least as many |
    ///
    /// Batches are read and joined; then callbacks may [change](crate::callbacks::Callbacks::on_sample_end) the whole;
    /// then it is written, estimated, and compressed, where that is wanted.
    ///
    /// # Errors
    /// [`RolloutError`]. Batches that had been read until then begin the next sample.
    pub fn sample(&mut self) -> Result<AnyBatch, RolloutError> {
        self.check_running()?;
        if let Some(first) = &self.first {
            return Ok(first.clone());
        }
        let read = self.read();
        self.collect_metrics();
        let mut batch = read?;
        self.parts.callbacks.on_sample_end(&self.parts.info, &mut batch)?;
        self.parts.opened.output.write(&batch)?;
        self.estimate(&batch)?;
        self.compress(&mut batch)?;
        if self.parts.config.fake_sampler {
            self.first = Some(batch.clone());
        }
        Ok(batch)
    }

    /// [`sample`](Self::sample), and its number of env steps.
    ///
    /// # Errors
    /// As [`sample`](Self::sample).
    pub fn sample_with_count(&mut self) -> Result<(AnyBatch, usize), RolloutError> {
        let batch = self.sample()?;
        let count = batch.env_steps();
        Ok((batch, count))
    }

    /// The next `steps` steps of every environment, with cuts and states: what [`sample`](Self::sample) is made of where
    /// all environments are stepped together. Copies nothing that it need not; callbacks and output do not see it.
    ///
    /// # Errors
    /// [`RolloutError::NoFragments`] where they are not, [`RolloutError::Setup`] for too many steps; else as
    /// [`sample`](Self::sample).
    pub fn sample_fragments(&mut self, steps: u32) -> Result<Vec<SlotFragment>, RolloutError> {
        self.check_running()?;
        if steps == 0 || steps > RunSpec::MAX_FRAGMENT_LENGTH {
            let max = RunSpec::MAX_FRAGMENT_LENGTH;
            return Err(SetupError::from(SpecError::OutOfRange { what: "steps", max, found: steps }).into());
        }
        let parts = &mut self.parts;
        let Source::Lockstep(sampler) = &mut parts.opened.source else { return Err(RolloutError::NoFragments) };
        sampler.check_size(steps)?;
        let policy = parts.policies.policy_mut(&PolicyId::DEFAULT)?;
        let fragments = sampler.fragments(steps, policy, &*parts.clock, None)?;
        self.collect_metrics();
        Ok(fragments)
    }

    /// Whether all environments are stepped together, which is fastest.
    #[must_use]
    pub fn is_lockstep(&self) -> bool {
        matches!(self.parts.opened.source, Source::Lockstep(_))
    }

    /// Reads until there is enough, and joins.
    fn read(&mut self) -> Result<AnyBatch, RolloutError> {
        self.simulate()?;
        let (wanted, num_envs) = (self.steps_per_sample(), self.parts.config.num_envs as usize);
        let truncates = self.parts.config.batch_mode == BatchMode::TruncateEpisodes;
        // Every environment gives one fragment; from elsewhere there may come any number of batches.
        let most = if truncates && !self.parts.opened.offline { num_envs } else { usize::MAX };
        let count_by = self.parts.config.count_steps_by;
        let count = |batch: &AnyBatch| match count_by {
            CountStepsBy::EnvSteps => batch.env_steps(),
            CountStepsBy::AgentSteps => batch.agent_steps(),
        };
        let (mut steps, mut empty) = (self.read.iter().map(count).sum::<usize>(), 0);
        while steps < wanted && self.read.len() < most {
            let batch = self.next_batch()?;
            steps += count(&batch);
            empty = if batch.agent_steps() == 0 { empty + 1 } else { 0 };
            if empty == MAX_EMPTY {
                return Err(RolloutError::EmptyInput(MAX_EMPTY));
            }
            if !self.parts.opened.offline && !self.is_lockstep() {
                self.look_at_size(batch.agent_steps());
            }
            self.read.push(batch);
        }
        let mut batch = match <[AnyBatch; 1]>::try_from(core::mem::take(&mut self.read)) {
            Ok([only]) => only,
            Err(several) => AnyBatch::concat(&several)?,
        };
        if !self.parts.opened.offline {
            self.tell_updates(&mut batch);
        }
        Ok(batch)
    }

    fn next_batch(&mut self) -> Result<AnyBatch, RolloutError> {
        let (opened, mut host) = self.parts.lend();
        Ok(match &mut opened.source {
            Source::None => return Err(RolloutError::NoInput),
            // There is nothing extra to be joined.
            Source::Lockstep(sampler) => sampler.data(&mut host)?,
            Source::Reader(sampler) => sampler.next(&mut host)?,
            Source::Input(reader) => reader.next(&mut host)?,
        })
    }

    /// Lets the sampler beside an input go on; its batches are not wanted.
    fn simulate(&mut self) -> Result<(), RolloutError> {
        let (opened, mut host) = self.parts.lend();
        if let Some(simulation) = &mut opened.simulation {
            simulation.data(&mut host)?;
        }
        Ok(())
    }

    /// Batches say how many updates the weights behind them had.
    fn tell_updates(&self, batch: &mut AnyBatch) {
        let counts = &self.global_vars.num_grad_updates_per_policy;
        let tell = |id: &PolicyId, batch: &mut SampleBatch| {
            if let (None, Some(count)) = (batch.num_grad_updates(), counts.get(id)) {
                batch.set_num_grad_updates(Some(*count as f64));
            }
        };
        match batch {
            AnyBatch::Single(batch) => tell(&PolicyId::DEFAULT, batch),
            AnyBatch::Multi(multi) => multi.policy_batches.iter_mut().for_each(|(id, batch)| tell(id, batch)),
        }
    }

    fn estimate(&mut self, batch: &AnyBatch) -> Result<(), RolloutError> {
        for by in self.parts.config.input_evaluation.clone() {
            if by != InputEvaluation::Simulation {
                let estimates = self.estimates_of(batch, by)?;
                self.metrics.estimates.extend(estimates);
            }
        }
        Ok(())
    }

    fn compress(&self, batch: &mut AnyBatch) -> Result<(), RolloutError> {
        let granularity = match self.parts.config.compress_observations {
            Compression::None => return Ok(()),
            Compression::Rows => Granularity::Rows,
            Compression::Bulk => Granularity::Bulk,
        };
        match batch {
            AnyBatch::Single(batch) => batch.compress(granularity)?,
            AnyBatch::Multi(batch) => batch.compress(granularity)?,
        }
        Ok(())
    }
}
