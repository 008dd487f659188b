//! Proximal policy optimisation: one update per train batch.

use candle_core::Device;
use rollmesh_core::{
    batch::{SampleBatch, VALUE_TARGETS, VF_PREDS},
    ids::{SlotId, WeightsVersion},
    rng::{Purpose, Streams},
    weights::{Weights, WeightsError},
};

use super::{
    config::PpoConfig,
    error::LearnError,
    loss::{Loss, loss},
    model::{ActorCritic, ModelError},
    optimizer::Optimizer,
    rows::Rows,
    stats::{Sums, UpdateStats, explained_variance},
};

/// So many gradient steps in a row may be skipped because they are not finite.
const MAX_SKIPPED_IN_A_ROW: u32 = 3;

/// The learner: a model, its optimiser and the settings.
pub struct Ppo {
    config: PpoConfig,
    device: Device,
    shuffles: Streams,
    model: ActorCritic,
    optimizer: Optimizer,
    /// The last published weights.
    weights: Weights,
    /// Env steps learned from, the clock of annealing.
    env_steps: u64,
    skipped_in_a_row: u32,
}

impl Ppo {
    /// A learner that starts from these weights. The seed is the run's.
    ///
    /// # Errors
    /// [`LearnError::Config`] for settings out of range, [`LearnError::Model`] for weights that are no model.
    pub fn new(config: PpoConfig, seed: u64, initial: &Weights, device: Device) -> Result<Self, LearnError> {
        config.validate()?;
        let model = ActorCritic::from_weights(initial, &device)?;
        let optimizer = Optimizer::new(model.vars(), &config)?;
        Ok(Self {
            shuffles: Streams::new(seed, Purpose::Shuffle),
            weights: initial.clone(),
            config,
            device,
            model,
            optimizer,
            env_steps: 0,
            skipped_in_a_row: 0,
        })
    }

    /// The last published weights: always finite.
    #[must_use]
    pub fn weights(&self) -> &Weights {
        &self.weights
    }

    /// Learns from a train batch and publishes the next version of the weights.
    ///
    /// The batch has the columns `obs`, `actions`, `action_logp`, `vf_preds`, `advantages` and `value_targets`.
    ///
    /// # Errors
    /// [`LearnError::Diverged`] when loss or gradient were not finite too often in a row or a weight is not, other
    /// variants when the batch does not fit the model.
    pub fn update(&mut self, batch: &SampleBatch) -> Result<(Weights, UpdateStats), LearnError> {
        let (rows, logp_gap) = Rows::new(batch, &self.model, &self.device)?;
        let annealing = self.config.annealing(self.env_steps);
        let learning_rate = self.config.lr * annealing;
        let clip_param = self.config.clip_param * annealing;
        self.optimizer.set_learning_rate(learning_rate);

        let mut sums = Sums::default();
        for epoch in 0..self.config.num_epochs {
            let kl = self.epoch(epoch, &rows, clip_param, &mut sums)?;
            if self.config.target_kl.is_some_and(|target| kl > 1.5 * target) {
                break;
            }
        }
        self.env_steps += batch.len() as u64;
        self.weights = self.publish()?;
        let stats = UpdateStats {
            explained_variance: explained_variance(batch.get(VF_PREDS)?, batch.get(VALUE_TARGETS)?),
            logp_gap: logp_gap.into(),
            learning_rate,
            ..sums.means()
        };
        Ok((self.weights.clone(), stats))
    }

    /// One pass over the rows in random order. Gives the mean KL divergence from the acting policy.
    fn epoch(&mut self, epoch: u32, rows: &Rows, clip_param: f64, sums: &mut Sums) -> Result<f64, LearnError> {
        // Streams are addressed, not consumed: an update shuffles the same way whatever came before it.
        let mut rng = self.shuffles.at(SlotId(0), self.weights.version().0 as u32, epoch, 0);
        sums.begin_epoch();
        for minibatch in rows.shuffled(&mut rng)?.minibatches(self.config.minibatch_size as usize) {
            let minibatch = minibatch?;
            let (logits, values) = (self.model.logits(&minibatch.obs)?, self.model.values(&minibatch.obs)?);
            let loss = loss(&logits, &values, &minibatch, &self.config, clip_param)?;
            self.gradient_step(&loss, sums)?;
        }
        Ok(sums.epoch_kl())
    }

    fn gradient_step(&mut self, loss: &Loss, sums: &mut Sums) -> Result<(), LearnError> {
        let finite = loss.total.to_scalar::<f32>()?.is_finite();
        let norm = if finite { self.optimizer.step(loss.total.backward()?)? } else { None };
        let Some(norm) = norm else {
            sums.skipped += 1;
            self.skipped_in_a_row += 1;
            let hopeless = self.skipped_in_a_row >= MAX_SKIPPED_IN_A_ROW;
            let reason = "loss or gradient were not finite in several steps in a row";
            return if hopeless { Err(self.diverged(reason)) } else { Ok(()) };
        };
        self.skipped_in_a_row = 0;
        Ok(sums.add(loss, norm)?)
    }

    fn publish(&self) -> Result<Weights, LearnError> {
        let version = WeightsVersion(self.weights.version().0 + 1);
        self.model.to_weights(version).map_err(|error| match error {
            ModelError::Weights(WeightsError::NotFinite(_)) => self.diverged("a weight is not finite"),
            other => other.into(),
        })
    }

    fn diverged(&self, reason: &'static str) -> LearnError {
        LearnError::Diverged { reason, last_good: self.weights.clone() }
    }
}

#[cfg(test)]
mod tests {
    use rollmesh_core::{batch::ADVANTAGES, column::ColumnData};

    use super::{super::test_support::*, *};

    fn ppo(config: PpoConfig) -> Ppo {
        Ppo::new(config, 5, &weights(2, &[8], 2), Device::Cpu).unwrap()
    }

    fn bits(weights: &Weights) -> Vec<u32> {
        weights.tensors().iter().flat_map(|tensor| tensor.values.iter().map(|value| value.to_bits())).collect()
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
        let logits = ppo.model.logits(&contexts).unwrap().to_vec2::<f32>().unwrap();
        assert!(logits[0][0] - logits[0][1] > 2.0 && logits[1][1] - logits[1][0] > 2.0, "{logits:?}");
        assert!(last.entropy < 0.4 && last.skipped_steps == 0, "{last:?}");
    }

    #[test]
    fn equal_inputs_give_equal_bits() {
        let run = |seed| {
            let mut ppo = Ppo::new(PpoConfig::default(), seed, &weights(2, &[64, 64], 2), Device::Cpu).unwrap();
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
            let mut ppo = Ppo::new(PpoConfig::default(), 1, &weights(2, &[64, 64], 2), Device::Cpu).unwrap();
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
        let mut ppo = Ppo::new(PpoConfig::default(), 5, &weights(3, &[8], 2), Device::Cpu).unwrap();
        let error = ppo.update(&bandit(8, 1)).unwrap_err();
        assert_eq!(error.to_string(), "an observation has 2 numbers, the model wants 3");
        let mut ppo = Ppo::new(PpoConfig::default(), 5, &weights(2, &[8], 1), Device::Cpu).unwrap();
        let error = ppo.update(&bandit(8, 1)).unwrap_err();
        assert_eq!(error.to_string(), "action 1 is not one of the model's 1");
        assert_eq!(ppo.weights().version().0, 0);
    }

    #[test]
    fn the_gap_to_acting_is_reported() {
        let mut ppo = ppo(PpoConfig { num_epochs: 1, ..PpoConfig::default() });
        let batch = bandit(64, 1);
        let (rows, _) = Rows::new(&batch, &ppo.model, &Device::Cpu).unwrap();
        let logp: Vec<f32> = rows.old_logp.to_vec1().unwrap();
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
