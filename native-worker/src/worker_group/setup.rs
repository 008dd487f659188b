//! Creating, adding and removing workers.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc, time::Duration};

use rollmesh_core::{
    calls::{CallError, ForEach},
    env::EnvSpaces,
    ids::{PolicyId, WorkerId},
    time::Micros,
    worker::{InputSource, RolloutWorker, SetupError, WorkerAnswer, WorkerCommand, WorkerPlace, WorkerSetup},
};

use super::{
    GroupError, LOCAL_WORKER, Placement, WorkerGroup,
    hub_thread::HubThread,
    members::{Member, MemberLink, Seat},
    state::Synced,
    task::Request,
};
use crate::launch::LocalLauncher;

/// The time for workers to stop.
const STOP: Duration = Duration::from_secs(5);

impl WorkerGroup {
    /// Creates the workers of a group that was built without them.
    ///
    /// # Errors
    /// [`GroupError`]; if a worker could not be created, with its error message.
    #[doc(alias = "_setup")]
    pub fn setup(&mut self) -> Result<(), GroupError> {
        self.is_stopped = false;
        self.stopper.withdraw();
        if self.plan.dashboard {
            self.start_hub()?;
        }
        let number = self.plan.num_workers;
        let wants_local = self.plan.local_worker || number == 0;
        // Without environments the local worker may need the spaces from the remote workers.
        let mut missing = None;
        if wants_local && self.local.is_none() {
            match self.make_local() {
                Err(GroupError::Setup(error @ SetupError::NoSpaces(_))) if number > 0 => missing = Some(error),
                made => made?,
            }
        }
        let placement = self.plan.placement.clone();
        self.add_fresh(&placement, number, self.plan.validate)?;
        if missing.is_some() {
            self.learn_spaces()?;
            self.make_local()?;
        }
        Ok(())
    }

    /// Adds workers with the group's placement; ids continue to count up. New workers get the current number of workers;
    /// existing ones keep the number that they know. With `validate` each is checked. They start from the local worker's
    /// state, including policies that were added since; without a local worker like workers that are
    /// [restored](Self::restore).
    ///
    /// # Errors
    /// [`GroupError`]; if a worker could not be created, with its error message. None of the new workers is added then.
    pub fn add_workers(&mut self, number: u32, validate: bool) -> Result<(), GroupError> {
        let placement = self.plan.placement.clone();
        self.add_workers_at(&placement, number, validate)
    }

    /// Creates workers without restoring the group's state.
    fn add_fresh(&mut self, placement: &Placement, number: u32, validate: bool) -> Result<Vec<WorkerId>, GroupError> {
        if number == 0 {
            return Ok(Vec::new());
        }
        if self.plan.has_closures && !matches!(placement, Placement::Threads) {
            return Err(GroupError::ClosuresNeedThreads);
        }
        let ids = self.seat(placement, number)?;
        match self.bring_up(placement, &ids, validate) {
            Ok(()) => Ok(ids),
            Err(error) => {
                self.remove(&ids);
                Err(error)
            }
        }
    }

    /// Works like [`add_workers`](Self::add_workers), with another placement.
    ///
    /// # Errors
    /// As there.
    pub fn add_workers_at(&mut self, placement: &Placement, number: u32, validate: bool) -> Result<(), GroupError> {
        if self.is_stopped {
            return Err(GroupError::NotSetUp);
        }
        let ids = self.add_fresh(placement, number, validate)?;
        let healthy = |id: &WorkerId| self.manager.is_healthy(*id) == Some(true);
        let ids: Vec<WorkerId> = ids.into_iter().filter(healthy).collect();
        let taken = self
            .state_for_others(&ids)
            .and_then(|state| ids.iter().try_for_each(|&id| self.give_state(id, &state, self.plan.start_timeout)));
        if taken.is_err() {
            self.remove(&ids);
        }
        taken
    }

    fn seat(&mut self, placement: &Placement, number: u32) -> Result<Vec<WorkerId>, GroupError> {
        if !matches!(placement, Placement::Threads) {
            self.start_hub()?;
        }
        let num_workers = u32::try_from(self.members.len()).unwrap_or(u32::MAX).saturating_add(number);
        // Ids are never reused, but worker indices are: samples depend on the index.
        let indices = self.members.values().map(|member| member.place.worker_index);
        let mut next = indices.max().unwrap_or(0);
        let num_workers = num_workers.max(next.saturating_add(number));
        let mut ids = Vec::new();
        for _ in 0..number {
            next = next.saturating_add(1);
            let id = self.manager.add_worker();
            ids.push(id);
            let link = match self.link(id, placement) {
                Ok(link) => link,
                Err(error) => {
                    self.remove(&ids);
                    return Err(GroupError::Thread(error));
                }
            };
            let place =
                WorkerPlace { in_evaluation: self.plan.in_evaluation, ..WorkerPlace::remote(next, num_workers) };
            let number = self.hub.as_ref().filter(|hub| hub.dashboard.is_some());
            let number = number.and_then(|hub| hub.workers.number_without_peer()).unwrap_or(0);
            self.members.insert(id, Member::new(place, link, number));
        }
        Ok(ids)
    }

    fn start_hub(&mut self) -> Result<(), GroupError> {
        if self.hub.is_none() {
            self.plan.program = crate::program().unwrap_or_else(|_| PathBuf::from("rollmesh"));
            // The default launcher of worker processes.
            let launcher = Arc::new(LocalLauncher::new(&self.plan.program));
            let hub = HubThread::start(&self.plan, launcher, &self.plan.registry, self.notification_sender.clone())?;
            self.hub = Some(hub);
        }
        Ok(())
    }

    fn bring_up(&mut self, placement: &Placement, ids: &[WorkerId], validate: bool) -> Result<(), GroupError> {
        self.gave_up = None;
        if let (Placement::Processes(launcher), Some(hub)) = (placement, &self.hub) {
            let number = u32::try_from(ids.len()).unwrap_or(u32::MAX);
            let (spec, environs) = (self.plan.worker_spec.clone(), self.config.extra_environs.clone());
            let started = hub.workers.start(number, spec, environs, launcher.clone());
            let children = started.ok_or(GroupError::HubExited)??;
            for (id, child) in ids.iter().zip(children) {
                if let Some(seat) = self.members.get_mut(id).and_then(Member::seat_mut) {
                    seat.child = Some(child);
                }
            }
        }
        if matches!(placement, Placement::Remote) {
            // Remote workers join at any time and are set up then.
            for &id in ids {
                self.manager.handle_left(id);
            }
            return Ok(());
        }
        let timeout = self.plan.start_timeout;
        let all_there = |group: &mut Self| {
            group.gave_up.is_some() || ids.iter().all(|id| group.members.get(id).is_some_and(Member::is_there))
        };
        if !self.wait_until(Some(timeout), all_there)? || self.gave_up.is_some() {
            let missing = ids.iter().filter(|id| !self.members.get(id).is_some_and(Member::is_there)).count();
            let why = self.gave_up.take().map_or_else(String::new, |why| format!(": {why}"));
            return Err(GroupError::NotJoined { missing, waited: timeout, why });
        }
        self.set_up(ids, false, timeout)?;
        if validate {
            let checked = self.ask_these(ids, Arc::new(WorkerCommand::AssertHealthy.into()), timeout)?;
            for (worker, result) in checked {
                match result {
                    Ok(_) => {}
                    Err(error) if self.plan.failures.ignore_worker_failures => {
                        self.notice(format_args!("worker {worker} is not healthy: {error}"));
                    }
                    Err(error) => return Err(raised(worker, error)),
                }
            }
        }
        Ok(())
    }

    /// Sends workers their configuration.
    pub(super) fn set_up(&mut self, ids: &[WorkerId], recreated: bool, timeout: Duration) -> Result<(), GroupError> {
        let mut requests = Vec::new();
        let num_workers = self.members.values().map(|member| member.place.worker_index).max().unwrap_or(0);
        for id in ids {
            let Some(member) = self.members.get_mut(id) else { continue };
            if recreated {
                member.place = WorkerPlace { recreated_worker: true, num_workers, ..member.place };
            }
            let mut config = self.config.clone();
            if member.seat_mut().is_some_and(|seat| seat.child.is_some()) {
                // Its process was started with them.
                config.extra_environs.clear();
            }
            requests.push(Request::setup(WorkerSetup { config, place: member.place }));
        }
        let what = ForEach::each(requests).workers(ids).healthy_only(false).timeout(Micros::from(timeout));
        for (worker, result) in self.call(what)? {
            result.map_err(|error| raised(worker, error))?;
            if let Some(member) = self.members.get_mut(&worker) {
                (member.is_set_up, member.has_worked) = (true, true);
            }
        }
        match ids.iter().filter(|id| !self.members.get(id).is_some_and(|member| member.is_set_up)).count() {
            0 => Ok(()),
            missing => Err(GroupError::NotJoined { missing, waited: timeout, why: String::new() }),
        }
    }

    /// Replaces all remote workers by this many new ones, whose ids continue to count up. Results that the old workers have
    /// not handed over are lost; without a local worker, so is the synced state.
    ///
    /// # Errors
    /// As [`add_workers`](Self::add_workers).
    pub fn reset(&mut self, number: u32) -> Result<(), GroupError> {
        let ids: Vec<WorkerId> = self.members.keys().copied().collect();
        self.remove(&ids);
        self.synced = Synced::default();
        self.plan.num_workers = number;
        self.add_workers(number, self.plan.validate)
    }

    /// Removes workers, and waits until their processes have exited and released their resources.
    fn remove(&mut self, ids: &[WorkerId]) {
        // Notifications first: a process may have been replaced by another one meanwhile.
        self.take_notifications();
        let mut children = Vec::new();
        for id in ids {
            // A thread ends when its link is dropped.
            if let (Some(Member { link: MemberLink::Seat(seat), .. }), Some(hub)) = (self.members.remove(id), &self.hub)
            {
                match seat {
                    Seat { child: Some(child), .. } => children.push(child),
                    Seat { peer: Some(peer), .. } => hub.workers.dismiss(peer),
                    // The seat is empty.
                    Seat { .. } => {}
                }
            }
            let _ = self.manager.remove_worker(*id);
            self.samples.forget(*id);
            self.filtering.remove(id);
        }
        self.show();
        if let Some(hub) = &self.hub {
            hub.end_workers(children);
        }
    }

    /// Stops all workers, including the local one, and ends their processes. Errors become [notices](Self::next_notice).
    /// Idempotent.
    pub fn stop(&mut self) {
        if std::mem::replace(&mut self.is_stopped, true) {
            return;
        }
        if let Some(local) = &mut self.local
            && let Err(error) = local.stop()
        {
            self.notice(format_args!("the local worker did not stop well: {error}"));
        }
        let ids: Vec<WorkerId> = self.manager.healthy_worker_ids().collect();
        match self.ask_these(&ids, Arc::new(WorkerCommand::Stop.into()), STOP) {
            Ok(results) => {
                for (worker, result) in results {
                    if let Err(error) = result {
                        self.notice(format_args!("worker {worker} did not stop well: {error}"));
                    }
                }
            }
            Err(error) => self.notice(error),
        }
        let ids: Vec<WorkerId> = self.members.keys().copied().collect();
        self.remove(&ids);
        self.hub = None;
    }

    fn make_local(&mut self) -> Result<(), GroupError> {
        let place = WorkerPlace {
            in_evaluation: self.plan.in_evaluation,
            ..WorkerPlace::remote(LOCAL_WORKER.0, self.plan.num_workers)
        };
        let mut config = self.config.clone();
        if self.plan.num_workers > 0 && !config.create_env_on_local_worker {
            // The remote workers read the input: without environments a mixture has no sampler here.
            config.input = InputSource::default();
        }
        let builder = (self.factory)().config(config).place(place);
        self.local = Some(builder.build()?);
        Ok(())
    }

    /// Takes the spaces of the policies from the first worker.
    fn learn_spaces(&mut self) -> Result<(), GroupError> {
        let spaces = match self.spaces() {
            Err(GroupError::NoHealthyWorkers { .. }) => {
                // No worker has joined yet: a temporary worker with environments determines the spaces.
                let place = WorkerPlace { in_evaluation: self.plan.in_evaluation, ..WorkerPlace::LOCAL };
                let mut alone = (self.factory)().config(self.config.clone()).place(place).build()?;
                let spaces = alone.spaces();
                alone.stop()?;
                spaces
            }
            spaces => spaces?,
        };
        for (id, spaces) in spaces {
            let policy = self.config.policies.entry(id).or_default();
            *policy = policy.clone().with_spaces(spaces.observation, spaces.action);
        }
        Ok(())
    }

    /// Returns the local worker.
    #[doc(alias("local_env_runner", "get_local_worker"))]
    pub fn local_worker(&mut self) -> Option<&mut RolloutWorker> {
        self.local.as_mut()
    }

    pub(super) fn need_local(&mut self, what: &'static str) -> Result<&mut RolloutWorker, GroupError> {
        self.local.as_mut().ok_or(GroupError::NoLocalWorker(what))
    }

    /// Returns the spaces of the policies, before preprocessing: the local worker's, or else those of the first healthy
    /// remote worker.
    ///
    /// # Errors
    /// [`GroupError`]; [`GroupError::NoHealthyWorkers`] if there is no worker to ask.
    #[doc(alias = "get_spaces")]
    pub fn spaces(&mut self) -> Result<BTreeMap<PolicyId, EnvSpaces>, GroupError> {
        if let Some(local) = &mut self.local {
            return Ok(local.spaces());
        }
        let Some(first) = self.manager.healthy_worker_ids().next() else { return Err(self.no_worker()) };
        let timeout = self.plan.start_timeout;
        let mut said = self.ask_these(&[first], Arc::new(WorkerCommand::Spaces.into()), timeout)?;
        let Some((worker, result)) = said.pop() else { return Err(self.no_worker()) };
        match result.map_err(|error| raised(worker, error))?.answer() {
            Some(WorkerAnswer::Spaces(spaces)) => Ok(spaces),
            _ => Err(GroupError::OtherAnswer(worker)),
        }
    }
}

/// Converts a worker's failure to the caller's error.
pub(super) fn raised(worker: WorkerId, error: CallError) -> GroupError {
    match error {
        CallError::Failed(error) => GroupError::Worker { worker, error },
        error => GroupError::Call { worker, error },
    }
}
