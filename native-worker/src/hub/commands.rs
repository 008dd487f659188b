//! Handles peers' messages, after the socket's task has checked that the role allows them.

use rollmesh_core::{
    hub::{RunLoop, UploadFault},
    ids::{FragmentNo, LeaseId, SlotId, WorkerId},
    protocol::{
        Frame, Kind, Message, Role,
        message::{RemoveRun, RemoveWorker, Reply, Scale, Watch, WorkerToken},
        printable,
    },
    time::Micros,
};

use super::{
    actor::{Actor, Peer},
    audit::Record,
    checkpoints::Asker,
    limits::MAX_BACKLOG_BYTES,
    random_token,
    socket::Received,
};
use crate::train::MAX_LOCAL_WORKERS;

impl Actor {
    pub(super) fn handle_received(&mut self, peer: u32, received: Received) {
        match received {
            Received::Message(message) => self.handle_message(peer, message),
            Received::Upload(upload) => {
                self.note_fragments(peer, upload.fragments());
                self.handle_upload(peer, upload.lease(), |run, now| run.handle_upload(WorkerId(peer), upload, now));
            }
            Received::Decoded(upload) => {
                self.note_fragments(peer, upload.fragments());
                self.handle_upload(peer, upload.lease(), |run, now| run.handle_decoded(WorkerId(peer), upload, now));
            }
        }
    }

    /// Records which worker has uploaded fragments of the watched slot.
    fn note_fragments(&mut self, peer: u32, fragments: impl Iterator<Item = (SlotId, FragmentNo)>) {
        if let Some(run) = &self.run {
            self.dashboard.fragment.note_upload(peer, fragments, SlotId(run.state.watched_slot));
        }
    }

    fn handle_upload(
        &mut self,
        peer: u32,
        LeaseId(lease): LeaseId,
        handle: impl FnOnce(&mut RunLoop, Micros) -> Result<(), UploadFault>,
    ) {
        let now = self.now();
        let fault = self.run.as_mut().and_then(|run| handle(&mut run.state, now).err());
        self.note_first_delivery(peer);
        if let Some(fault) = fault {
            self.remember(&Record::UploadRejected { worker: peer, lease, why: fault.to_string() });
            let text = format!("an upload of worker {peer} was not accepted: {fault}");
            self.log(peer, 2, &text);
            self.notice_offence(text);
            if matches!(fault, UploadFault::Unknown) {
                self.blame(peer);
            }
        }
    }

    fn handle_message(&mut self, peer: u32, message: Message) {
        match message {
            Message::Progress(progress) => {
                let now = self.now();
                if let Some(run) = &mut self.run {
                    run.state.group.handle_progress(WorkerId(peer), LeaseId(progress.lease), progress.env_steps, now);
                }
            }
            Message::WeightsApplied(applied) => {
                if let Some(run) = &mut self.run {
                    run.state.handle_weights_applied(WorkerId(peer), &applied);
                    self.note_applied();
                }
            }
            Message::LeaseRefused(refused) => {
                let now = self.now();
                let had = self.run.as_mut().is_some_and(|run| run.state.handle_refused(WorkerId(peer), &refused, now));
                if had {
                    self.remember(&Record::LeaseRefused { worker: peer, lease: refused.lease });
                } else {
                    self.blame(peer);
                }
            }
            Message::RunAnswer(answer) => {
                let now = self.now();
                if !self.run.as_mut().is_some_and(|run| run.state.handle_answer(WorkerId(peer), &answer, now)) {
                    self.blame(peer);
                }
            }
            Message::CallResult(result) => self.handle_result(peer, result),
            Message::CallProgress(progress) => self.handle_call_progress(peer, progress),
            Message::Goodbye(goodbye) => self.let_leave(peer, &goodbye.reason),
            Message::LauncherReady(ready) => self.handle_launcher_ready(peer, &ready),
            Message::WorkerEnded(ended) => self.launchers.handle_ended(peer, &ended),
            Message::Pause(request) => self.reply(peer, Kind::Pause, request.request, Self::pause),
            Message::Resume(request) => self.reply(peer, Kind::Resume, request.request, Self::resume),
            Message::Stop(request) => self.reply(peer, Kind::Stop, request.request, Self::stop),
            Message::AddWorker(request) => self.reply(peer, Kind::AddWorker, request.request, Self::add_worker),
            Message::RemoveWorker(RemoveWorker { request, worker }) => {
                self.reply(peer, Kind::RemoveWorker, request, |hub| hub.remove_worker(worker));
            }
            Message::Watch(Watch { request, slot }) => self.reply(peer, Kind::Watch, request, |hub| hub.watch(slot)),
            Message::StartRun(start) => {
                self.reply_with_run(peer, Kind::StartRun, start.request, |hub| hub.start_from_page(&start.settings));
            }
            Message::RemoveRun(RemoveRun { request, run }) => {
                self.reply(peer, Kind::RemoveRun, request, |hub| hub.remove_run(run));
            }
            Message::RunHistoryRequest(asked) => self.answer_history(peer, asked),
            Message::SavedRunsRequest(asked) => self.list_saved_runs(peer, asked.request),
            Message::SavedRunRequest(asked) => self.answer_saved_run(peer, asked),
            Message::ResumeRun(asked) => self.resume_saved_run(peer, asked),
            Message::DeleteRun(asked) => self.delete_saved_run(peer, asked),
            Message::FragmentRequest(asked) => self.answer_fragment(peer, asked),
            Message::HostReport(report) => self.handle_host_report(peer, report),
            Message::Scale(Scale { request, num_workers }) => {
                self.reply(peer, Kind::Scale, request, |hub| hub.scale(num_workers));
            }
            Message::Drain(request) => self.reply(peer, Kind::Drain, request.request, Self::drain),
            Message::Checkpoint(request) => self.checkpoint_now(Asker::Peer { peer, request: request.request }),
            Message::WorkerTokenRequest(request) => self.give_worker_token(peer, request.request),
            Message::ManageTokens(wish) => self.manage_tokens(peer, &wish),
            Message::Ask(ask) => self.ask(peer, ask),
            Message::AskCancel(cancel) => self.cancel_ask(peer, cancel),
            // The inbox of the socket's task lets no other kind through.
            _ => {}
        }
    }

    /// Records a worker's first accepted work, and how soon after admission it came.
    fn note_first_delivery(&mut self, id: u32) {
        let now = self.now();
        let is_new = |peer: &&mut Peer| !peer.has_delivered;
        let (Some(peer), Some(run)) = (self.peers.get_mut(&id).filter(is_new), &self.run) else { return };
        if run.state.group.workers(now).any(|worker| worker.worker == WorkerId(id) && worker.env_steps > 0) {
            peer.has_delivered = true;
            if let Some(child) = peer.child {
                self.children.was_useful(child);
            }
            let after_ms = now.since(peer.admitted_at).0 / 1_000;
            self.remember(&Record::Delivered { worker: id, after_ms });
        }
    }

    /// Executes a peer's command and replies with its result.
    fn reply(&mut self, peer: u32, kind: Kind, request: u32, work: impl FnOnce(&mut Self) -> Result<(), String>) {
        self.reply_with_run(peer, kind, request, |hub| work(hub).map(|()| 0));
    }

    /// Like [`reply`](Self::reply), with the number of a run.
    pub(super) fn reply_with_run(
        &mut self,
        peer: u32,
        kind: Kind,
        request: u32,
        work: impl FnOnce(&mut Self) -> Result<u32, String>,
    ) {
        let done = work(self);
        self.remember(&Record::Command { peer, kind, done: done.is_ok() });
        self.refresh_dashboards();
        self.answer_request(peer, request, done);
    }

    /// Sends a dashboard the result of its request: the number of the run that it started, or 0.
    pub(super) fn answer_request(&self, peer: u32, request: u32, done: Result<u32, String>) {
        let (run, error) = done.map_or_else(|error| (0, error), |run| (run, String::new()));
        // An error may contain what a peer sent: a character has at most four bytes, a reply 4 KiB.
        let error = error.chars().take(1_000).collect();
        self.answer_dashboard(peer, &Message::Reply(Reply { request, error, run }));
    }

    /// Answers a dashboard with a message that fits, as answers do.
    pub(super) fn answer_dashboard(&self, peer: u32, message: &Message) {
        if let Ok(frame) = Frame::new(message) {
            self.answer_with_frame(peer, frame);
        }
    }

    /// Answers a dashboard. Answers are never dropped, so a dashboard that does not read them is expelled.
    pub(super) fn answer_with_frame(&self, peer: u32, frame: Frame) {
        let Some(peer) = self.peers.get(&peer) else { return };
        if peer.link.queued_bytes() > MAX_BACKLOG_BYTES {
            return peer.link.expel("it takes no answers");
        }
        peer.link.send_frame(frame);
    }

    fn pause(&mut self) -> Result<(), String> {
        let now = self.now();
        let run = self.run.as_mut().filter(|run| !run.is_over()).ok_or("there is no run to pause")?;
        run.state.pause(now).map_err(str::to_owned)
    }

    fn resume(&mut self) -> Result<(), String> {
        let now = self.now();
        let run = self.run.as_mut().filter(|run| !run.is_over()).ok_or("there is no run to resume")?;
        run.state.resume(now).map_err(str::to_owned)
    }

    fn stop(&mut self) -> Result<(), String> {
        self.run.as_ref().filter(|run| !run.is_over()).ok_or("there is no run to stop")?;
        self.stop_run();
        Ok(())
    }

    fn add_worker(&mut self) -> Result<(), String> {
        if self.children.count() >= MAX_LOCAL_WORKERS as usize {
            return Err(format!("a hub has at most {MAX_LOCAL_WORKERS} local workers"));
        }
        self.add_child().map(|_| ()).map_err(|error| error.to_string())
    }

    /// Starts local workers, or removes the most recent ones after their leases.
    fn scale(&mut self, num_workers: u32) -> Result<(), String> {
        if num_workers > MAX_LOCAL_WORKERS {
            return Err(format!("a hub has at most {MAX_LOCAL_WORKERS} local workers"));
        }
        let wanted = num_workers as usize;
        self.children.forget_replacements();
        self.add_children(wanted.saturating_sub(self.children.count())).map_err(|error| error.to_string())?;
        for child in self.children.staying().into_iter().skip(wanted) {
            let worker = self.peers.iter().find(|(_, peer)| peer.child == Some(child)).map(|(&id, _)| id);
            match worker {
                Some(worker) => self.remove_worker(worker)?,
                // It has not joined yet and has no lease to finish.
                None => self.children.dismiss(child),
            }
        }
        Ok(())
    }

    fn drain(&mut self) -> Result<(), String> {
        self.run.as_ref().filter(|run| !run.is_over()).ok_or("there is no run to drain")?;
        self.drain_run();
        Ok(())
    }

    fn remove_worker(&mut self, worker: u32) -> Result<(), String> {
        let known = self.peers.get(&worker).is_some_and(Peer::is_worker);
        if !known {
            return Err(format!("there is no worker {worker}"));
        }
        if let Some(child) = self.peers.get(&worker).and_then(|peer| peer.child) {
            self.children.do_not_replace(child);
        }
        self.take_out(worker);
        Ok(())
    }

    /// Handles the request of a launcher to leave, or of a worker: it gets no more leases and is dismissed when its current one is done.
    fn let_leave(&mut self, worker: u32, reason: &str) {
        if let Some(key) = self.launchers.of_peer(worker) {
            return self.remove_launcher(&key, reason);
        }
        let Some(peer) = self.peers.get_mut(&worker) else { return };
        peer.leaving = Some(printable(reason));
        self.take_out(worker);
    }

    fn take_out(&mut self, worker: u32) {
        let now = self.now();
        let in_run =
            self.run.as_mut().is_some_and(|run| !run.is_over() && run.state.group.remove_worker(WorkerId(worker), now));
        if !in_run {
            self.dismiss(worker);
        }
    }

    fn watch(&mut self, slot: u32) -> Result<(), String> {
        let run = self.run.as_mut().ok_or("there is no run to watch")?;
        if slot >= run.config().num_slots() {
            return Err(format!("the run has {} slots, there is no slot {slot}", run.config().num_slots()));
        }
        run.state.watched_slot = slot;
        Ok(())
    }

    fn give_worker_token(&mut self, peer: u32, request: u32) {
        let message = match random_token() {
            Ok(token) => {
                let (token_id, expires) = self.tokens.add_for_page(&token);
                self.remember(&Record::TokenMade { token: token_id, role: Role::Worker, expires });
                Message::WorkerToken(WorkerToken { request, token })
            }
            Err(error) => Message::Reply(Reply { request, error: error.to_string(), run: 0 }),
        };
        let done = matches!(message, Message::WorkerToken(_));
        self.remember(&Record::Command { peer, kind: Kind::WorkerTokenRequest, done });
        self.answer_dashboard(peer, &message);
    }
}
