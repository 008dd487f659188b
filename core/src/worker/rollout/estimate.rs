//! How good the worker's policy would have been in the episodes that others have played.

use super::{OffPolicyEstimate, RolloutWorker};
use crate::{
    batch::{ACTION_LOGP, ACTION_PROB, ACTIONS, AnyBatch, BatchError, OBS, SampleBatch},
    column::{Column, ColumnData, DType},
    config::Config,
    distribution::ActionDistribution,
    env::{Moment, RowElement, RowsMut, RowsRef},
    estimate::Estimator,
    ids::PolicyId,
    math,
    policy::{ActionInput, ActionOutput},
    prelude::*,
    space::{Point, Scalar},
    worker::{RolloutError, config::InputEvaluation},
};

/// The probability of a row's action under the policy that is judged.
const NEW_ACTION_PROB: &str = "new_action_prob";

/// Rows that are shown to the policy at a time.
const ROWS: usize = 256;

impl RolloutWorker {
    /// What every episode of a batch says of the default policy. The batch tells with which probability each action was
    /// taken, as `action_prob` or `action_logp`; with which one the policy takes it now is asked of the policy, unless
    /// there is a column `new_action_prob` already.
    pub(super) fn estimates_of(
        &mut self,
        batch: &AnyBatch,
        by: InputEvaluation,
    ) -> Result<Vec<OffPolicyEstimate>, RolloutError> {
        let batch = batch
            .single()
            .map_err(|_| RolloutError::NoEstimate("the batch has several policies; estimate them one by one"))?;
        let estimator = match by {
            InputEvaluation::Is => Estimator::ImportanceSampling,
            InputEvaluation::Wis => Estimator::WeightedImportanceSampling,
            InputEvaluation::Simulation => return Ok(Vec::new()),
        };
        let mut rows = batch.clone();
        rows.decompress_if_needed()?;
        if rows.column(ACTION_PROB.name()).is_none() {
            let probs = exp(rows.get(ACTION_LOGP)?);
            rows = rows.with(ACTION_PROB, ColumnData::scalars(probs))?;
        }
        if rows.column(NEW_ACTION_PROB).is_none() {
            let probs = exp(&self.logp_of_default(&rows)?);
            rows.insert(NEW_ACTION_PROB, ColumnData::scalars(probs))?;
        }
        let policy = PolicyId::DEFAULT;
        let samples = estimator.per_episode(&rows, self.gamma(&policy)?)?;
        Ok(samples.into_iter().map(|sample| OffPolicyEstimate { policy: policy.clone(), by, sample }).collect())
    }

    fn gamma(&self, id: &PolicyId) -> Result<f64, RolloutError> {
        let config = self.parts.recipes.get(id).map_or_else(Config::new, |recipe| recipe.config().clone());
        Ok(config.get("gamma").map_err(crate::worker::SetupError::from)?.unwrap_or(0.99))
    }

    /// Log-probabilities of the actions of all rows under the default policy.
    fn logp_of_default(&mut self, rows: &SampleBatch) -> Result<Vec<f32>, RolloutError> {
        let id = PolicyId::DEFAULT;
        let spaces = self.parts.recipes.get(&id).and_then(|recipe| recipe.spaces());
        let policy = self.parts.policies.policy_mut(&id)?;
        let inputs = policy.dist_inputs_len();
        let unable = "the policy does not tell its distribution, or has memory; give a column 'new_action_prob'";
        let (Some(spaces), true) = (spaces, inputs > 0 && policy.state_lens().is_empty()) else {
            return Err(RolloutError::NoEstimate(unable));
        };
        let spaces = self.parts.workshop.acting_spaces(&id, &spaces)?;
        let distribution =
            ActionDistribution::for_space(&spaces.action).map_err(|_| RolloutError::NoEstimate(unable))?;
        if distribution.input_len() != inputs {
            return Err(RolloutError::NoEstimate(unable));
        }
        let column = |name: &str| rows.column(name).ok_or_else(|| BatchError::MissingColumn(name.into()));
        let (obs, actions) = (column(OBS.name())?, column(ACTIONS.name())?);
        let mut logps = Vec::with_capacity(rows.len());
        let mut start = 0;
        while start < rows.len() {
            let end = (start + ROWS).min(rows.len());
            let (obs, actions) = (obs.slice(start..end), actions.slice(start..end));
            let n = end - start;
            let moments: Vec<Moment> = (0..n).map(|t| Moment { t: t as u32, ..Moment::default() }).collect();
            let (mut logp, mut values, mut dist) = (vec![0.0; n], vec![0.0; n], vec![0.0; n * inputs]);
            let mut chosen = Chosen::new(&actions).ok_or(RolloutError::NoEstimate("actions are no plain arrays"))?;
            let obs = array(&obs).ok_or(RolloutError::NoEstimate("observations are no plain arrays"))?;
            let mut out = ActionOutput::new(chosen.rows(), &mut logp, &mut values);
            out.dist_inputs = &mut dist;
            let input = ActionInput { explore: false, ..ActionInput::new(obs, &moments) };
            policy.compute_actions(input, out).map_err(RolloutError::of_policy(&id))?;
            for (row, inputs) in dist.chunks_exact(inputs).enumerate() {
                let action = point(&actions, row).ok_or(RolloutError::NoEstimate("actions are no plain arrays"))?;
                let logp = distribution.logp(inputs, &action);
                logps
                    .push(logp.map_err(|_| RolloutError::NoEstimate("an action is not in the policy's action space"))?);
            }
            start = end;
        }
        Ok(logps)
    }
}

fn exp(logps: &[f32]) -> Vec<f32> {
    logps.iter().map(|logp| math::exp(*logp)).collect()
}

/// Room for actions of the type of a column.
enum Chosen {
    F32(Vec<f32>),
    F64(Vec<f64>),
    I32(Vec<i32>),
    I64(Vec<i64>),
    U8(Vec<u8>),
    Bool(Vec<bool>),
}

impl Chosen {
    fn new(actions: &Column) -> Option<Self> {
        let n = actions.rows() * actions.shape().elements();
        Some(match actions.dtype()? {
            DType::F32 => Self::F32(vec![0.0; n]),
            DType::F64 => Self::F64(vec![0.0; n]),
            DType::I32 => Self::I32(vec![0; n]),
            DType::I64 => Self::I64(vec![0; n]),
            DType::U8 => Self::U8(vec![0; n]),
            DType::Bool => Self::Bool(vec![false; n]),
        })
    }

    fn rows(&mut self) -> RowsMut<'_> {
        match self {
            Self::F32(values) => f32::erase_rows_mut(values),
            Self::F64(values) => f64::erase_rows_mut(values),
            Self::I32(values) => i32::erase_rows_mut(values),
            Self::I64(values) => i64::erase_rows_mut(values),
            Self::U8(values) => u8::erase_rows_mut(values),
            Self::Bool(values) => bool::erase_rows_mut(values),
        }
    }
}

/// All elements of a column of arrays.
fn array(column: &Column) -> Option<RowsRef<'_>> {
    Some(match column {
        Column::F32(data) => RowsRef::F32(data.values()),
        Column::F64(data) => RowsRef::F64(data.values()),
        Column::I32(data) => RowsRef::I32(data.values()),
        Column::I64(data) => RowsRef::I64(data.values()),
        Column::U8(data) => RowsRef::U8(data.values()),
        Column::Bool(data) => RowsRef::Bool(data.values()),
        Column::Bytes(_) | Column::Compressed(_) => return None,
    })
}

fn point(column: &Column, row: usize) -> Option<Point> {
    fn of<T: Scalar>(row: Option<&[T]>) -> Option<Point> {
        row.map(|values| Point::cast(values, T::DTYPE))
    }
    match column {
        Column::F32(data) => of(data.row(row)),
        Column::F64(data) => of(data.row(row)),
        Column::I32(data) => of(data.row(row)),
        Column::I64(data) => of(data.row(row)),
        Column::U8(data) => of(data.row(row)),
        Column::Bool(data) => of(data.row(row)),
        Column::Bytes(_) | Column::Compressed(_) => None,
    }
}
