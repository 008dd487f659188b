//! Collects one agent's trajectory step by step, and builds its views.

use core::num::NonZeroU32;

use serde::{Deserialize, Serialize};

use super::{
    ViewError, ViewRequirements, ViewRow,
    requirement::in_terms_of_obs,
    series::{Series, is_obs, suffix},
};
use crate::{
    batch::{AGENT_INDEX, ENV_ID, EPS_ID, T, UNROLL_ID, state_out},
    column::{Column, RowsRef},
    prelude::*,
};

/// The constants of a trajectory, and its first step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrajectoryStart {
    /// Id of the episode.
    pub eps_id: i64,
    /// Number of the agent within the episode.
    pub agent_index: i64,
    /// Index of the sub-environment.
    pub env_id: i64,
    /// Step of the episode at the first action; 0 unless the agent joins later.
    pub t: i64,
}

/// The state of an [`AgentCollector`] between two fragments: the steps that its views can reach.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct CollectorState {
    series: Vec<Series>,
    start: Option<TrajectoryStart>,
    stepped: bool,
    next_t: i64,
}

impl CollectorState {
    /// Returns whether it belongs to a trajectory of this agent and episode, and all its numbers are finite.
    pub(crate) fn is_of(&self, start: TrajectoryStart) -> bool {
        let own = self
            .start
            .is_some_and(|own| own.t >= 0 && TrajectoryStart { t: start.t, env_id: start.env_id, ..own } == start);
        own && self.next_t >= 0 && self.series.iter().all(Series::is_finite)
    }
}

/// Collects the steps of one agent and builds the views of models and learners.
///
/// Data columns are `obs` (and `obs.…` if nested), `t`, `eps_id`, `agent_index`, `env_id`, `unroll_id`, and all other
/// columns that the steps have: `actions`, `rewards`, `terminateds`, `action_logp`, `state_out_0`, …. Columns that no
/// requirement views are dropped. Before the first step of a trajectory, views show its first observation, the initial
/// states, and zeros for all other columns; after the last step of a fragment, they show zeros. The collector keeps only
/// those steps of a fragment that views of the next one can reach, so its memory does not grow with the trajectory.
#[derive(Clone, Debug)]
pub struct AgentCollector {
    pub(super) views: ViewRequirements,
    pub(super) series: Vec<Series>,
    pub(super) max_seq_len: Option<NonZeroU32>,
    pub(super) start: Option<TrajectoryStart>,
    /// Steps of the open fragment.
    pub(super) steps: usize,
    /// Whether the trajectory has steps, in this fragment or before it.
    stepped: bool,
    pub(super) next_t: i64,
}

impl AgentCollector {
    /// Creates a collector for a policy without states.
    #[must_use]
    pub fn new(views: ViewRequirements) -> Self {
        let views = in_terms_of_obs(views);
        let mut collector =
            Self { views, series: Vec::new(), max_seq_len: None, start: None, steps: 0, stepped: false, next_t: 0 };
        collector.add_viewed(T.name(), ViewRow::from(&0i64), None);
        collector
    }

    /// Creates a collector for a recurrent policy: `initial_states` has one column of one row for each state, and fragments
    /// are split into sequences of `max_seq_len` steps, with the remainder last.
    ///
    /// # Errors
    /// [`ViewError::InitialState`] if a state is not one row of numbers.
    pub fn recurrent(
        views: ViewRequirements,
        initial_states: &[Column],
        max_seq_len: NonZeroU32,
    ) -> Result<Self, ViewError> {
        let mut collector = Self { max_seq_len: Some(max_seq_len), ..Self::new(views) };
        for (index, state) in initial_states.iter().enumerate() {
            let row = ViewRow::of(state, 0).filter(|_| state.rows() == 1).ok_or(ViewError::InitialState { index })?;
            collector.add_viewed(&state_out(index), row, Some(row));
        }
        Ok(collector)
    }

    /// Returns the state of the trajectory, between two fragments.
    pub(crate) fn state(&self) -> CollectorState {
        let Self { series, start, stepped, next_t, .. } = self.clone();
        // The index of the sub-environment belongs to the worker, not to the trajectory.
        CollectorState { series, start: start.map(|start| TrajectoryStart { env_id: 0, ..start }), stepped, next_t }
    }

    /// Continues the trajectory of another collector with the same views. Returns false, and changes nothing, for an invalid
    /// state; the state may be untrusted.
    #[must_use]
    pub(crate) fn restore(&mut self, state: CollectorState) -> bool {
        let is_step = |series: &Series| series.name != T.name() || series.check(&ViewRow::from(&0i64)).is_ok();
        let is_known = |series: &Series| series.is_sound(self.reach(&series.name)) && is_step(series);
        let is_unique = |(at, series): (usize, &Series)| !state.series[..at].iter().any(|one| one.name == series.name);
        let obs = state.series.iter().any(|series| series.is_obs);
        let sound = state.series.iter().all(is_known)
            && state.series.iter().enumerate().all(is_unique)
            && state.start.is_some() == obs;
        if sound {
            let CollectorState { series, start, stepped, next_t } = state;
            (self.series, self.start, self.stepped, self.next_t, self.steps) = (series, start, stepped, next_t, 0);
        }
        sound
    }

    /// Returns the view requirements; those of `new_obs` are views of `obs`, one step later.
    #[must_use]
    pub fn views(&self) -> &ViewRequirements {
        &self.views
    }

    /// Returns the number of steps since the last fragment was built.
    #[must_use]
    pub fn steps(&self) -> usize {
        self.steps
    }

    /// Begins a trajectory with the observation after a reset: `obs`, or the parts `obs.…` of a nested one.
    ///
    /// # Errors
    /// [`ViewError::Unbuilt`] if the fragment still has steps of another trajectory, [`ViewError::NotObs`] for another
    /// column, [`ViewError::EmptyRows`] for rows without elements, [`ViewError::MissingColumn`] if a part is missing that
    /// earlier trajectories had, [`ViewError::Mismatch`] if it has another type or shape. On an error, the collector stays
    /// as it is.
    pub fn add_init_obs(&mut self, start: TrajectoryStart, obs: &[(&str, ViewRow<'_>)]) -> Result<(), ViewError> {
        if self.steps > 0 {
            return Err(ViewError::Unbuilt { steps: self.steps });
        }
        if let Some((name, _)) = obs.iter().find(|(name, _)| !is_obs(name)) {
            return Err(ViewError::NotObs { name: (*name).to_string() });
        }
        if let Some((name, _)) = obs.iter().find(|(_, row)| row.shape.elements() == 0) {
            return Err(ViewError::EmptyRows { name: (*name).to_string() });
        }
        if obs.is_empty() {
            return Err(ViewError::MissingColumn { name: "obs".to_string() });
        }
        for series in self.series.iter().filter(|series| series.is_obs) {
            let row = find(obs, &series.name);
            series.check(row.ok_or_else(|| ViewError::MissingColumn { name: series.name.clone() })?)?;
        }
        for (name, row) in obs {
            if !self.series.iter().any(|series| series.name == *name) {
                self.add_viewed(name, *row, None);
            }
        }
        for series in &mut self.series {
            series.restart();
            if series.name == T.name() {
                series.set_fill(&ViewRow::from(&start.t.wrapping_sub(1)));
            } else if let Some(row) = find(obs, &series.name) {
                series.set_fill(row);
                series.push(row);
            }
        }
        (self.stepped, self.next_t) = (false, start.t);
        self.start = Some(start);
        Ok(())
    }

    /// Adds a step: `new_obs` (or all its parts `new_obs.…`) and all other columns of the step, which must be the same for
    /// every step. `t` may be given where an agent does not act in every step of its episode. Allocates nothing once the
    /// buffers have the size of a fragment.
    ///
    /// # Errors
    /// [`ViewError::NoInitialObs`]; [`ViewError::EmptyRows`] for a viewed column of rows without elements;
    /// [`ViewError::MissingColumn`], [`ViewError::Unexpected`] or [`ViewError::Mismatch`] if a viewed column differs from
    /// the trajectory's first step. On an error, the collector stays as it is.
    pub fn add_action_reward_next_obs(&mut self, values: &[(&str, ViewRow<'_>)]) -> Result<(), ViewError> {
        if self.start.is_none() {
            return Err(ViewError::NoInitialObs);
        }
        let mut empty = values.iter().filter(|(_, row)| row.shape.elements() == 0);
        if let Some((name, _)) = empty.find(|(name, _)| self.reach(name).is_some()) {
            return Err(ViewError::EmptyRows { name: (*name).to_string() });
        }
        for series in &self.series {
            match step_value(values, series) {
                Some(row) => series.check(row)?,
                None if series.name == T.name() => {}
                None => return Err(ViewError::MissingColumn { name: name_in_step(&series.name) }),
            }
        }
        for (name, row) in values {
            let is_new_obs = name.strip_prefix("new_").is_some_and(is_obs);
            let expected = is_new_obs || is_obs(name) || self.series.iter().any(|series| series.name == *name);
            if expected || self.constant(name).is_some() || *name == UNROLL_ID.name() || self.reach(name).is_none() {
                continue;
            }
            if self.stepped {
                return Err(ViewError::Unexpected { name: (*name).to_string() });
            }
            self.add_viewed(name, *row, None);
        }
        let next_t = self.next_t;
        for series in &mut self.series {
            let given = step_value(values, series);
            if series.name == T.name() {
                let row = given.copied().unwrap_or_else(|| ViewRow::from(&next_t));
                series.push(&row);
                if let RowsRef::I64(&[t]) = row.values {
                    self.next_t = t.wrapping_add(1);
                }
            } else if let Some(row) = given {
                series.push(row);
            }
        }
        self.steps += 1;
        self.stepped = true;
        Ok(())
    }

    /// Ends the fragment without building it, for callers that only act.
    pub fn forget_steps(&mut self) {
        for series in &mut self.series {
            series.begin_fragment();
        }
        self.steps = 0;
    }

    /// Iterates over the series of a data column or of its parts, with the suffix of each name after the column's name.
    pub(super) fn parts<'a>(&'a self, column: &'a str) -> impl Iterator<Item = (&'a Series, &'a str)> {
        self.series.iter().filter_map(move |series| Some((series, suffix(&series.name, column)?)))
    }

    /// Returns the value of a column that is constant throughout the trajectory.
    pub(super) fn constant(&self, column: &str) -> Option<i64> {
        let start = self.start.as_ref()?;
        [(EPS_ID.name(), start.eps_id), (AGENT_INDEX.name(), start.agent_index), (ENV_ID.name(), start.env_id)]
            .into_iter()
            .find_map(|(name, value)| (name == column).then_some(value))
    }

    /// Returns how many steps back the views of a data column reach; `None` without views.
    fn reach(&self, name: &str) -> Option<usize> {
        let views = self.views.iter().filter(|(view, requirement)| suffix(name, requirement.data_col(view)).is_some());
        views.map(|(_, requirement)| requirement.shift.before()).max()
    }

    /// Starts to keep a data column if there is a view of it.
    fn add_viewed(&mut self, name: &str, like: ViewRow<'_>, fill: Option<ViewRow<'_>>) {
        if let Some(keep) = self.reach(name) {
            self.series.push(Series::new(name, like, fill, keep));
        }
    }
}

fn find<'a, 'b>(rows: &'a [(&str, ViewRow<'b>)], name: &str) -> Option<&'a ViewRow<'b>> {
    rows.iter().find_map(|(key, row)| (*key == name).then_some(row))
}

/// Returns a step's value for a series; `new_obs` holds the observations after the step.
fn step_value<'a, 'b>(values: &'a [(&str, ViewRow<'b>)], series: &Series) -> Option<&'a ViewRow<'b>> {
    if !series.is_obs {
        return find(values, &series.name);
    }
    values.iter().find_map(|(key, row)| (key.strip_prefix("new_") == Some(&series.name)).then_some(row))
}

fn name_in_step(series: &str) -> String {
    if is_obs(series) { format!("new_{series}") } else { series.to_string() }
}
