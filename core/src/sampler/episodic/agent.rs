//! One agent of an episode: what it saw, what it chose, and the rows that come of it.

use core::num::NonZeroU32;

use super::{
    options::RecordColumns,
    rows::{RowBuffer, fitting, view_row},
};
use crate::{
    action::ActionTransform,
    batch::{
        ACTION_DIST_INPUTS, ACTION_LOGP, ACTIONS, AGENT_INDEX, ENV_ID, EPS_ID, INFOS, NEW_OBS, OBS, REWARDS, T,
        TERMINATEDS, TRUNCATEDS, UNROLL_ID, VF_PREDS, state_out,
    },
    column::{BytesColumn, Column, ColumnData, ColumnName, RowShape},
    env::{EnvSpaces, RowsMut, RowsRef},
    ids::{AgentId, PolicyId},
    policy::{Policy, PolicyEntry},
    prelude::*,
    preprocess::{PreprocessError, Preprocessor},
    sampler::SampleError,
    space::Space,
    view::{AgentCollector, FragmentViews, Row, Shift, TrajectoryStart, ViewError, ViewRequirement, ViewRequirements},
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
        let first_state = own.get(crate::batch::state_in(0).as_str());
        let max_seq_len = first_state.map_or(MAX_SEQ_LEN, |view| view.batch_repeat_value);
        let state_lens = policy.state_lens().to_vec();
        let state_names: Vec<ColumnName> = (0..state_lens.len()).map(state_out).collect();
        for (index, name) in state_names.iter().enumerate() {
            views.insert(
                crate::batch::state_in(index).as_str().to_string(),
                ViewRequirement::state_in(index, max_seq_len),
            );
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
    fn is_windowed(&self) -> bool {
        self.views.get(OBS.name()).is_some_and(|view| view.shift != Shift::NONE || view.data_col.is_some())
    }

    /// States that stand one after the other, by name.
    fn states<'a>(&'a self, all: &'a [f32]) -> impl Iterator<Item = (&'a str, Row<'a>)> {
        let mut rest = all;
        self.state_names.iter().zip(&self.state_lens).map(move |(name, &len)| {
            let (state, after) = rest.split_at_checked(len).unwrap_or_default();
            rest = after;
            (name.as_str(), view_row(RowsRef::F32(state), RowShape::vector(len as u32)))
        })
    }

    fn collector(&self, state: &[f32]) -> Result<AgentCollector, ViewError> {
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
}

/// An action, and what the policy said when it chose it.
#[derive(Debug, Default)]
pub(super) struct Choice {
    pub(super) action: RowBuffer,
    pub(super) logp: f32,
    pub(super) vf_pred: f32,
    /// States after it, one after the other.
    pub(super) state: Vec<f32>,
    pub(super) dist_inputs: Vec<f32>,
}

/// What a step brought to an agent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outcome<'a> {
    pub(super) t: u32,
    pub(super) reward: f64,
    pub(super) terminated: bool,
    pub(super) truncated: bool,
    pub(super) info: Option<&'a [u8]>,
}

/// An agent that has appeared in an episode.
#[derive(Debug)]
pub(super) struct Agent {
    pub(super) id: AgentId,
    /// Number within the episode.
    pub(super) index: usize,
    pub(super) policy: PolicyId,
    pub(super) wants: Wants,
    spaces: EnvSpaces,
    transform: ActionTransform,
    action_shape: RowShape,
    collector: AgentCollector,
    /// The latest observation, as the policy gets it.
    obs: RowBuffer,
    obs_shape: RowShape,
    /// The states that the policy gets with it.
    state: Vec<f32>,
    /// What it did about it, once it has.
    pub(super) choice: Choice,
    /// Action that the agent took by itself.
    off_policy: Option<RowBuffer>,
    started: bool,
    pub(super) done: bool,
    /// False if the latest info forbids to learn from the piece that it ends.
    pub(super) training_enabled: bool,
    record: RecordColumns,
    infos: Vec<Vec<u8>>,
}

/// Who an agent is.
pub(super) struct Identity {
    pub(super) id: AgentId,
    pub(super) index: usize,
    pub(super) policy: PolicyId,
    pub(super) spaces: EnvSpaces,
}

impl Agent {
    pub(super) fn new(
        who: Identity,
        policy: &dyn Policy,
        record: RecordColumns,
        normalize_actions: bool,
        clip_actions: bool,
    ) -> Result<Self, ViewError> {
        let Identity { id, index, policy: policy_id, spaces } = who;
        let wants = Wants::of(policy, record);
        let state = initial_state(policy, &wants);
        Ok(Self {
            id,
            index,
            policy: policy_id,
            transform: ActionTransform::for_space(&spaces.action, normalize_actions, clip_actions),
            action_shape: spaces.action.shape(),
            spaces,
            collector: wants.collector(&state)?,
            wants,
            obs: RowBuffer::default(),
            obs_shape: RowShape::SCALAR,
            state,
            choice: Choice::default(),
            off_policy: None,
            started: false,
            done: false,
            training_enabled: true,
            record,
            infos: Vec::new(),
        })
    }

    /// Rows that wait to be postprocessed.
    pub(super) fn rows(&self) -> usize {
        self.collector.steps()
    }

    /// True once the agent has an observation.
    pub(super) fn has_started(&self) -> bool {
        self.started
    }

    pub(super) fn action_type(&self) -> crate::column::DType {
        self.spaces.action_type
    }

    pub(super) fn action_len(&self) -> usize {
        self.action_shape.elements()
    }

    pub(super) fn state(&self) -> &[f32] {
        &self.state
    }

    /// Takes a new observation: preprocessed, then filtered.
    pub(super) fn observe(&mut self, raw: RowsRef<'_>, entry: &mut PolicyEntry) -> Result<(), SampleError> {
        let shape = match &entry.preprocessor {
            // Rows of compound spaces are flat already.
            Some(preprocessor) if !matches!(preprocessor.space(), Space::Tuple(_) | Space::Dict(_)) => {
                preprocess(preprocessor, raw, &mut self.obs)
                    .map_err(|source| SampleError::Preprocess { agent: self.id.clone(), source })?;
                preprocessor.output_shape()
            }
            _ => {
                self.obs.set(raw);
                self.spaces.observation.shape()
            }
        };
        // Observations that are no floats have no mean.
        match self.obs.all_mut() {
            RowsMut::F32(values) => entry.filter.filter_rows(values, true)?,
            RowsMut::F64(values) => entry.filter.filter_rows(values, true)?,
            _ => {}
        }
        self.obs_shape = fitting(shape, self.obs.len());
        Ok(())
    }

    /// The observation that nobody gave is zeros.
    pub(super) fn observe_zeros(&mut self) {
        self.obs.zero();
    }

    /// Begins a trajectory with the latest observation.
    pub(super) fn begin(&mut self, start: TrajectoryStart) -> Result<(), ViewError> {
        self.collector.add_init_obs(start, &[(OBS.name(), view_row(self.obs.all(), self.obs_shape))])?;
        self.started = true;
        Ok(())
    }

    /// Begins a trajectory in the middle of the environment's episode, with the states as they are.
    pub(super) fn begin_again(&mut self, start: TrajectoryStart) -> Result<(), ViewError> {
        self.collector = self.wants.collector(&self.state)?;
        self.infos.clear();
        if self.started { self.begin(start) } else { Ok(()) }
    }

    /// Goes on under another policy. Rows that the new one cannot take are lost: returns how many.
    pub(super) fn adopt(
        &mut self,
        id: PolicyId,
        policy: &dyn Policy,
        start: TrajectoryStart,
    ) -> Result<usize, ViewError> {
        self.policy = id;
        let wants = Wants::of(policy, self.record);
        if wants == self.wants {
            return Ok(0);
        }
        let lost = self.rows();
        self.state = initial_state(policy, &wants);
        self.wants = wants;
        self.begin_again(start)?;
        Ok(lost)
    }

    /// The agent took this action by itself; it is the one that counts.
    pub(super) fn take_off_policy(&mut self, action: RowsRef<'_>) {
        self.off_policy.get_or_insert_default().set(action);
    }

    /// The policy's choice is complete.
    pub(super) fn chosen(&mut self) {
        if let Some(action) = self.off_policy.take() {
            self.choice.action = action;
        }
    }

    /// Records a row: the latest choice and what came of it; the latest observation is the one after it.
    pub(super) fn add_row(&mut self, outcome: Outcome<'_>) -> Result<(), ViewError> {
        let Outcome { t, reward, terminated, truncated, info } = outcome;
        let (t, reward) = (i64::from(t), reward as f32);
        let row = [
            (NEW_OBS.name(), view_row(self.obs.all(), self.obs_shape)),
            (ACTIONS.name(), view_row(self.choice.action.all(), fitting(self.action_shape, self.choice.action.len()))),
            (REWARDS.name(), Row::from(&reward)),
            (TERMINATEDS.name(), Row::from(&terminated)),
            (TRUNCATEDS.name(), Row::from(&truncated)),
            (ACTION_LOGP.name(), Row::from(&self.choice.logp)),
            (VF_PREDS.name(), Row::from(&self.choice.vf_pred)),
            (T.name(), Row::from(&t)),
        ];
        if self.wants.state_lens.is_empty() && self.wants.dist_inputs == 0 {
            self.collector.add_action_reward_next_obs(&row)?;
        } else {
            let mut row = row.to_vec();
            row.extend(self.wants.states(&self.choice.state));
            if self.wants.dist_inputs > 0 {
                let shape = RowShape::vector(self.wants.dist_inputs as u32);
                row.push((ACTION_DIST_INPUTS.name(), view_row(RowsRef::F32(&self.choice.dist_inputs), shape)));
            }
            self.collector.add_action_reward_next_obs(&row)?;
        }
        core::mem::swap(&mut self.state, &mut self.choice.state);
        if self.record.infos {
            self.infos.push(info.unwrap_or_default().to_vec());
        }
        Ok(())
    }

    /// Appends what the policy gets of the agent to `obs`, which is started with the right type if it is empty.
    pub(super) fn show(&self, obs: &mut RowBuffer) -> Result<bool, ViewError> {
        if !self.wants.is_windowed() {
            if obs.len() == 0 {
                obs.start(self.obs.all().dtype());
            }
            return Ok(obs.push(self.obs.all()));
        }
        let seen = self.collector.build_for_inference()?;
        let row = seen.column(OBS.name()).and_then(|column| Row::of(column, 0));
        let row = row.ok_or_else(|| ViewError::MissingColumn { name: OBS.name().into() })?;
        let row = super::rows::elements(row);
        if obs.len() == 0 {
            obs.start(row.dtype());
        }
        Ok(obs.push(row))
    }

    /// The rows since the last call as the policy wants to see them, in the usual order of columns.
    pub(super) fn build(&mut self, unroll_id: i64) -> Result<crate::batch::SampleBatch, SampleError> {
        let FragmentViews { batch, .. } = self.collector.build_for_training(unroll_id)?;
        let mut parts = batch.into_parts();
        let rank = |name: &str| COLUMNS.iter().position(|column| *column == name).unwrap_or(COLUMNS.len());
        parts.columns.sort_by_key(|(name, _)| rank(name.as_str()));
        if self.record.infos {
            let infos = BytesColumn::bytes(self.infos.drain(..));
            let infos = infos.map_err(|source| crate::batch::BatchError::Column { name: INFOS.into(), source })?;
            parts.columns.push((INFOS.into(), infos.into()));
        }
        Ok(crate::batch::SampleBatch::from_parts(parts)?)
    }

    /// Forgets the rows since the last fragment.
    pub(super) fn forget(&mut self) {
        self.collector.forget_steps();
        self.infos.clear();
    }

    /// The action in the form that the environment takes.
    pub(super) fn sent_action(&self, sent: &mut RowBuffer) -> Result<(), crate::space::PointError> {
        sent.set(self.choice.action.all());
        sent.transform(self.transform, &self.spaces.action)
    }
}

fn initial_state(policy: &dyn Policy, wants: &Wants) -> Vec<f32> {
    let mut state = vec![0.0; wants.state_len()];
    policy.initial_state(&mut state);
    state
}

fn preprocess(preprocessor: &Preprocessor, raw: RowsRef<'_>, out: &mut RowBuffer) -> Result<(), PreprocessError> {
    out.start(crate::column::DType::F32);
    out.resize(preprocessor.output_len());
    let RowsMut::F32(out) = out.all_mut() else { return Ok(()) };
    match raw {
        RowsRef::F32(row) => preprocessor.transform_row(row, out),
        RowsRef::F64(row) => preprocessor.transform_row(row, out),
        RowsRef::I32(row) => preprocessor.transform_row(row, out),
        RowsRef::I64(row) => preprocessor.transform_row(row, out),
        RowsRef::U8(row) => preprocessor.transform_row(row, out),
        RowsRef::Bool(row) => preprocessor.transform_row(row, out),
    }
}
