//! Waiting for processes and handling their answers.

use std::{
    process::Command,
    time::{Duration, Instant},
};

use rollmesh_core::env::{EnvError, ProcessEnd};
use rustix::{
    event::{PollFd, Timespec, poll},
    io::Errno,
};

use super::{
    COMMAND, RemoteBaseEnv,
    process::{EnvProcess, PipeEnd},
    sub::{Fault, Job, Phase, Sub},
    wire::{ChildError, ChildReply, ChildRequest, MadeEnv, SpacesOf, part},
};
use crate::envs::python;

/// Delay after the second consecutive failure; it doubles after each further one.
const FIRST_DELAY: Duration = Duration::from_millis(100);
const MAX_DELAY: Duration = Duration::from_secs(10);

/// Returns the delay after the n-th consecutive failure (exponential backoff); none after the first.
fn restart_delay(failures: u32) -> Duration {
    match failures.checked_sub(2) {
        None => Duration::ZERO,
        Some(further) => FIRST_DELAY.saturating_mul(1 << further.min(16)).min(MAX_DELAY),
    }
}

impl RemoteBaseEnv {
    /// Sends every process its next request, starts missing ones and handles answers: until one arrives, a deadline or delay
    /// is over, or `until`.
    pub(super) fn wait(&mut self, until: Option<Instant>) {
        let now = Instant::now();
        for env in 0..self.subs.len() {
            if self.subs[env].send_next_request(now) && !self.make(env) {
                return self.add_elapsed();
            }
        }
        let mut timeout = until.map(|until| until.saturating_duration_since(now));
        let mut shorten = |time: Duration| timeout = Some(timeout.map_or(time, |timeout| timeout.min(time)));
        let (mut whose, mut fds): (Vec<(usize, PipeEnd)>, Vec<PollFd<'_>>) = (Vec::new(), Vec::new());
        for (env, sub) in self.subs.iter().enumerate() {
            match &sub.process {
                Some(process) => {
                    process.patience(self.limit).into_iter().for_each(&mut shorten);
                    for (end, fd) in process.ends() {
                        whose.push((env, end));
                        fds.push(fd);
                    }
                }
                None if sub.phase == Phase::Asked => sub.rest(now).into_iter().for_each(&mut shorten),
                None => {}
            }
        }
        // Rounded up, so that it does not wake just before the deadline.
        let timeout = timeout.map(|timeout| timeout + Duration::from_micros(1));
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        let polled = match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error),
        };
        let events = whose.iter().zip(&fds).filter(|(_, fd)| !fd.revents().is_empty()).map(|(whose, _)| *whose);
        let events: Vec<(usize, PipeEnd)> = events.collect();
        drop(fds);
        if let Err(error) = polled {
            // Without polling, no process can be read from.
            for env in 0..self.subs.len() {
                self.end(env, ProcessEnd::Nonsense(format!("answers that cannot be waited for: {error}")));
            }
        }
        for (env, end) in events {
            self.take_event(env, end);
        }
        self.add_elapsed();
    }

    /// Adds the time since the last call to pending requests, and ends overdue processes.
    pub(super) fn add_elapsed(&mut self) {
        let time = self.last_contact.elapsed();
        self.last_contact += time;
        for env in 0..self.subs.len() {
            let Some(process) = &mut self.subs[env].process else { continue };
            process.heard(time);
            if let Some(end) = process.overdue(self.limit) {
                self.end(env, end);
            }
        }
    }

    /// Starts a process and requests its environment; false if it cannot be started.
    pub(super) fn make(&mut self, env: usize) -> bool {
        let mut command = Command::new(&self.program);
        command.arg(COMMAND).envs(&self.environs).envs(python::child_environs());
        let started = EnvProcess::start(command);
        let sub = &mut self.subs[env];
        match started {
            Ok(mut process) => {
                process.ask("to make its environment", ChildRequest::Make, |out| out.extend_from_slice(&sub.make));
                (sub.process, sub.job) = (Some(process), Some(Job::Make));
                true
            }
            Err(error) => {
                let program = self.program.display();
                self.end(env, ProcessEnd::NotStarted(format!("{program}: {error}")));
                false
            }
        }
    }

    fn take_event(&mut self, env: usize, end: PipeEnd) {
        let Some(process) = &mut self.subs[env].process else { return };
        match end {
            PipeEnd::Requests => process.send(),
            PipeEnd::Words => process.listen(),
            PipeEnd::Answers => self.take_answer(env),
        }
    }

    /// Reads the available part of an answer, and handles it once it is complete.
    fn take_answer(&mut self, env: usize) {
        let sub = &mut self.subs[env];
        let Some(mut process) = sub.process.take() else { return };
        let taken = match process.receive() {
            Ok(None) => Ok(()),
            Ok(Some((reply, body))) => {
                let taken = self.take_reply(env, reply, body);
                process.taken();
                taken
            }
            Err(end) => Err(Refusal::Process(end)),
        };
        let sub = &mut self.subs[env];
        sub.process = Some(process);
        match taken {
            Ok(()) => {}
            Err(Refusal::Process(end)) => self.end(env, end),
            Err(Refusal::Env(error)) => self.fail(env, error),
            Err(Refusal::Mistake(error)) => {
                (sub.job, sub.fault, sub.phase) = (None, Some(Fault::Mistake(error)), Phase::Ready);
            }
        }
    }

    fn take_reply(&mut self, env: usize, reply: ChildReply, body: &[u8]) -> Result<(), Refusal> {
        let sub = &mut self.subs[env];
        match (sub.job, reply) {
            (_, ChildReply::Failed) => {
                let said: ChildError = serde_json::from_slice(body).map_err(|_| nonsense("an error"))?;
                let is_mistake = matches!(said, ChildError::BadAction { .. });
                let error = said.of(env);
                Err(if is_mistake { Refusal::Mistake(error) } else { Refusal::Env(error) })
            }
            (Some(Job::Make), ChildReply::Made) => {
                let made: MadeEnv = serde_json::from_slice(body).map_err(|_| nonsense("an environment"))?;
                sub.job = None;
                self.are_wrapped = made.is_wrapped;
                let agents = self.learn(env, made.agents)?;
                if env == 0 && self.agents.is_empty() {
                    self.agents = agents;
                }
                Ok(())
            }
            (Some(job @ (Job::Reset | Job::Step)), ChildReply::Turn) => {
                sub.job = None;
                let read = |sub: &mut Sub| {
                    let (turn, rest) = part(body)?;
                    let (owed, spaces) = part(rest)?;
                    sub.turn.read(turn).ok()?;
                    sub.owed.read(owed).ok()?;
                    Some(spaces)
                };
                let spaces = read(sub).ok_or_else(|| nonsense("a turn"))?;
                if !spaces.is_empty() {
                    let spaces: Vec<SpacesOf> = serde_json::from_slice(spaces).map_err(|_| nonsense("spaces"))?;
                    self.learn(env, spaces)?;
                }
                if self.subs[env].reset_next {
                    // The turn is discarded, but spaces are sent only once.
                    self.forgotten += u64::from(job == Job::Step);
                    return Ok(());
                }
                self.check(env)?;
                let sub = &mut self.subs[env];
                (sub.phase, sub.begins) = (Phase::Ready, job == Job::Reset);
                if job == Job::Step {
                    self.health.stepped(env, sub.turn.is_over());
                }
                Ok(())
            }
            (Some(Job::Render), ChildReply::Picture) => {
                sub.job = None;
                self.picture.clear();
                self.picture.extend_from_slice(body);
                Ok(())
            }
            _ => Err(nonsense("an answer to what it was asked")),
        }
    }

    /// Records the spaces of agents, which are the same for all sub-environments.
    fn learn(&mut self, env: usize, spaces: Vec<SpacesOf>) -> Result<Vec<rollmesh_core::ids::AgentId>, Refusal> {
        let mut agents = Vec::with_capacity(spaces.len());
        for SpacesOf { agent, spaces } in spaces {
            match self.spaces.get(&agent) {
                Some(known) if *known != spaces => {
                    let reason = format!("environment {env}, agent {agent}: the spaces are not those of before");
                    return Err(Refusal::Env(EnvError::Failed(reason)));
                }
                Some(_) => {}
                None => _ = self.spaces.insert(agent.clone(), spaces),
            }
            agents.push(agent);
        }
        Ok(agents)
    }

    /// Checks a turn against the spaces. The process has checked it, too; this guards the transport.
    fn check(&self, env: usize) -> Result<(), Refusal> {
        let turn = &self.subs[env].turn;
        for (agent, row) in turn.obs().iter() {
            let spaces = self.spaces.get(agent).ok_or_else(|| nonsense("an agent without spaces"))?;
            if row.dtype() != spaces.observation_type || row.len() != spaces.observation.shape().elements() {
                return Err(nonsense("an observation of another space"));
            }
        }
        let is_known = |agent| self.spaces.contains_key(agent);
        if turn.outcomes().all(|(agent, outcome)| (outcome.reward as f32).is_finite() && is_known(agent)) {
            Ok(())
        } else {
            Err(nonsense("a reward of an unknown agent, or that is no number"))
        }
    }

    /// Handles the end of a process, or ends it for this reason.
    pub(super) fn end(&mut self, env: usize, end: ProcessEnd) {
        let sub = &mut self.subs[env];
        let mut last_words = sub.process.take().map(EnvProcess::end).unwrap_or_default();
        if sub.job == Some(Job::Make) && matches!(end, ProcessEnd::Exited(_) | ProcessEnd::Nonsense(_)) {
            let program = self.program.display();
            last_words +=
                &format!(" (does {program} begin with rollmesh::main_with or rollmesh::child_process, as it has to?)");
        }
        self.fail(env, EnvError::Process { env, end, last_words });
    }

    /// Records the failure of a sub-environment. If it is restarted, that happens with its next reset.
    pub(super) fn fail(&mut self, env: usize, error: EnvError) {
        let error = if self.restart_failed { self.health.failed(env, error) } else { error };
        let rest = restart_delay(if self.restart_failed { self.health.failures(env) } else { 0 });
        let sub = &mut self.subs[env];
        sub.process = None;
        (sub.job, sub.reset_next) = (None, false);
        sub.delay_until = Some(Instant::now() + rest);
        sub.turn.clear();
        sub.owed.clear();
        (sub.fault, sub.phase, sub.begins) = (Some(Fault::Failure(error)), Phase::Ready, false);
    }
}

/// The reason that an answer was not accepted.
enum Refusal {
    Process(ProcessEnd),
    Env(EnvError),
    Mistake(EnvError),
}

fn nonsense(what: &str) -> Refusal {
    Refusal::Process(ProcessEnd::Nonsense(format!("something that is not {what}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn restart_delays_grow_up_to_a_limit() {
        let rests: Vec<u128> = [0, 1, 2, 3, 4, 8, 9, u32::MAX].map(|n| restart_delay(n).as_millis()).to_vec();
        assert_eq!(rests, [0, 0, 100, 200, 400, 6_400, 10_000, 10_000]);
    }
}
