//! Accumulates an evaluation's result while its episodes are sampled.

use super::{EpisodeTrace, Evaluation, EvaluationError, EvaluationRequest, EvaluatorOptions, lane::EvaluationLane};
use crate::{
    callbacks::{CallbackError, Callbacks, EpisodeHook},
    env::{EnvError, EnvSpaces, Frame},
    ids::AgentId,
    prelude::*,
};

/// The evaluation in progress.
pub(super) struct RunningEvaluation {
    pub(super) request: EvaluationRequest,
    pub(super) found: Evaluation,
    pub(super) lanes: Vec<EvaluationLane>,
    /// Whether a step had the reward signal.
    pub(super) is_signalled: bool,
    /// Whether an episode has ended.
    is_any_done: bool,
    /// Whether pictures are requested and available.
    has_picture: bool,
    frame: Frame,
    /// The open episode of the first sub-environment, if its trace is requested.
    trace: Option<EpisodeTrace>,
    /// The error that ended the evaluation.
    pub(super) failure: Option<EvaluationError>,
}

/// Accumulates the results of episodes.
pub(super) struct Watch<'a> {
    pub(super) running: &'a mut RunningEvaluation,
    pub(super) options: &'a EvaluatorOptions,
    /// The spaces of all agents, if one policy acts for all.
    pub(super) spaces: Option<&'a EnvSpaces>,
}

impl RunningEvaluation {
    pub(super) fn new(request: EvaluationRequest, found: Evaluation, num_envs: usize) -> Self {
        let shares = u32::try_from(num_envs).unwrap_or(u32::MAX).max(1);
        let share = |index: u32, episodes: u32| episodes / shares + u32::from(index < episodes % shares);
        let lane = |index| EvaluationLane::of(request.episodes.map(|all| share(index, all.get())), request.max_steps);
        Self {
            lanes: (0..shares).map(lane).collect(),
            has_picture: request.render,
            trace: request.trace.then(EpisodeTrace::default),
            request,
            found,
            is_signalled: false,
            is_any_done: false,
            frame: Frame::new(),
            failure: None,
        }
    }

    pub(super) fn is_over(&self) -> bool {
        (self.request.break_when_any_done && self.is_any_done) || self.lanes.iter().all(|lane| lane.is_resting)
    }

    /// Returns the open trace, if there is one of this sub-environment.
    fn trace_of(&mut self, env: usize) -> Option<&mut EpisodeTrace> {
        self.trace.as_mut().filter(|_| env == 0)
    }

    /// Records the observation that the first agent of the first sub-environment acts on next.
    fn record(&mut self, hook: &EpisodeHook<'_>) {
        if let (Some(trace), Some((_, row))) = (self.trace_of(hook.episode.env()), hook.turn.obs().iter().next()) {
            trace.add(row);
        }
    }

    /// Adds a picture. Once there is none, or the limit is reached, no more are rendered.
    fn draw(&mut self, hook: &mut EpisodeHook<'_>, options: &EvaluatorOptions) {
        if let Some(frames) = self.found.frames.as_mut().filter(|frames| frames.len() >= options.max_frames) {
            frames.is_cut = true;
            self.has_picture = false;
            return;
        }
        self.has_picture = hook.env.try_render(0, &mut self.frame);
        if self.has_picture {
            let frames = self.found.frames.get_or_insert_default();
            frames.add(&self.frame, options.max_frame_bytes);
            self.has_picture = !frames.is_cut;
        }
    }

    fn fail(&mut self, error: impl Into<EvaluationError>) -> CallbackError {
        let error = error.into();
        let callback_error = CallbackError::new("the evaluation", error.to_string());
        self.failure = Some(error);
        callback_error
    }
}

impl Callbacks for Watch<'_> {
    fn on_episode_start(&mut self, hook: &mut EpisodeHook<'_>) -> Result<(), CallbackError> {
        self.running.record(hook);
        Ok(())
    }

    fn on_episode_step(&mut self, hook: &mut EpisodeHook<'_>) -> Result<(), CallbackError> {
        let (running, env) = (&mut *self.running, hook.episode.env());
        let Some(lane) = running.lanes.get_mut(env) else { return Ok(()) };
        let agents = hook.episode.agents().get(lane.known_agents..).unwrap_or_default();
        lane.known_agents += agents.len();
        let is_other =
            |agent: &AgentId| self.spaces.is_some_and(|spaces| hook.env.spaces(agent).as_ref() != Some(spaces));
        if let Some(other) = agents.iter().find(|record| is_other(&record.agent)) {
            return Err(running.fail(EvaluationError::OtherSpaces { agent: other.agent.to_string() }));
        }
        // One round may include several steps of a sub-environment.
        lane.stop_if_done(running.request.max_steps);
        if lane.is_resting {
            return Ok(());
        }
        let reward = self.options.reward_key_of(&running.request).read(hook.turn);
        running.is_signalled |= reward.is_some();
        running.found.env_steps += 1;
        if let Err(error) = lane.add(hook.episode, reward.unwrap_or(0.0)) {
            return Err(running.fail(error));
        }
        if env == 0 && running.has_picture {
            running.draw(hook, self.options);
            if let Some(reason) = running.frame.take_failure() {
                return Err(running.fail(EvaluationError::Render(reason)));
            }
        }
        let limit = self.options.max_episode_steps;
        if !hook.turn.is_over() && limit.is_none_or(|limit| hook.episode.length() < limit) {
            running.record(hook);
        }
        Ok(())
    }

    fn on_episode_end(&mut self, hook: &mut EpisodeHook<'_>, fault: Option<&EnvError>) -> Result<(), CallbackError> {
        let (running, env) = (&mut *self.running, hook.episode.env());
        match fault {
            Some(fault @ EnvError::GivenUp { .. }) => return Err(running.fail(fault.clone())),
            Some(_) => {
                running.found.faulty = running.found.faulty.saturating_add(1);
                running.lanes.get_mut(env).into_iter().for_each(EvaluationLane::close_episode);
                running.trace_of(env).into_iter().for_each(|trace| *trace = EpisodeTrace::default());
            }
            None => {
                let Some(lane) = running.lanes.get_mut(env).filter(|lane| !lane.is_resting) else { return Ok(()) };
                let ended = lane.end(hook.episode, hook.turn.all_terminated());
                running.is_any_done = true;
                if let Some(trace) = running.trace_of(env).map(core::mem::take) {
                    running.found.trace = Some(EpisodeTrace { episode: ended.episode, ..trace });
                }
                running.found.episodes.push(ended);
            }
        }
        Ok(())
    }
}
