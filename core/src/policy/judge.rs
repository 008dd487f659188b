//! Logged steps as a policy sees them, for [off-policy estimators](crate::estimate).

use super::{ActionInput, ActionOutput, ObsEncoder, Policy, PolicyError};
use crate::{
    batch::{ACTION_LOGP, ACTION_PROB, ACTIONS, BatchError, EPS_ID, NEW_OBS, OBS, SampleBatch, TERMINATEDS},
    column::{Column, ColumnData, ColumnError, RowBuffer, RowsRef},
    distribution::{ActionDistribution, Distribution as _},
    env::{EnvSpaces, Moment},
    estimate::{EstimateError, NEW_ACTION_PROB, Q_VALUES, QModel, Transitions, V_VALUES, rewards},
    math,
    prelude::*,
    space::{Point, Space},
};

/// Rows that are shown to the policy at a time.
const ROWS: usize = 256;

/// The reason why a policy's value cannot be estimated.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum JudgeError {
    /// The log does not say how likely its actions were.
    #[error(
        "the data have neither 'action_prob' nor 'action_logp', with which actions were taken: log one of them (only `rollmesh \
         ope --estimator dm` needs none)"
    )]
    NoLoggedProbs,
    /// The policy's probabilities are not available.
    #[error("the policy does not return its distribution, or has memory; give a column 'new_action_prob'")]
    NoDistribution,
    /// Models of values and epsilon-greedy policies take one action of several.
    #[error("{what} needs a Discrete action space, not {space}")]
    NotDiscrete {
        /// The requested method, for example `epsilon-greedy`.
        what: &'static str,
        /// The action space.
        space: String,
    },
    /// No probability.
    #[error("epsilon is {0}; it must be from 0 to 1")]
    Epsilon(f64),
    /// A logged action that the policy does not know.
    #[error("the action at row {row} is not in the policy's action space {space}")]
    Action {
        /// The index of the row.
        row: usize,
        /// The space.
        space: String,
    },
    /// Rows that are no arrays of numbers.
    #[error("'{0}' is no plain array of numbers")]
    NotPlain(&'static str),
    /// The policy does not take the observations.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// A column is missing, or of another type.
    #[error(transparent)]
    Batch(#[from] BatchError),
    /// The model cannot be fitted or evaluated.
    #[error(transparent)]
    Estimate(#[from] EstimateError),
}

/// Shows logged steps to a policy, and adds the columns that estimators need from it.
///
/// ```
/// use rollmesh_core::{
///     batch::{ACTION_PROB, ACTIONS, EPS_ID, OBS, REWARDS, SampleBatch},
///     column::{ColumnData, RowShape},
///     env::EnvRegistry,
///     estimate::Estimator,
///     policy::{Judge, NetPolicy, PolicyContext},
/// };
///
/// let spaces = EnvRegistry::builtin().spec("CartPole-v1")?.spaces()?;
/// let context = PolicyContext::new(spaces.clone(), 7, rollmesh_core::kernels::Kernels::PORTABLE);
/// let mut policy = NetPolicy::for_context(&context)?;
/// let mut rows = SampleBatch::new()
///     .with(OBS, ColumnData::new(vec![0.0; 8], RowShape::vector(4))?)?
///     .with(ACTIONS, ColumnData::scalars(vec![0, 1]))?
///     .with(REWARDS, ColumnData::scalars(vec![1.0, 1.0]))?
///     .with(EPS_ID, ColumnData::scalars(vec![0, 0]))?
///     .with(ACTION_PROB, ColumnData::scalars(vec![0.5, 0.5]))?;
/// Judge::new(&mut policy, &spaces).add_probs(&mut rows)?;
/// let estimate = Estimator::ImportanceSampling.estimate(&rows, 0.99, true)?;
/// assert!((estimate.v_gain - 1.0).abs() < 0.1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Judge<'a> {
    policy: &'a mut dyn Policy,
    distribution: Option<ActionDistribution>,
    spaces: EnvSpaces,
    inputs: usize,
    epsilon: f64,
}

impl<'a> Judge<'a> {
    /// Creates a judge by a policy that acts in these spaces.
    #[must_use]
    pub fn new(policy: &'a mut dyn Policy, spaces: &EnvSpaces) -> Self {
        let inputs = if policy.state_lens().is_empty() { policy.dist_inputs_len() } else { 0 };
        let distribution = ActionDistribution::for_space(&spaces.action).ok();
        Self {
            distribution: distribution.filter(|of| inputs > 0 && of.input_len() == inputs),
            spaces: spaces.clone(),
            policy,
            inputs,
            epsilon: 0.0,
        }
    }

    /// Makes the policy epsilon-greedy: with this probability it takes a uniformly random action, otherwise its own.
    ///
    /// # Errors
    /// [`JudgeError::Epsilon`], [`JudgeError::NotDiscrete`].
    pub fn with_epsilon(mut self, epsilon: f64) -> Result<Self, JudgeError> {
        if !(0.0..=1.0).contains(&epsilon) {
            return Err(JudgeError::Epsilon(epsilon));
        }
        if epsilon > 0.0 {
            num_actions(&self.spaces.action, "epsilon-greedy")?;
        }
        self.epsilon = epsilon;
        Ok(self)
    }

    /// Returns the size of an observation and the number of actions, as a model of values in these spaces has them.
    ///
    /// # Errors
    /// [`JudgeError::NotDiscrete`], [`JudgeError::Policy`] for observations that are no single array.
    pub fn sizes(spaces: &EnvSpaces) -> Result<(usize, usize), JudgeError> {
        let num_actions = num_actions(&spaces.action, "a model of values")?;
        Ok((ObsEncoder::for_space(&spaces.observation)?.len(), num_actions))
    }

    /// Adds `action_prob` as doubles, from `action_logp`, unless it is there.
    ///
    /// # Errors
    /// [`JudgeError::NoLoggedProbs`], [`JudgeError::Batch`].
    pub fn add_logged_probs(rows: &mut SampleBatch) -> Result<(), JudgeError> {
        if rows.column(ACTION_PROB.name()).is_none() {
            let logps = rows.column(ACTION_LOGP.name()).ok_or(JudgeError::NoLoggedProbs)?;
            let probs: Vec<f64> = match logps {
                // Narrowing is meant: what policies say is no finer.
                Column::F64(logps) => logps.values().iter().map(|logp| prob(*logp as f32)).collect(),
                _ => rows.get(ACTION_LOGP)?.iter().map(|logp| prob(*logp)).collect(),
            };
            rows.insert(ACTION_PROB.name(), ColumnData::scalars(probs))?;
        }
        Ok(())
    }

    /// Adds `new_action_prob` unless it is there, and what [`add_logged_probs`](Self::add_logged_probs) does.
    ///
    /// # Errors
    /// [`JudgeError`].
    pub fn add_probs(&mut self, rows: &mut SampleBatch) -> Result<(), JudgeError> {
        Self::add_logged_probs(rows)?;
        if rows.column(NEW_ACTION_PROB).is_none() {
            let probs = self.probs(rows)?;
            rows.insert(NEW_ACTION_PROB, ColumnData::scalars(probs))?;
        }
        Ok(())
    }

    /// Returns the probabilities, or densities, of the logged actions.
    fn probs(&mut self, rows: &SampleBatch) -> Result<Vec<f64>, JudgeError> {
        let n = match &self.spaces.action {
            Space::Discrete { n } => f64::from(*n),
            _ => 1.0,
        };
        let actions = column(rows, ACTIONS.name())?;
        let inputs = self.dist_inputs(column(rows, OBS.name())?)?;
        let distribution = self.distribution.as_ref().ok_or(JudgeError::NoDistribution)?;
        let EnvSpaces { observation, action, .. } = self.spaces.clone();
        let dtype = EnvSpaces::with_usual_types(observation, action).action_type;
        let mut probs = Vec::with_capacity(rows.len());
        for (row, inputs) in inputs.chunks_exact(self.inputs).enumerate() {
            let action = actions.row(row).map(RowsRef::cast).ok_or(JudgeError::NotPlain("actions"))?;
            let whole = dtype.is_float() || action.iter().all(|x| math::floor_f64(*x) == *x);
            let logp = distribution.logp(inputs, &Point::cast(&action, dtype)).ok().filter(|_| whole);
            let logp = logp.ok_or_else(|| self.foreign_action(row))?;
            probs.push(prob(logp) * (1.0 - self.epsilon) + self.epsilon / n);
        }
        Ok(probs)
    }

    /// Returns the transitions that a model learns from: steps whose next observation is known, from `new_obs` or from
    /// the row after.
    ///
    /// # Errors
    /// [`JudgeError`].
    pub fn transitions(&mut self, rows: &SampleBatch) -> Result<Transitions, JudgeError> {
        let (obs_len, num_actions) = Self::sizes(&self.spaces)?;
        let terminateds = rows.get(TERMINATEDS)?;
        let obs = column(rows, OBS.name())?;
        let (kept, new_obs) = match rows.column(NEW_OBS.name()) {
            Some(new_obs) => ((0..rows.len() as u32).collect(), new_obs.clone()),
            None => self.with_successors(rows, obs)?,
        };
        let actions = self.actions(column(rows, ACTIONS.name())?, num_actions)?;
        let rewards = rewards(rows)?;
        let gather = |column: &Column| column.gather(&kept).map_err(of_obs);
        let of = |row: &u32| *row as usize;
        Ok(Transitions {
            obs_len,
            num_actions,
            obs: self.encoded(&gather(obs)?)?,
            actions: kept.iter().filter_map(|row| actions.get(of(row)).copied()).collect(),
            rewards: kept.iter().filter_map(|row| rewards.get(of(row)).map(|reward| *reward as f32)).collect(),
            terminateds: kept.iter().filter_map(|row| terminateds.get(of(row)).copied()).collect(),
            new_probs: self.all_probs(&new_obs, num_actions)?,
            new_obs: self.encoded(&new_obs)?,
        })
    }

    /// Returns the rows whose next observation is in the row after, or does not matter; and those observations.
    fn with_successors(&self, rows: &SampleBatch, obs: &Column) -> Result<(Vec<u32>, Column), JudgeError> {
        let (ids, terminateds) = (rows.get(EPS_ID)?, rows.get(TERMINATEDS)?);
        let (mut kept, mut next) = (Vec::new(), Vec::new());
        for (row, (id, terminated)) in ids.iter().zip(terminateds).enumerate() {
            let goes_on = !terminated && ids.get(row + 1) == Some(id);
            if *terminated || goes_on {
                kept.push(row as u32);
                next.push((row + usize::from(goes_on)) as u32);
            }
        }
        Ok((kept, obs.gather(&next).map_err(of_obs)?))
    }

    /// Adds `v_values` and `q_values`: of each observation under the policy, and of the logged action. Columns that are
    /// there already stay.
    ///
    /// # Errors
    /// [`JudgeError`].
    pub fn add_values(&mut self, rows: &mut SampleBatch, model: &mut dyn QModel) -> Result<(), JudgeError> {
        if rows.column(V_VALUES).is_some() && rows.column(Q_VALUES).is_some() {
            return Ok(());
        }
        let (_, num_actions) = Self::sizes(&self.spaces)?;
        let obs = column(rows, OBS.name())?;
        let actions = self.actions(column(rows, ACTIONS.name())?, num_actions)?;
        let probs = self.all_probs(obs, num_actions)?;
        let mut q = vec![0.0; probs.len()];
        model.q_values(&self.encoded(obs)?, &mut q)?;
        let (mut v_values, mut q_values) = (Vec::with_capacity(actions.len()), Vec::with_capacity(actions.len()));
        for ((q, probs), action) in q.chunks_exact(num_actions).zip(probs.chunks_exact(num_actions)).zip(&actions) {
            v_values.push(q.iter().zip(probs).map(|(q, prob)| f64::from(*q) * f64::from(*prob)).sum::<f64>());
            q_values.push(q.get(*action as usize).map_or(f64::NAN, |q| f64::from(*q)));
        }
        rows.insert(V_VALUES, ColumnData::scalars(v_values))?;
        Ok(rows.insert(Q_VALUES, ColumnData::scalars(q_values))?)
    }

    /// Returns the probabilities of all actions, row by row.
    fn all_probs(&mut self, obs: &Column, num_actions: usize) -> Result<Vec<f32>, JudgeError> {
        let inputs = self.dist_inputs(obs)?;
        let Some(ActionDistribution::Categorical(distribution)) = &self.distribution else {
            return Err(JudgeError::NoDistribution);
        };
        let floor = self.epsilon / num_actions as f64;
        let mut probs = Vec::with_capacity(inputs.len());
        for inputs in inputs.chunks_exact(self.inputs) {
            for action in 0..num_actions as i64 {
                let logp = distribution.logp(inputs, &[action]).map_err(|_| JudgeError::NoDistribution)?;
                probs.push((f64::from(math::exp(logp)) * (1.0 - self.epsilon) + floor) as f32);
            }
        }
        Ok(probs)
    }

    /// Returns the parameters of the policy's action distributions, row by row.
    fn dist_inputs(&mut self, obs: &Column) -> Result<Vec<f32>, JudgeError> {
        if self.distribution.is_none() {
            return Err(JudgeError::NoDistribution);
        }
        let elements = self.spaces.action.shape().elements();
        let mut all = vec![0.0; obs.rows().saturating_mul(self.inputs)];
        let mut start = 0;
        for dist in all.chunks_mut(ROWS * self.inputs) {
            let n = dist.len() / self.inputs;
            let obs = obs.slice(start..start + n);
            let moments: Vec<Moment> = (0..n).map(|t| Moment { t: t as u32, ..Moment::default() }).collect();
            let (mut logp, mut values) = (vec![0.0; n], vec![0.0; n]);
            let mut chosen = RowBuffer::zeros(self.spaces.action_type, n * elements);
            let mut out = ActionOutput::new(chosen.all_mut(), &mut logp, &mut values);
            out.dist_inputs = dist;
            let obs = obs.array().map_err(|_| JudgeError::NotPlain("obs"))?;
            self.policy.compute_actions(ActionInput { explore: false, ..ActionInput::new(obs, &moments) }, out)?;
            start += n;
        }
        Ok(all)
    }

    fn encoded(&self, obs: &Column) -> Result<Vec<f32>, JudgeError> {
        let rows = obs.array().map_err(|_| JudgeError::NotPlain("obs"))?;
        let encoder = ObsEncoder::for_space(&self.spaces.observation)?;
        Ok(encoder.encode(rows, obs.rows(), &mut Vec::new())?.to_vec())
    }

    /// Returns the discrete actions, counted from 0.
    fn actions(&self, column: &Column, n: usize) -> Result<Vec<u32>, JudgeError> {
        let action = |row| match column.row(row).map(RowsRef::cast).as_deref() {
            Some([action]) if math::floor_f64(*action) == *action && (0.0..n as f64).contains(action) => {
                Ok(*action as u32)
            }
            Some(_) => Err(self.foreign_action(row)),
            None => Err(JudgeError::NotPlain("actions")),
        };
        (0..column.rows()).map(action).collect()
    }

    fn foreign_action(&self, row: usize) -> JudgeError {
        JudgeError::Action { row, space: self.spaces.action.to_string() }
    }
}

/// Returns the probability, or density, of a logarithm as a double: 32 bits round that of -110 to 0.
fn prob(logp: f32) -> f64 {
    if (-80.0..=80.0).contains(&logp) {
        return f64::from(math::exp(logp));
    }
    let eighth = f64::from(math::exp(logp / 8.0));
    let half = (eighth * eighth) * (eighth * eighth);
    half * half
}

fn num_actions(space: &Space, what: &'static str) -> Result<usize, JudgeError> {
    match space {
        Space::Discrete { n } => Ok(*n as usize),
        other => Err(JudgeError::NotDiscrete { what, space: other.to_string() }),
    }
}

fn column<'a>(rows: &'a SampleBatch, name: &str) -> Result<&'a Column, BatchError> {
    rows.column(name).ok_or_else(|| BatchError::MissingColumn(name.to_string()))
}

fn of_obs(source: ColumnError) -> BatchError {
    BatchError::Column { name: OBS.name().to_string(), source }
}

#[cfg(test)]
mod tests;
