//! Sub-environments in processes of their own, so that one that hangs, crashes or uses too many resources affects no other.
//!
//! A process runs the same program and makes one environment by name, with the core's rules and random streams, so its rows
//! are bit-identical to those of an in-process environment. It reads requests from its standard input and answers through
//! its original standard output; the environment's output goes to standard error, whose last lines are reported if it fails.
//! A process ends with the worker, even while its environment hangs.
//!
//! Every request has a deadline. A process that misses it is killed, as is one that sends anything other than an answer.
//! Deadlines use the wall clock; an answer that arrived in time but was read later is accepted. There are no reader threads:
//! [`poll`](BaseEnv::poll) reads from all processes together.

mod child;
pub(in crate::envs) mod process;
mod sub;
mod wait;
pub(in crate::envs) mod wire;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use rollmesh_core::{
    env::{BaseEnv, EnvActions, EnvError, EnvSpaces, EnvUpdates, Frame, Health, Reset, multi_agent::Turn},
    ids::AgentId,
    worker::RemoteEnvs,
};

pub(crate) use self::child::serve;
use self::{
    sub::{Fault, Job, Phase, Sub},
    wire::{ChildRequest, MakeRequest},
};
use crate::child::{ENV_GRACE, check_is_not_one};

/// The hidden command that runs the process of a sub-environment.
pub(crate) const COMMAND: &str = "remote-env";

/// A [`BaseEnv`] whose sub-environments run in processes of their own.
///
/// A poll waits for all pending sub-environments, at most `remote_env_batch_wait_ms`, and then continues with those that are
/// ready. If all are ready and some of them have begun an episode, the poll returns those only, and the others' steps with
/// the next poll, when the new ones have taken theirs: so sub-environments that are always waited for stay in lockstep, like
/// those of one process.
///
/// If failures are tolerated, a failed sub-environment gets a new process with its next reset: immediately after the first
/// failure, with exponential backoff after further ones. The others continue meanwhile. [`Health`] decides when it is given
/// up.
pub struct RemoteBaseEnv {
    program: PathBuf,
    environs: BTreeMap<String, String>,
    subs: Vec<Sub>,
    agents: Vec<AgentId>,
    spaces: BTreeMap<AgentId, EnvSpaces>,
    are_wrapped: bool,
    health: Health,
    /// Number of steps whose results were discarded.
    forgotten: u64,
    restart_failed: bool,
    batch_wait: Duration,
    /// The deadline of every request.
    limit: Duration,
    /// Time up to which listening has been counted.
    last_contact: Instant,
    /// Bytes of the latest picture.
    picture: Vec<u8>,
    is_stopped: bool,
}

impl RemoteBaseEnv {
    /// Starts a process of `program` per sub-environment, all concurrently, and waits until they have made their
    /// environments.
    ///
    /// # Errors
    /// [`EnvError::Process`] for a process that fails, or the environment's own error if it cannot be made.
    pub fn start(program: &Path, envs: &RemoteEnvs<'_>) -> Result<Self, EnvError> {
        check_is_not_one(COMMAND).map_err(EnvError::Failed)?;
        let config = envs.config;
        let memory_mb = config.remote_env_memory_mb;
        let subs = envs.specs.iter().map(|spec| Sub::new(&MakeRequest { spec: spec.clone(), memory_mb })).collect();
        let mut started = Self {
            program: program.into(),
            environs: config.extra_environs.clone(),
            subs,
            agents: Vec::new(),
            spaces: BTreeMap::new(),
            are_wrapped: false,
            health: Health::new(envs.specs.len()),
            forgotten: 0,
            // Tolerating failures starts later: a failure during the start is an error.
            restart_failed: false,
            batch_wait: envs.batch_wait.into(),
            limit: Duration::from_millis(config.remote_env_timeout_ms.into()),
            last_contact: Instant::now(),
            picture: Vec::new(),
            is_stopped: false,
        };
        for env in 0..started.subs.len() {
            started.make(env);
        }
        while started.subs.iter().any(|sub| sub.job.is_some()) {
            started.fatal()?;
            started.wait(None);
        }
        started.fatal()?;
        started.restart_failed = config.restart_failed_sub_environments;
        Ok(started)
    }

    /// Returns true for games, which run in DeepMind's wrappers.
    #[must_use]
    pub fn are_wrapped(&self) -> bool {
        self.are_wrapped
    }

    /// Returns the process ids by sub-environment; `None` for one without a process at the moment.
    #[must_use]
    pub fn process_ids(&self) -> Vec<Option<u32>> {
        self.subs.iter().map(|sub| sub.process.as_ref().map(process::EnvProcess::id)).collect()
    }

    fn check_env(&self, env: usize) -> Result<(), EnvError> {
        let num_envs = self.subs.len();
        if self.is_stopped {
            Err(EnvError::Stopped)
        } else if env < num_envs {
            Ok(())
        } else {
            Err(EnvError::NoSuchLane { lane: env, num_envs })
        }
    }

    /// Returns a failure that is not tolerated.
    fn fatal(&mut self) -> Result<(), EnvError> {
        for sub in &mut self.subs {
            match sub.fault.take() {
                Some(Fault::Failure(error)) if self.restart_failed => sub.fault = Some(Fault::Failure(error)),
                Some(Fault::Failure(error) | Fault::Mistake(error)) => {
                    sub.phase = Phase::Over;
                    return Err(error);
                }
                None => {}
            }
        }
        Ok(())
    }

    /// Waits for answers; true if none is missing.
    fn gather(&mut self) -> Result<bool, EnvError> {
        self.last_contact = Instant::now();
        let patience = self.last_contact + self.batch_wait;
        loop {
            self.fatal()?;
            let is_ready = self.subs.iter().any(|sub| sub.phase == Phase::Ready);
            if is_ready && !self.subs.iter().any(Sub::is_awaited) {
                return Ok(true);
            }
            if is_ready && self.last_contact >= patience {
                return Ok(false);
            }
            self.wait(is_ready.then_some(patience));
        }
    }

    /// Checks everything that can be checked before an environment steps; the process itself checks the shape of actions.
    fn check_answer(&mut self, actions: &[EnvActions]) -> Result<(), EnvError> {
        self.subs.iter_mut().for_each(|sub| sub.is_answered = false);
        for EnvActions { env, .. } in actions {
            let env = *env;
            self.check_env(env)?;
            let sub = &mut self.subs[env];
            let reason = match sub.phase {
                _ if sub.is_answered => "it has two entries in one answer",
                Phase::New => "it has not begun: poll first",
                Phase::Asked => "it has not answered yet: poll first",
                Phase::Ready if sub.fault.is_none() => {
                    "it has results that have not been polled: poll before the next answer"
                }
                Phase::Over => "its episode is over: begin the next one with try_reset",
                // It may have failed since, which is reported next.
                Phase::Acting | Phase::Ready => {
                    sub.is_answered = true;
                    continue;
                }
            };
            return Err(EnvError::OutOfTurn { env, reason });
        }
        match self.subs.iter().position(|sub| sub.phase == Phase::Acting && !sub.is_answered) {
            Some(env) => {
                Err(EnvError::OutOfTurn { env, reason: "it has no entry in the answer, not even an empty one" })
            }
            None => Ok(()),
        }
    }
}

impl BaseEnv for RemoteBaseEnv {
    fn num_envs(&self) -> usize {
        self.subs.len()
    }

    fn agents(&self) -> Vec<AgentId> {
        self.agents.clone()
    }

    /// Returns the spaces of an agent; those that appear later are known from their first observation on.
    fn spaces(&self, agent: &AgentId) -> Option<EnvSpaces> {
        self.spaces.get(agent).cloned()
    }

    fn poll(&mut self, updates: &mut EnvUpdates) -> Result<(), EnvError> {
        if self.is_stopped {
            return Err(EnvError::Stopped);
        }
        self.subs.iter_mut().filter(|sub| sub.phase == Phase::New).for_each(Sub::want_reset);
        if !self.subs.iter().any(|sub| matches!(sub.phase, Phase::Asked | Phase::Ready)) {
            let reason = "there are no updates: answer the latest ones, or begin the next episode with try_reset";
            return Err(self.health.all_given_up().unwrap_or(EnvError::OutOfTurn { env: 0, reason }));
        }
        let all_here = self.gather()?;
        let begins = |sub: &Sub| sub.phase == Phase::Ready && sub.begins;
        let only_beginnings = all_here && !self.batch_wait.is_zero() && self.subs.iter().any(begins);
        for (env, sub) in self.subs.iter_mut().enumerate() {
            if sub.phase != Phase::Ready || only_beginnings && !sub.begins {
                continue;
            }
            let entry = updates.add(env);
            sub.phase = Phase::Over;
            match sub.fault.take() {
                Some(Fault::Failure(error) | Fault::Mistake(error)) => entry.fault = Some(error),
                None => {
                    std::mem::swap(&mut entry.turn, &mut sub.turn);
                    if !entry.turn.is_over() {
                        sub.phase = Phase::Acting;
                    }
                }
            }
        }
        Ok(())
    }

    fn send_actions(&mut self, actions: &[EnvActions]) -> Result<(), EnvError> {
        if self.is_stopped {
            return Err(EnvError::Stopped);
        }
        self.check_answer(actions)?;
        for EnvActions { env, actions } in actions {
            let sub = &mut self.subs[*env];
            let (Phase::Acting, Some(process)) = (sub.phase, &mut sub.process) else { continue };
            (sub.phase, sub.job) = (Phase::Asked, Some(Job::Step));
            let is_paid = std::mem::take(&mut sub.is_paid);
            process.ask("for a step", ChildRequest::Step, |out| {
                out.push(is_paid.into());
                actions.write(out);
            });
        }
        Ok(())
    }

    /// Requests an episode, whose first observations always arrive later. A step in progress is awaited and its result
    /// discarded.
    fn try_reset(&mut self, env: usize, _turn: &mut Turn) -> Result<Reset, EnvError> {
        self.check_env(env)?;
        let sub = &mut self.subs[env];
        // A failure that has not been reported comes first, even the last one.
        if sub.fault.is_some() {
            return Ok(Reset::Later);
        }
        if let Some(error) = self.health.given_up(env) {
            return Err(error);
        }
        self.forgotten += u64::from(sub.has_unpolled_step());
        sub.want_reset();
        if sub.send_next_request(Instant::now()) {
            self.make(env);
        }
        Ok(Reset::Later)
    }

    fn pay_out(&mut self, env: usize, turn: &mut Turn) {
        let Some(sub) = self.subs.get_mut(env) else { return };
        for (agent, outcome) in sub.owed.outcomes() {
            turn.reward(agent, outcome.reward);
            if outcome.terminated {
                turn.terminate(agent);
            }
            if outcome.truncated {
                turn.truncate(agent);
            }
        }
        for (agent, info) in sub.owed.infos() {
            turn.info(agent, info);
        }
        sub.owed.clear();
        sub.is_paid = true;
    }

    fn set_next_episode(&mut self, env: usize, episode: u32) {
        if let Some(sub) = self.subs.get_mut(env) {
            sub.next_episode = episode;
        }
    }

    /// Ends its process. The next reset starts another one; if that fails, it is reported like any failure.
    fn try_restart(&mut self, env: usize) -> Result<(), EnvError> {
        self.check_env(env)?;
        self.health.lift(env);
        let sub = &mut self.subs[env];
        self.forgotten += u64::from(sub.has_unpolled_step());
        let make = std::mem::take(&mut sub.make);
        let next_episode = sub.next_episode;
        let phase = if sub.phase == Phase::New { Phase::New } else { Phase::Over };
        *sub = Sub { phase, next_episode, ..Sub::with_make(make) };
        Ok(())
    }

    fn quarantine(&self, env: usize) -> Option<&str> {
        self.health.quarantine(env)
    }

    fn forgive(&mut self, env: usize) {
        self.health.lift(env);
    }

    fn forgotten_steps(&mut self) -> u64 {
        std::mem::take(&mut self.forgotten)
    }

    /// Waits for the picture if the environment is idle.
    fn try_render(&mut self, env: usize, frame: &mut Frame) -> bool {
        let Some(sub) = self.subs.get_mut(env) else { return false };
        let is_idle = sub.job.is_none() && !sub.reset_next && sub.fault.is_none();
        let Some(process) = sub.process.as_mut().filter(|_| is_idle) else { return false };
        process.ask("for a picture", ChildRequest::Render, |_| {});
        sub.job = Some(Job::Render);
        self.picture.clear();
        self.last_contact = Instant::now();
        while self.subs[env].job == Some(Job::Render) {
            self.wait(None);
        }
        let Some((width, rest)) = self.picture.split_first_chunk() else { return false };
        let Some((height, pixels)) = rest.split_first_chunk() else { return false };
        frame.set(u32::from_le_bytes(*width), u32::from_le_bytes(*height), pixels)
    }

    /// Asks all processes to exit, and kills those that have not exited within `ENV_GRACE`.
    fn stop(&mut self) -> Result<(), EnvError> {
        if std::mem::replace(&mut self.is_stopped, true) {
            return Ok(());
        }
        self.limit = ENV_GRACE;
        self.restart_failed = false;
        for sub in &mut self.subs {
            (sub.phase, sub.job, sub.reset_next) = (Phase::Over, None, false);
            sub.fault = None;
            sub.process.iter_mut().for_each(process::EnvProcess::dismiss);
        }
        self.last_contact = Instant::now();
        let end = self.last_contact + ENV_GRACE;
        while self.subs.iter().any(|sub| sub.process.is_some()) && self.last_contact < end {
            self.wait(Some(end));
            // Their exit statuses do not matter.
            self.subs.iter_mut().for_each(|sub| sub.fault = None);
        }
        self.subs.iter_mut().for_each(|sub| sub.process = None);
        Ok(())
    }
}

impl Drop for RemoteBaseEnv {
    fn drop(&mut self) {
        let _ = self.stop();
    }
}
