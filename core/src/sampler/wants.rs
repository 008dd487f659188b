//! Requirements of a policy for the agents under it.

use core::num::NonZeroU32;

use super::RecordColumns;
use crate::{
    batch::{
        ACTION_DIST_INPUTS, ACTION_LOGP, ACTIONS, AGENT_INDEX, ENV_ID, EPS_ID, NEW_OBS, OBS, REWARDS, T, TERMINATEDS,
        TRUNCATEDS, UNROLL_ID, VF_PREDS, state_in, state_out,
    },
    column::{Column, ColumnData, ColumnName, RowShape},
    env::RowsRef,
    policy::{Policy, PreviousStep},
    prelude::*,
    view::{AgentCollector, Shift, ViewError, ViewRequirement, ViewRequirements, ViewRow},
};

/// Default length of a recurrent policy's sequences.
const MAX_SEQ_LEN: NonZeroU32 = NonZeroU32::new(20).unwrap();

/// Columns that every batch has, in this order.
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

/// The recurrent states of a policy, and the sequences that it learns from. The default is that of a policy without memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecurrentShape {
    /// Elements of each state.
    pub state_lens: Vec<usize>,
    /// Most steps of a sequence.
    pub max_seq_len: NonZeroU32,
}

impl Default for RecurrentShape {
    fn default() -> Self {
        Self { state_lens: Vec::new(), max_seq_len: MAX_SEQ_LEN }
    }
}

impl RecurrentShape {
    /// Returns that of a policy. The length of sequences is that of its view `state_in_0`, or 20.
    #[must_use]
    pub fn of(policy: &dyn Policy) -> Self {
        let views = policy.view_requirements();
        let max_seq_len = views.get(state_in(0).as_str()).map_or(MAX_SEQ_LEN, |view| view.batch_repeat_value);
        Self { state_lens: policy.state_lens().to_vec(), max_seq_len }
    }

    /// Returns the number of elements of all states.
    #[must_use]
    pub fn width(&self) -> usize {
        self.state_lens.iter().sum()
    }

    /// Returns the lengths of the sequences of a piece with this many rows: all but the last one have the maximum length.
    pub(crate) fn seq_lens(&self, piece: usize) -> impl Iterator<Item = i32> {
        let longest = usize::try_from(self.max_seq_len.get()).unwrap_or(usize::MAX).min(i32::MAX as usize);
        (0..piece).step_by(longest).map(move |start| longest.min(piece - start) as i32)
    }
}

/// Requirements of a policy for the agents under it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Wants {
    views: ViewRequirements,
    recurrent: RecurrentShape,
    state_names: Vec<ColumnName>,
    previous: Option<PreviousStep>,
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
        let mut views: ViewRequirements =
            columns.iter().map(|name| ((*name).to_string(), view(name))).collect_ordered();
        let recurrent = RecurrentShape::of(policy);
        let state_names: Vec<ColumnName> = (0..recurrent.state_lens.len()).map(state_out).collect();
        for (index, name) in state_names.iter().enumerate() {
            views.insert(state_in(index).as_str().to_string(), ViewRequirement::state_in(index, recurrent.max_seq_len));
            // Postprocessing may use it.
            let hidden = ViewRequirement { used_for_training: false, ..ViewRequirement::default() };
            views.insert(name.as_str().to_string(), hidden.only_for_training());
        }
        views.extend(own);
        Self { views, recurrent, state_names, previous: policy.previous_step().cloned(), dist_inputs }
    }

    pub(super) fn views(&self) -> &ViewRequirements {
        &self.views
    }

    pub(super) fn dist_inputs(&self) -> usize {
        self.dist_inputs
    }

    /// Returns what writes each step to the recurrent states, if the policy sees it.
    pub(super) fn previous(&self) -> Option<&PreviousStep> {
        self.previous.as_ref()
    }

    pub(super) fn recurrent(&self) -> &RecurrentShape {
        &self.recurrent
    }

    pub(super) fn state_len(&self) -> usize {
        self.recurrent.width()
    }

    /// Returns true if the policy views more than the latest observation.
    pub(super) fn is_windowed(&self) -> bool {
        self.views.get(OBS.name()).is_some_and(|view| view.shift != Shift::NONE || view.data_col.is_some())
    }

    /// Splits concatenated states, by name.
    pub(super) fn states<'a>(&'a self, all: &'a [f32]) -> impl Iterator<Item = (&'a str, ViewRow<'a>)> {
        let mut rest = all;
        self.state_names.iter().zip(&self.recurrent.state_lens).map(move |(name, &len)| {
            let (state, after) = rest.split_at_checked(len).unwrap_or_default();
            rest = after;
            (name.as_str(), ViewRow { values: RowsRef::F32(state), shape: RowShape::vector(len as u32) })
        })
    }

    pub(super) fn collector(&self, state: &[f32]) -> Result<AgentCollector, ViewError> {
        if self.recurrent.state_lens.is_empty() {
            return Ok(AgentCollector::new(self.views.clone()));
        }
        let mut columns: Vec<Column> = Vec::with_capacity(self.recurrent.state_lens.len());
        let mut rest = state;
        for &len in &self.recurrent.state_lens {
            let (state, after) = rest.split_at_checked(len).unwrap_or_default();
            rest = after;
            columns.push(ColumnData::whole_rows(Arc::new(state.to_vec()), RowShape::vector(len as u32)).into());
        }
        AgentCollector::recurrent(self.views.clone(), &columns, self.recurrent.max_seq_len)
    }

    /// Returns the states at the start of an episode, concatenated.
    pub(super) fn initial_state(&self, policy: &dyn Policy) -> Vec<f32> {
        let mut state = vec![0.0; self.state_len()];
        policy.initial_state(&mut state);
        state
    }
}
