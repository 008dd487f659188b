//! Every lane builds its rows by itself.

use super::{Collector, LaneStart, Lanes, Need};
use crate::{
    batch::{
        ACTION_LOGP, ACTIONS, Cut, CutReason, EpisodeMetrics, OBS, REWARDS, SampleBatch, SlotFragment, TERMINATEDS,
        TRUNCATEDS, VF_PREDS,
    },
    column::{Column, ColumnData, Element, RowShape},
    env::{AnyVectorEnv, EnvError, RowElement, RowsRef, StepOut},
    ids::{FragmentNo, WeightsVersion},
    policy::{ActionInput, ActionOutput},
    prelude::*,
};

/// Collector with a builder per lane. Slower than [`Lockstep`](super::Lockstep), but its lanes share nothing, so it
/// is where lanes whose rows come at different times belong.
#[derive(Debug)]
pub struct Episodic<O, A> {
    lanes: Lanes,
    builders: Vec<Builder<O, A>>,
    step: Current<O, A>,
    obs_shape: RowShape,
    action_shape: RowShape,
    fragment: FragmentNo,
    weights_version: WeightsVersion,
    steps: usize,
    acted: bool,
    cut_obs: Vec<O>,
    cut_values: Vec<f32>,
    valued: bool,
}

/// The step in the making, one row per lane.
#[derive(Debug)]
struct Current<O, A> {
    obs: Vec<O>,
    actions: Vec<A>,
    logp: Vec<f32>,
    vf_preds: Vec<f32>,
    rewards: Vec<f64>,
    terminateds: Vec<bool>,
    truncateds: Vec<bool>,
}

/// Rows of one lane's fragment.
#[derive(Debug)]
struct Builder<O, A> {
    first: (u32, u32),
    obs: Vec<O>,
    actions: Vec<A>,
    logp: Vec<f32>,
    vf_preds: Vec<f32>,
    rewards: Vec<f32>,
    terminateds: Vec<bool>,
    truncateds: Vec<bool>,
    cuts: Vec<Cut>,
    final_obs: Vec<O>,
    episodes: Vec<EpisodeMetrics>,
}

impl<O: Element, A: Element> Builder<O, A> {
    fn new(first: (u32, u32)) -> Self {
        Self {
            first,
            obs: Vec::new(),
            actions: Vec::new(),
            logp: Vec::new(),
            vf_preds: Vec::new(),
            rewards: Vec::new(),
            terminateds: Vec::new(),
            truncateds: Vec::new(),
            cuts: Vec::new(),
            final_obs: Vec::new(),
            episodes: Vec::new(),
        }
    }

    fn cut(&mut self, reason: CutReason, obs: &[O]) {
        self.cuts.push(Cut { end: self.rewards.len() as u32, reason, bootstrap_value: 0.0 });
        self.final_obs.extend_from_slice(obs);
    }
}

impl<O: RowElement, A: RowElement> Episodic<O, A> {
    /// Opens the lanes of `env`: one start per lane.
    ///
    /// # Errors
    /// The environment's own, for example for a state that is not its.
    pub fn new(
        starts: &[LaneStart],
        seed: u64,
        max_episode_steps: Option<u32>,
        env: &mut dyn AnyVectorEnv,
    ) -> Result<Self, EnvError> {
        let (obs_shape, action_shape) = (env.observation_space().shape(), env.action_space().shape());
        let n = starts.len();
        let mut obs = vec![O::default(); n * obs_shape.elements()];
        let lanes = Lanes::open(starts, seed, max_episode_steps, env, &mut obs)?;
        let step = Current {
            obs,
            actions: vec![A::default(); n * action_shape.elements()],
            logp: vec![0.0; n],
            vf_preds: vec![0.0; n],
            rewards: vec![0.0; n],
            terminateds: vec![false; n],
            truncateds: vec![false; n],
        };
        Ok(Self {
            lanes,
            builders: Vec::new(),
            step,
            obs_shape,
            action_shape,
            fragment: FragmentNo(0),
            weights_version: WeightsVersion(0),
            steps: 0,
            acted: false,
            cut_obs: Vec::new(),
            cut_values: Vec::new(),
            valued: true,
        })
    }

    fn is_full(&self) -> bool {
        self.builders.iter().all(|builder| builder.rewards.len() >= self.steps)
    }

    fn close(&mut self) {
        let width = self.obs_shape.elements();
        self.cut_obs.clear();
        for (builder, obs) in self.builders.iter_mut().zip(self.step.obs.chunks_exact(width)) {
            if builder.cuts.last().is_none_or(|cut| (cut.end as usize) < builder.rewards.len()) {
                builder.cut(CutReason::FragmentEnd, obs);
            }
            self.cut_obs.extend_from_slice(&builder.final_obs);
        }
        self.cut_values.clear();
        self.cut_values.resize(self.cut_obs.len() / width, 0.0);
        self.valued = false;
    }
}

impl<O: RowElement, A: RowElement> Collector for Episodic<O, A> {
    fn need(&self) -> Need {
        match (self.is_full(), self.acted, self.valued) {
            (false, false, _) => Need::Actions,
            (false, true, _) => Need::EnvStep,
            (true, _, false) => Need::Values,
            (true, _, true) => Need::Nothing,
        }
    }

    fn begin(&mut self, fragment: FragmentNo, weights_version: WeightsVersion, steps: u32) {
        (self.fragment, self.weights_version, self.steps) = (fragment, weights_version, steps as usize);
        self.builders = self.lanes.moments().iter().map(|m| Builder::new((m.episode, m.t))).collect();
        (self.acted, self.valued) = (false, true);
    }

    fn action_request(&mut self) -> (ActionInput<'_>, ActionOutput<'_>) {
        let step = &mut self.step;
        let input = ActionInput::new(O::erase_rows(&step.obs), self.lanes.moments());
        let output = ActionOutput::new(A::erase_rows_mut(&mut step.actions), &mut step.logp, &mut step.vf_preds);
        (input, output)
    }

    fn actions_done(&mut self) {
        self.acted = true;
    }

    fn step_env(&mut self, env: &mut dyn AnyVectorEnv) -> Result<(), EnvError> {
        let (width, action) = (self.obs_shape.elements(), self.action_shape.elements());
        let step = &mut self.step;
        for (lane, builder) in self.builders.iter_mut().enumerate() {
            builder.obs.extend_from_slice(&step.obs[lane * width..][..width]);
            builder.actions.extend_from_slice(&step.actions[lane * action..][..action]);
            builder.logp.push(step.logp[lane]);
            builder.vf_preds.push(step.vf_preds[lane]);
        }
        step.terminateds.fill(false);
        step.truncateds.fill(false);
        let out = StepOut {
            rewards: &mut step.rewards,
            terminateds: &mut step.terminateds,
            truncateds: &mut step.truncateds,
        };
        let obs = O::erase_rows_mut(&mut step.obs);
        env.step(A::erase_rows(&step.actions), self.lanes.env_moments(), obs, out)?;
        self.acted = false;
        for (lane, builder) in self.builders.iter_mut().enumerate() {
            let reward = step.rewards[lane];
            let flags = self.lanes.advance(lane, reward, step.terminateds[lane], step.truncateds[lane]);
            builder.rewards.push(reward as f32);
            builder.terminateds.push(flags.terminated);
            builder.truncateds.push(flags.truncated);
            if flags.terminated || flags.truncated {
                let obs = &mut step.obs[lane * width..][..width];
                builder.cut(if flags.terminated { CutReason::Terminated } else { CutReason::Truncated }, obs);
                builder.episodes.push(self.lanes.next_episode(lane, env, obs)?);
            }
        }
        if self.is_full() {
            self.close();
        }
        Ok(())
    }

    fn value_request(&mut self) -> (RowsRef<'_>, &mut [f32]) {
        (O::erase_rows(&self.cut_obs), &mut self.cut_values)
    }

    fn values_done(&mut self) {
        let mut values = self.cut_values.iter();
        for (cut, value) in self.builders.iter_mut().flat_map(|builder| &mut builder.cuts).zip(&mut values) {
            cut.bootstrap_value = if cut.reason == CutReason::Terminated { 0.0 } else { *value };
        }
        self.valued = true;
    }

    fn take(&mut self, env: &dyn AnyVectorEnv) -> Vec<SlotFragment> {
        let builders = core::mem::take(&mut self.builders);
        let rows = |shape, obs: Vec<O>| Column::from_typed(ColumnData::whole_rows(Arc::new(obs), shape));
        let fragment = |(lane, builder): (usize, Builder<O, A>)| SlotFragment {
            slot: self.lanes.moments()[lane].slot,
            fragment: self.fragment,
            weights_version: self.weights_version,
            first_episode: builder.first.0,
            first_t: builder.first.1,
            rows: SampleBatch::from_columns(vec![
                (OBS.name(), rows(self.obs_shape, builder.obs)),
                (
                    ACTIONS.name(),
                    Column::from_typed(ColumnData::whole_rows(Arc::new(builder.actions), self.action_shape)),
                ),
                (REWARDS.name(), ColumnData::scalars(builder.rewards).into()),
                (TERMINATEDS.name(), ColumnData::scalars(builder.terminateds).into()),
                (TRUNCATEDS.name(), ColumnData::scalars(builder.truncateds).into()),
                (ACTION_LOGP.name(), ColumnData::scalars(builder.logp).into()),
                (VF_PREDS.name(), ColumnData::scalars(builder.vf_preds).into()),
            ]),
            cuts: builder.cuts,
            final_obs: SampleBatch::from_columns(vec![(OBS.name(), rows(self.obs_shape, builder.final_obs))]),
            episodes: builder.episodes,
            state: self.lanes.state(lane, env).encode(),
        };
        builders.into_iter().enumerate().map(fragment).collect()
    }

    fn lanes(&self) -> &Lanes {
        &self.lanes
    }
}
