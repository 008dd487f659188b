//! All lanes step together: time-major arenas, one transpose at the cut.

use super::{Collector, LaneStart, Lanes, Need};
use crate::{
    batch::{
        ACTION_LOGP, ACTIONS, Cut, CutReason, EpisodeMetrics, OBS, REWARDS, SampleBatch, SlotFragment, TERMINATEDS,
        TRUNCATEDS, VF_PREDS,
    },
    column::{Column, ColumnData, Element, Recycler, RowShape},
    env::{AnyVectorEnv, EnvError, RowElement, RowsRef, StepOut},
    ids::{AgentId, FragmentNo, WeightsVersion},
    policy::{ActionInput, ActionOutput},
    prelude::*,
    space::Space,
};

/// Collector for vector environments with one agent per lane.
#[derive(Debug)]
pub struct Lockstep<O, A> {
    lanes: Lanes,
    arena: Arena<O, A>,
    columns: Columns,
    shapes: Shapes,
    fragment: FragmentNo,
    weights_version: WeightsVersion,
    /// Episode and t of each lane at the first row.
    firsts: Vec<(u32, u32)>,
    /// Steps of the fragment, and how many of them are done.
    steps: usize,
    done: usize,
    acted: bool,
    cuts: Vec<LaneCut>,
    /// Observations at the cuts; in the order of `cuts` once the fragment is full.
    cut_obs: Vec<O>,
    cut_values: Vec<f32>,
    valued: bool,
    episodes: Vec<(usize, EpisodeMetrics)>,
}

/// Rows of the fragment in the making, time-major: step, lane, element.
#[derive(Debug)]
struct Arena<O, A> {
    /// One step more than the others: the observations after the last one.
    obs: Vec<O>,
    actions: Vec<A>,
    logp: Vec<f32>,
    vf_preds: Vec<f32>,
    rewards: Vec<f32>,
    terminateds: Vec<bool>,
    truncateds: Vec<bool>,
    /// Rewards of one step as the environment gives them.
    raw_rewards: Vec<f64>,
}

#[derive(Debug, Default)]
struct Columns {
    obs: Recycler,
    actions: Recycler,
    logp: Recycler,
    vf_preds: Recycler,
    rewards: Recycler,
    terminateds: Recycler,
    truncateds: Recycler,
    final_obs: Recycler,
}

#[derive(Clone, Copy, Debug)]
struct Shapes {
    obs: RowShape,
    action: RowShape,
}

#[derive(Clone, Copy, Debug)]
struct LaneCut {
    lane: usize,
    end: u32,
    reason: CutReason,
    /// Which row of `cut_obs` holds the observation.
    obs: usize,
}

impl<O: RowElement, A: RowElement> Lockstep<O, A> {
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
        let shapes = Shapes { obs: env.observation_space().shape(), action: env.action_space().shape() };
        let n = starts.len();
        let mut obs = vec![O::default(); n * shapes.obs.elements()];
        let lanes = Lanes::open(starts, seed, max_episode_steps, env, &mut obs)?;
        Ok(Self {
            lanes,
            arena: Arena {
                obs,
                actions: Vec::new(),
                logp: Vec::new(),
                vf_preds: Vec::new(),
                rewards: Vec::new(),
                terminateds: Vec::new(),
                truncateds: Vec::new(),
                raw_rewards: vec![0.0; n],
            },
            columns: Columns::default(),
            shapes,
            fragment: FragmentNo(0),
            weights_version: WeightsVersion(0),
            firsts: Vec::new(),
            steps: 0,
            done: 0,
            acted: false,
            cuts: Vec::new(),
            cut_obs: Vec::new(),
            cut_values: Vec::new(),
            valued: true,
            episodes: Vec::new(),
        })
    }

    /// All lanes are through: lanes in the middle of an episode are cut here, and cuts are put in the lanes' order.
    fn close(&mut self) {
        let (n, width) = (self.lanes.len(), self.shapes.obs.elements());
        let last = (self.steps - 1) * n;
        for lane in 0..n {
            if !(self.arena.terminateds[last + lane] || self.arena.truncateds[last + lane]) {
                let obs = self.cut_obs.len() / width;
                self.cut_obs.extend_from_slice(&self.arena.obs[(self.steps * n + lane) * width..][..width]);
                self.cuts.push(LaneCut { lane, end: self.steps as u32, reason: CutReason::FragmentEnd, obs });
            }
        }
        self.cuts.sort_by_key(|cut| cut.lane);
        self.episodes.sort_by_key(|(lane, _)| *lane);
        let mut sorted = Vec::with_capacity(self.cut_obs.len());
        for cut in &self.cuts {
            sorted.extend_from_slice(&self.cut_obs[cut.obs * width..][..width]);
        }
        self.cut_obs = sorted;
        self.cut_values.clear();
        self.cut_values.resize(self.cuts.len(), 0.0);
        self.valued = false;
    }

    /// Looks at everything that the environments gave, in one pass when the fragment is full.
    fn check_numbers(&self, space: &Space) -> Result<(), EnvError> {
        let (n, width) = (self.lanes.len(), self.shapes.obs.elements());
        let not_finite = |what, lane, step| Err(EnvError::NotFinite { what, lane, step });
        if let Some(row) = RowsRef::F32(&self.arena.rewards).first_not_finite() {
            return not_finite("reward", row % n, row / n + 1);
        }
        if let Some(cut) = O::erase_rows(&self.cut_obs).first_not_finite().and_then(|i| self.cuts.get(i / width)) {
            return not_finite("observation", cut.lane, cut.end as usize);
        }
        if let Some(i) = O::erase_rows(&self.arena.obs).first_not_finite() {
            return not_finite("observation", i / width % n, i / width / n);
        }
        // What a terminal state looks like may lie beyond the bounds, as Gymnasium's CartPole shows; the rows here are those
        // that are acted on.
        let bad = |lane, reason| Err(EnvError::BadObservation { env: lane, agent: AgentId::SINGLE, reason });
        match space.first_outside(&self.arena.obs) {
            Ok(None) => Ok(()),
            Ok(Some(row)) => {
                let values = &self.arena.obs[row * width..][..width.min(8)];
                let step = row / n;
                bad(row % n, format!("{values:?} after step {step} of the fragment is not in {space}"))
            }
            Err(error) => bad(0, format!("is of a kind that cannot be handed over: {error}")),
        }
    }
}

impl<O: RowElement, A: RowElement> Collector for Lockstep<O, A> {
    fn need(&self) -> Need {
        match (self.done < self.steps, self.acted, self.valued) {
            (true, false, _) => Need::Actions,
            (true, true, _) => Need::EnvStep,
            (false, _, false) => Need::Values,
            (false, _, true) => Need::Nothing,
        }
    }

    fn done(&self) -> u32 {
        self.done as u32
    }

    fn begin(&mut self, fragment: FragmentNo, weights_version: WeightsVersion, steps: u32) {
        let (n, width) = (self.lanes.len(), self.shapes.obs.elements());
        // The observations after the last step are the first ones now.
        self.arena.obs.copy_within(self.steps * n * width.., 0);
        let steps = steps as usize;
        self.arena.obs.resize((steps + 1) * n * width, O::default());
        self.arena.actions.resize(steps * n * self.shapes.action.elements(), A::default());
        for column in [&mut self.arena.logp, &mut self.arena.vf_preds, &mut self.arena.rewards] {
            column.resize(steps * n, 0.0);
        }
        for column in [&mut self.arena.terminateds, &mut self.arena.truncateds] {
            // All of it: an environment that leaves a flag as it is must not find one of the fragment before.
            column.clear();
            column.resize(steps * n, false);
        }
        self.firsts.clear();
        self.firsts.extend(self.lanes.moments().iter().map(|moment| (moment.episode, moment.t)));
        self.cuts.clear();
        self.cut_obs.clear();
        self.episodes.clear();
        (self.fragment, self.weights_version) = (fragment, weights_version);
        (self.steps, self.done, self.acted, self.valued) = (steps, 0, false, true);
    }

    fn action_request(&mut self) -> (ActionInput<'_>, ActionOutput<'_>) {
        let (n, width, action) = (self.lanes.len(), self.shapes.obs.elements(), self.shapes.action.elements());
        let row = self.done * n;
        let input = ActionInput::new(O::erase_rows(&self.arena.obs[row * width..][..n * width]), self.lanes.moments());
        let output = ActionOutput::new(
            A::erase_rows_mut(&mut self.arena.actions[row * action..][..n * action]),
            &mut self.arena.logp[row..][..n],
            &mut self.arena.vf_preds[row..][..n],
        );
        (input, output)
    }

    fn actions_done(&mut self) {
        self.acted = true;
    }

    fn step_env(&mut self, env: &mut dyn AnyVectorEnv) -> Result<(), EnvError> {
        let (n, width, action) = (self.lanes.len(), self.shapes.obs.elements(), self.shapes.action.elements());
        let row = self.done * n;
        let arena = &mut self.arena;
        let obs = &mut arena.obs[(row + n) * width..][..n * width];
        let terminateds = &mut arena.terminateds[row..][..n];
        let truncateds = &mut arena.truncateds[row..][..n];
        let actions = A::erase_rows(&arena.actions[row * action..][..n * action]);
        let out = StepOut { rewards: &mut arena.raw_rewards, terminateds, truncateds };
        env.step(actions, self.lanes.env_moments(), O::erase_rows_mut(obs), out)?;
        self.done += 1;
        self.acted = false;
        for lane in 0..n {
            let reward = arena.raw_rewards[lane];
            arena.rewards[row + lane] = reward as f32;
            let flags = self.lanes.advance(lane, reward, terminateds[lane], truncateds[lane]);
            truncateds[lane] = flags.truncated;
            if flags.terminated || flags.truncated {
                let obs = &mut obs[lane * width..][..width];
                let reason = if flags.terminated { CutReason::Terminated } else { CutReason::Truncated };
                self.cuts.push(LaneCut { lane, end: self.done as u32, reason, obs: self.cut_obs.len() / width });
                // The final observation is put away before the reset overwrites it.
                self.cut_obs.extend_from_slice(obs);
                self.episodes.push((lane, self.lanes.next_episode(lane, env, obs)?));
            }
        }
        if self.done == self.steps {
            self.close();
            self.check_numbers(&env.observation_space())?;
        }
        Ok(())
    }

    fn value_request(&mut self) -> (RowsRef<'_>, &mut [f32]) {
        (O::erase_rows(&self.cut_obs), &mut self.cut_values)
    }

    fn values_done(&mut self) {
        self.valued = true;
    }

    fn take(&mut self, env: &dyn AnyVectorEnv) -> Vec<SlotFragment> {
        let (n, steps) = (self.lanes.len(), self.steps);
        let (arena, columns, shapes) = (&self.arena, &mut self.columns, self.shapes);
        let rows = SampleBatch::from_columns(vec![
            (OBS.name(), lane_major(&mut columns.obs, &arena.obs, n, steps, shapes.obs)),
            (ACTIONS.name(), lane_major(&mut columns.actions, &arena.actions, n, steps, shapes.action)),
            (REWARDS.name(), lane_major(&mut columns.rewards, &arena.rewards, n, steps, RowShape::SCALAR)),
            (TERMINATEDS.name(), lane_major(&mut columns.terminateds, &arena.terminateds, n, steps, RowShape::SCALAR)),
            (TRUNCATEDS.name(), lane_major(&mut columns.truncateds, &arena.truncateds, n, steps, RowShape::SCALAR)),
            (ACTION_LOGP.name(), lane_major(&mut columns.logp, &arena.logp, n, steps, RowShape::SCALAR)),
            (VF_PREDS.name(), lane_major(&mut columns.vf_preds, &arena.vf_preds, n, steps, RowShape::SCALAR)),
        ]);
        let final_obs =
            columns.final_obs.column(shapes.obs, self.cuts.len(), |values| values.extend_from_slice(&self.cut_obs));
        let final_obs = SampleBatch::from_columns(vec![(OBS.name(), Column::from_typed(final_obs))]);
        let mut fragments = Vec::with_capacity(n);
        let (mut cut, mut episode) = (0, 0);
        for lane in 0..n {
            let cuts = cut + self.cuts[cut..].iter().take_while(|cut| cut.lane == lane).count();
            let episodes = episode + self.episodes[episode..].iter().take_while(|(l, _)| *l == lane).count();
            fragments.push(SlotFragment {
                slot: self.lanes.moments()[lane].slot,
                fragment: self.fragment,
                weights_version: self.weights_version,
                first_episode: self.firsts[lane].0,
                first_t: self.firsts[lane].1,
                rows: rows.slice_rows(lane * steps..(lane + 1) * steps),
                cuts: (cut..cuts).map(|i| self.cuts[i].with_value(self.cut_values[i])).collect(),
                final_obs: final_obs.slice_rows(cut..cuts),
                episodes: self.episodes[episode..episodes].iter().map(|(_, metrics)| *metrics).collect(),
                state: self.lanes.state(lane, env).encode(),
            });
            (cut, episode) = (cuts, episodes);
        }
        fragments
    }

    fn lanes(&self) -> &Lanes {
        &self.lanes
    }
}

impl LaneCut {
    fn with_value(self, value: f32) -> Cut {
        let bootstrap_value = if self.reason == CutReason::Terminated { 0.0 } else { value };
        Cut { end: self.end, reason: self.reason, bootstrap_value }
    }
}

/// From step, lane, element to lane, step, element.
fn lane_major<T: Element>(to: &mut Recycler, from: &[T], lanes: usize, steps: usize, shape: RowShape) -> Column {
    let width = shape.elements();
    let data: ColumnData<T> = to.column(shape, lanes * steps, |values| {
        for lane in 0..lanes {
            for step in 0..steps {
                values.extend_from_slice(&from[(step * lanes + lane) * width..][..width]);
            }
        }
    });
    Column::from_typed(data)
}
