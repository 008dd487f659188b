//! Starting, replacing and ending the hub's local workers.

use std::sync::Arc;

use rollmesh_core::{
    hub::{IN_PROCESS, IN_PROCESS_SERVER, LocalDue, LocalEnd, Record},
    ids::WorkerId,
    protocol::{Role, TokenGrant, TokenHash},
    time::Micros,
};

use super::{
    NO_MORE_ATTEMPTS,
    actor::Actor,
    calls::{OnExit, WorkerNotification},
    children::{ChildTerms, Exit},
    token_file,
};
use crate::{
    launch::{LaunchError, LaunchedEnd},
    runs::{Run, RunEnd, StartError, WorkerTerms},
};

/// Time without an able worker after which the user is notified that the run waits for one.
const NOTIFY_AFTER: Micros = Micros::from_secs(1);

impl Actor {
    /// Starts the local workers that a run lacks, also in place of those with other environment variables. Failed starts are
    /// retried later, and those before the run do not count; if the launcher refuses one, none is started.
    pub(super) fn add_children_for(&mut self, terms: &WorkerTerms, wanted: usize) -> Result<Vec<u32>, StartError> {
        let terms = self.terms_of_child(Some(terms));
        let mut started = Vec::new();
        let earlier = if wanted > 0 { self.children.with_other_environs(&terms) } else { Vec::new() };
        earlier.into_iter().for_each(|child| self.end_child(child, Box::new(|| {})));
        if self.children.local.count() < wanted {
            self.children.local.forget_failed_starts();
        }
        for _ in self.children.local.count()..wanted {
            match self.add_one(&terms) {
                Ok(child) => started.push(child),
                Err(error) if error.is_refusal() => {
                    // Fewer workers than configured would be a different run.
                    self.send_back(started);
                    return Err(StartError::Launch(error));
                }
                Err(error) => {
                    let number = self.children.local.next_number();
                    self.handle_failed_start(number, &terms, &error);
                }
            }
        }
        Ok(started)
    }

    /// Starts this many local workers on the run's terms; all or none.
    pub(super) fn add_children(&mut self, number: usize) -> Result<(), LaunchError> {
        let terms = self.terms_of_child(self.hub.run.as_ref().map(|run| &run.worker_terms));
        self.add_children_on(&terms, number).map(|_| ())
    }

    /// Starts this many local workers that an operator or program has requested, all or none; returns their numbers.
    pub(super) fn add_children_on(&mut self, terms: &Arc<ChildTerms>, number: usize) -> Result<Vec<u32>, LaunchError> {
        self.children.local.forget_failed_starts();
        let mut started = Vec::new();
        for _ in 0..number {
            match self.add_one(terms) {
                Ok(child) => started.push(child),
                Err(error) => {
                    self.send_back(started);
                    return Err(error);
                }
            }
        }
        Ok(started)
    }

    /// Ends local workers that were just started and are not needed.
    pub(super) fn send_back(&mut self, started: Vec<u32>) {
        for child in started {
            self.children.local.dismiss(child);
            self.children.kill(child);
        }
    }

    /// Ends a local worker that is no longer needed, whether it is running, connected or about to be replaced.
    pub(super) fn end_child(&mut self, child: u32, exited: OnExit) {
        // If it has ended already, its replacement may be scheduled.
        self.children.begin_replacement(child);
        self.children.local.dismiss(child);
        match self.hub.peer_of_child(child) {
            Some(peer) => {
                self.hub.dismiss(peer);
                self.children.dismiss(child);
            }
            None => self.children.kill(child),
        }
        self.children.notify_when_exited(child, exited);
    }

    fn terms_of_child(&self, terms: Option<&WorkerTerms>) -> Arc<ChildTerms> {
        let spec = terms.and_then(|terms| terms.spec.as_ref()).unwrap_or(&self.worker).clone();
        let environs = terms.map(|terms| terms.extra_environs.clone()).unwrap_or_default();
        Arc::new(ChildTerms { launcher: self.children.launcher(), spec, environs })
    }

    /// Adds one local worker with a place.
    fn add_one(&mut self, terms: &Arc<ChildTerms>) -> Result<u32, LaunchError> {
        let child = self.spare_or_new(terms)?;
        self.hub.employ(child);
        Ok(child)
    }

    /// Returns the spare local worker if it was started on these terms, or starts a new one.
    fn spare_or_new(&mut self, terms: &Arc<ChildTerms>) -> Result<u32, LaunchError> {
        self.children.take_spare(terms, self.now()).map_or_else(|| self.start_child(terms), Ok)
    }

    fn start_child(&mut self, terms: &Arc<ChildTerms>) -> Result<u32, LaunchError> {
        let (number, token) = self.children.start(terms, self.now())?;
        let id = TokenHash::of(&token).id();
        let seconds = self.launchers.with(|launchers| launchers.token_seconds(id));
        let expires = seconds.map(|seconds| token_file::now().saturating_add(seconds.into()));
        let grant = TokenGrant { role: Role::Worker, child: Some(number), expires };
        let token = self.hub.tokens.add(&token, grant);
        if expires.is_some() {
            // It leaves this machine.
            self.hub.record(Record::TokenMade { token, role: Role::Worker, expires });
        }
        Ok(number)
    }

    /// Carries out scheduled replacements, and ends workers that have not reconnected.
    pub(super) fn tend_children(&mut self) {
        while let Some(due) = self.children.local.poll_due(self.now()) {
            match due {
                LocalDue::Replace(number) => {
                    if let Some(terms) = self.children.begin_replacement(number).filter(|_| !self.hub.is_leaving) {
                        self.replace_child(number, &terms);
                    }
                }
                LocalDue::EndSilent(number) if self.hub.peer_of_child(number).is_none() => {
                    let text =
                        format!("local worker {number} has lost its connection and does not come back: it is ended");
                    self.hub.notice(1, text);
                    self.children.kill(number);
                }
                LocalDue::EndSilent(_) => {}
            }
        }
    }

    /// Replaces a local worker on the same terms, by the spare one if there is one.
    fn replace_child(&mut self, number: u32, terms: &Arc<ChildTerms>) {
        match self.spare_or_new(terms) {
            Ok(by) => {
                self.hub.record(Record::Replaced { ended: number, by });
                self.notify(WorkerNotification::Replaced { child: number, by });
                if let Some(run) = &mut self.hub.run {
                    run.await_replacement(by);
                }
                self.hub.employ(by);
                self.start_spare(terms);
            }
            Err(error) => self.handle_failed_start(number, terms, &error),
        }
    }

    /// Starts a spare local worker. After the end of one worker others may follow, and the run would have to wait for
    /// each replacement's start. If the launcher has no capacity for another one, there is no spare.
    fn start_spare(&mut self, terms: &Arc<ChildTerms>) {
        let is_running = self.hub.run.as_ref().is_some_and(|run| !run.is_over());
        // A program that listens to workers manages their number itself.
        if !is_running || self.listener.is_some() || !self.children.local.wants_spare() {
            return;
        }
        if let Ok(number) = self.start_child(terms) {
            self.children.local.keep_as_spare(number);
            self.hub.record(Record::Spare { number });
        }
    }

    /// Ends the spare local worker.
    pub(super) fn end_spare(&mut self) {
        if let Some(spare) = self.children.local.release_spare() {
            self.end_child(spare, Box::new(|| {}));
        }
    }

    fn handle_failed_start(&mut self, number: u32, terms: &Arc<ChildTerms>, error: &LaunchError) {
        let now = self.now();
        let is_waiting = matches!(error, LaunchError::NotYet(_));
        let end = match is_waiting {
            true => LocalEnd::Replace(self.children.local.pause_without_place()),
            false => self.children.local.handle_failed_start(now),
        };
        let LocalEnd::Replace(pause) = end else { return self.give_up(format!("{NO_MORE_ATTEMPTS}: {error}")) };
        // The user knows that a launcher is absent, or was commanded to end workers.
        if !is_waiting {
            let again = pause.as_secs_f64();
            let text = format!("a local worker could not be started: {error}; trying again in {again:.1} s");
            self.hub.notice(2, text);
        }
        self.children.replace_at(number, terms.clone(), now + pause);
    }

    /// Ends a worker of the hub that has hung for this long, so that another one takes its place.
    pub(super) fn end_hung(&mut self, worker: u32, child: u32, patience: Micros) {
        match child {
            IN_PROCESS | IN_PROCESS_SERVER => {
                self.hub.notice(1, format!("the in-process worker hangs for {patience}: another one takes its place"));
                self.end_in_process(child);
            }
            child if self.children.local.may_end(child) => {
                self.hub.notice(1, format!("worker {worker} hangs for {patience}: it is ended"));
                self.children.kill(child);
            }
            _ => {}
        }
    }

    /// Ends a run for which no worker can sample, if none is being started. A program that listens to workers manages
    /// their number itself.
    pub(super) fn end_hopeless(&mut self) {
        let is_managed = self.listener.is_some();
        let expects = is_managed || self.hub.run.as_ref().is_some_and(|run| self.starts_worker_for(run));
        self.hub.sweep_hopeless(expects);
    }

    /// Ends a run whose own worker hangs: its thread cannot be ended, nor replaced without the learner.
    pub(super) fn end_hung_run(&mut self) {
        let Some(run) = self.hub.run.as_mut().filter(|run| !run.is_over()) else { return };
        run.record_own_failures();
        if let Some(reason) = run.own_hang() {
            self.end_run(RunEnd::Failed(reason));
        }
    }

    /// Notifies the user once that the run waits for workers, unless they come immediately.
    pub(super) fn notify_of_waiting(&mut self) {
        let now = self.now();
        let run = self.hub.run.as_ref().filter(|run| !self.starts_worker_for(run));
        let Some(waiting) = run.and_then(|run| run.state.waiting(now)) else {
            self.waiting_since = None;
            return;
        };
        let (since, is_notified) = *self.waiting_since.get_or_insert((now, false));
        if !is_notified && now.since(since) >= NOTIFY_AFTER {
            self.waiting_since = Some((since, true));
            self.hub.notice(1, format!("the run is {waiting}"));
        }
    }

    /// Ends a local worker on an operator's request, so that another one takes its place, whatever the run's replacements.
    pub(super) fn restart_worker(&mut self, child: u32) {
        match child {
            IN_PROCESS | IN_PROCESS_SERVER => self.end_in_process(child),
            child => self.children.restart(child),
        }
    }

    /// Ends a local worker in quarantine, so that another one takes its place.
    pub(super) fn replace_quarantined(&mut self, child: u32) {
        if [IN_PROCESS, IN_PROCESS_SERVER].contains(&child) {
            self.end_in_process(child);
        } else if self.children.local.may_end(child) {
            self.children.kill(child);
        }
    }

    /// Returns whether a local worker is being started.
    fn starts_worker_for(&self, run: &Run) -> bool {
        let is_connected = |child: &u32| self.hub.peer_of_child(*child).is_some();
        self.children.local.awaits_any()
            || !self.children.local.staying().iter().all(is_connected)
            || run.samples_in_process() && !is_connected(&IN_PROCESS)
    }

    pub(super) fn handle_child_exit(&mut self, number: u32, end: &LaunchedEnd) {
        let LaunchedEnd { status, .. } = end;
        self.attribute_to_environment(number, end);
        let now = self.now();
        let Some(Exit { token, terms, end }) = self.children.handle_exit(number, now) else { return };
        self.hub.tokens.revoke(token);
        match end {
            LocalEnd::AsWished => {}
            LocalEnd::NotReplaced => {
                let text = format!("local worker {number} ended ({status}), and is not replaced");
                self.notify(WorkerNotification::GaveUp(text.clone()));
                self.hub.notice(1, text);
            }
            // A Ctrl-C in the terminal may have reached the workers as well.
            LocalEnd::Replace(_) if self.hub.is_leaving => {}
            LocalEnd::Replace(pause) => {
                self.hub.num_worker_restarts += 1;
                self.hub.notice(1, format!("local worker {number} ended ({status}); another one takes its place"));
                if pause == Micros(0) {
                    self.replace_child(number, &terms);
                } else {
                    self.children.replace_at(number, terms, now + pause);
                }
            }
            LocalEnd::GiveUp => {
                self.give_up(format!("{NO_MORE_ATTEMPTS}: they end as soon as they start ({status})"));
            }
        }
    }

    /// Attributes the crash of a local worker that held a lease to its environments: the worker had started successfully.
    fn attribute_to_environment(&mut self, number: u32, end: &LaunchedEnd) {
        let now = self.now();
        let Some(peer) = self.children.local.peer_of(number).filter(|_| end.is_crash) else { return };
        let Some(run) = self.hub.run.as_mut().filter(|run| !run.is_over()) else { return };
        if run.state.group.handle_crashed(WorkerId(peer), &end.status, now) {
            self.children.local.handle_crash_at_work(number);
        }
    }

    /// Leaves a place empty.
    fn give_up(&mut self, reason: String) {
        self.hub.notice(2, reason.clone());
        self.notify(WorkerNotification::GaveUp(reason.clone()));
        // A process may have exited before its connection closed.
        let lives = |child: Option<u32>| child.is_none_or(|child| self.children.local.is_running(child));
        // A worker that acts for others samples nothing.
        let has_workers = self.hub.workers().any(|(id, peer)| lives(peer.child) && !self.hub.acts_for_others(id));
        let samples_itself = self.hub.run.as_ref().is_some_and(Run::samples_in_process);
        if !has_workers && !samples_itself && !self.children.local.awaits_any() && self.done.is_some() {
            // No worker would ever sample for it.
            self.end_run(RunEnd::Failed(reason));
        }
    }
}
