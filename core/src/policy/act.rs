//! Acting outside of a sampler, on rows of observations as the environment gives them.

use super::{ActionInput, ActionOutput, PolicyEntry, PolicyError};
use crate::{
    action::ActionTransform,
    column::{Column, ColumnError, DType, RowsMut, by_type},
    env::{EnvSpaces, Moment},
    filter::Filter,
    ids::SlotId,
    prelude::*,
};

/// Rows of observations, and the memory of a policy with recurrent states.
#[derive(Debug)]
pub struct ActRequest<'a> {
    /// As the environment gives them.
    pub obs: Column,
    /// Recurrent states of all rows; `None` at the start of episodes.
    pub state: Option<Vec<f32>>,
    /// As the environment takes them.
    pub prev_actions: Option<Column>,
    /// One per row.
    pub prev_rewards: Option<&'a [f32]>,
    /// Draws actions, else takes the most probable ones.
    pub explore: bool,
    /// The step, the address of the random numbers. Row `i` has those of slot `i`.
    pub t: u32,
}

/// A policy's choice for rows of observations.
#[derive(Clone, Debug)]
pub struct Acted {
    /// As the environment takes them.
    pub actions: Column,
    /// Their log-probabilities.
    pub logp: Vec<f32>,
    /// Values of the observations.
    pub vf_preds: Vec<f32>,
    /// Recurrent states after the rows.
    pub state: Vec<f32>,
}

impl PolicyEntry {
    /// Acts on observations of an environment with these spaces: preprocesses and filters them, without an update of the
    /// filter, and transforms the actions for the environment.
    ///
    /// # Errors
    /// [`PolicyError`], also for rows that do not fit the spaces.
    pub fn act(
        &mut self,
        asked: ActRequest<'_>,
        spaces: &EnvSpaces,
        transform: ActionTransform,
    ) -> Result<Acted, PolicyError> {
        let ActRequest { obs, state, mut prev_actions, prev_rewards, explore, t } = asked;
        let (rows, space) = (obs.rows(), &spaces.action);
        let mut actions = Column::zeros(spaces.action_type.into(), space.shape(), rows).map_err(failed)?;
        if rows == 0 {
            // Policies act on at least one row.
            return Ok(Acted { actions, logp: Vec::new(), vf_preds: Vec::new(), state: Vec::new() });
        }
        if let Some(actions) = &mut prev_actions {
            by_type!(RowsMut, actions.array_mut().map_err(failed)?, rows => transform.undo_rows(space, rows))?;
        }
        let obs = self.seen(obs)?;
        let policy = self.policy.as_mut();
        let state_len: usize = policy.state_lens().iter().sum();
        let mut before = state.unwrap_or_else(|| {
            let mut state = vec![0.0; rows * state_len];
            state.chunks_exact_mut(state_len.max(1)).for_each(|row| policy.initial_state(row));
            state
        });
        if let Some(step) = policy.previous_step() {
            let actions = prev_actions.as_ref().map(Column::array).transpose().map_err(failed)?;
            step.write_rows(rows, actions, prev_rewards, &mut before, &mut Vec::new())?;
        }
        let moment = |row| Moment { slot: SlotId(row), episode: 0, t, agent: 0 };
        let moments: Vec<Moment> = (0..rows as u32).map(moment).collect();
        let (mut logp, mut vf_preds, mut after) = (vec![0.0; rows], vec![0.0; rows], vec![0.0; rows * state_len]);
        let out = ActionOutput::new(actions.array_mut().map_err(failed)?, &mut logp, &mut vf_preds);
        let input = ActionInput { obs: obs.array().map_err(failed)?, moments: &moments, state: &before, explore };
        policy.compute_actions(input, ActionOutput { state: &mut after, ..out })?;
        by_type!(RowsMut, actions.array_mut().map_err(failed)?, rows => transform.apply_rows(space, rows))?;
        Ok(Acted { actions, logp, vf_preds, state: after })
    }

    /// Preprocesses and filters observations.
    fn seen(&mut self, obs: Column) -> Result<Column, PolicyError> {
        let mut seen = match &self.preprocessor {
            Some(preprocessor) if !preprocessor.is_identity() => {
                let shape = preprocessor.output_shape();
                let mut out = Column::zeros(DType::F32.into(), shape, obs.rows()).map_err(failed)?;
                let rows = out.typed_mut::<f32>().map_err(failed)?.values_mut();
                preprocessor.transform_rows(obs.array().map_err(failed)?, rows)?;
                out
            }
            _ => obs,
        };
        if self.filter != Filter::NoFilter {
            match seen.array_mut().map_err(failed)? {
                RowsMut::F32(rows) => self.filter.filter_rows(rows, false)?,
                RowsMut::F64(rows) => self.filter.filter_rows(rows, false)?,
                // Observations that are no floats have no mean.
                _ => {}
            }
        }
        Ok(seen)
    }
}

fn failed(error: ColumnError) -> PolicyError {
    PolicyError::Failed(error.to_string())
}
