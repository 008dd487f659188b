//! One environment: its episode, its agents, and how episodes begin and end.

pub(super) mod state;
mod turn;

use super::{Output, SamplerOptions, agent::Agent, builder::PieceBuilder, inference::PolicyInference};
use crate::{
    batch::AnyBatch,
    callbacks::{CallbackError, Callbacks, EpisodeHook},
    env::{
        BaseEnv, EnvError, EnvUpdate, Moment, Reset,
        multi_agent::{AgentRows, Turn},
    },
    episode::{Episode, Losses, RolloutMetrics},
    ids::{AgentId, SlotId, unroll_id},
    lease::FailedStep,
    prelude::*,
    rng::Streams,
    sampler::{BatchMode, SampleError, SamplerHost},
    view::TrajectoryStart,
};

/// State shared by all lanes during a round.
pub(super) struct Round<'a, 'h> {
    pub(super) env: &'a mut dyn BaseEnv,
    pub(super) host: &'a mut SamplerHost<'h>,
    pub(super) options: &'a SamplerOptions,
    /// Random streams of the mapping function.
    pub(super) mapping: Streams,
    pub(super) inference: &'a mut PolicyInference,
    pub(super) outputs: &'a mut VecDeque<Output>,
    pub(super) extra_batches: &'a mut Vec<AnyBatch>,
    pub(super) losses: &'a mut Losses,
    /// Buffer for the turns of resets.
    pub(super) turn: &'a mut Turn,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LanePhase {
    /// Initial state.
    New,
    /// An episode was announced; its first observations have not arrived.
    Waiting,
    /// An episode is in progress.
    Running,
    /// The episode is lost, the environment must be reset.
    Lost,
    /// The environment is quarantined.
    Out,
}

/// Which failures of an environment that its [`BaseEnv`] tolerates the sampler tolerates, too: others are errors.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Restarts {
    /// All of them.
    #[default]
    Everywhere,
    /// Those at these steps, ascending, unless the environment is given up.
    At(Vec<FailedStep>),
}

/// An environment with its episode and results.
#[derive(Debug)]
pub(super) struct EpisodeLane {
    env: usize,
    slot: SlotId,
    next_episode: u32,
    /// Whether no further episode begins once the environment ends the present one. If a limit ends it, the next one begins
    /// nevertheless, since environments step together.
    pub(super) is_last: bool,
    phase: LanePhase,
    pub(super) restarts: Restarts,
    pub(super) episode: Episode,
    /// Number of the episode with which the environment began; after a soft horizon an earlier one than the present.
    env_episode: u32,
    /// Agents in order of appearance.
    pub(super) agents: Vec<Agent>,
    /// Indices of the agents that act in this round.
    acting: Vec<usize>,
    /// The state to restore once its policies exist.
    saved: Option<Vec<u8>>,
    /// Whether the environment waits for an answer, with actions or without.
    waits: bool,
    /// Whether an answer was sent whose result has not arrived.
    answered: bool,
    pub(super) builder: PieceBuilder,
    /// Steps of the episode that were not postprocessed.
    open_env_steps: usize,
    open_agent_steps: usize,
    /// True once the episode has had a row.
    has_rows: bool,
    /// Env steps of the slot in total, and before the open ones.
    steps: u64,
    first_open_step: u64,
    order: Vec<AgentId>,
}

impl EpisodeLane {
    pub(super) fn new(env: usize, slot: SlotId, first_episode: u32) -> Self {
        Self {
            env,
            slot,
            next_episode: first_episode,
            is_last: false,
            phase: LanePhase::New,
            restarts: Restarts::default(),
            episode: Episode::default(),
            env_episode: first_episode,
            agents: Vec::new(),
            acting: Vec::new(),
            saved: None,
            waits: false,
            answered: false,
            builder: PieceBuilder::default(),
            open_env_steps: 0,
            open_agent_steps: 0,
            has_rows: false,
            steps: 0,
            first_open_step: 0,
            order: Vec::new(),
        }
    }

    /// Returns the unroll id of an agent's rows that are not postprocessed yet.
    pub(super) fn unroll_id(&self, agent: &Agent) -> i64 {
        unroll_id(self.slot, self.first_open_step, number(agent.index))
    }

    /// Moves the open steps' counts into the builder.
    pub(super) fn close_steps(&mut self) {
        self.first_open_step = self.steps;
        self.builder.env_steps += core::mem::take(&mut self.open_env_steps);
        self.builder.agent_steps += core::mem::take(&mut self.open_agent_steps);
    }

    pub(super) fn is_new(&self) -> bool {
        self.phase == LanePhase::New
    }

    /// Returns whether the first observations of an episode have not arrived.
    pub(super) fn is_beginning(&self) -> bool {
        matches!(self.phase, LanePhase::New | LanePhase::Waiting)
    }

    pub(super) fn has_episode(&self) -> bool {
        matches!(self.phase, LanePhase::Waiting | LanePhase::Running)
    }

    pub(super) fn is_lost(&self) -> bool {
        self.phase == LanePhase::Lost
    }

    pub(super) fn held_env_steps(&self) -> usize {
        self.builder.env_steps + self.open_env_steps
    }

    /// Records that the environment is about to take a step, if it waits for an answer.
    pub(super) fn send_answer(&mut self) {
        self.answered = self.waits;
    }

    /// Handles updates of the environment; returns true if they are the result of a step.
    pub(super) fn take_answered(&mut self) -> bool {
        core::mem::take(&mut self.answered)
    }

    /// Updates the lane's phase to the environment's quarantine.
    pub(super) fn heed_quarantine(&mut self, env: &dyn BaseEnv) {
        if matches!(self.phase, LanePhase::Lost | LanePhase::Out) {
            self.phase = if env.quarantine(self.env).is_some() { LanePhase::Out } else { LanePhase::Lost };
        }
    }

    pub(super) fn agent_mut(&mut self, place: usize) -> Option<&mut Agent> {
        self.agents.get_mut(place)
    }

    /// Returns the agents that act in this round, or `None` if the environment does not wait for an answer.
    pub(super) fn answer(&self) -> Option<impl Iterator<Item = &Agent>> {
        self.waits.then(|| self.acting.iter().filter_map(|&place| self.agents.get(place)))
    }

    /// Records that the environment was answered, if it waited.
    pub(super) fn begin_round(&mut self) {
        self.waits = false;
        self.acting.clear();
    }

    /// Begins an episode if there is none, or restores the saved one.
    pub(super) fn open(&mut self, round: &mut Round<'_, '_>) -> Result<(), SampleError> {
        self.heed_quarantine(round.env);
        if !(self.is_new() || self.is_lost()) {
            return Ok(());
        }
        match self.saved.take() {
            Some(state) => self.restore(&state, round),
            None if self.is_new() => self.create_episode(round),
            None => self.reset(round, false),
        }
    }

    /// Returns the slot, the number of its next episode, and its steps.
    pub(super) fn next(&self) -> (SlotId, u32, u64) {
        (self.slot, self.next_episode, self.steps)
    }

    /// Returns the episode's number, and its env steps.
    pub(super) fn position(&self) -> (u32, u32) {
        (self.episode.number(), self.episode.length())
    }

    /// Drops what is in progress, and continues with these numbers, or from a [saved](Self::encode_state) state.
    pub(super) fn begin_at(&mut self, episode: u32, steps: u64, saved: Option<Vec<u8>>, losses: &mut Losses) {
        if !self.is_new() {
            self.abandon(losses);
            let lost = core::mem::take(&mut self.builder);
            lose(losses, lost.env_steps, lost.agent_steps);
        }
        (self.is_last, self.saved) = (false, saved);
        (self.next_episode, self.steps, self.first_open_step) = (episode, steps, steps);
    }

    /// Drops what is in progress and counts it as lost.
    pub(super) fn abandon(&mut self, losses: &mut Losses) {
        self.begin_round();
        self.lose_episode(losses);
        if self.phase != LanePhase::Out {
            self.phase = LanePhase::Lost;
        }
    }

    /// Counts the rows since the last cut as lost.
    fn lose_episode(&mut self, losses: &mut Losses) {
        self.agents.clear();
        lose(losses, core::mem::take(&mut self.open_env_steps), core::mem::take(&mut self.open_agent_steps));
    }

    /// Announces the next episode.
    pub(super) fn create_episode(&mut self, round: &mut Round<'_, '_>) -> Result<(), SampleError> {
        self.episode = Episode::new(self.env, self.slot, self.next_episode);
        self.env_episode = self.next_episode;
        // Needed also after a failure, or after an episode that began without a reset.
        round.env.set_next_episode(self.env, self.next_episode);
        // After 2^32 episodes of a slot numbers start over, as the addresses of random numbers do.
        self.next_episode = self.next_episode.wrapping_add(1);
        (self.open_env_steps, self.open_agent_steps, self.has_rows) = (0, 0, false);
        self.answered = false;
        self.first_open_step = self.steps;
        self.phase = LanePhase::Waiting;
        self.hook(round, &Turn::new(), |callbacks, hook| callbacks.on_episode_created(hook))
    }

    /// Begins the next episode; `cut` says that the environment has not ended the last one itself.
    pub(super) fn reset(&mut self, round: &mut Round<'_, '_>, cut: bool) -> Result<(), SampleError> {
        self.agents.clear();
        if self.is_last && !cut {
            self.phase = LanePhase::Lost;
            return Ok(());
        }
        self.announce(round)?;
        self.create_episode(round)?;
        let mut turn = core::mem::take(round.turn);
        turn.clear();
        let began = match round.env.try_reset(self.env, &mut turn) {
            Ok(Reset::Done) => self.take_turn(&mut turn, &AgentRows::new(), round),
            Ok(Reset::Unsupported) if cut => Err(SampleError::HorizonWithoutReset),
            Ok(Reset::Later | Reset::Unsupported) => Ok(()),
            Err(error) => Err(error.into()),
        };
        *round.turn = turn;
        began
    }

    /// Handles the updates of a poll.
    pub(super) fn take_update(&mut self, update: &mut EnvUpdate, round: &mut Round<'_, '_>) -> Result<(), SampleError> {
        if self.waits {
            return Err(EnvError::Failed(format!("a poll brought updates of environment {} twice", self.env)).into());
        }
        self.take_answered();
        match update.fault.take() {
            Some(fault) if self.tolerates(&fault) => self.take_fault(&fault, &update.turn, round),
            Some(fault) => Err(fault.into()),
            None => self.take_turn(&mut update.turn, &update.off_policy_actions, round),
        }
    }

    fn tolerates(&self, fault: &EnvError) -> bool {
        let (episode, t) = self.position();
        match &self.restarts {
            Restarts::Everywhere => true,
            Restarts::At(steps) => {
                !matches!(fault, EnvError::GivenUp { .. }) && steps.binary_search(&FailedStep { episode, t }).is_ok()
            }
        }
    }

    /// Handles the loss of an episode with its environment.
    fn take_fault(&mut self, fault: &EnvError, turn: &Turn, round: &mut Round<'_, '_>) -> Result<(), SampleError> {
        self.lose_episode(round.losses);
        self.hook(round, turn, |callbacks, hook| callbacks.on_episode_end(hook, Some(fault)))?;
        round.extra_batches.extend(self.episode.take_extra_batches());
        let metrics = RolloutMetrics { faulty: Some(fault.to_string()), ..self.episode.metrics() };
        round.outputs.push_back(Output::Metrics(Box::new(metrics)));
        self.phase = LanePhase::Lost;
        // The last episode has not ended properly, so another one has to.
        self.is_last = false;
        self.heed_quarantine(round.env);
        if self.is_lost() { self.reset(round, false) } else { Ok(()) }
    }

    /// Passes a restarted environment to the callbacks.
    fn announce(&mut self, round: &mut Round<'_, '_>) -> Result<(), SampleError> {
        let SamplerHost { worker, callbacks, .. } = &mut *round.host;
        match round.env.take_restarted(self.env) {
            Some((env, context)) => Ok(callbacks.on_sub_environment_created(worker, env, &context)?),
            None => Ok(()),
        }
    }

    /// Makes a batch of what is in the builder.
    fn build(&mut self, round: &mut Round<'_, '_>) -> Result<(), SampleError> {
        let (env_steps, agent_steps) = (self.builder.env_steps, self.builder.agent_steps);
        let batch = self.builder.build(round.options.single_agent);
        let batch = batch.inspect_err(|_| lose(round.losses, env_steps, agent_steps))?;
        round.outputs.push_back(Output::Batch(self.env, batch));
        Ok(())
    }

    /// Ends the episode.
    fn finish(&mut self, turn: &Turn, round: &mut Round<'_, '_>) -> Result<(), SampleError> {
        if !self.has_rows {
            return Err(SampleError::NoAgentSteps(self.episode.id()));
        }
        self.postprocess(round)?;
        self.hook(round, turn, |callbacks, hook| callbacks.on_episode_end(hook, None))?;
        round.extra_batches.extend(self.episode.take_extra_batches());
        round.outputs.push_back(Output::Metrics(Box::new(self.episode.metrics())));
        if round.options.batch_mode == BatchMode::CompleteEpisodes {
            self.build(round)?;
        }
        Ok(())
    }

    /// Cuts the fragment if it is full.
    pub(super) fn cut_if_full(&mut self, round: &mut Round<'_, '_>) -> Result<(), SampleError> {
        let env_steps = self.builder.env_steps + self.open_env_steps;
        let agent_steps = self.builder.agent_steps + self.open_agent_steps;
        let cuts = round.options.batch_mode == BatchMode::TruncateEpisodes;
        if cuts && round.options.is_enough(env_steps, agent_steps) {
            self.postprocess(round)?;
            // They join this fragment, since another worker may continue the episode.
            round.extra_batches.extend(self.episode.take_extra_batches());
            self.build(round)?;
        }
        Ok(())
    }

    /// Begins a new episode without a reset, while the environment continues (soft horizon).
    fn begin_without_reset(&mut self, turn: &Turn, round: &mut Round<'_, '_>) -> Result<(), SampleError> {
        let began = self.env_episode;
        self.create_episode(round)?;
        self.env_episode = began;
        for place in 0..self.agents.len() {
            let start = self.start(&self.agents[place], 0);
            let agent = &mut self.agents[place];
            self.episode.enter(&agent.id, agent.policy.clone());
            agent.restart_trajectory(start)?;
        }
        self.phase = LanePhase::Running;
        self.hook(round, turn, |callbacks, hook| callbacks.on_episode_start(hook))
    }

    /// Returns the address of the random numbers of an agent's next action.
    pub(super) fn moment(&self, agent: &Agent) -> Moment {
        Moment { slot: self.slot, episode: self.episode.number(), t: self.episode.length(), agent: number(agent.index) }
    }

    fn start(&self, agent: &Agent, t: u32) -> TrajectoryStart {
        TrajectoryStart {
            eps_id: self.episode.id(),
            agent_index: agent.index as i64,
            env_id: self.env as i64,
            t: i64::from(t),
        }
    }

    fn hook(
        &mut self,
        round: &mut Round<'_, '_>,
        turn: &Turn,
        call: impl FnOnce(&mut dyn Callbacks, &mut EpisodeHook<'_>) -> Result<(), CallbackError>,
    ) -> Result<(), SampleError> {
        let SamplerHost { worker, policies, callbacks, .. } = &mut *round.host;
        let (episode, t) = self.position();
        round.options.mark.iter().for_each(|mark| mark.at(self.slot, episode, t));
        let mut hook = EpisodeHook { worker, env: &mut *round.env, policies, episode: &mut self.episode, turn };
        Ok(call(&mut **callbacks, &mut hook)?)
    }
}

fn lose(losses: &mut Losses, env_steps: usize, agent_steps: usize) {
    losses.env_steps += env_steps as u64;
    losses.agent_steps += agent_steps as u64;
}

/// Returns an agent's number for its random numbers. Agents beyond the last number share its random numbers.
fn number(index: usize) -> u16 {
    u16::try_from(index).unwrap_or(u16::MAX)
}
