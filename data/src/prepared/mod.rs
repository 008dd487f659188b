//! Prepares batches from other sources for the policies of a worker.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use rollmesh_core::{
    action::{clip_rows, normalize_rows},
    batch::{ACTIONS, AnyBatch, BatchError, MultiAgentBatch, NEW_OBS, SampleBatch, TERMINATEDS, state_out},
    by_type,
    column::{Column, Element},
    env::SubEnv,
    episode::{Episode, Losses, RolloutMetrics},
    ids::{PolicyId, SlotId},
    policy::{Policy, PolicyError, Postprocessing},
    postprocess::{compute_advantages, last_r},
    sampler::{Budget, InputReader, IoContext, Position, SampleError, SamplerHost},
    space::{PointError, Space},
};

use super::with_usual_types;

/// How to prepare batches after reading.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Preparation {
    /// Whether to postprocess each episode with its policy, like a newly sampled one.
    pub postprocess_inputs: bool,
    /// Whether to clamp actions to the environment's bounds.
    pub clip_actions: bool,
    /// Whether to map actions from the environment's bounds to the policies' [-1, 1]: for actions that were recorded in the
    /// environment's form.
    pub normalize_actions: bool,
    /// The environment's action spaces, by policy.
    pub action_spaces: BTreeMap<PolicyId, Space>,
}

impl Preparation {
    /// Reads the settings: `postprocess_inputs` (default false), `clip_actions` (default: the worker's) and
    /// `actions_in_input_normalized` (default true); if the latter is false, the worker's `normalize_actions` applies here,
    /// too.
    ///
    /// # Errors
    /// [`SampleError::Input`] for settings of another form.
    pub fn from_context(context: &IoContext) -> Result<Self, SampleError> {
        Self::from_context_or(context, true)
    }

    /// Reads the settings as [`from_context`](Self::from_context) does, with another default of
    /// `actions_in_input_normalized`: false for data that were recorded where no policy acts within [-1, 1].
    ///
    /// # Errors
    /// The errors of [`from_context`](Self::from_context).
    pub fn from_context_or(context: &IoContext, normalized: bool) -> Result<Self, SampleError> {
        let setting = |name: &str, default: bool| {
            let found = context.config.get::<bool>(name).map_err(|error| SampleError::Input(error.to_string()));
            Ok::<_, SampleError>(found?.unwrap_or(default))
        };
        Ok(Self {
            postprocess_inputs: setting("postprocess_inputs", false)?,
            clip_actions: setting("clip_actions", context.clip_actions)?,
            normalize_actions: !setting("actions_in_input_normalized", normalized)?
                && setting("normalize_actions", context.normalize_actions)?,
            action_spaces: context.action_spaces.clone(),
        })
    }

    /// Prepares a batch.
    ///
    /// # Errors
    /// [`SampleError`] for missing columns, for actions outside the space, for a batch without policy ids where there are
    /// several policies, and for a batch of several agents that must be postprocessed.
    pub fn prepare(&self, batch: AnyBatch, host: &mut SamplerHost<'_>) -> Result<AnyBatch, SampleError> {
        let batch = with_usual_types(batch)?;
        if matches!(batch, AnyBatch::Single(_)) && host.policies.len() > 1 {
            return Err(SampleError::Input(format!(
                "the rows say nothing of policies, but there are {}: read batches of several agents",
                host.policies.len()
            )));
        }
        let batch = self.actions(batch)?;
        if !self.postprocess_inputs {
            return Ok(batch);
        }
        match batch.single() {
            Ok(single) => postprocess(single, host).map(AnyBatch::Single),
            Err(_) => Err(SampleError::Input(
                "postprocess_inputs takes rows of single agents only: how the agents' rows belong together is not in \
                 the data; leave it out"
                    .into(),
            )),
        }
    }

    fn actions(&self, batch: AnyBatch) -> Result<AnyBatch, SampleError> {
        if !self.clip_actions && !self.normalize_actions {
            return Ok(batch);
        }
        Ok(match batch {
            AnyBatch::Single(batch) => self.actions_of(&PolicyId::DEFAULT, batch)?.into(),
            AnyBatch::Multi(multi) => {
                let steps = multi.env_steps();
                let batches = multi.policy_batches.into_iter().map(|(id, batch)| {
                    let batch = self.actions_of(&id, batch)?;
                    Ok((id, batch))
                });
                MultiAgentBatch::new(batches.collect::<Result<_, SampleError>>()?, steps).into()
            }
        })
    }

    fn actions_of(&self, id: &PolicyId, batch: SampleBatch) -> Result<SampleBatch, SampleError> {
        // A single policy may have any id.
        let space = match (self.action_spaces.get(id), self.action_spaces.first_key_value()) {
            (Some(space), _) => space,
            (None, Some((_, space))) if self.action_spaces.len() == 1 => space,
            _ => {
                return Err(SampleError::Input(format!(
                    "the actions of policy '{id}' cannot be clipped or normalised: their space is not known"
                )));
            }
        };
        let mut batch = batch;
        let parts = parts(space, ACTIONS.name().to_string());
        for (name, space) in parts {
            let failed = |error: PointError| SampleError::Input(format!("column '{name}': {error}"));
            let mut column = batch.remove(&name).ok_or_else(|| BatchError::MissingColumn(name.clone()))?;
            let mapped = match &mut column {
                Column::Bool(_) | Column::Bytes(_) | Column::Compressed(_) => Ok(()),
                array => by_type!(Column, array, data => self.rows(space, data.values_mut()), _ => Ok(())),
            };
            mapped.map_err(failed)?;
            batch.insert(name, column)?;
        }
        Ok(batch)
    }

    fn rows<T: Element>(&self, space: &Space, rows: &mut [T]) -> Result<(), PointError> {
        if self.clip_actions {
            clip_rows(space, rows)?;
        }
        if self.normalize_actions {
            normalize_rows(space, rows)?;
        }
        Ok(())
    }
}

/// Returns the fundamental spaces that a space consists of, and the columns of their points.
fn parts(space: &Space, name: String) -> Vec<(String, &Space)> {
    match space {
        Space::Tuple(inner) => {
            inner.iter().enumerate().flat_map(|(i, part)| parts(part, format!("{name}.{i}"))).collect()
        }
        Space::Dict(inner) => inner.iter().flat_map(|(key, part)| parts(part, format!("{name}.{key}"))).collect(),
        _ => vec![(name, space)],
    }
}

/// Postprocesses every episode with its policy; episodes with gaps piece by piece, since workers share the lines of a file
/// and a missing step may be with another worker.
fn postprocess(batch: &SampleBatch, host: &mut SamplerHost<'_>) -> Result<SampleBatch, SampleError> {
    let id = match host.policies.ids().next() {
        Some(id) if !host.policies.contains(&PolicyId::DEFAULT) => id.clone(),
        _ => PolicyId::DEFAULT,
    };
    let policy = host.policies.policy_mut(&id)?;
    let failed = |source: PolicyError| SampleError::Policy { id: id.clone(), source };
    let mut done = Vec::new();
    for piece in batch.split_by_trajectory()? {
        done.push(match policy.postprocessing() {
            Postprocessing::None => piece,
            Postprocessing::Advantages(config) => {
                let follows = last_r(piece.get(TERMINATEDS)?, value_after(&piece, policy).map_err(failed)?);
                compute_advantages(&piece, follows, &config).map_err(|error| failed(error.into()))?
            }
            Postprocessing::Custom => {
                let episode = Episode::new(0, SlotId(host.worker.worker_index), 0);
                policy.postprocess_trajectory(piece, &[], &episode).map_err(failed)?
            }
        });
    }
    Ok(SampleBatch::concat(&done)?)
}

/// Returns the policy's value of the observation after the last row; 0 if the last row is terminated.
fn value_after(piece: &SampleBatch, policy: &mut dyn Policy) -> Result<f32, PolicyError> {
    if piece.get(TERMINATEDS)?.last() == Some(&true) {
        return Ok(0.0);
    }
    let name = NEW_OBS.name();
    let column = piece.column(name).ok_or_else(|| BatchError::MissingColumn(name.to_string()))?;
    let last = column.slice(column.rows().saturating_sub(1)..column.rows());
    let mut states = vec![0.0; policy.state_lens().iter().sum()];
    let mut rest = &mut states[..];
    for (index, len) in policy.state_lens().iter().enumerate() {
        let Some(state) = rest.split_off_mut(..*len) else { continue };
        let rows = piece.column(&state_out(index)).map(Column::typed::<f32>);
        let row = rows.and_then(Result::ok).and_then(|rows| rows.row(rows.rows().checked_sub(1)?));
        if let Some(row) = row.filter(|row| row.len() == state.len()) {
            state.copy_from_slice(row);
        }
    }
    let mut value = [0.0];
    let not_numbers = |_| PolicyError::Unsupported { wanted: "rows of numbers".into(), found: format!("{last:?}") };
    let obs = last.array().map_err(not_numbers)?;
    policy.compute_values(obs, &states, &mut value)?;
    Ok(value[0])
}

/// Prepares the batches of another input.
pub struct PreparedInput<R> {
    input: R,
    preparation: Preparation,
}

impl<R: InputReader> PreparedInput<R> {
    /// Prepares every batch of `input`.
    #[must_use]
    pub fn new(input: R, preparation: Preparation) -> Self {
        Self { input, preparation }
    }
}

impl<R: InputReader> InputReader for PreparedInput<R> {
    fn next(&mut self, host: &mut SamplerHost<'_>) -> Result<AnyBatch, SampleError> {
        let batch = self.input.next(host)?;
        self.preparation.prepare(batch, host)
    }

    fn next_within(
        &mut self,
        host: &mut SamplerHost<'_>,
        budget: &mut Budget,
    ) -> Result<Option<AnyBatch>, SampleError> {
        let Some(batch) = self.input.next_within(host, budget)? else { return Ok(None) };
        self.preparation.prepare(batch, host).map(Some)
    }

    fn metrics(&mut self) -> Vec<RolloutMetrics> {
        self.input.metrics()
    }

    fn losses(&mut self) -> Losses {
        self.input.losses()
    }

    fn for_each_env(&mut self, f: &mut dyn FnMut(SubEnv<'_>)) {
        self.input.for_each_env(f);
    }

    fn position(&self) -> Option<Position> {
        self.input.position()
    }

    fn set_position(&mut self, position: &Position) -> Result<(), SampleError> {
        self.input.set_position(position)
    }

    fn stop(&mut self) -> Result<(), SampleError> {
        self.input.stop()
    }
}
