//! A train batch on the learner's device, and the rows of a gradient step.

use candle_core::{DType, Device, Result, Tensor};
use rollmesh_core::{
    batch::{ACTION_DIST_INPUTS, ACTION_LOGP, ADVANTAGES, SampleBatch, VALUE_TARGETS, VF_PREDS, state_in},
    ids::WeightsVersion,
    policy::{ObsEncoder, PreviousStep},
    postprocess::AdvantageConfig,
    rng::Rng,
};

use super::{
    algorithm::Needs,
    columns::Columns,
    dist::Dist,
    error::LearnError,
    model::{ActorCritic, Memory},
    ops::Steps,
    ranks::Normal,
    stale::{Current, LagStats, Lags, Targets},
};

/// The policy before an update, which its ratios of probabilities and divergences start from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OldPolicy {
    /// The learner's own weights when an update begins, for batches that are learned from in one update. Ratios of rows
    /// of older weights start from the policy that acted in any case.
    Learner,
    /// The policy that the batch has recorded with its actions, as in RLlib. Also valid if a batch comes in several
    /// pieces, or weights have changed since.
    Batch,
}

/// Number of rows that the model processes together where no gradient is needed.
const PIECE: usize = 512;

/// Encoders of observations and of previous steps for a model.
pub(super) struct Encoders {
    pub(super) obs: ObsEncoder,
    /// `None` for a model that takes no previous steps.
    pub(super) previous: Option<PreviousStep>,
}

/// Rows of a train batch, column by column.
pub(super) struct Rows {
    /// `[rows, obs]`.
    pub(super) obs: Tensor,
    /// `[rows, components]`.
    pub(super) actions: Tensor,
    /// `[rows]`.
    pub(super) advantages: Tensor,
    pub(super) critic: Option<Critic>,
    pub(super) old: Option<Old>,
    /// The step before each row, encoded, `[rows, numbers]`, for a model that takes it.
    pub(super) previous: Option<Tensor>,
    /// The memory of recurrent models, which defines the order of the rows.
    pub(super) memory: Option<Memory>,
    /// The normalisation of advantages, where other ranks have more rows of the minibatch.
    pub(super) normal: Option<Normal>,
}

/// The acting values and value targets, both `[rows]`.
pub(super) struct Critic {
    pub(super) value_targets: Tensor,
    pub(super) vf_preds: Tensor,
}

/// The outputs of the policy before the update.
pub(super) struct Old {
    /// Log-probabilities of the actions, `[rows]`.
    pub(super) logp: Tensor,
    pub(super) dist: Dist,
}

/// A train batch, of which [`Rows`] are taken.
pub(super) struct TrainRows {
    rows: Rows,
    len: usize,
    sequences: Option<Sequences>,
    /// The largest gap between the log-probabilities of acting and the learner's own, over rows of the learner's
    /// weights.
    pub(super) logp_gap: f32,
    /// The lag of the rows' weights behind the learner's.
    pub(super) lag: LagStats,
}

/// The settings for reading a train batch.
pub(super) struct Reading {
    pub(super) needs: Needs,
    pub(super) old_policy: OldPolicy,
    /// The estimate of the advantages of stale rows.
    pub(super) advantages: AdvantageConfig,
    /// Version of the model's weights.
    pub(super) version: WeightsVersion,
}

struct Sequences {
    /// The first row and the number of rows of each sequence.
    spans: Vec<(usize, usize)>,
    /// `[sequences, states]`.
    states: Tensor,
    /// The step before each row of the batch, encoded, for a model that takes it.
    previous: Option<Tensor>,
}

impl TrainRows {
    /// Checks a batch against the model and brings it to the device.
    pub(super) fn new(
        batch: &SampleBatch,
        model: &ActorCritic,
        encoders: &Encoders,
        reading: &Reading,
        device: &Device,
    ) -> std::result::Result<Self, LearnError> {
        let needs = reading.needs;
        let columns = Columns::new(batch)?;
        let lags = Lags::of(&columns, reading.version)?;
        let n = columns.len();
        let column = |name: &str| -> std::result::Result<_, LearnError> {
            Ok(Tensor::from_vec(columns.floats(name, 1)?, n, device)?)
        };
        let (obs, width) = (columns.obs(&encoders.obs)?, encoders.obs.len());
        let actions = columns.actions(model.head(), device)?;
        check_masks(model, obs.chunks_exact(width), &actions)?;
        let obs = Tensor::from_vec(obs, (n, width), device)?;
        let advantages = match needs {
            Needs { logged: true, critic: false, .. } => Tensor::zeros(n, DType::F32, device)?,
            _ => column(ADVANTAGES.name())?,
        };
        let critic = || -> std::result::Result<_, LearnError> {
            Ok(Critic { value_targets: column(VALUE_TARGETS.name())?, vf_preds: column(VF_PREDS.name())? })
        };
        let critic = (needs.critic && !needs.logged).then(critic).transpose()?;
        let state_lens = Some(model.state_lens()).filter(|lens| !lens.is_empty());
        let sequences =
            state_lens.map(|lens| Sequences::new(&columns, lens, encoders.previous.as_ref(), device)).transpose()?;
        let previous = sequences.as_ref().and_then(|sequences| sequences.previous.clone());
        let rows = Rows { obs, actions, advantages, critic, old: None, previous, memory: None, normal: None };
        let mut train_rows = Self { rows, len: n, sequences, logp_gap: 0.0, lag: lags.stats() };
        if needs.critic && needs.logged {
            let (value_targets, vf_preds) = (train_rows.rows.advantages.clone(), train_rows.outputs(model)?.1);
            train_rows.rows.critic = Some(Critic { value_targets, vf_preds });
        }

        let stale = Some(&lags).filter(|lags| lags.has_stale() && !needs.logged);
        if !needs.old && stale.is_none() {
            return Ok(train_rows);
        }
        let (inputs, values) = train_rows.outputs(model)?;
        let own = model.head().dist(&inputs)?;
        let own_logp = own.logp(&train_rows.rows.actions)?;
        let sampled = column(ACTION_LOGP.name())?;
        if let Some(lags) = stale {
            train_rows.correct(&columns, lags, &own_logp, &values, reading)?;
        }
        if !needs.old {
            return Ok(train_rows);
        }
        let old_logp = match stale {
            None => own_logp,
            Some(lags) => lags.mask(n, device)?.where_cond(&sampled, &own_logp)?,
        };
        train_rows.logp_gap = (&old_logp - &sampled)?.abs()?.max(0)?.to_scalar()?;
        train_rows.rows.old = Some(match reading.old_policy {
            OldPolicy::Learner => Old { logp: old_logp, dist: own },
            OldPolicy::Batch => {
                let width = model.head().input_len();
                let inputs = columns.optional(ACTION_DIST_INPUTS.name(), width)?;
                let dist = inputs.map(|inputs| model.head().dist(&Tensor::from_vec(inputs, (n, width), device)?));
                Old { logp: sampled, dist: dist.transpose()?.unwrap_or(own) }
            }
        });
        Ok(train_rows)
    }

    /// Gives stale rows the targets of V-trace, from the model's current outputs for all rows.
    fn correct(
        &mut self,
        columns: &Columns<'_>,
        lags: &Lags,
        logp: &Tensor,
        values: &Tensor,
        reading: &Reading,
    ) -> std::result::Result<(), LearnError> {
        let device = logp.device();
        let values = if reading.advantages.use_critic { values.clone() } else { values.zeros_like()? };
        let now = Current { logp: &logp.to_vec1::<f32>()?, values: &values.to_vec1::<f32>()? };
        let targets = Targets::corrected(columns, lags, &now, &reading.advantages, reading.needs.old)?;
        self.rows.advantages = Tensor::from_vec(targets.advantages, self.len, device)?;
        if let Some(critic) = &mut self.rows.critic {
            critic.value_targets = Tensor::from_vec(targets.value_targets, self.len, device)?;
            critic.vf_preds = lags.mask(self.len, device)?.where_cond(&values, &critic.vf_preds)?;
        }
        Ok(())
    }

    /// Returns the model's current outputs for the rows, in the order of the batch: parameters of distributions, and
    /// values.
    pub(super) fn outputs(&self, model: &ActorCritic) -> Result<(Tensor, Tensor)> {
        if self.sequences.is_none() {
            // A piece at a time: the data between the layers of a convolution takes far more memory than the rows.
            let piece = |start: usize| {
                let rows = self.rows.obs.narrow(0, start, PIECE.min(self.len - start))?;
                let (inputs, values) = model.forward(&rows, None)?;
                Ok((inputs.detach(), values.detach()))
            };
            let pieces: (Vec<_>, Vec<_>) = (0..self.len).step_by(PIECE).map(piece).collect::<Result<_>>()?;
            return Ok((Tensor::cat(&pieces.0, 0)?, Tensor::cat(&pieces.1, 0)?));
        }
        let units: Vec<u32> = (0..self.units() as u32).collect();
        let order = self.order(&units);
        let rows = self.select(&units)?;
        let (inputs, values) = model.forward(&rows.obs, rows.memory.as_ref())?;
        let mut place = vec![0u32; order.len()];
        order.iter().zip(0..).for_each(|(&row, at)| place[row as usize] = at);
        let place = Tensor::new(place, inputs.device())?;
        Ok((inputs.detach().index_select(&place, 0)?, values.detach().index_select(&place, 0)?))
    }

    /// Returns the number of units that may be put into any order: sequences of recurrent models, else single rows.
    pub(super) fn units(&self) -> usize {
        self.sequences.as_ref().map_or(self.len, |sequences| sequences.spans.len())
    }

    /// Returns the number of rows.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Returns the advantages of all rows, in the order of the batch.
    pub(super) fn advantages(&self) -> Result<Vec<f32>> {
        self.rows.advantages.to_vec1()
    }

    /// Returns the batch's rows of these units, in the order of [`select`](Self::select).
    pub(super) fn order(&self, units: &[u32]) -> Vec<u32> {
        let Some(sequences) = &self.sequences else { return units.to_vec() };
        let spans = sequences.sorted(units);
        let longest = spans.first().map_or(0, |&(_, (_, len))| len);
        let step = |t: usize| {
            spans
                .iter()
                .map(|&(_, span)| span)
                .take_while(move |&(_, len)| len > t)
                .map(move |(start, _)| (start + t) as u32)
        };
        (0..longest).flat_map(step).collect()
    }

    /// Takes some rows.
    pub(super) fn select(&self, units: &[u32]) -> Result<Rows> {
        let device = self.rows.obs.device();
        let order = Tensor::new(self.order(units), device)?;
        let mut rows = self.rows.map(|column| column.index_select(&order, 0))?;
        if let Some(sequences) = &self.sequences {
            let (chosen, lens): (Vec<u32>, Vec<usize>) =
                sequences.sorted(units).into_iter().map(|(i, (_, len))| (i, len)).unzip();
            let states = sequences.states.index_select(&Tensor::new(chosen, device)?, 0)?;
            rows.memory = Some(Memory { steps: Steps::of_lengths(&lens), states, previous: rows.previous.take() });
        }
        Ok(rows)
    }

    /// Returns the whole batch.
    pub(super) fn whole(&self) -> Result<Rows> {
        self.select(&(0..self.units() as u32).collect::<Vec<_>>())
    }

    /// Returns the acting values and their targets.
    pub(super) fn values(&self) -> Result<Option<(Vec<f32>, Vec<f32>)>> {
        let values = |critic: &Critic| Ok((critic.vf_preds.to_vec1()?, critic.value_targets.to_vec1()?));
        self.rows.critic.as_ref().map(values).transpose()
    }

    #[cfg(test)]
    pub(super) fn old_logp(&self) -> Vec<f32> {
        self.rows.old.as_ref().unwrap().logp.to_vec1().unwrap()
    }
}

/// Checks that the rows' masks allow their actions: others have no probability to learn from.
fn check_masks<'a>(
    model: &ActorCritic,
    obs: impl Iterator<Item = &'a [f32]>,
    actions: &Tensor,
) -> std::result::Result<(), LearnError> {
    if model.mask_len() == 0 {
        return Ok(());
    }
    for (row, (mut mask, action)) in obs.zip(actions.to_vec2::<f32>()?).enumerate() {
        for (component, ((first, n), index)) in model.head().components().flatten().zip(action).enumerate() {
            let (allowed, rest) = mask.split_at(n as usize);
            if allowed[index as usize] == 0.0 {
                return Err(LearnError::ForbiddenAction { row, component, action: first + index as i64 });
            }
            mask = rest;
        }
    }
    Ok(())
}

impl Sequences {
    fn new(
        columns: &Columns<'_>,
        state_lens: &[usize],
        previous: Option<&PreviousStep>,
        device: &Device,
    ) -> std::result::Result<Self, LearnError> {
        let mut start = 0;
        let lens = columns.seq_lens()?.into_iter();
        let span = |len| {
            start += len;
            (start - len, len)
        };
        let spans: Vec<_> = lens.map(span).collect();
        let values = |i: usize, len: usize| columns.states(state_in(i).as_str(), len);
        let own_lens = &state_lens[..state_lens.len() - usize::from(previous.is_some())];
        let state = |(i, &len): (usize, &usize)| -> std::result::Result<_, LearnError> {
            Ok(Tensor::from_vec(values(i, len)?, (spans.len(), len), device)?)
        };
        let states = own_lens.iter().enumerate().map(state).collect::<std::result::Result<Vec<_>, _>>()?;
        let states = Tensor::cat(&states, 1)?;
        // The last state is the step before a sequence.
        let previous = previous.map(|step| -> std::result::Result<_, LearnError> {
            let steps = columns.previous(step, &spans, &values(own_lens.len(), step.len())?)?;
            Ok(Tensor::from_vec(steps, (columns.len(), step.len()), device)?)
        });
        Ok(Self { previous: previous.transpose()?, spans, states })
    }

    /// Sorts units by length, the longest first, with their numbers; equally long ones stay in order.
    fn sorted(&self, units: &[u32]) -> Vec<(u32, (usize, usize))> {
        let mut spans: Vec<_> = units.iter().map(|&i| (i, self.spans[i as usize])).collect();
        spans.sort_by_key(|&(_, (_, len))| std::cmp::Reverse(len));
        spans
    }
}

/// Units in random order, in pieces whose sizes differ by at most one.
pub(super) struct Minibatches {
    units: Vec<u32>,
    pieces: usize,
}

impl Minibatches {
    /// Shuffles `units` units that have `rows` rows together, in pieces of at most `size` rows on average.
    pub(super) fn shuffled(units: usize, rows: u64, size: u32, rng: &mut Rng) -> Self {
        let pieces = rows.div_ceil(u64::from(size.max(1))).min(units as u64) as usize;
        let mut units: Vec<u32> = (0..units as u32).collect();
        rng.shuffle(&mut units);
        Self { units, pieces }
    }

    /// Returns the pieces, one after the other.
    pub(super) fn iter(&self) -> impl ExactSizeIterator<Item = &[u32]> {
        let (n, pieces) = (self.units.len(), self.pieces);
        (0..pieces).map(move |i| &self.units[i * n / pieces..(i + 1) * n / pieces])
    }
}

impl Rows {
    /// Returns the number of rows.
    pub(super) fn len(&self) -> usize {
        self.advantages.elem_count()
    }

    fn map(&self, f: impl Fn(&Tensor) -> Result<Tensor>) -> Result<Self> {
        let critic = |critic: &Critic| -> Result<_> {
            Ok(Critic { value_targets: f(&critic.value_targets)?, vf_preds: f(&critic.vf_preds)? })
        };
        let old = |old: &Old| -> Result<_> { Ok(Old { logp: f(&old.logp)?, dist: old.dist.map(&f)? }) };
        Ok(Self {
            obs: f(&self.obs)?,
            actions: f(&self.actions)?,
            advantages: f(&self.advantages)?,
            critic: self.critic.as_ref().map(critic).transpose()?,
            old: self.old.as_ref().map(old).transpose()?,
            previous: self.previous.as_ref().map(&f).transpose()?,
            memory: None,
            normal: None,
        })
    }
}
