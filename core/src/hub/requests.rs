//! Requests of dashboards, and what operators ask of the run and its workers.

use super::{ChildFate, Hub, HubEffect, HubRun, Peer, PeerConnection, Record, RunLoop, limits::MAX_BACKLOG_BYTES};
use crate::{
    group::WorkerStatus,
    ids::{SlotId, WorkerId},
    prelude::*,
    protocol::{
        Kind, Message, MessageFrame, WorkerState,
        message::{
            FragmentReport, RecentFragmentRequest, RemoveRun, Reply, Request, RunHistory, RunHistoryRequest, TokenRows,
            Watch, WorkerRequest,
        },
    },
};

impl<C: PeerConnection, R: HubRun> Hub<C, R> {
    /// Handles a request, and returns it if only the shell can.
    pub(super) fn handle_request(&mut self, peer: u32, message: Message) -> Option<Message> {
        let (kind, now) = (message.kind(), self.now);
        let (request, done) = match message {
            Message::RunHistoryRequest(asked) => {
                self.answer_history(peer, asked);
                return None;
            }
            Message::FragmentRequest(asked) => {
                let watched = self.state().map_or(0, |run| run.watched_slot);
                self.answer_fragment(peer, RecentFragmentRequest { request: asked.request, slot: watched, back: 0 });
                return None;
            }
            Message::RecentFragmentRequest(asked) => {
                self.answer_fragment(peer, asked);
                return None;
            }
            Message::Pause(Request { request }) => {
                (request, self.active("pause").and_then(|run| run.pause(now).map_err(str::to_owned)))
            }
            Message::Resume(Request { request }) => {
                (request, self.active("resume").and_then(|run| run.resume(now).map_err(str::to_owned)))
            }
            Message::Stop(Request { request }) => {
                if let Err(error) = self.active("stop").map(drop) {
                    // The first run that waits is about to begin.
                    let removed = self.queue.pop().map(|run| run.number).ok_or(error);
                    self.reply(peer, kind, request, removed);
                } else {
                    self.stop_run();
                    self.effects.push_back(HubEffect::Reply { peer, kind, request });
                }
                return None;
            }
            Message::Drain(Request { request }) => (request, self.active("drain").map(drop).map(|()| self.drain_run())),
            Message::RemoveWorker(WorkerRequest { request, worker }) => (request, self.remove_worker(worker)),
            Message::RestartWorker(WorkerRequest { request, worker }) => (request, self.restart_worker(worker)),
            Message::Watch(Watch { request, slot }) => (request, self.watch(slot)),
            Message::RemoveRun(RemoveRun { request, run }) => {
                let unknown = || format!("no run {run} waits; one that has begun is stopped");
                (request, self.queue.remove(run).map(drop).ok_or_else(unknown))
            }
            message => return Some(message),
        };
        self.reply(peer, kind, request, done.map(|()| 0));
        None
    }

    fn active(&mut self, to: &str) -> Result<&mut RunLoop, String> {
        self.current().map(R::state_mut).ok_or_else(|| format!("there is no run to {to}"))
    }

    /// Replies to an operator's command with its result: the number of the run that it started or removed, or 0.
    pub fn reply(&mut self, peer: u32, kind: Kind, request: u32, done: Result<u32, String>) {
        self.record(Record::Command { peer, kind, done: done.is_ok() });
        self.refresh_dashboards();
        let error = String::new();
        self.answer(peer, request, done.map(|run| Message::Reply(Reply { request, error, run })));
    }

    /// Answers a request of a dashboard, with an error also if the answer is too large.
    pub fn answer(&self, peer: u32, request: u32, answer: Result<Message, String>) {
        let frame = answer.and_then(|answer| MessageFrame::new(&answer).map_err(|error| error.to_string()));
        self.answer_with_frame(peer, request, frame);
    }

    /// Answers a request of a dashboard. Answers are never dropped, so a dashboard that does not read them is expelled.
    fn answer_with_frame(&self, peer: u32, request: u32, frame: Result<MessageFrame, String>) {
        let frame = frame.or_else(|error| {
            // An error may contain what a peer sent: a character has at most four bytes, a reply 4 KiB.
            let error = error.chars().take(1_000).collect();
            MessageFrame::new(&Message::Reply(Reply { request, error, run: 0 }))
        });
        let (Some(known), Ok(frame)) = (self.peers.get(&peer), frame) else { return };
        if known.link.queued_bytes() > MAX_BACKLOG_BYTES {
            return known.link.expel("it takes no answers");
        }
        known.link.send_frame(frame);
    }

    /// Answers with the curves and settings of a run that has begun.
    fn answer_history(&self, peer: u32, asked: RunHistoryRequest) {
        let is_current = self.state().is_some_and(|current| current.number() == asked.run);
        let history = if is_current { self.current_history() } else { self.queue.history(asked.run).cloned() };
        self.answer_with_frame(peer, asked.request, history_frame(asked, history));
    }

    /// Returns the curves so far of the latest run that has begun.
    fn current_history(&self) -> Option<RunHistory> {
        let run = self.state()?;
        Some(RunHistory { run: run.number(), config: run.config().to_wire(), ..self.dashboards.history() })
    }

    /// Moves the current run, which is over, to the past runs.
    pub fn add_past_run(&mut self) {
        if let Some(row) = self.state().map(|run| run.final_row(self.now)) {
            self.queue.add_past(row, self.current_history());
        }
    }

    /// Answers with a recent fragment.
    fn answer_fragment(&self, peer: u32, asked: RecentFragmentRequest) {
        let RecentFragmentRequest { request, slot, back } = asked;
        let run = self.state().map_or(0, |run| run.number());
        let report = self.dashboards.fragments.report(run, SlotId(slot), back);
        self.answer(peer, request, report.map(|report| Message::FragmentReport(FragmentReport { request, ..report })));
    }

    /// Returns the tokens, without those of local workers, which start and end with them.
    pub fn token_rows(&self, request: u32) -> TokenRows {
        let mut rows = TokenRows { request, ..TokenRows::default() };
        for (hash, grant) in self.tokens.table().iter().filter(|(_, grant)| grant.child.is_none()) {
            let id = hash.id();
            rows.ids.push(id.0);
            rows.roles.push(grant.role.to_wire());
            rows.expires.push(grant.expires.unwrap_or(0));
            rows.connections.push(self.peers.values().filter(|peer| peer.valid_by == id).count() as u32);
        }
        rows
    }

    /// Stops the run on request, immediately or after the batch that is being consumed.
    pub fn stop_run(&mut self) {
        self.run.iter().for_each(R::interrupt);
        let (now, Some(facts)) = (self.now, self.facts()) else { return };
        let Some(run) = &self.run else { return };
        self.effects.extend(self.course.stop(run.state(), &facts, now).map(HubEffect::Step));
    }

    /// Drains the run: waits for its leases, then ends it. Their fragments are committed, and learned from if they complete
    /// the iteration.
    pub fn drain_run(&mut self) {
        let now = self.now;
        let Some(run) = self.run.as_mut().filter(|run| !run.state().is_over() && !run.state().is_draining()) else {
            return;
        };
        run.interrupt();
        run.state_mut().drain();
        self.course.drain(run.state(), now);
        let text = match run.state().is_local() {
            true => "the run is draining: the batch that is being made is not learned from",
            false => "the run is draining: it ends when the leases that are out have",
        };
        self.notice(0, text.into());
    }

    /// Removes a worker for good: it is dismissed when its current lease is done.
    ///
    /// # Errors
    /// There is no such worker.
    pub fn remove_worker(&mut self, worker: u32) -> Result<(), String> {
        let child = self.worker(worker)?.child;
        self.decide(child, ChildFate::Last);
        self.take_out(worker);
        Ok(())
    }

    /// Ends the process of a worker that this hub or one of its launchers has started, in the middle of its lease if it has
    /// one, and lets another one take its place: also a worker that hangs.
    ///
    /// # Errors
    /// There is no such worker, it is leaving, or it was started elsewhere.
    fn restart_worker(&mut self, worker: u32) -> Result<(), String> {
        let peer = self.worker(worker)?;
        let child = peer.child;
        let leaves = |status: WorkerStatus<'_>| status.worker.0 == worker && status.state == WorkerState::Leaving;
        if peer.leaving.is_some() || self.state().is_some_and(|run| run.group.workers(self.now).any(leaves)) {
            return Err(format!("worker {worker} is leaving already"));
        }
        if child.is_none() {
            return Err(format!("worker {worker} was not started by this hub: restart it where it was started"));
        }
        self.decide(child, ChildFate::Restarted);
        Ok(())
    }

    fn worker(&self, worker: u32) -> Result<&Peer<C>, String> {
        let known = self.peers.get(&worker).filter(|peer| Peer::is_worker(peer));
        known.ok_or_else(|| format!("there is no worker {worker}"))
    }

    /// Gives a worker no more leases, and dismisses it when its current one is done.
    pub(super) fn take_out(&mut self, worker: u32) {
        let now = self.now;
        let is_in_run = self.current().is_some_and(|run| run.state_mut().group.remove_worker(WorkerId(worker), now));
        if !is_in_run {
            self.dismiss(worker);
        }
    }

    fn watch(&mut self, slot: u32) -> Result<(), String> {
        let run = self.state_mut().ok_or("there is no run to watch")?;
        let slots = run.config().num_slots();
        if slot >= slots {
            return Err(format!("the run has {slots} slots, there is no slot {slot}"));
        }
        run.watched_slot = slot;
        Ok(())
    }
}

fn history_frame(asked: RunHistoryRequest, history: Option<RunHistory>) -> Result<MessageFrame, String> {
    let RunHistoryRequest { request, run } = asked;
    let history = history.ok_or_else(|| format!("the hub has no run {run} that has begun"))?;
    // A run that was started with this program may have settings of any size.
    MessageFrame::new(&Message::RunHistory(RunHistory { request, ..history }))
        .map_err(|error| format!("the curves and settings of run {run} are too large for a message: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn history_that_is_too_large_or_missing_is_answered_with_the_reason() {
        let asked = RunHistoryRequest { request: 7, run: 3 };
        let history = |config: String| Some(RunHistory { run: 3, config, ..RunHistory::default() });
        let frame = MessageFrame::new(&Message::RunHistory(RunHistory { request: 7, run: 3, ..RunHistory::default() }));
        assert_eq!(history_frame(asked, history(String::new())), Ok(frame.expect("a small message")));
        let reason = history_frame(asked, history("x".repeat(300_000))).expect_err("it is too large");
        assert!(reason.starts_with("the curves and settings of run 3 are too large for a message: "), "{reason}");
        assert_eq!(history_frame(asked, None), Err("the hub has no run 3 that has begun".into()));
    }
}
