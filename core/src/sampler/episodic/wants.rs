//! What a policy wants of the agents that act under it.

use core::num::NonZeroU32;

use super::{options::RecordColumns, rows::view_row};
use crate::{
    batch::{
        ACTION_DIST_INPUTS, ACTION_LOGP, ACTIONS, AGENT_INDEX, ENV_ID, EPS_ID, NEW_OBS, OBS, REWARDS, T, TERMINATEDS,
        TRUNCATEDS, UNROLL_ID, VF_PREDS, state_in, state_out,
    },
    column::{Column, ColumnData, ColumnName, RowShape},
    env::RowsRef,
    policy::Policy,
    prelude::*,
    view::{AgentCollector, Row, Shift, ViewError, ViewRequirement, ViewRequirements},
};

/// Steps of a recurrent policy's sequences where the policy does not say.
const MAX_SEQ_LEN: NonZeroU32 = NonZeroU32::new(20).unwrap();

/// Columns that every batch has, in the order in which they stand there.
pub(super) const COLUMNS: [&str; 12] = [
    OBS.name(),
    ACTIONS.name(),
    REWARDS.name(),
    TERMINATEDS.name(),
    TRUNCATEDS.name(),
    ACTION_LOGP.name(),
    VF_PREDS.name(),
    NEW_OBS.name(),
    EPS_ID.name(),
    UNROLL_ID.name(),
    T.name(),
    AGENT_INDEX.name(),
];

/// What a policy wants of the agents that act under it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Wants {
    views: ViewRequirements,
    max_seq_len: NonZeroU32,
    state_lens: Vec<usize>,
    state_names: Vec<ColumnName>,
    dist_inputs: usize,
}

impl Wants {
    pub(super) fn of(policy: &dyn Policy, record: RecordColumns) -> Self {
        let own = policy.view_requirements();
        let dist_inputs = if record.action_dist_inputs { policy.dist_inputs_len() } else { 0 };
        let mut columns = COLUMNS.to_vec();
        columns.extend(record.env_id.then_some(ENV_ID.name()));
        columns.extend((dist_inputs > 0).then_some(ACTION_DIST_INPUTS.name()));
        let view = |name: &str| ViewRequirement { used_for_compute_actions: name == OBS.name(), ..Default::default() };
        let mut views: ViewRequirements = columns.iter().map(|name| ((*name).to_string(), view(name))).collect();
        let first_state = own.get(state_in(0).as_str());
        let max_seq_len = first_state.map_or(MAX_SEQ_LEN, |view| view.batch_repeat_value);
        let state_lens = policy.state_lens().to_vec();
        let state_names: Vec<ColumnName> = (0..state_lens.len()).map(state_out).collect();
        for (index, name) in state_names.iter().enumerate() {
            views.insert(state_in(index).as_str().to_string(), ViewRequirement::state_in(index, max_seq_len));
            // Postprocessing may want to see it.
            let hidden = ViewRequirement { used_for_training: false, ..ViewRequirement::default() };
            views.insert(name.as_str().to_string(), hidden.only_for_training());
        }
        views.extend(own);
        Self { views, max_seq_len, state_lens, state_names, dist_inputs }
    }

    pub(super) fn views(&self) -> &ViewRequirements {
        &self.views
    }

    pub(super) fn dist_inputs(&self) -> usize {
        self.dist_inputs
    }

    pub(super) fn state_len(&self) -> usize {
        self.state_lens.iter().sum()
    }

    /// True if the policy sees more than the latest observation.
    pub(super) fn is_windowed(&self) -> bool {
        self.views.get(OBS.name()).is_some_and(|view| view.shift != Shift::NONE || view.data_col.is_some())
    }

    /// States that stand one after the other, by name.
    pub(super) fn states<'a>(&'a self, all: &'a [f32]) -> impl Iterator<Item = (&'a str, Row<'a>)> {
        let mut rest = all;
        self.state_names.iter().zip(&self.state_lens).map(move |(name, &len)| {
            let (state, after) = rest.split_at_checked(len).unwrap_or_default();
            rest = after;
            (name.as_str(), view_row(RowsRef::F32(state), RowShape::vector(len as u32)))
        })
    }

    pub(super) fn collector(&self, state: &[f32]) -> Result<AgentCollector, ViewError> {
        if self.state_lens.is_empty() {
            return Ok(AgentCollector::new(self.views.clone()));
        }
        let mut columns: Vec<Column> = Vec::with_capacity(self.state_lens.len());
        let mut rest = state;
        for &len in &self.state_lens {
            let (state, after) = rest.split_at_checked(len).unwrap_or_default();
            rest = after;
            columns.push(ColumnData::whole_rows(Arc::new(state.to_vec()), RowShape::vector(len as u32)).into());
        }
        AgentCollector::recurrent(self.views.clone(), &columns, self.max_seq_len)
    }

    /// The states at the start of an episode, one after the other.
    pub(super) fn initial_state(&self, policy: &dyn Policy) -> Vec<f32> {
        let mut state = vec![0.0; self.state_len()];
        policy.initial_state(&mut state);
        state
    }
}
