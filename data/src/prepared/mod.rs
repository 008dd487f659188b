//! Prepares batches from other sources for the policies of a worker.

mod actions;
mod observations;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use rollmesh_core::{
    batch::{AnyBatch, BatchError, MultiAgentBatch, NEW_OBS, SampleBatch, TERMINATEDS, state_out},
    column::Column,
    env::SubEnv,
    episode::{Episode, Losses, RolloutMetrics},
    ids::{PolicyId, SlotId},
    policy::{Policy, PolicyError, Postprocessing},
    postprocess::{compute_advantages, last_r},
    preprocess::Preprocessor,
    sampler::{Budget, InputReader, IoContext, Position, SampleError, SamplerHost},
    space::Space,
};

pub use actions::ActionChange;
pub use observations::encode_observations;

use super::with_usual_types;

/// The preparation of batches after reading.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Preparation {
    /// True if each episode is postprocessed with its policy, like a newly sampled one.
    pub postprocess_inputs: bool,
    /// True if actions are clamped to the environment's bounds.
    pub clip_actions: bool,
    /// True if actions are mapped from the environment's bounds to the policies' [-1, 1], and integers to those from 0
    /// on: for actions that were recorded in the environment's form.
    pub normalize_actions: bool,
    /// The environment's action spaces, by policy.
    pub action_spaces: BTreeMap<PolicyId, Space>,
    /// Its observation spaces, by policy: observations with another number of elements are refused.
    pub observation_spaces: BTreeMap<PolicyId, Space>,
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
            observation_spaces: context.observation_spaces.clone(),
        })
    }

    /// Prepares a batch: columns get their usual types, and the environment's own observations are encoded for policies with
    /// a preprocessor.
    ///
    /// # Errors
    /// [`SampleError`] for missing columns, for observations or actions of another space, for a batch without policy ids where
    /// there are several policies, and for a batch of several agents that must be postprocessed.
    pub fn prepare(&self, batch: AnyBatch, host: &mut SamplerHost<'_>) -> Result<AnyBatch, SampleError> {
        if matches!(batch, AnyBatch::Single(_)) && host.policies.len() > 1 {
            return Err(SampleError::Input(format!(
                "the rows say nothing of policies, but there are {}: read batches of several agents",
                host.policies.len()
            )));
        }
        let change = |id: &PolicyId, rows: SampleBatch| self.rows(id, rows, host);
        let batch = with_usual_types(map_rows(batch, change)?)?;
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

    /// Changes the observations and actions of a policy's rows.
    fn rows(
        &self,
        id: &PolicyId,
        mut rows: SampleBatch,
        host: &mut SamplerHost<'_>,
    ) -> Result<SampleBatch, SampleError> {
        // A single policy may have any id.
        let acting = match host.policies.ids().next() {
            Some(only) if host.policies.len() == 1 => only.clone(),
            _ => id.clone(),
        };
        let preprocessor =
            if host.policies.contains(&acting) { host.policies.get_mut(&acting)?.preprocessor.as_ref() } else { None };
        if let Some(space) = of_policy(&self.observation_spaces, id) {
            observations::check_observations(&rows, space, preprocessor.map(Preprocessor::output_len))?;
        }
        if let Some(preprocessor) = preprocessor {
            encode_observations(&mut rows, preprocessor)?;
        }
        if !self.clip_actions && !self.normalize_actions {
            return Ok(rows);
        }
        let Some(space) = of_policy(&self.action_spaces, id) else {
            return Err(SampleError::Input(format!(
                "the actions of policy '{id}' cannot be clipped or normalised: their space is not known"
            )));
        };
        let changes = [(self.clip_actions, ActionChange::Clip), (self.normalize_actions, ActionChange::ToPolicy)];
        for (_, change) in changes.into_iter().filter(|(is_wanted, _)| *is_wanted) {
            change.apply(&mut rows, space)?;
        }
        Ok(rows)
    }
}

/// Returns a policy's space; a single policy may have any id.
fn of_policy<'a>(spaces: &'a BTreeMap<PolicyId, Space>, id: &PolicyId) -> Option<&'a Space> {
    spaces.get(id).or_else(|| spaces.values().next().filter(|_| spaces.len() == 1))
}

/// Changes the rows of every policy.
fn map_rows(
    batch: AnyBatch,
    mut change: impl FnMut(&PolicyId, SampleBatch) -> Result<SampleBatch, SampleError>,
) -> Result<AnyBatch, SampleError> {
    Ok(match batch {
        AnyBatch::Single(rows) => change(&PolicyId::DEFAULT, rows)?.into(),
        AnyBatch::Multi(multi) => {
            let steps = multi.env_steps();
            let batches = multi.policy_batches.into_iter().map(|(id, rows)| {
                let rows = change(&id, rows)?;
                Ok((id, rows))
            });
            MultiAgentBatch::new(batches.collect::<Result<_, SampleError>>()?, steps).into()
        }
    })
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
    /// The name of the input in errors.
    name: Option<String>,
}

impl<R: InputReader> PreparedInput<R> {
    /// Prepares every batch of `input`.
    #[must_use]
    pub fn new(input: R, preparation: Preparation) -> Self {
        Self { input, preparation, name: None }
    }

    /// Sets the name of the input in errors.
    #[must_use]
    pub fn with_name(self, name: impl Into<String>) -> Self {
        Self { name: Some(name.into()), ..self }
    }

    fn prepared(&self, batch: AnyBatch, host: &mut SamplerHost<'_>) -> Result<AnyBatch, SampleError> {
        self.preparation.prepare(batch, host).map_err(|error| match (error, &self.name) {
            (SampleError::Input(problem), Some(name)) => SampleError::Input(format!("{name}: {problem}")),
            (error, _) => error,
        })
    }
}

impl<R: InputReader> InputReader for PreparedInput<R> {
    fn next(&mut self, host: &mut SamplerHost<'_>) -> Result<AnyBatch, SampleError> {
        let batch = self.input.next(host)?;
        self.prepared(batch, host)
    }

    fn next_within(
        &mut self,
        host: &mut SamplerHost<'_>,
        budget: &mut Budget,
    ) -> Result<Option<AnyBatch>, SampleError> {
        let Some(batch) = self.input.next_within(host, budget)? else { return Ok(None) };
        self.prepared(batch, host).map(Some)
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
