//! The fast sampler: all lanes step together in time-major arenas, with one transpose at the cut.

mod arena;
mod memory;
mod seen;
#[cfg(test)]
mod tests;

use self::{
    arena::{Arena, ColumnRecyclers, Shapes},
    memory::Memory,
    seen::SeenRows,
};
use super::{
    Collector, Horizon, LaneStart, Lanes, Need, RewardClipping, SampleError, SamplerOptions, SlotState, ValueRequest,
    rows::first_outside, wants::Wants,
};
use crate::{
    action::ActionTransform,
    batch::{Cut, CutReason, EpisodeMetrics, SlotFragment},
    column::{Element, RowBuffer, RowShape, by_type},
    env::{AnyVectorEnv, EnvError, Moment, RowsMut, RowsRef, StepOut},
    filter::Filter,
    ids::{AgentId, FragmentNo, WeightsVersion},
    policy::{ActionInput, ActionOutput, Policy, PolicyEntry},
    prelude::*,
    space::Space,
};

/// Collector for vector environments with one agent per lane. `O` is the type of observations as the policy sees them.
///
/// It supports every fixed-size space, recurrent policies, preprocessors and filters, and all [`SamplerOptions`] but soft
/// horizons and the columns `infos` and `env_id`. Features that are not used cost nothing.
#[derive(Debug)]
pub struct Lockstep<O> {
    lanes: Lanes,
    arena: Arena<O>,
    columns: ColumnRecyclers,
    memory: Memory,
    /// The environments' observations, if the policy sees others.
    seen: Option<SeenRows>,
    /// Whether observations go through a filter.
    filters: bool,
    /// The environments' actions, if the policy chooses in another form.
    sent: Sent,
    observation_space: Space,
    explore: bool,
    no_done_at_end: bool,
    clip_rewards: RewardClipping,
    /// Raw rewards of one step.
    raw_rewards: Vec<f64>,
    fragment: FragmentNo,
    weights_version: WeightsVersion,
    /// Episode and t of each lane at the first row.
    firsts: Vec<(u32, u32)>,
    /// Completed steps of the fragment.
    done: usize,
    /// Progress within a round: whether the latest observations are processed, actions chosen, and the values at the cuts
    /// computed.
    observed: bool,
    acted: bool,
    valued: bool,
    cuts: Vec<LaneCut>,
    /// Number of cuts before the latest step.
    earlier_cuts: usize,
    /// Observations at the cuts; in the order of `cuts` once the fragment is full.
    cut_obs: Vec<O>,
    cut_values: Vec<f32>,
    episodes: Vec<(usize, EpisodeMetrics)>,
    /// The step of the fragment, counted from 0, in which an invalid value was found.
    invalid_at: Option<usize>,
}

/// Conversion of actions for the environments.
#[derive(Debug)]
struct Sent {
    transform: ActionTransform,
    space: Space,
    actions: RowBuffer,
}

#[derive(Clone, Copy, Debug)]
struct LaneCut {
    lane: usize,
    end: u32,
    reason: CutReason,
    /// Index of its observation in `cut_obs`.
    obs: usize,
}

impl<O: Element> Lockstep<O> {
    /// Opens the lanes of `env`, one start per lane, for a policy with its preprocessor and filter. `O` is the type of the
    /// observations that the policy sees: `f32` with a preprocessor, else the environment's.
    ///
    /// # Errors
    /// Errors of the environment, for example for a state that does not fit it; [`EnvError::WrongLength`] for the recurrent
    /// states of another policy; [`EnvError::WrongType`] if `O` is another type; [`EnvError::Failed`] for a soft horizon.
    pub fn new(
        starts: &[LaneStart],
        options: &SamplerOptions,
        entry: &PolicyEntry,
        env: &mut dyn AnyVectorEnv,
    ) -> Result<Self, EnvError> {
        if options.horizon.is_some() && options.horizon_means == Horizon::LegacySoft {
            return Err(EnvError::Failed("lanes in lockstep know no soft horizon: use the other sampler".into()));
        }
        let (policy, preprocessor) = (&*entry.policy, entry.preprocessor.as_ref());
        let filters = entry.filter != Filter::NoFilter;
        let changes = preprocessor.is_some() || filters;
        let obs = preprocessor.map_or_else(|| env.observation_space().shape(), |stage| stage.output_shape());
        let (wants, space) = (Wants::of(policy, options.record), env.action_space());
        let dist_inputs = RowShape::vector(u32::try_from(wants.dist_inputs()).unwrap_or(u32::MAX));
        let mut lockstep = Self {
            lanes: Lanes::new(options),
            arena: Arena::new(Shapes { obs, action: space.shape(), dist_inputs }, env.dtypes().1),
            columns: ColumnRecyclers::default(),
            memory: Memory::new(&wants, policy),
            seen: changes.then(SeenRows::default),
            filters,
            sent: Sent {
                transform: ActionTransform::for_space(&space, options.normalize_actions, options.clip_actions),
                space,
                actions: RowBuffer::default(),
            },
            observation_space: env.observation_space(),
            explore: options.explore,
            no_done_at_end: options.no_done_at_end,
            clip_rewards: options.clip_rewards,
            raw_rewards: Vec::new(),
            fragment: FragmentNo(0),
            weights_version: WeightsVersion(0),
            firsts: Vec::new(),
            done: 0,
            observed: true,
            acted: false,
            valued: true,
            cuts: Vec::new(),
            earlier_cuts: 0,
            cut_obs: Vec::new(),
            cut_values: Vec::new(),
            episodes: Vec::new(),
            invalid_at: None,
        };
        lockstep.reopen(starts, env)?;
        Ok(lockstep)
    }

    /// Handles the observations after a step: after the last one, completes the fragment.
    fn stepped(&mut self) -> Result<(), EnvError> {
        if self.done == self.arena.steps {
            self.close();
            if let Err((step, error)) = self.check_numbers() {
                self.invalid_at = Some(step);
                return Err(error);
            }
            self.clip_rewards.clip(&mut self.arena.rewards);
        }
        Ok(())
    }

    /// Completes the fragment: cuts lanes in the middle of an episode, and sorts cuts by lane.
    fn close(&mut self) {
        let (n, steps, width) = (self.lanes.len(), self.arena.steps, self.arena.shapes.obs.elements());
        for lane in 0..n {
            // Else the last step ended the episode.
            if self.lanes.moments()[lane].t > 0 {
                let obs = self.cuts.len();
                self.cut_obs.extend_from_slice(&self.arena.obs[(steps * n + lane) * width..][..width]);
                self.memory.cut(lane);
                self.cuts.push(LaneCut { lane, end: steps as u32, reason: CutReason::FragmentEnd, obs });
            }
        }
        self.cuts.sort_by_key(|cut| cut.lane);
        self.episodes.sort_by_key(|(lane, _)| *lane);
        let mut sorted = Vec::with_capacity(self.cut_obs.len());
        for cut in &self.cuts {
            sorted.extend_from_slice(&self.cut_obs[cut.obs * width..][..width]);
        }
        self.cut_obs = sorted;
        self.memory.sort_cuts(self.cuts.iter().map(|cut| cut.obs));
        self.cut_values.clear();
        self.cut_values.resize(self.cuts.len(), 0.0);
        self.valued = false;
    }

    /// Checks everything that the environments returned, in one pass when the fragment is full. An error includes the step
    /// of the fragment, counted from 0.
    fn check_numbers(&self) -> Result<(), (usize, EnvError)> {
        let (n, width) = (self.lanes.len(), self.arena.shapes.obs.elements());
        let not_finite = |at, what, lane, step, value| Err((at, EnvError::NotFinite { what, lane, step, value }));
        // A reset belongs to the next episode's first step.
        let brought_by =
            |lane, after: usize| if self.ends(lane).any(|end| end == after) { after } else { after.saturating_sub(1) };
        if let Some((row, value)) = first_not_finite(RowsRef::F32(&self.arena.rewards)) {
            return not_finite(row / n, "reward", row % n, row / n + 1, value);
        }
        if let Some((i, value)) = first_not_finite(O::erase_rows(&self.cut_obs))
            && let Some(cut) = self.cuts.get(i / width)
        {
            let end = cut.end as usize;
            return not_finite(end.saturating_sub(1), "observation", cut.lane, end, value);
        }
        if let Some((i, value)) = first_not_finite(O::erase_rows(&self.arena.obs)) {
            let (lane, step) = (i / width % n, i / width / n);
            return not_finite(brought_by(lane, step), "observation", lane, step, value);
        }
        // Terminal observations may be out of bounds, as Gymnasium's CartPole shows; only observations that are acted on are
        // checked.
        let space = &self.observation_space;
        let bad = |at, lane, reason| Err((at, EnvError::BadObservation { env: lane, agent: AgentId::SINGLE, reason }));
        let outside = match &self.seen {
            None => first_outside(space, O::erase_rows(&self.arena.obs), width),
            Some(seen) => first_outside(space, seen.rows().all(), space.shape().elements()),
        };
        match outside {
            Ok(None) => Ok(()),
            Ok(Some((row, values))) => {
                let (lane, step) = (row % n, row / n);
                let reason = format!("{values} after step {step} of the fragment is not in {space}");
                bad(brought_by(lane, step), lane, reason)
            }
            Err(error) => bad(0, 0, format!("is of a kind that cannot be handed over: {error}")),
        }
    }

    /// Returns the steps of the fragment after which a lane's episodes ended.
    fn ends(&self, lane: usize) -> impl Iterator<Item = usize> {
        let ends = self.cuts.iter().filter(move |cut| cut.lane == lane && cut.reason != CutReason::FragmentEnd);
        ends.map(|cut| cut.end as usize)
    }

    fn state_with(&self, lane: usize, snapshot: Vec<u8>) -> SlotState {
        SlotState { recurrent: self.memory.of_lane(lane).to_vec(), ..self.lanes.state(lane, snapshot) }
    }
}

/// Returns the index of the first number that is infinite or NaN, and the number.
fn first_not_finite(rows: RowsRef<'_>) -> Option<(usize, String)> {
    let i = rows.first_not_finite()?;
    match rows {
        RowsRef::F32(values) => Some((i, values.get(i)?.to_string())),
        RowsRef::F64(values) => Some((i, values.get(i)?.to_string())),
        _ => None,
    }
}

impl Sent {
    /// Converts the policy's actions to those that the environments take.
    fn actions<'a>(&'a mut self, chosen: RowsRef<'a>) -> Result<RowsRef<'a>, EnvError> {
        if self.transform == ActionTransform::None {
            return Ok(chosen);
        }
        self.actions.set(chosen);
        let applied = by_type!(RowBuffer, &mut self.actions, rows => self.transform.apply_rows(&self.space, rows));
        applied.map_err(|error| EnvError::InvalidAction { lane: 0, action: error.to_string() })?;
        Ok(self.actions.all())
    }
}

impl<O: Element> Collector for Lockstep<O> {
    fn need(&self) -> Need {
        match (self.done < self.arena.steps, self.observed, self.acted) {
            (_, false, _) if self.arena.steps > 0 => Need::Observations,
            (true, _, false) => Need::Actions,
            (true, _, true) => Need::EnvStep,
            (false, ..) if !self.valued => Need::Values,
            (false, ..) => Need::Nothing,
        }
    }

    fn done(&self) -> u32 {
        self.done as u32
    }

    fn num_ended(&self) -> usize {
        // Not those with metrics: the reset after an episode may have failed.
        let ended = |(moment, first): (&Moment, &(u32, u32))| moment.episode.wrapping_sub(first.0) as usize;
        self.lanes.moments().iter().zip(&self.firsts).map(ended).sum()
    }

    fn reopen(&mut self, starts: &[LaneStart], env: &mut dyn AnyVectorEnv) -> Result<(), EnvError> {
        let starts = &LaneStart::movable(starts, env)[..];
        self.memory.check(starts)?;
        let mut first = RowBuffer::default();
        let lanes = self.lanes.open(starts, env, &mut first)?;
        let (wanted, found) = (O::DTYPE.name(), first.all().dtype().name());
        let obs = match (&mut self.seen, O::rows(first.all())) {
            (Some(seen), _) => {
                *seen = SeenRows::new(first, starts.len());
                vec![O::default(); starts.len() * self.arena.shapes.obs.elements()]
            }
            (None, Some(obs)) => obs.to_vec(),
            (None, None) => return Err(EnvError::WrongType { what: "observations", found, wanted }),
        };
        self.lanes = lanes;
        self.arena.open(starts.len(), obs);
        self.memory.open(starts);
        self.raw_rewards.resize(starts.len(), 0.0);
        self.cuts.clear();
        (self.observed, self.acted, self.valued) = (self.seen.is_none(), false, true);
        (self.done, self.earlier_cuts) = (0, 0);
        Ok(())
    }

    fn begin(&mut self, fragment: FragmentNo, weights_version: WeightsVersion, steps: u32) {
        let steps = steps as usize;
        if let Some(seen) = &mut self.seen {
            seen.begin_fragment(self.arena.steps, steps);
        }
        self.arena.begin(steps);
        self.memory.begin_fragment();
        self.firsts.clear();
        self.firsts.extend(self.lanes.moments().iter().map(|moment| (moment.episode, moment.t)));
        self.cuts.clear();
        self.cut_obs.clear();
        self.episodes.clear();
        (self.fragment, self.weights_version) = (fragment, weights_version);
        (self.done, self.acted, self.valued, self.earlier_cuts) = (0, false, true, 0);
        self.invalid_at = None;
    }

    fn prepare(&mut self, policy: &dyn Policy) {
        self.memory.prepare(policy);
    }

    fn observe(&mut self, entry: &mut PolicyEntry) -> Result<(), SampleError> {
        if let Some(seen) = &mut self.seen {
            let width = self.arena.shapes.obs.elements();
            let row = self.lanes.len() * width;
            let obs = &mut self.arena.obs[self.done * row..][..row];
            let finals = &mut self.cut_obs[self.earlier_cuts * width..];
            let ended = self.cuts[self.earlier_cuts..].iter().map(|cut| cut.lane);
            seen.observe(self.done, entry, obs, finals, ended)?;
        }
        self.observed = true;
        if self.done > 0 {
            self.stepped()?;
        }
        Ok(())
    }

    fn action_request(&mut self) -> (ActionInput<'_>, ActionOutput<'_>) {
        self.lanes.mark_all();
        let arena = &mut self.arena;
        let (n, Shapes { obs, action, dist_inputs }) = (arena.lanes, arena.shapes);
        let (row, width) = (self.done * n, obs.elements());
        let (state, next_state) = self.memory.request();
        let input = ActionInput {
            obs: O::erase_rows(&arena.obs[row * width..][..n * width]),
            moments: self.lanes.moments(),
            state,
            explore: self.explore,
        };
        let output = ActionOutput {
            actions: arena.actions.part_mut(row * action.elements()..(row + n) * action.elements()),
            logp: &mut arena.logp[row..][..n],
            vf_preds: &mut arena.vf_preds[row..][..n],
            state: next_state,
            dist_inputs: &mut arena.dist_inputs[row * dist_inputs.elements()..][..n * dist_inputs.elements()],
        };
        (input, output)
    }

    fn actions_done(&mut self) {
        self.memory.acted();
        self.acted = true;
    }

    fn step_env(&mut self, env: &mut dyn AnyVectorEnv) -> Result<(), EnvError> {
        let arena = &mut self.arena;
        let (n, width, action) = (arena.lanes, arena.shapes.obs.elements(), arena.shapes.action.elements());
        let row = self.done * n;
        let obs = &mut arena.obs[(row + n) * width..][..n * width];
        let terminateds = &mut arena.terminateds[row..][..n];
        let truncateds = &mut arena.truncateds[row..][..n];
        let actions = self.sent.actions(arena.actions.part(row * action..(row + n) * action))?;
        let mut rows = match &mut self.seen {
            None => O::erase_rows_mut(obs),
            Some(seen) => seen.after(self.done + 1),
        };
        if cfg!(debug_assertions) {
            // Poison the rows, so that an environment that leaves one unwritten is detected.
            RowsMut::F64(&mut self.raw_rewards).poison();
            rows.poison();
        }
        let out = StepOut { rewards: &mut self.raw_rewards, terminateds, truncateds };
        env.step(actions, self.lanes.env_moments(), rows, out)?;
        if cfg!(debug_assertions) {
            let rows = match &mut self.seen {
                None => O::erase_rows_mut(obs),
                Some(seen) => seen.after(self.done + 1),
            };
            let unwritten = |array, lane| EnvError::NotWritten { array, lane };
            if let Some(lane) = RowsMut::F64(&mut self.raw_rewards).first_poisoned() {
                return Err(unwritten("rewards", lane));
            }
            if let Some(place) = rows.first_poisoned() {
                return Err(unwritten("obs", place / (rows.len() / n.max(1)).max(1)));
            }
        }
        self.done += 1;
        self.acted = false;
        self.earlier_cuts = self.cuts.len();
        for lane in 0..n {
            let reward = self.raw_rewards[lane];
            arena.rewards[row + lane] = reward as f32;
            if self.memory.sees_steps() {
                let mut seen = [reward as f32];
                self.clip_rewards.clip(&mut seen);
                let place = (row + lane) * action;
                self.memory.stepped(lane, arena.actions.part(place..place + action), seen[0])?;
            }
            let flags = self.lanes.advance(lane, reward, terminateds[lane], truncateds[lane]);
            (terminateds[lane], truncateds[lane]) = (flags.terminated, flags.truncated);
            if flags.terminated || flags.truncated {
                let ends = flags.terminated && !self.no_done_at_end;
                let reason = if ends { CutReason::Terminated } else { CutReason::Truncated };
                self.cuts.push(LaneCut { lane, end: self.done as u32, reason, obs: self.cuts.len() });
                self.memory.cut(lane);
                self.memory.reset(lane);
                // Keep the final observation before the reset overwrites it.
                let obs = &mut obs[lane * width..][..width];
                self.cut_obs.extend_from_slice(obs);
                let first = match &mut self.seen {
                    None => O::erase_rows_mut(obs),
                    Some(seen) => seen.put_away(self.done, lane),
                };
                self.episodes.push((lane, self.lanes.next_episode(lane, env, first)?));
            }
        }
        if self.no_done_at_end {
            terminateds.fill(false);
            truncateds.fill(false);
        }
        self.observed = self.seen.is_none();
        if self.observed { self.stepped() } else { Ok(()) }
    }

    fn value_request(&mut self) -> ValueRequest<'_> {
        ValueRequest { obs: O::erase_rows(&self.cut_obs), state: self.memory.at_cuts(), values: &mut self.cut_values }
    }

    fn values_done(&mut self) {
        self.valued = true;
    }

    fn take(&mut self, env: &dyn AnyVectorEnv) -> Result<Vec<SlotFragment>, EnvError> {
        let (n, steps) = (self.lanes.len(), self.arena.steps);
        let mut start = 0;
        let pieces = self.cuts.iter().map(|cut| {
            // A lane's first piece begins where its rows do.
            let length = cut.end as usize - start;
            start = if cut.end as usize == steps { 0 } else { cut.end as usize };
            length
        });
        let rows = self.memory.sequences(self.arena.columns(&mut self.columns), pieces);
        let final_obs = self.columns.finals(self.arena.shapes.obs, &self.cut_obs);
        let mut fragments = Vec::with_capacity(n);
        let (mut cut, mut episode) = (0, 0);
        for lane in 0..n {
            let mut snapshot = Vec::new();
            let read = env.snapshot_at(lane, &mut snapshot);
            read.map_err(|source| EnvError::InLane { lane, source: Box::new(source) })?;
            let cuts = cut + self.cuts[cut..].iter().take_while(|cut| cut.lane == lane).count();
            let episodes = episode + self.episodes[episode..].iter().take_while(|(l, _)| *l == lane).count();
            fragments.push(SlotFragment {
                slot: self.lanes.moments()[lane].slot,
                fragment: self.fragment,
                weights_version: self.weights_version,
                first_episode: self.firsts[lane].0,
                first_t: self.firsts[lane].1,
                rows: rows.index_slice(lane * steps..(lane + 1) * steps),
                cuts: (cut..cuts).map(|i| self.cuts[i].with_value(self.cut_values[i])).collect(),
                final_obs: final_obs.slice_rows(cut..cuts),
                episodes: self.episodes[episode..episodes].iter().map(|(_, metrics)| metrics.clone()).collect(),
                state: self.state_with(lane, snapshot).encode(),
                agents: None,
            });
            (cut, episode) = (cuts, episodes);
        }
        Ok(fragments)
    }

    fn failed_at(&self, lane: usize) -> (u32, u32) {
        let (Some(step), Some(&(episode, t))) = (self.invalid_at, self.firsts.get(lane)) else {
            return self.lanes.moments().get(lane).map_or((0, 0), |moment| (moment.episode, moment.t));
        };
        let ended = |end: &usize| *end <= step;
        let begun = self.ends(lane).filter(ended).count() as u32;
        let t = self.ends(lane).filter(ended).max().map_or(t + step as u32, |end| (step - end) as u32);
        (episode.wrapping_add(begun), t)
    }

    fn lanes(&self) -> &Lanes {
        &self.lanes
    }

    fn seen(&self, lane: usize) -> Vec<f64> {
        let Some(seen) = self.seen.as_ref().filter(|_| self.filters) else { return Vec::new() };
        if !self.observed {
            return seen.known(lane).to_vec();
        }
        let (n, width) = (self.lanes.len(), self.arena.shapes.obs.elements());
        self.arena.obs[(self.arena.steps * n + lane) * width..][..width].iter().map(|x| x.to_f64()).collect()
    }

    fn set_seen(&mut self, lane: usize, row: &[f64]) -> bool {
        if row.is_empty() {
            return true;
        }
        let fits = self.filters && row.len() == self.arena.shapes.obs.elements();
        match &mut self.seen {
            Some(seen) if fits && row.iter().all(|x| x.is_finite()) => seen.know(lane, row),
            _ => return false,
        }
        true
    }

    fn state(&self, lane: usize, env: &dyn AnyVectorEnv) -> SlotState {
        let mut snapshot = Vec::new();
        let _ = env.snapshot_at(lane, &mut snapshot);
        self.state_with(lane, snapshot)
    }
}

impl LaneCut {
    fn with_value(self, value: f32) -> Cut {
        let bootstrap_value = if self.reason == CutReason::Terminated { 0.0 } else { value };
        Cut { end: self.end, reason: self.reason, bootstrap_value }
    }
}
