//! Limits of a run's fragments.

use core::ops::Range;

use crate::{
    batch::{
        ACTION_LOGP, ACTIONS, ADVANTAGES, AGENT_INDEX, EPS_ID, NEW_OBS, OBS, REWARDS, T, TERMINATEDS, TRUNCATEDS,
        UNROLL_ID, VALUE_TARGETS, VF_PREDS,
    },
    column::{ColumnKey, DType, Element, RowShape},
    env::EnvSpaces,
    ids::PolicyId,
    prelude::*,
    protocol::{Kind, TooLarge},
    run::{RolloutConfig, RunConfig},
    sampler::{AgentLayout, BatchMode, CountStepsBy, FragmentLayout, RecurrentShape},
    space::Space,
    view::ViewRequirement,
};

/// A column that fragments must have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ColumnLimit {
    pub(super) name: &'static str,
    pub(super) dtype: DType,
    pub(super) shape: RowShape,
    /// Allowed integers, the end excluded: one range per element of a row, or none if all are allowed.
    pub(super) ranges: Vec<Range<i64>>,
}

impl ColumnLimit {
    fn scalar<T: Element>(key: ColumnKey<T>) -> Self {
        Self { name: key.name(), dtype: T::DTYPE, shape: RowShape::SCALAR, ranges: Vec::new() }
    }

    fn of_space(name: &'static str, dtype: DType, space: &Space) -> Self {
        let below = |n: &u32| 0..i64::from(*n);
        let ranges = match space {
            Space::Discrete { n } => vec![below(n)],
            Space::MultiDiscrete { nvec } => nvec.iter().map(below).collect(),
            Space::MultiBinary { .. } => core::iter::once(0..2).collect(),
            // Bounds of boxes are not checked: final observations may be outside of them, and so may actions that are
            // clipped.
            Space::Box(_) | Space::Tuple(_) | Space::Dict(_) => Vec::new(),
        };
        Self { name, dtype, shape: space.shape(), ranges }
    }

    /// Makes it the column that a view of its name shows of the data; false if an upload cannot be expected to have it.
    fn show(&mut self, view: &ViewRequirement, data: &[Self]) -> bool {
        let source = data.iter().find(|column| column.name == view.data_col(self.name));
        let shown = source.and_then(|column| Some((column, view.training_shape(column.shape)?)));
        let Some((column, shape)) = shown else { return false };
        *self = Self { name: self.name, shape, ..column.clone() };
        true
    }

    /// Returns the most bytes that a row takes on the wire.
    fn row_bytes(&self) -> u64 {
        let element = match self.dtype {
            DType::I64 => match self.ranges.iter().map(|range| range.end - 1).max().unwrap_or(i64::MAX) {
                ..=0xFF => 1,
                0x100..=0x7FFF => 2,
                0x8000..=0x7FFF_FFFF => 4,
                _ => 8,
            },
            dtype => dtype.size() as u64,
        };
        (self.shape.elements() as u64).saturating_mul(element)
    }
}

/// The limits of an upload for each slot: exactly these columns, and as many rows as the run requires.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FragmentLimits {
    /// Steps of a fragment, counted by `count_steps_by`.
    pub(super) rows: u32,
    /// Most env steps of a fragment; equal to `rows` if all fragments have the same length.
    pub(super) max_env_steps: u32,
    pub(super) batch_mode: BatchMode,
    pub(super) count_steps_by: CountStepsBy,
    /// If true, no row may be marked as the end of its episode.
    pub(super) no_done_at_end: bool,
    pub(super) columns: Vec<ColumnLimit>,
    pub(super) recurrent: RecurrentShape,
    /// Limits by policy, of runs whose rows are by policy; a slot has no columns then.
    pub(super) policies: Option<PolicyLimits>,
}

/// The limits of rows by policy.
pub(super) type PolicyLimits = BTreeMap<PolicyId, PolicyLimit>;

/// The limits of the rows of a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PolicyLimit {
    pub(super) columns: Vec<ColumnLimit>,
    pub(super) recurrent: RecurrentShape,
    /// Whether there must be no columns but these and the recurrent states.
    pub(super) is_exact: bool,
    /// Number of agents of one environment, as far as it is known beforehand.
    agents: u32,
}

/// Returns the columns that every row has.
fn columns(spaces: &EnvSpaces) -> Vec<ColumnLimit> {
    vec![
        ColumnLimit::of_space(OBS.name(), spaces.observation_type, &spaces.observation),
        ColumnLimit::of_space(ACTIONS.name(), spaces.action_type, &spaces.action),
        ColumnLimit::scalar(REWARDS),
        ColumnLimit::scalar(TERMINATEDS),
        ColumnLimit::scalar(TRUNCATEDS),
        ColumnLimit::scalar(ACTION_LOGP),
        ColumnLimit::scalar(VF_PREDS),
    ]
}

/// Estimate for a slot's table entries and its state without the environment's snapshot, and for an agent's part of that state.
const SLOT_BYTES: u64 = 256;
/// Estimate for the header of a column of rows by policy, and for that of their batch.
const COLUMN_BYTES: u64 = 64;

fn sum(bytes: impl IntoIterator<Item = u64>) -> u64 {
    bytes.into_iter().fold(0, u64::saturating_add)
}

/// Returns the bytes of a column's row in memory.
fn full_bytes(column: Option<&ColumnLimit>) -> u64 {
    column.map_or(0, |column| (column.shape.elements() as u64).saturating_mul(column.dtype.size() as u64))
}

/// Returns the bytes of the rows of one agent, of its cuts, and of its recurrent states: a sequence begins at each cut, and the
/// state after the last row follows.
fn trajectory_bytes(rows: u32, row_bytes: u64, cut_bytes: u64, recurrent: &RecurrentShape) -> u64 {
    let cuts = u64::from(rows).div_ceil(4) + 1;
    let sequences = u64::from(rows / recurrent.max_seq_len) + cuts + 1;
    let state_bytes = 4u64.saturating_mul(recurrent.width() as u64);
    sum([row_bytes.saturating_mul(rows.into()), cut_bytes.saturating_mul(cuts), state_bytes.saturating_mul(sequences)])
}

impl FragmentLimits {
    /// Returns the limits of a run whose rows have this layout.
    #[must_use]
    pub fn new(run: &RunConfig, layout: &FragmentLayout) -> Self {
        let RolloutConfig { batch_mode, count_steps_by, no_done_at_end, .. } = run.rollout;
        let (columns, recurrent, policies) = match layout {
            FragmentLayout::Lane { spaces, recurrent } => (columns(spaces), recurrent.clone(), None),
            FragmentLayout::Agents(policies) => {
                let limit = |(id, layout): (&PolicyId, &AgentLayout)| {
                    let AgentLayout { spaces, recurrent, views, has_advantages, is_exact, agents } = layout;
                    let mut columns = columns(spaces);
                    columns.push(ColumnLimit::of_space(NEW_OBS.name(), spaces.observation_type, &spaces.observation));
                    let data = columns.clone();
                    columns.retain_mut(|column| views.get(column.name).is_none_or(|view| column.show(view, &data)));
                    columns.extend([EPS_ID, UNROLL_ID, T, AGENT_INDEX].map(ColumnLimit::scalar));
                    if *has_advantages {
                        columns.extend([ADVANTAGES, VALUE_TARGETS].map(ColumnLimit::scalar));
                    }
                    let recurrent = recurrent.clone();
                    (id.clone(), PolicyLimit { columns, recurrent, is_exact: *is_exact, agents: *agents })
                };
                (Vec::new(), RecurrentShape::default(), Some(policies.iter().map(limit).collect_ordered()))
            }
        };
        let (rows, max_env_steps) = (run.fragment_length(), run.max_fragment_steps());
        Self { rows, max_env_steps, batch_mode, count_steps_by, no_done_at_end, columns, recurrent, policies }
    }

    /// Returns the limits by policy, if the run's rows are by policy.
    pub(super) fn policies(&self) -> Option<&PolicyLimits> {
        self.policies.as_ref()
    }

    /// Checks that the fragments of this many slots fit into one upload, by [`upload_bytes`](Self::upload_bytes).
    ///
    /// # Errors
    /// [`TooLarge`] if they do not: the lease must have fewer slots, or the run shorter fragments.
    pub fn check_lease_of(&self, slots: usize) -> Result<(), TooLarge> {
        self.check(self.rows, slots)
    }

    /// Returns the longest `rollout_fragment_length` up to the run's with which a fragment of one slot fits into an upload;
    /// 0 if not even one step does.
    #[must_use]
    pub fn longest_fragment(&self) -> u32 {
        let (mut fits, mut above) = (0, self.rows.saturating_add(1));
        while above - fits > 1 {
            let half = fits + (above - fits) / 2;
            *(if self.check(half, 1).is_ok() { &mut fits } else { &mut above }) = half;
        }
        fits
    }

    /// Estimates the bytes of an upload of this many slots, assuming that an episode ends in every fourth row, states are small,
    /// all agents act in every step, and neither policies nor callbacks add columns. With `complete_episodes`, fragments longer
    /// than `rollout_fragment_length` are not foreseen. A fragment whose upload turns out larger than a message can be fails.
    #[must_use]
    pub fn upload_bytes(&self, slots: usize) -> u64 {
        self.slot_bytes(self.rows).saturating_mul(slots as u64)
    }

    fn check(&self, rows: u32, slots: usize) -> Result<(), TooLarge> {
        let kind = if self.policies.is_some() { Kind::AgentUpload } else { Kind::FragmentUpload };
        let bytes = self.slot_bytes(rows).saturating_mul(slots as u64);
        if bytes <= u64::from(kind.body_cap()) { Ok(()) } else { Err(TooLarge { kind, bytes }) }
    }

    fn slot_bytes(&self, rows: u32) -> u64 {
        let Some(policies) = &self.policies else {
            let row_bytes = sum(self.columns.iter().map(ColumnLimit::row_bytes));
            // End and reason of a cut, its bootstrap value, its episode's return, and its final observation.
            let cut_bytes = sum([full_bytes(self.column(OBS.name())), 5 + 1 + 4 + 8]);
            return sum([trajectory_bytes(rows, row_bytes, cut_bytes, &self.recurrent), SLOT_BYTES]);
        };
        let steps = match self.count_steps_by {
            CountStepsBy::EnvSteps => rows,
            CountStepsBy::AgentSteps => {
                rows.div_ceil(policies.values().fold(0, |all, one| one.agents.saturating_add(all)).max(1))
            }
        };
        let policy_bytes = |limit: &PolicyLimit| {
            let row_bytes = sum(limit.columns.iter().map(|column| full_bytes(Some(column))));
            // An agent's part of the slot's state has an observation.
            let state_bytes =
                sum([full_bytes(limit.columns.iter().find(|column| column.name == OBS.name())), SLOT_BYTES]);
            let agent_bytes = sum([trajectory_bytes(steps, row_bytes, 0, &limit.recurrent), state_bytes]);
            let headers = COLUMN_BYTES * (limit.columns.len() + limit.recurrent.state_lens.len() + 1) as u64;
            sum([agent_bytes.saturating_mul(limit.agents.into()), headers])
        };
        sum([SLOT_BYTES].into_iter().chain(policies.values().map(policy_bytes)))
    }

    pub(super) fn column(&self, name: &str) -> Option<&ColumnLimit> {
        self.columns.iter().find(|column| column.name == name)
    }
}
