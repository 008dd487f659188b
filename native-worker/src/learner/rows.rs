//! A train batch on the learner's device, and its minibatches.

use candle_core::{D, Device, Result, Tensor};
use rollmesh_core::{
    batch::{ACTION_LOGP, ACTIONS, ADVANTAGES, OBS, SampleBatch, VALUE_TARGETS, VF_PREDS},
    rng::Rng,
};

use super::{error::LearnError, loss::log_softmax, model::ActorCritic};

/// Rows of a train batch, column by column.
pub(super) struct Rows {
    /// `[rows, obs]`.
    pub(super) obs: Tensor,
    /// `[rows, 1]`, u32.
    pub(super) actions: Tensor,
    /// `[rows]`; so are the next three.
    pub(super) advantages: Tensor,
    pub(super) value_targets: Tensor,
    pub(super) vf_preds: Tensor,
    /// Log-probability of the action under the weights before the update, by the learner's own forward pass.
    pub(super) old_logp: Tensor,
    /// The same of every action, `[rows, actions]`.
    pub(super) old_logp_all: Tensor,
    /// And the probabilities, `[rows, actions]`.
    pub(super) old_probs: Tensor,
}

impl Rows {
    /// Checks a batch against the model, brings it to the device and adds what the model thinks of it now.
    /// Also gives the largest gap between the log-probabilities of acting and the model's.
    pub(super) fn new(
        batch: &SampleBatch,
        model: &ActorCritic,
        device: &Device,
    ) -> std::result::Result<(Self, f32), LearnError> {
        let n = batch.len();
        let obs = batch.data(OBS)?;
        if n == 0 {
            return Err(LearnError::EmptyBatch);
        }
        if obs.shape().elements() != model.obs_len() {
            return Err(LearnError::ObsLength { found: obs.shape().elements(), wanted: model.obs_len() });
        }
        let obs = Tensor::from_slice(obs.values(), (n, model.obs_len()), device)?;
        let actions = Tensor::from_slice(&checked_actions(batch, model.num_actions())?, (n, 1), device)?;
        let column =
            |key| -> std::result::Result<_, LearnError> { Ok(Tensor::from_slice(batch.get(key)?, n, device)?) };

        let old_logp_all = log_softmax(&model.logits(&obs)?)?.detach();
        let old_logp = old_logp_all.gather(&actions, D::Minus1)?.squeeze(D::Minus1)?;
        let gap = (&old_logp - column(ACTION_LOGP)?)?.abs()?.max(0)?.to_scalar()?;
        let rows = Self {
            obs,
            actions,
            advantages: column(ADVANTAGES)?,
            value_targets: column(VALUE_TARGETS)?,
            vf_preds: column(VF_PREDS)?,
            old_logp,
            old_probs: old_logp_all.exp()?,
            old_logp_all,
        };
        Ok((rows, gap))
    }

    /// Number of rows.
    pub(super) fn len(&self) -> usize {
        self.old_logp.elem_count()
    }

    /// The rows in random order.
    pub(super) fn shuffled(&self, rng: &mut Rng) -> Result<Self> {
        let mut order: Vec<u32> = (0..self.len() as u32).collect();
        rng.shuffle(&mut order);
        let order = Tensor::new(order, self.obs.device())?;
        self.map(|column| column.index_select(&order, 0))
    }

    /// Cuts the rows into pieces of equal length, up to one row, of at most `size` rows.
    pub(super) fn minibatches(&self, size: usize) -> impl Iterator<Item = Result<Self>> {
        let (n, pieces) = (self.len(), self.len().div_ceil(size));
        (0..pieces).map(move |i| {
            let (start, end) = (i * n / pieces, (i + 1) * n / pieces);
            self.map(|column| column.narrow(0, start, end - start))
        })
    }

    fn map(&self, f: impl Fn(&Tensor) -> Result<Tensor>) -> Result<Self> {
        Ok(Self {
            obs: f(&self.obs)?,
            actions: f(&self.actions)?,
            advantages: f(&self.advantages)?,
            value_targets: f(&self.value_targets)?,
            vf_preds: f(&self.vf_preds)?,
            old_logp: f(&self.old_logp)?,
            old_logp_all: f(&self.old_logp_all)?,
            old_probs: f(&self.old_probs)?,
        })
    }
}

fn checked_actions(batch: &SampleBatch, num_actions: usize) -> std::result::Result<Vec<u32>, LearnError> {
    let index = |&action: &i64| {
        u32::try_from(action)
            .ok()
            .filter(|&index| (index as usize) < num_actions)
            .ok_or(LearnError::Action { action, num_actions })
    };
    batch.get(ACTIONS)?.iter().map(index).collect()
}
