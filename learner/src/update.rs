//! One update per train batch.

use candle_core::{Device, Tensor};
use rollmesh_core::{
    batch::SampleBatch,
    env::EnvSpaces,
    ids::{SlotId, WeightsVersion},
    kernels::Kernels,
    policy::{AllReduce, ModelSpec, ObsEncoder, PreviousStep},
    rng::{Purpose, Streams},
    weights::{Weights, WeightsError},
};

use super::{
    algorithm::{AlgorithmConfig, Epochs, Objective, Schedule},
    dist::ActionHead,
    error::LearnError,
    gradient::Gradient,
    model::{ActorCritic, ModelError},
    optimizer::Optimizer,
    ranks::{Joined, Ranks},
    rows::{Encoders, Minibatches, OldPolicy, Reading, Rows, TrainRows},
    stats::{GradientSums, UpdateStats},
};

/// Maximum number of consecutive gradient steps that are skipped because they are not finite.
const MAX_SKIPPED_IN_A_ROW: u32 = 3;

/// A model, its optimiser and the settings.
///
/// A [`ModelSpec`] decides the model. A train batch has the columns `obs`, `actions` and
/// `advantages`; with a critic also `value_targets` and `vf_preds`; for PPO also `action_logp`; for a recurrent model also
/// `seq_lens` and a `state_in_*` for each of its states. From logged rows MARWIL needs `obs`, `actions` and `advantages`, which
/// are returns, and behaviour cloning `obs` and `actions`. Where a batch has `weights_version`, rows of older weights than the
/// learner's are corrected by V-trace, for which it also needs `rewards`, `terminateds`, `action_logp` and the other
/// columns that define the ends of its pieces ([`piece_ends`](rollmesh_core::postprocess::piece_ends)).
pub struct Learner {
    pub(super) algorithm: AlgorithmConfig,
    pub(super) device: Device,
    old_policy: OldPolicy,
    /// The seed of shuffles.
    pub(super) seed: u64,
    encoders: Encoders,
    pub(super) model: ActorCritic,
    pub(super) optimizer: Optimizer,
    /// The last published weights.
    pub(super) weights: Weights,
    /// True while the model's variables are not the published weights.
    pub(super) stale: bool,
    /// Env steps learned from, the clock of annealing.
    pub(super) env_steps: u64,
    /// The adaptive coefficient, see [`Schedule`].
    pub(super) adaptive: f64,
    pub(super) skipped_in_a_row: u32,
}

impl Learner {
    /// Creates a learner of a model that starts from these weights. The seed is the run's; the kernels change no bit.
    ///
    /// # Errors
    /// [`LearnError::Config`] for settings out of range, [`LearnError::Policy`] for invalid spaces and for a
    /// model with layers that do not fit each other, [`LearnError::Model`] for weights of another model and for a model that
    /// does not fit the spaces.
    pub fn new(
        algorithm: impl Into<AlgorithmConfig>,
        spaces: &EnvSpaces,
        spec: &ModelSpec,
        seed: u64,
        initial: &Weights,
        device: Device,
        kernels: Kernels,
    ) -> Result<Self, LearnError> {
        let algorithm = algorithm.into();
        algorithm.validate()?;
        spec.check()?;
        let encoder = ObsEncoder::for_space(&spaces.observation)?;
        let previous = PreviousStep::of(spec, &spaces.action)?;
        let model = ActorCritic::new(ActionHead::for_space(&spaces.action)?, spec, initial, &device, kernels)?;
        if spec.mask_len + spec.obs_len != encoder.len() {
            let (found, wanted) = (spec.mask_len + spec.obs_len, encoder.len());
            return Err(ModelError::Layout(format!("they take {found} numbers, an observation has {wanted}")).into());
        }
        let optimizer = Optimizer::new(model.vars(), algorithm.objective().common())?;
        Ok(Self {
            old_policy: OldPolicy::Learner,
            seed,
            weights: initial.clone(),
            stale: false,
            env_steps: 0,
            adaptive: algorithm.objective().first_adaptive(),
            skipped_in_a_row: 0,
            algorithm,
            device,
            encoders: Encoders { obs: encoder, previous },
            model,
            optimizer,
        })
    }

    /// Sets the policy that PPO's updates start from; by default it is [`OldPolicy::Learner`].
    #[must_use]
    pub fn with_old_policy(mut self, old_policy: OldPolicy) -> Self {
        self.old_policy = old_policy;
        self
    }

    /// Returns the last published weights, which are always finite.
    #[must_use]
    pub fn weights(&self) -> &Weights {
        &self.weights
    }

    /// Resumes from other weights; the optimiser keeps its moments.
    ///
    /// # Errors
    /// [`LearnError::Model`] for weights of another model; the old ones stay.
    pub fn set_weights(&mut self, weights: &Weights) -> Result<(), LearnError> {
        self.model.check(weights)?;
        self.weights = weights.clone();
        self.stale = true;
        Ok(())
    }

    /// Sets the clock of annealing.
    pub fn set_env_steps(&mut self, env_steps: u64) {
        self.env_steps = env_steps;
    }

    /// Learns from a train batch and publishes the next version of the weights.
    ///
    /// # Errors
    /// [`LearnError::Diverged`] when loss or gradient were not finite too often in a row or a weight is not, other
    /// variants when the batch does not fit the model. The weights are the last good ones then.
    pub fn update(&mut self, batch: &SampleBatch) -> Result<(Weights, UpdateStats), LearnError> {
        self.update_of(batch, Ranks::alone())
    }

    /// Learns from the batches of all ranks as one learner learns from them joined, in the order of ranks: from the same
    /// minibatches, with their advantages normalised over all ranks, and with gradients that are the means over the rows of all
    /// ranks, before they are clipped. Seed, clock of annealing and weight of the divergence are rank 0's. An empty batch
    /// stands for no rows on this rank.
    ///
    /// # Errors
    /// As [`update`](Self::update); [`LearnError::AllReduce`] when the ranks have not agreed. Errors of the batch are this
    /// rank's alone: the others wait until they are notified, by [`AllReduce::give_up`].
    pub fn update_with(
        &mut self,
        batch: &SampleBatch,
        ranks: &mut dyn AllReduce,
    ) -> Result<(Weights, UpdateStats), LearnError> {
        self.update_of(batch, Ranks::of(ranks))
    }

    fn update_of(&mut self, batch: &SampleBatch, ranks: Ranks<'_>) -> Result<(Weights, UpdateStats), LearnError> {
        let moments = self.optimizer.moments();
        let clock = (self.env_steps, self.adaptive, self.skipped_in_a_row);
        let updated = self.try_update(batch, ranks);
        if updated.is_err() {
            // Undoes the update, since a rank that loses others may resume from here.
            self.optimizer.set_moments(moments);
            (self.env_steps, self.adaptive, self.skipped_in_a_row) = clock;
        }
        updated
    }

    fn try_update(&mut self, batch: &SampleBatch, mut ranks: Ranks<'_>) -> Result<(Weights, UpdateStats), LearnError> {
        let (rows, joined) = self.begin(batch, &mut ranks)?;
        (self.env_steps, self.adaptive) = (joined.env_steps, joined.adaptive);
        // True until the weights are published.
        self.stale = true;
        let (schedule, learning_rate) = (self.schedule(&joined), self.lr());
        let mut sums = GradientSums::default();
        match self.objective().epochs() {
            None => {
                let whole = rows.as_ref().map(TrainRows::whole).transpose()?;
                self.gradient_step(whole.as_ref(), schedule, &mut ranks, &mut sums)?;
            }
            Some(Epochs { passes, minibatch_size, target_kl }) => {
                // Streams are addressed, not consumed: an update shuffles the same way regardless of earlier ones.
                let shuffles = Streams::new(joined.seed, Purpose::Shuffle);
                for epoch in 0..passes {
                    let mut rng = shuffles.at(SlotId(0), self.weights.version().0 as u32, epoch, 0);
                    let minibatches = Minibatches::shuffled(joined.units, joined.rows, minibatch_size, &mut rng);
                    let kl = self.epoch(&minibatches, rows.as_ref(), &joined, schedule, &mut ranks, &mut sums)?;
                    if target_kl.is_some_and(|target| kl > 1.5 * target) {
                        break;
                    }
                }
            }
        }
        self.env_steps = self.env_steps.saturating_add(joined.rows);
        self.publish()?;
        let stats = UpdateStats { learning_rate, ..self.stats(&joined, &sums, schedule) };
        self.adaptive = self.objective().after_update(self.adaptive, &stats);
        Ok((self.weights.clone(), stats))
    }

    /// Returns the rows of this rank, `None` if only other ranks have some, and the data that all have agreed on.
    pub(super) fn begin(
        &mut self,
        batch: &SampleBatch,
        ranks: &mut Ranks<'_>,
    ) -> Result<(Option<TrainRows>, Joined), LearnError> {
        let nothing = ranks.are_there() && batch.is_empty();
        let rows = if nothing { self.refresh().map(|()| None)? } else { Some(self.train_rows(batch)?) };
        let joined = ranks.meet(self, rows.as_ref())?;
        Ok((rows, joined))
    }

    /// Makes one pass over the rows in random order. Returns the mean KL divergence from the old policy.
    fn epoch(
        &mut self,
        minibatches: &Minibatches,
        rows: Option<&TrainRows>,
        joined: &Joined,
        schedule: Schedule,
        ranks: &mut Ranks<'_>,
        sums: &mut GradientSums,
    ) -> Result<f64, LearnError> {
        sums.begin_epoch();
        let normals = ranks.normals(rows, minibatches.iter().map(|units| joined.own(units)))?;
        for (units, normal) in minibatches.iter().zip(normals) {
            let own = joined.own(units);
            let own = rows.filter(|_| !own.is_empty()).map(|rows| rows.select(&own)).transpose()?;
            let own = own.map(|rows| Rows { normal, ..rows });
            self.gradient_step(own.as_ref(), schedule, ranks, sums)?;
        }
        Ok(sums.epoch_kl())
    }

    fn gradient_step(
        &mut self,
        rows: Option<&Rows>,
        schedule: Schedule,
        ranks: &mut Ranks<'_>,
        sums: &mut GradientSums,
    ) -> Result<(), LearnError> {
        let schedule = Schedule { adaptive: self.adaptive, ..schedule };
        let Some(Gradient { values, norm, parts }) = self.gradient(rows, schedule, ranks)? else {
            sums.skipped += 1;
            return self.skip_step();
        };
        self.step(&values)?;
        self.adaptive = self.objective().after_step(self.adaptive, &parts);
        sums.add(parts, norm);
        Ok(())
    }

    pub(super) fn step(&mut self, gradient: &Tensor) -> Result<(), LearnError> {
        self.optimizer.set_learning_rate(self.lr());
        self.optimizer.step(gradient)?;
        self.skipped_in_a_row = 0;
        Ok(())
    }

    pub(super) fn skip_step(&mut self) -> Result<(), LearnError> {
        self.skipped_in_a_row = self.skipped_in_a_row.saturating_add(1);
        let hopeless = self.skipped_in_a_row >= MAX_SKIPPED_IN_A_ROW;
        let reason = "loss or gradient were not finite in several steps in a row";
        if hopeless { Err(self.diverged(reason)) } else { Ok(()) }
    }

    /// Copies the batch to the device, and the published weights to the model.
    pub(super) fn train_rows(&mut self, batch: &SampleBatch) -> Result<TrainRows, LearnError> {
        self.refresh()?;
        let reading = Reading {
            needs: self.objective().needs(),
            old_policy: self.old_policy,
            advantages: self.algorithm.advantages(),
            version: self.weights.version(),
        };
        TrainRows::new(batch, &self.model, &self.encoders, &reading, &self.device)
    }

    pub(super) fn refresh(&mut self) -> Result<(), LearnError> {
        if self.stale {
            self.model.load(&self.weights)?;
            self.optimizer.reload()?;
            self.stale = false;
        }
        Ok(())
    }

    pub(super) fn lr(&self) -> f64 {
        self.lr_after(self.env_steps)
    }

    pub(super) fn lr_after(&self, env_steps: u64) -> f64 {
        let common = self.objective().common();
        common.lr * common.annealing(env_steps)
    }

    pub(super) fn schedule(&self, joined: &Joined) -> Schedule {
        let annealing = self.objective().common().annealing(joined.env_steps);
        Schedule { annealing, adaptive: joined.adaptive }
    }

    pub(super) fn objective(&self) -> &dyn Objective {
        self.algorithm.objective()
    }

    pub(super) fn publish(&mut self) -> Result<(), LearnError> {
        let version = WeightsVersion(self.weights.version().0.saturating_add(1));
        self.weights = self.model.to_weights(version).map_err(|error| match error {
            ModelError::Weights(WeightsError::NotFinite(_)) => self.diverged("a weight is not finite"),
            other => other.into(),
        })?;
        self.stale = false;
        Ok(())
    }

    fn diverged(&self, reason: &'static str) -> LearnError {
        LearnError::Diverged { reason, last_good: self.weights.clone() }
    }

    pub(super) fn stats(&self, joined: &Joined, sums: &GradientSums, schedule: Schedule) -> UpdateStats {
        UpdateStats {
            explained_variance: joined.explained_variance,
            logp_gap: joined.logp_gap,
            lag_mean: joined.lag.mean,
            lag_max: joined.lag.max,
            kl_coeff: self.objective().kl_coeff(schedule.adaptive),
            ..sums.means()
        }
    }
}
