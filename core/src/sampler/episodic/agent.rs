//! One agent of an episode: its observation, its action, and the rows made of them.

use serde::{Deserialize, Serialize};

use super::lane::Round;
use crate::{
    action::ActionTransform,
    batch::{
        ACTION_DIST_INPUTS, ACTION_LOGP, ACTIONS, BatchError, INFOS, NEW_OBS, OBS, REWARDS, SampleBatch, T,
        TERMINATEDS, TRUNCATEDS, VF_PREDS,
    },
    column::{BytesColumn, DType, RowBuffer, RowShape, by_type},
    env::{EnvSpaces, RowsMut, RowsRef},
    ids::{AgentId, PolicyId},
    policy::{Policy, PolicyEntry},
    prelude::*,
    sampler::{
        RecordColumns, RewardClipping, SampleError, SamplerOptions,
        rows::fitting,
        wants::{COLUMNS, Wants},
    },
    space::PointError,
    view::{AgentCollector, CollectorState, TrajectoryStart, ViewError, ViewRow},
};

/// An action, and the policy's other outputs with it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct AgentChoice {
    pub(super) action: RowBuffer,
    pub(super) logp: f32,
    pub(super) vf_pred: f32,
    /// Recurrent states after it, one after the other.
    pub(super) state: Vec<f32>,
    pub(super) dist_inputs: Vec<f32>,
}

/// The result of a step for an agent.
#[derive(Clone, Copy, Debug)]
pub(super) struct AgentOutcome<'a> {
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
    /// Its number within the episode.
    pub(super) index: usize,
    pub(super) policy: PolicyId,
    pub(super) wants: Wants,
    spaces: EnvSpaces,
    transform: ActionTransform,
    action_shape: RowShape,
    collector: AgentCollector,
    /// The latest observation, as the policy sees it.
    obs: RowBuffer,
    obs_shape: RowShape,
    /// The recurrent states before it.
    state: Vec<f32>,
    /// The policy's outputs for it, once they are computed.
    pub(super) choice: AgentChoice,
    /// The action that the agent took by itself.
    off_policy: Option<RowBuffer>,
    started: bool,
    pub(super) done: bool,
    /// False if the latest info disables training on the piece that it ends.
    pub(super) training_enabled: bool,
    record: RecordColumns,
    clip_rewards: RewardClipping,
    infos: Vec<Vec<u8>>,
}

/// State of an agent between two fragments, from which the rest of its episode follows.
#[derive(Serialize, Deserialize)]
pub(super) struct AgentState {
    training_enabled: bool,
    /// `None` for an agent whose episode has ended.
    live: Option<LiveAgent>,
}

#[derive(Serialize, Deserialize)]
struct LiveAgent {
    obs: RowBuffer,
    state: Vec<f32>,
    /// The choice whose reward is still due; `None` for an agent that acts next.
    choice: Option<AgentChoice>,
    collector: CollectorState,
}

/// Identity of an agent.
pub(super) struct AgentIdentity {
    pub(super) id: AgentId,
    pub(super) index: usize,
    pub(super) policy: PolicyId,
    pub(super) spaces: EnvSpaces,
}

impl Agent {
    /// Creates an agent without observations, under a policy of the worker.
    pub(super) fn of(who: AgentIdentity, round: &mut Round<'_, '_>) -> Result<Self, SampleError> {
        let SamplerOptions { record, normalize_actions, clip_actions, clip_rewards, .. } = *round.options;
        let policy = &*round.host.policies.get_mut(&who.policy)?.policy;
        let AgentIdentity { id, index, policy: policy_id, spaces } = who;
        let wants = Wants::of(policy, record);
        let state = wants.initial_state(policy);
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
            choice: AgentChoice::default(),
            off_policy: None,
            started: false,
            done: false,
            training_enabled: true,
            record,
            clip_rewards,
            infos: Vec::new(),
        })
    }

    /// Returns its state between two fragments; `acts` says whether it acts next.
    pub(super) fn snapshot(&self, acts: bool) -> AgentState {
        let live = (!self.done && self.started).then(|| LiveAgent {
            obs: self.obs.clone(),
            state: self.state.clone(),
            choice: (!acts).then(|| self.choice.clone()),
            collector: self.collector.state(),
        });
        AgentState { training_enabled: self.training_enabled, live }
    }

    /// Restores an episode from an untrusted state; `start` is where its trajectory begins, apart from the step. Returns
    /// false for a state that does not fit this agent.
    #[must_use]
    pub(super) fn restore(&mut self, state: AgentState, start: TrajectoryStart, acts: bool) -> bool {
        self.training_enabled = state.training_enabled;
        let Some(LiveAgent { obs, state, choice, collector }) = state.live else {
            (self.started, self.done) = (true, true);
            return !acts;
        };
        let finite = |values: &[f32]| values.iter().all(|value| value.is_finite());
        let chosen = choice.as_ref().is_none_or(|choice| {
            choice.action.all().dtype() == self.spaces.action_type
                && choice.action.len() == self.action_shape.elements()
                && choice.state.len() == self.state.len()
                && choice.dist_inputs.len() == self.wants.dist_inputs()
                && choice.action.all().first_not_finite().is_none()
                && [choice.logp, choice.vf_pred].iter().all(|value| value.is_finite())
                && finite(&choice.state)
                && finite(&choice.dist_inputs)
        });
        let sound = chosen
            && choice.is_none() == acts
            && state.len() == self.state.len()
            && finite(&state)
            && collector.is_of(start)
            // An observation function may have made a row that differs from the environment's space.
            && obs.len() > 0
            && obs.all().first_not_finite().is_none();
        if !sound {
            return false;
        }
        self.obs_shape = fitting(self.spaces.observation.shape(), obs.len());
        (self.obs, self.state, self.choice, self.started) = (obs, state, choice.unwrap_or_default(), true);
        self.collector.restore(collector)
    }

    /// Returns the number of rows that are not postprocessed yet.
    pub(super) fn rows(&self) -> usize {
        self.collector.steps()
    }

    /// Returns true once the agent has an observation.
    pub(super) fn has_started(&self) -> bool {
        self.started
    }

    pub(super) fn action_type(&self) -> DType {
        self.spaces.action_type
    }

    pub(super) fn action_len(&self) -> usize {
        self.action_shape.elements()
    }

    pub(super) fn state(&self) -> &[f32] {
        &self.state
    }

    /// Sets a new observation: preprocessed, then filtered.
    pub(super) fn observe(&mut self, raw: RowsRef<'_>, entry: &mut PolicyEntry) -> Result<(), SampleError> {
        let shape = match &entry.preprocessor {
            Some(preprocessor) => {
                self.obs.start(DType::F32);
                self.obs.resize(preprocessor.output_len());
                if let RowsMut::F32(out) = self.obs.all_mut() {
                    preprocessor
                        .transform_rows(raw, out)
                        .map_err(|source| SampleError::Preprocess { agent: self.id.clone(), source })?;
                }
                preprocessor.output_shape()
            }
            None => {
                self.obs.set(raw);
                self.spaces.observation.shape()
            }
        };
        // Only floats are filtered.
        match self.obs.all_mut() {
            RowsMut::F32(values) => entry.filter.filter_rows(values, true)?,
            RowsMut::F64(values) => entry.filter.filter_rows(values, true)?,
            _ => {}
        }
        self.obs_shape = fitting(shape, self.obs.len());
        Ok(())
    }

    /// Sets a missing observation to zeros.
    pub(super) fn observe_zeros(&mut self) {
        self.obs.zero();
    }

    /// Begins a trajectory with the latest observation.
    pub(super) fn begin(&mut self, start: TrajectoryStart) -> Result<(), ViewError> {
        self.collector
            .add_init_obs(start, &[(OBS.name(), ViewRow { values: self.obs.all(), shape: self.obs_shape })])?;
        self.started = true;
        Ok(())
    }

    /// Begins a trajectory in the middle of the environment's episode, keeping the recurrent states.
    pub(super) fn restart_trajectory(&mut self, start: TrajectoryStart) -> Result<(), ViewError> {
        self.collector = self.wants.collector(&self.state)?;
        self.infos.clear();
        if self.started { self.begin(start) } else { Ok(()) }
    }

    /// Changes the agent's policy. Rows that the new policy does not support are lost: returns their number.
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
        self.state = wants.initial_state(policy);
        self.wants = wants;
        self.restart_trajectory(start)?;
        Ok(lost)
    }

    /// Sets the action that the agent took by itself; it replaces the policy's.
    pub(super) fn take_off_policy(&mut self, action: RowsRef<'_>) {
        self.off_policy.get_or_insert_default().set(action);
    }

    /// Records that the policy's choice is complete.
    pub(super) fn chosen(&mut self) {
        if let Some(action) = self.off_policy.take() {
            self.choice.action = action;
        }
    }

    /// Records a row: the latest choice and its result; the latest observation is the one that follows.
    pub(super) fn add_row(&mut self, outcome: AgentOutcome<'_>) -> Result<(), SampleError> {
        let AgentOutcome { t, reward, terminated, truncated, info } = outcome;
        let (t, reward) = (i64::from(t), reward as f32);
        if let Some(previous) = self.wants.previous() {
            let mut seen = [reward];
            self.clip_rewards.clip(&mut seen);
            let written = previous.write(self.choice.action.all(), seen[0], &mut self.choice.state, &mut Vec::new());
            written.map_err(|source| SampleError::Policy { id: self.policy.clone(), source })?;
        }
        let row = [
            (NEW_OBS.name(), ViewRow { values: self.obs.all(), shape: self.obs_shape }),
            (
                ACTIONS.name(),
                ViewRow {
                    values: self.choice.action.all(),
                    shape: fitting(self.action_shape, self.choice.action.len()),
                },
            ),
            (REWARDS.name(), ViewRow::from(&reward)),
            (TERMINATEDS.name(), ViewRow::from(&terminated)),
            (TRUNCATEDS.name(), ViewRow::from(&truncated)),
            (ACTION_LOGP.name(), ViewRow::from(&self.choice.logp)),
            (VF_PREDS.name(), ViewRow::from(&self.choice.vf_pred)),
            (T.name(), ViewRow::from(&t)),
        ];
        if self.wants.state_len() == 0 && self.wants.dist_inputs() == 0 {
            self.collector.add_action_reward_next_obs(&row)?;
        } else {
            let mut row = row.to_vec();
            row.extend(self.wants.states(&self.choice.state));
            if self.wants.dist_inputs() > 0 {
                let shape = RowShape::vector(self.wants.dist_inputs() as u32);
                row.push((
                    ACTION_DIST_INPUTS.name(),
                    ViewRow { values: RowsRef::F32(&self.choice.dist_inputs), shape },
                ));
            }
            self.collector.add_action_reward_next_obs(&row)?;
        }
        core::mem::swap(&mut self.state, &mut self.choice.state);
        if self.record.infos {
            self.infos.push(info.unwrap_or_default().to_vec());
        }
        Ok(())
    }

    /// Appends the policy's view of the agent to `obs`, which is started with the right type if it is empty.
    pub(super) fn show(&self, obs: &mut RowBuffer) -> Result<bool, ViewError> {
        if !self.wants.is_windowed() {
            if obs.len() == 0 {
                obs.start(self.obs.all().dtype());
            }
            return Ok(obs.push(self.obs.all()));
        }
        let seen = self.collector.build_for_inference()?;
        let row = seen.column(OBS.name()).and_then(|column| ViewRow::of(column, 0));
        let row = row.ok_or_else(|| ViewError::MissingColumn { name: OBS.name().into() })?;
        if obs.len() == 0 {
            obs.start(row.dtype());
        }
        Ok(obs.push(row.values))
    }

    /// Returns the rows since the last call as the policy requires them, in the usual order of columns.
    pub(super) fn build(&mut self, unroll_id: i64) -> Result<SampleBatch, SampleError> {
        let mut parts = self.collector.build_for_training(unroll_id)?.batch.into_parts();
        let rank = |name: &str| COLUMNS.iter().position(|column| *column == name).unwrap_or(COLUMNS.len());
        parts.columns.sort_by_key(|(name, _)| rank(name.as_str()));
        if self.record.infos {
            let infos = BytesColumn::bytes(self.infos.drain(..));
            let infos = infos.map_err(|source| BatchError::Column { name: INFOS.into(), source })?;
            parts.columns.push((INFOS.into(), infos.into()));
        }
        Ok(SampleBatch::from_parts(parts)?)
    }

    /// Drops the rows since the last fragment.
    pub(super) fn forget(&mut self) {
        self.collector.forget_steps();
        self.infos.clear();
    }

    /// Converts the action to the form that the environment takes.
    pub(super) fn sent_action(&self, sent: &mut RowBuffer) -> Result<(), PointError> {
        sent.set(self.choice.action.all());
        by_type!(RowBuffer, sent, rows => self.transform.apply_rows(&self.spaces.action, rows))
    }
}
