//! The sub-environments of this process, stepped sequentially.

mod maker;
mod sub;

pub use maker::{EnvMaker, EnvStart};

use self::{
    maker::Spaces,
    sub::{Sub, SubEnvPhase},
};
use super::{BaseEnv, EnvActions, EnvUpdates, Health, Reset, SubEnv, ValidateEnv};
use crate::{
    env::{EnvContext, EnvError, EnvSpaces, Frame, StepMark, multi_agent::Turn},
    ids::AgentId,
    prelude::*,
    rng::{Purpose, Streams},
};

/// Sub-environments of this process, with one agent each or with several.
///
/// All random numbers are addressed by slot, episode and step, so a single agent sees the same bits here as in a vector of
/// lanes. All updates are checked before they are returned: element types, lengths, spaces, finite numbers, and that they
/// contain only existing agents.
///
/// If failures are tolerated, a failed sub-environment is dropped and restarted, its episode is lost, and the others
/// continue undisturbed. One that fails too often, as counted by [`Health`], is [quarantined](BaseEnv::quarantine); when all
/// are, a poll returns [`EnvError::AllGivenUp`]. If failures are not tolerated, the error is returned after all others have
/// taken their step, and the sub-environment waits for a reset or a restart.
///
/// ```
/// use rollmesh_core::{
///     env::{
///         BaseEnv as _, EnvActions, EnvContext, EnvMaker, EnvRegistry, EnvStart, InProcess, EnvUpdates, RowsRef,
///         multi_agent::AgentRows,
///     },
///     ids::{HomeIndex, SlotId},
/// };
///
/// let registry = EnvRegistry::builtin();
/// let spec = registry.multi_agent("RockPaperScissors-v0").expect("a built-in environment");
/// let context = EnvContext::new(HomeIndex { worker_index: 1, vector_index: 0 });
/// let start = EnvStart { slot: SlotId(0), episode: 0, context };
/// let mut envs = InProcess::new(EnvMaker::multi_agent(&spec), vec![start], 7)?;
///
/// let mut updates = EnvUpdates::new();
/// envs.poll(&mut updates)?; // the first observations
/// let mut actions = AgentRows::new();
/// for (action, agent) in [1, 2].iter().zip(envs.agents()) {
///     actions.set(&agent, RowsRef::I64(std::slice::from_ref(action)));
/// }
/// envs.send_actions(&[EnvActions { env: 0, actions }])?;
/// updates.clear();
/// envs.poll(&mut updates)?;
/// let rewards: Vec<f64> = updates.entries()[0].turn.outcomes().map(|(_, outcome)| outcome.reward).collect();
/// assert_eq!(rewards, [-1.0, 1.0]); // paper loses against scissors
/// # Ok::<(), rollmesh_core::env::EnvError>(())
/// ```
pub struct InProcess {
    maker: EnvMaker,
    subs: Vec<Sub>,
    agents: Vec<AgentId>,
    spaces: Spaces,
    reset: Streams,
    env_step: Streams,
    restart_failed: bool,
    health: Health,
    mark: StepMark,
    /// Validates restarted ones.
    validate: Option<ValidateEnv>,
    stopped: bool,
}

impl InProcess {
    /// Makes one sub-environment per start, none of them reset. Failures are not tolerated.
    ///
    /// # Errors
    /// Errors of making them; [`EnvError::Failed`] for invalid spaces.
    pub fn new(maker: EnvMaker, starts: Vec<EnvStart>, seed: u64) -> Result<Self, EnvError> {
        let mut subs = Vec::with_capacity(starts.len());
        for start in starts {
            let made = maker.make(&start.context)?;
            subs.push(Sub::new(start, made));
        }
        let (mut agents, mut spaces) = (Vec::new(), Spaces::default());
        if let Some(first) = subs.first().and_then(|sub| sub.made.as_ref()) {
            agents = first.agents();
            for agent in &agents {
                let unknown = || EnvError::UnknownAgent { env: 0, agent: agent.clone() };
                spaces.learn(agent, first)?.ok_or_else(unknown)?;
            }
        }
        Ok(Self {
            health: Health::new(subs.len()),
            maker,
            subs,
            agents,
            spaces,
            reset: Streams::new(seed, Purpose::Reset),
            env_step: Streams::new(seed, Purpose::EnvStep),
            restart_failed: false,
            mark: StepMark::default(),
            validate: None,
            stopped: false,
        })
    }

    /// Sets whether failed sub-environments are restarted.
    #[doc(alias = "restart_failed_sub_environments")]
    #[must_use]
    pub fn with_restarts(mut self, restart_failed: bool) -> Self {
        self.restart_failed = restart_failed;
        self
    }

    /// Records the actions of open episodes, which [`snapshot`](BaseEnv::snapshot) needs for environments with several agents.
    #[must_use]
    pub fn recording(mut self) -> Self {
        self.subs.iter_mut().for_each(|sub| sub.log = Some(Vec::new()));
        self
    }

    /// Writes to `turn` what agents without an observation are owed in a sub-environment, as [`pay_out`](BaseEnv::pay_out)
    /// would add it: for callers that cannot call that in time. Changes nothing else.
    pub fn owed(&self, env: usize, turn: &mut Turn) {
        turn.clear();
        if let Some(sub) = self.subs.get(env) {
            sub.owed(turn);
        }
    }

    fn check_env(&self, env: usize) -> Result<(), EnvError> {
        let num_envs = self.subs.len();
        if self.stopped {
            Err(EnvError::Stopped)
        } else if env < num_envs {
            Ok(())
        } else {
            Err(EnvError::NoSuchLane { lane: env, num_envs })
        }
    }

    /// Restarts a sub-environment.
    fn rebuild(&mut self, env: usize) -> Result<(), EnvError> {
        let sub = &mut self.subs[env];
        let context = &sub.start.context;
        // Dropped before the new one is made, which may need its resources.
        sub.made = None;
        let mut made = self.maker.make(context)?;
        if let Some(validate) = &mut self.validate {
            validate(made.sub_env(), context)?;
        }
        sub.made = Some(made);
        sub.is_new = true;
        Ok(())
    }

    /// Resets a sub-environment. A tolerated failure is reported by the next poll.
    fn begin(&mut self, env: usize, turn: &mut Turn) -> Result<Reset, EnvError> {
        let made = if self.subs[env].made.is_none() { self.rebuild(env) } else { Ok(()) };
        // The episode's number is used up in any case.
        let EnvStart { slot, episode, .. } = self.subs[env].start;
        self.mark.at(slot, episode, 0);
        let reset = self.subs[env].reset(env, self.reset, &mut self.spaces, turn);
        match made.and(reset) {
            Ok(()) => Ok(Reset::Done),
            Err(error) => {
                turn.clear();
                self.fail(env, error).map(|()| Reset::Later)
            }
        }
    }

    /// Handles a failure of a sub-environment.
    fn fail(&mut self, env: usize, error: EnvError) -> Result<(), EnvError> {
        let sub = &mut self.subs[env];
        sub.turn.clear();
        if !self.restart_failed {
            sub.phase = SubEnvPhase::Over;
            return Err(match error {
                // With several sub-environments the error names the one that failed.
                EnvError::Failed(_) if self.subs.len() > 1 => EnvError::InLane { lane: env, source: Box::new(error) },
                error => error,
            });
        }
        sub.made = None;
        sub.fault = Some(self.health.failed(env, error));
        sub.phase = SubEnvPhase::Answered;
        if self.health.quarantine(env).is_none() {
            // Retried with the next reset, where the error is reported.
            let _ = self.rebuild(env);
        }
        Ok(())
    }

    /// Checks everything that can be checked before an environment moves.
    fn check_answer(&mut self, actions: &[EnvActions]) -> Result<(), EnvError> {
        self.subs.iter_mut().for_each(|sub| sub.answered = false);
        for EnvActions { env, actions } in actions {
            let env = *env;
            self.check_env(env)?;
            let sub = &mut self.subs[env];
            let reason = match sub.phase {
                _ if sub.answered => "it has two entries in one answer",
                SubEnvPhase::New => "it has not begun: poll first",
                SubEnvPhase::Answered => "it has results that have not been polled: poll before the next answer",
                SubEnvPhase::Restoring => "it is being restored: continue with restore",
                SubEnvPhase::Over => "its episode is over: begin the next one with try_reset",
                SubEnvPhase::Out => "it was given up: bring it back with try_restart and try_reset",
                SubEnvPhase::Acting => {
                    sub.check_actions(env, actions, &self.spaces)?;
                    sub.answered = true;
                    continue;
                }
            };
            return Err(EnvError::OutOfTurn { env, reason });
        }
        match self.subs.iter().position(|sub| sub.phase == SubEnvPhase::Acting && !sub.answered) {
            Some(env) => {
                Err(EnvError::OutOfTurn { env, reason: "it has no entry in the answer, not even an empty one" })
            }
            None => Ok(()),
        }
    }
}

impl BaseEnv for InProcess {
    fn num_envs(&self) -> usize {
        self.subs.len()
    }

    fn agents(&self) -> Vec<AgentId> {
        self.agents.clone()
    }

    fn spaces(&self, agent: &AgentId) -> Option<EnvSpaces> {
        let ask = || self.subs.iter().find_map(|sub| sub.made.as_ref())?.spaces(agent);
        self.spaces.get(agent).cloned().or_else(ask)
    }

    fn poll(&mut self, updates: &mut EnvUpdates) -> Result<(), EnvError> {
        if self.stopped {
            return Err(EnvError::Stopped);
        }
        let mut failure = None;
        for env in 0..self.subs.len() {
            if self.subs[env].phase == SubEnvPhase::New {
                let mut turn = core::mem::take(&mut self.subs[env].turn);
                match self.begin(env, &mut turn) {
                    Ok(_) => self.subs[env].phase = SubEnvPhase::Answered,
                    Err(error) => failure = failure.or(Some(error)),
                }
                self.subs[env].turn = turn;
            }
        }
        if let Some(error) = failure {
            return Err(error);
        }
        for (env, sub) in self.subs.iter_mut().enumerate().filter(|(_, sub)| sub.phase == SubEnvPhase::Answered) {
            let entry = updates.add(env);
            core::mem::swap(&mut entry.turn, &mut sub.turn);
            entry.fault = sub.fault.take();
            sub.phase = match &entry.fault {
                Some(_) if self.health.quarantine(env).is_some() => SubEnvPhase::Out,
                Some(_) => SubEnvPhase::Over,
                None if entry.turn.is_over() => SubEnvPhase::Over,
                None => SubEnvPhase::Acting,
            };
        }
        if updates.entries().is_empty() {
            if let Some(error) = self.health.all_given_up() {
                return Err(error);
            }
            let reason = "there are no updates: answer the latest ones, or begin the next episode with try_reset";
            return Err(EnvError::OutOfTurn { env: 0, reason });
        }
        Ok(())
    }

    fn send_actions(&mut self, actions: &[EnvActions]) -> Result<(), EnvError> {
        if self.stopped {
            return Err(EnvError::Stopped);
        }
        self.check_answer(actions)?;
        let mut failure = None;
        for EnvActions { env, actions } in actions {
            let env = *env;
            let sub = &mut self.subs[env];
            sub.mark(&self.mark);
            match sub.step(env, actions, self.env_step, &mut self.spaces) {
                Ok(()) => {
                    sub.phase = SubEnvPhase::Answered;
                    self.health.stepped(env, sub.turn.is_over());
                }
                Err(error) => {
                    let fatal = self.fail(env, error).err();
                    failure = failure.or(fatal);
                }
            }
        }
        failure.map_or(Ok(()), Err)
    }

    fn try_reset(&mut self, env: usize, turn: &mut Turn) -> Result<Reset, EnvError> {
        self.check_env(env)?;
        if self.subs[env].phase == SubEnvPhase::Answered {
            return Err(EnvError::OutOfTurn {
                env,
                reason: "it has results that have not been polled: poll before a reset",
            });
        }
        if let Some(error) = self.health.given_up(env) {
            return Err(error);
        }
        let reset = self.begin(env, turn)?;
        if reset == Reset::Done {
            self.subs[env].phase = SubEnvPhase::Acting;
        }
        Ok(reset)
    }

    fn pay_out(&mut self, env: usize, turn: &mut Turn) {
        if let Some(sub) = self.subs.get_mut(env) {
            sub.pay_out(turn);
        }
    }

    fn set_next_episode(&mut self, env: usize, episode: u32) {
        if let Some(sub) = self.subs.get_mut(env) {
            sub.start.episode = episode;
        }
    }

    fn snapshot(&self, env: usize, out: &mut Vec<u8>) -> bool {
        self.subs.get(env).is_some_and(|sub| sub.snapshot(out))
    }

    fn snapshot_error(&self, env: usize) -> Option<EnvError> {
        self.subs.get(env)?.snapshot_error()
    }

    fn restore(&mut self, env: usize, episode: u32, snapshot: &[u8], steps: &mut u32) -> Result<bool, EnvError> {
        self.check_env(env)?;
        let sub = &mut self.subs[env];
        if sub.is_at(episode, snapshot) {
            return Ok(true);
        }
        if sub.phase != SubEnvPhase::Restoring || !sub.is_in(episode) {
            sub.start.episode = episode;
            sub.begin_restore(env, self.reset, &mut self.spaces).inspect_err(|_| sub.phase = SubEnvPhase::Over)?;
        }
        let restored = sub.restore(env, self.env_step, &mut self.spaces, snapshot, steps);
        sub.turn.clear();
        sub.phase = match restored {
            Ok(true) => SubEnvPhase::Acting,
            Ok(false) => SubEnvPhase::Restoring,
            Err(_) => SubEnvPhase::Over,
        };
        restored
    }

    fn try_restart(&mut self, env: usize) -> Result<(), EnvError> {
        self.check_env(env)?;
        self.health.lift(env);
        let sub = &mut self.subs[env];
        sub.turn.clear();
        sub.fault = None;
        if sub.phase != SubEnvPhase::New {
            sub.phase = SubEnvPhase::Over;
        }
        self.rebuild(env)
    }

    fn quarantine(&self, env: usize) -> Option<&str> {
        self.health.quarantine(env)
    }

    fn forgive(&mut self, env: usize) {
        self.health.lift(env);
    }

    fn take_restarted(&mut self, env: usize) -> Option<(SubEnv<'_>, EnvContext)> {
        let sub = self.subs.get_mut(env)?;
        let made = sub.made.as_mut()?;
        core::mem::take(&mut sub.is_new).then(|| (made.sub_env(), sub.start.context.clone()))
    }

    fn mark_with(&mut self, mark: &StepMark) {
        self.mark = mark.clone();
    }

    fn validate_with(&mut self, validate: ValidateEnv) {
        self.validate = Some(validate);
    }

    fn try_render(&mut self, env: usize, frame: &mut Frame) -> bool {
        self.subs.get(env).and_then(|sub| sub.made.as_ref()).is_some_and(|made| made.render(frame))
    }

    /// Returns a sub-environment per index; a failed one that could not be restarted is missing until its next reset.
    fn sub_environments(&mut self) -> Vec<SubEnv<'_>> {
        self.subs.iter_mut().filter_map(|sub| sub.made.as_mut()).map(maker::MadeEnv::sub_env).collect()
    }

    fn stop(&mut self) -> Result<(), EnvError> {
        self.stopped = true;
        self.subs.iter_mut().for_each(|sub| sub.made = None);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
