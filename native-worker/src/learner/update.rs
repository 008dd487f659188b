//! One update per train batch.

use candle_core::{Device, Tensor};
use rollmesh_core::{
    batch::SampleBatch,
    env::EnvSpaces,
    ids::{SlotId, WeightsVersion},
    policy::{Gradients, ObsEncoder},
    rng::{Purpose, Streams},
    weights::{Weights, WeightsError},
};

use super::{
    config::Algorithm,
    dist::ActionHead,
    error::LearnError,
    loss::{Loss, Schedule, loss},
    model::{ActorCritic, ModelError},
    optimizer::Optimizer,
    rows::{Needs, OldPolicy, Rows, TrainRows},
    stats::{Sums, UpdateStats, explained_variance},
};

/// So many gradient steps in a row may be skipped because they are not finite.
const MAX_SKIPPED_IN_A_ROW: u32 = 3;

/// A model, its optimiser and the settings.
///
/// The model follows from the names of the weights: two perceptrons, or an LSTM. A train batch has the columns `obs`,
/// `actions` and `advantages`; with a critic also `value_targets` and `vf_preds`; for PPO also `action_logp`; for an LSTM
/// also `state_in_0`, `state_in_1` and `seq_lens`.
pub struct Learner {
    pub(super) algorithm: Algorithm,
    device: Device,
    old_policy: OldPolicy,
    shuffles: Streams,
    encoder: ObsEncoder,
    pub(super) model: ActorCritic,
    pub(super) optimizer: Optimizer,
    /// The last published weights.
    weights: Weights,
    /// The model's variables are not the published weights.
    stale: bool,
    /// Env steps learned from, the clock of annealing.
    pub(super) env_steps: u64,
    /// Weight of the KL divergence in PPO's loss.
    pub(super) kl_coeff: f64,
    pub(super) skipped_in_a_row: u32,
}

impl Learner {
    /// A learner that starts from these weights. The seed is the run's.
    ///
    /// # Errors
    /// [`LearnError::Config`] for settings out of range, [`LearnError::Policy`] for spaces that are no single arrays,
    /// [`LearnError::Model`] for weights that are no model or do not fit the spaces.
    pub fn new(
        algorithm: impl Into<Algorithm>,
        spaces: &EnvSpaces,
        seed: u64,
        initial: &Weights,
        device: Device,
    ) -> Result<Self, LearnError> {
        let algorithm = algorithm.into();
        algorithm.validate()?;
        let encoder = ObsEncoder::for_space(&spaces.observation)?;
        let model = ActorCritic::from_weights(ActionHead::for_space(&spaces.action)?, initial, &device)?;
        if model.obs_len() != encoder.len() {
            let (found, wanted) = (model.obs_len(), encoder.len());
            return Err(ModelError::Layout(format!("they take {found} numbers, an observation has {wanted}")).into());
        }
        let optimizer = Optimizer::new(model.vars(), &algorithm.common())?;
        Ok(Self {
            old_policy: OldPolicy::Learner,
            shuffles: Streams::new(seed, Purpose::Shuffle),
            weights: initial.clone(),
            stale: false,
            env_steps: 0,
            kl_coeff: algorithm.first_kl_coeff(),
            skipped_in_a_row: 0,
            algorithm,
            device,
            encoder,
            model,
            optimizer,
        })
    }

    /// Which policy PPO's updates start from; [`OldPolicy::Learner`] if nothing is said.
    #[must_use]
    pub fn with_old_policy(mut self, old_policy: OldPolicy) -> Self {
        self.old_policy = old_policy;
        self
    }

    /// The last published weights: always finite.
    #[must_use]
    pub fn weights(&self) -> &Weights {
        &self.weights
    }

    /// Goes on from other weights; the optimiser keeps its moments.
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
        let rows = self.train_rows(batch)?;
        // Until the weights are published.
        self.stale = true;
        let (schedule, learning_rate) = (self.schedule(), self.lr());
        let mut sums = Sums::default();
        match &self.algorithm {
            Algorithm::PolicyGradient(_) => self.gradient_step(&rows.whole()?, schedule, &mut sums)?,
            Algorithm::Ppo(config) => {
                let (epochs, target_kl) = (config.num_epochs, config.target_kl);
                for epoch in 0..epochs {
                    let kl = self.epoch(epoch, &rows, schedule, &mut sums)?;
                    if target_kl.is_some_and(|target| kl > 1.5 * target) {
                        break;
                    }
                }
            }
        }
        self.env_steps = self.env_steps.saturating_add(batch.len() as u64);
        self.publish()?;
        let stats = UpdateStats { learning_rate, ..self.stats(&rows, &sums, schedule)? };
        if let Algorithm::Ppo(config) = &self.algorithm {
            self.kl_coeff = config.next_kl_coeff(self.kl_coeff, stats.kl);
        }
        Ok((self.weights.clone(), stats))
    }

    /// The gradient of the loss over a whole batch, clipped as a step would clip it. Changes nothing.
    ///
    /// # Errors
    /// As [`update`](Self::update), but [`LearnError::NotFinite`] for a gradient that is not finite.
    pub fn compute_gradients(&mut self, batch: &SampleBatch) -> Result<(Gradients, UpdateStats), LearnError> {
        let rows = self.train_rows(batch)?;
        let schedule = self.schedule();
        let (gradient, norm, loss) = self.gradient(&rows.whole()?, schedule)?.ok_or(LearnError::NotFinite)?;
        let mut sums = Sums::default();
        sums.add(&loss, norm)?;
        let stats = UpdateStats { gradient_steps: 0, ..self.stats(&rows, &sums, schedule)? };
        Ok((Gradients(self.model.unflat(self.weights.version(), &gradient)?), stats))
    }

    /// Takes one step along gradients, as they are, and publishes the next version of the weights. The clock of annealing
    /// stands still, since gradients do not tell how many steps they come from.
    ///
    /// # Errors
    /// [`LearnError::Model`] for gradients of another model, [`LearnError::Diverged`] as [`update`](Self::update).
    pub fn apply_gradients(&mut self, gradients: &Gradients) -> Result<(Weights, UpdateStats), LearnError> {
        self.refresh()?;
        let gradient = self.model.flat(&gradients.0)?;
        let schedule = self.schedule();
        self.stale = true;
        let mut stats = UpdateStats { learning_rate: self.lr(), kl_coeff: schedule.kl_coeff, ..UpdateStats::default() };
        match Optimizer::norm(&gradient)? {
            Some(norm) => {
                self.step(&gradient)?;
                (stats.grad_norm, stats.gradient_steps) = (norm, 1);
            }
            None => {
                self.skip_step()?;
                stats.skipped_steps = 1;
            }
        }
        self.publish()?;
        Ok((self.weights.clone(), stats))
    }

    /// One pass over the rows in random order. Gives the mean KL divergence from the old policy.
    fn epoch(&mut self, epoch: u32, rows: &TrainRows, schedule: Schedule, sums: &mut Sums) -> Result<f64, LearnError> {
        // Streams are addressed, not consumed: an update shuffles the same way whatever came before it.
        let mut rng = self.shuffles.at(SlotId(0), self.weights.version().0 as u32, epoch, 0);
        let size =
            if let Algorithm::Ppo(config) = &self.algorithm { config.minibatch_size as usize } else { rows.units() };
        sums.begin_epoch();
        for minibatch in rows.minibatches(size, &mut rng) {
            self.gradient_step(&minibatch?, schedule, sums)?;
        }
        Ok(sums.epoch_kl())
    }

    fn gradient_step(&mut self, rows: &Rows, schedule: Schedule, sums: &mut Sums) -> Result<(), LearnError> {
        let Some((gradient, norm, loss)) = self.gradient(rows, schedule)? else {
            sums.skipped += 1;
            return self.skip_step();
        };
        self.step(&gradient)?;
        Ok(sums.add(&loss, norm)?)
    }

    /// The clipped gradient, its norm before clipping, and the loss; nothing if they are not finite.
    fn gradient(&self, rows: &Rows, schedule: Schedule) -> Result<Option<(Tensor, f64, Loss)>, LearnError> {
        let (inputs, values) = self.model.forward(&rows.obs, rows.memory.as_ref())?;
        let dist = self.model.head().dist(&inputs)?;
        let loss = loss(&dist, &values, rows, &self.algorithm, schedule)?;
        if !loss.total.to_scalar::<f32>()?.is_finite() {
            return Ok(None);
        }
        let gradient = self.optimizer.gradient(&loss.total.backward()?)?;
        Ok(gradient.map(|(gradient, norm)| (gradient, norm, loss)))
    }

    fn step(&mut self, gradient: &Tensor) -> Result<(), LearnError> {
        self.optimizer.set_learning_rate(self.lr());
        self.optimizer.step(gradient)?;
        self.skipped_in_a_row = 0;
        Ok(())
    }

    fn skip_step(&mut self) -> Result<(), LearnError> {
        self.skipped_in_a_row = self.skipped_in_a_row.saturating_add(1);
        let hopeless = self.skipped_in_a_row >= MAX_SKIPPED_IN_A_ROW;
        let reason = "loss or gradient were not finite in several steps in a row";
        if hopeless { Err(self.diverged(reason)) } else { Ok(()) }
    }

    /// The batch on the device, and the published weights in the model.
    pub(super) fn train_rows(&mut self, batch: &SampleBatch) -> Result<TrainRows, LearnError> {
        self.refresh()?;
        let critic = self.algorithm.common().use_critic;
        let old = matches!(self.algorithm, Algorithm::Ppo(_)).then_some(self.old_policy);
        TrainRows::new(batch, &self.model, &self.encoder, Needs { critic, old }, &self.device)
    }

    fn refresh(&mut self) -> Result<(), LearnError> {
        if self.stale {
            self.model.load(&self.weights)?;
            self.optimizer.reload()?;
            self.stale = false;
        }
        Ok(())
    }

    fn lr(&self) -> f64 {
        let common = self.algorithm.common();
        common.lr * common.annealing(self.env_steps)
    }

    fn schedule(&self) -> Schedule {
        let Algorithm::Ppo(config) = &self.algorithm else { return Schedule { clip_param: 0.0, kl_coeff: 0.0 } };
        Schedule { clip_param: config.clip_param * config.common().annealing(self.env_steps), kl_coeff: self.kl_coeff }
    }

    fn stats(&self, rows: &TrainRows, sums: &Sums, schedule: Schedule) -> Result<UpdateStats, LearnError> {
        let values = rows.values()?;
        Ok(UpdateStats {
            explained_variance: values.map_or(0.0, |(vf_preds, targets)| explained_variance(&vf_preds, &targets)),
            logp_gap: rows.logp_gap.into(),
            learning_rate: self.lr(),
            kl_coeff: schedule.kl_coeff,
            ..sums.means()
        })
    }

    fn publish(&mut self) -> Result<(), LearnError> {
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
}

#[cfg(test)]
mod tests {
    use rollmesh_core::{batch::ADVANTAGES, column::ColumnData};

    use super::{
        super::{config::PpoConfig, test_support::*},
        *,
    };

    fn ppo(config: PpoConfig) -> Learner {
        Learner::new(config, &discrete(2, 2), 5, &weights(2, &[8], 2), Device::Cpu).unwrap()
    }

    /// A batch whose advantages are all not a number.
    fn bad_batch(rows: usize) -> SampleBatch {
        bandit(rows, 1).with(ADVANTAGES, ColumnData::scalars(vec![f32::NAN; rows])).unwrap()
    }

    #[test]
    fn a_bandit_is_learned() {
        let config = PpoConfig { lr: 0.01, anneal_over_env_steps: None, ..PpoConfig::default() };
        let mut ppo = ppo(config);
        let mut last = UpdateStats::default();
        for seed in 0..12 {
            last = ppo.update(&bandit(256, seed)).unwrap().1;
        }
        let contexts = candle_core::Tensor::new(&[[0f32, 1.0], [1.0, 0.0]], &Device::Cpu).unwrap();
        let logits = ppo.model.forward(&contexts, None).unwrap().0.to_vec2::<f32>().unwrap();
        assert!(logits[0][0] - logits[0][1] > 2.0 && logits[1][1] - logits[1][0] > 2.0, "{logits:?}");
        assert!(last.entropy < 0.4 && last.skipped_steps == 0, "{last:?}");
    }

    #[test]
    fn equal_inputs_give_equal_bits() {
        let run = |seed| {
            let mut ppo =
                Learner::new(PpoConfig::default(), &discrete(2, 2), seed, &weights(2, &[64, 64], 2), Device::Cpu)
                    .unwrap();
            for batch in 0..2 {
                ppo.update(&bandit(300, batch)).unwrap();
            }
            bits(ppo.weights())
        };
        assert_eq!(run(1), run(1));
        assert_ne!(run(1), run(2), "the seed must shuffle");
    }

    #[test]
    fn the_calling_thread_does_not_matter() {
        let update = || {
            let mut ppo =
                Learner::new(PpoConfig::default(), &discrete(2, 2), 1, &weights(2, &[64, 64], 2), Device::Cpu).unwrap();
            bits(&ppo.update(&bandit(512, 3)).unwrap().0)
        };
        let here = update();
        assert_eq!(std::thread::spawn(update).join().unwrap(), here);
    }

    #[test]
    fn one_bad_batch_is_skipped_and_learning_goes_on() {
        let config = PpoConfig { num_epochs: 2, anneal_over_env_steps: None, ..PpoConfig::default() };
        let mut ppo = ppo(config);
        let before = bits(ppo.weights());
        let (skipped, stats) = ppo.update(&bad_batch(64)).unwrap();
        assert_eq!((bits(&skipped), stats.skipped_steps, stats.gradient_steps), (before.clone(), 2, 0));
        let (learned, stats) = ppo.update(&bandit(64, 1)).unwrap();
        assert_ne!(bits(&learned), before);
        assert_eq!((learned.version().0, stats.skipped_steps), (2, 0));
    }

    #[test]
    fn three_bad_steps_in_a_row_are_an_error_with_the_last_good_weights() {
        let mut ppo = ppo(PpoConfig::default());
        let (good, _) = ppo.update(&bandit(64, 1)).unwrap();
        let error = ppo.update(&bad_batch(64)).unwrap_err();
        let LearnError::Diverged { last_good, .. } = error else { panic!("{error}") };
        assert_eq!(bits(&last_good), bits(&good));
    }

    #[test]
    fn weights_that_are_not_finite_are_never_published() {
        let mut ppo = ppo(PpoConfig { lr: 1e39, num_epochs: 1, ..PpoConfig::default() });
        let error = ppo.update(&bandit(64, 1)).unwrap_err();
        assert!(error.to_string().starts_with("training diverged: a weight is not finite; try"), "{error}");
        assert_eq!(ppo.weights().version().0, 0);
    }

    #[test]
    fn a_batch_that_does_not_fit_changes_nothing() {
        let mut ppo =
            Learner::new(PpoConfig::default(), &discrete(3, 2), 5, &weights(3, &[8], 2), Device::Cpu).unwrap();
        let error = ppo.update(&bandit(8, 1)).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the policy takes 8 observations of Box(-9.0, 9.0, (3,), float32), not 16 values of float32"
        );
        let mut ppo =
            Learner::new(PpoConfig::default(), &discrete(2, 1), 5, &weights(2, &[8], 1), Device::Cpu).unwrap();
        let error = ppo.update(&bandit(8, 1)).unwrap_err();
        assert_eq!(error.to_string(), "action 1 is not one of the model's, 0 to 0");
        assert_eq!(ppo.weights().version().0, 0);
    }

    #[test]
    fn the_gap_to_acting_is_reported() {
        let mut ppo = ppo(PpoConfig { num_epochs: 1, ..PpoConfig::default() });
        let batch = bandit(64, 1);
        let logp = ppo.train_rows(&batch).unwrap().old_logp();
        let want = logp.iter().map(|logp| f64::from((logp - 0.5f32.ln()).abs())).fold(0.0, f64::max);
        assert!(want > 0.01);
        assert_eq!(ppo.update(&batch).unwrap().1.logp_gap, want);
    }

    #[test]
    fn a_target_kl_ends_the_update_early() {
        let config = |target_kl| PpoConfig { target_kl, lr: 0.05, num_epochs: 50, ..PpoConfig::default() };
        let steps = |target_kl| ppo(config(target_kl)).update(&bandit(64, 1)).unwrap().1.gradient_steps;
        assert_eq!(steps(None), 50);
        assert!(steps(Some(0.005)) < 25);
    }

    #[test]
    fn annealing_follows_the_env_steps() {
        let config = PpoConfig { lr: 1e-3, anneal_over_env_steps: Some(256), anneal_to: 0.0, ..PpoConfig::default() };
        let mut ppo = ppo(config);
        let rates: Vec<f64> = (0..3).map(|seed| ppo.update(&bandit(128, seed)).unwrap().1.learning_rate).collect();
        assert_eq!(rates, [1e-3, 5e-4, 0.0]);
    }
}
