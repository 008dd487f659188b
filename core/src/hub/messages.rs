//! Peers' messages, which the connection has checked against the peer's role.

use super::{
    ChildFate, DecodedUpload, Hub, HubEffect, HubRun, Peer, PeerConnection, Record, RunLoop, UploadFault, WorkerUpload,
};
use crate::{
    group::WorkerStatus,
    ids::{FragmentNo, LeaseId, SlotId, WorkerId},
    prelude::*,
    protocol::{
        Message, Role,
        handshake::PeerService,
        message::{Call, CallResult, WorkerSetup},
        printable,
    },
    time::Micros,
};

impl<C: PeerConnection, R: HubRun> Hub<C, R> {
    /// Handles a message. Returns it if only the shell can: an operator's command about processes or files, or a launcher's
    /// message. A peer that was expelled after it had sent the message is ignored.
    pub fn handle_message(&mut self, peer: u32, message: Message) -> Option<Message> {
        let role = self.peers.get(&peer)?.role;
        match message {
            Message::Progress(progress) => {
                let now = self.now;
                if let Some(run) = self.state_mut() {
                    run.group.handle_progress(WorkerId(peer), LeaseId(progress.lease), progress.env_steps, now);
                }
            }
            Message::WeightsApplied(applied) => {
                if let Some(run) = self.state_mut() {
                    run.handle_weights_applied(WorkerId(peer), &applied);
                    self.effects.push_back(HubEffect::WeightsApplied);
                }
            }
            Message::LeaseRefused(refused) => {
                let now = self.now;
                if self.state_mut().is_some_and(|run| run.handle_refused(WorkerId(peer), &refused, now)) {
                    self.record(Record::LeaseRefused { worker: peer, lease: refused.lease });
                } else {
                    self.count_offence(peer);
                }
            }
            Message::RunAnswer(answer) => {
                let now = self.now;
                let is_taken = self.take_server(peer, &answer)
                    || self.state_mut().is_some_and(|run| run.handle_answer(WorkerId(peer), &answer, now));
                if is_taken {
                    self.hung.remove(&peer);
                } else {
                    self.count_offence(peer);
                }
            }
            Message::CallResult(result) => self.handle_result(peer, result),
            Message::CallProgress(progress) => self.check_call(peer, "works on", progress.call),
            Message::Goodbye(goodbye) if role == Role::Worker => {
                if let Some(peer) = self.peers.get_mut(&peer) {
                    peer.leaving = Some(printable(&goodbye.reason));
                }
                self.release_server(peer);
                self.take_out(peer);
            }
            Message::HostReport(report) => self.handle_host_report(peer, report),
            Message::WeightsRequest(request) => self.handle_weights_request(peer, request.run),
            Message::Renew(renewal) => self.handle_renewal(peer, &renewal.token),
            Message::Ask(ask) => self.ask(peer, ask),
            Message::AskCancel(cancel) => self.cancel_ask(peer, cancel),
            Message::Infer(request) => self.infer(peer, request),
            Message::Inferred(answer) => self.handle_inferred(peer, answer),
            message => return self.handle_request(peer, message),
        }
        None
    }

    /// Handles a worker's upload that refers to states that only the hub knows, or to no lease of the worker.
    pub fn handle_upload(&mut self, peer: u32, upload: WorkerUpload) {
        self.record_fragments(peer, upload.fragments());
        self.take_upload(peer, upload.lease(), |run, now| run.handle_upload(WorkerId(peer), upload, now));
    }

    /// Handles a worker's upload that its connection has decoded.
    pub fn handle_decoded(&mut self, peer: u32, upload: DecodedUpload) {
        self.record_fragments(peer, upload.fragments());
        self.take_upload(peer, upload.lease(), |run, now| run.handle_decoded(WorkerId(peer), upload, now));
    }

    /// Records which worker has uploaded fragments that dashboards may be shown.
    fn record_fragments(&mut self, peer: u32, fragments: impl Iterator<Item = (SlotId, FragmentNo)>) {
        let shows_all = self.has_dashboards();
        if let Some(run) = self.run.as_ref().filter(|_| self.peers.contains_key(&peer)) {
            let (slots, watched) = (run.state().config().num_slots(), run.state().watched_slot);
            let is_shown = |(slot, _): &(SlotId, FragmentNo)| slot.0 == watched || (shows_all && slot.0 < slots);
            self.dashboards.fragments.record_upload(peer, fragments.filter(is_shown));
        }
    }

    fn take_upload(
        &mut self,
        peer: u32,
        LeaseId(lease): LeaseId,
        handle: impl FnOnce(&mut RunLoop, Micros) -> Result<(), UploadFault>,
    ) {
        if !self.peers.contains_key(&peer) {
            return;
        }
        let now = self.now;
        let fault = self.state_mut().and_then(|run| handle(run, now).err());
        self.record_first_delivery(peer);
        if let Some(fault) = fault {
            self.record(Record::UploadRejected { worker: peer, lease, why: fault.to_string() });
            let text = format!("an upload of worker {peer} was not accepted: {fault}");
            self.log(peer, 2, &text);
            self.notice_offence(text);
            if matches!(fault, UploadFault::Unknown) {
                self.count_offence(peer);
            }
        }
    }

    /// Records a worker's first accepted work, and how soon after admission it came.
    fn record_first_delivery(&mut self, id: u32) {
        let is_new = |peer: &&mut Peer<C>| !peer.has_delivered;
        let (Some(peer), Some(run)) = (self.peers.get_mut(&id).filter(is_new), &self.run) else { return };
        let is_it = |worker: WorkerStatus<'_>| worker.worker == WorkerId(id) && worker.env_steps > 0;
        if !run.state().group.workers(self.now).any(is_it) {
            return;
        }
        peer.has_delivered = true;
        let after_ms = self.now.since(peer.admitted_at).0 / 1_000;
        let child = peer.child;
        self.decide(child, ChildFate::Useful);
        self.record(Record::Delivered { worker: id, after_ms });
    }

    /// Sends a worker a call of the program. A call that no message can hold is answered immediately.
    pub fn call(&mut self, peer: u32, message: &Message) {
        let (Message::Call(Call { call, .. }) | Message::WorkerSetup(WorkerSetup { call, .. })) = message else {
            // No other kind of message is sent this way.
            return;
        };
        if let Some(Err(error)) = self.peers.get_mut(&peer).map(|known| known.call(*call, message)) {
            let result = CallResult { call: *call, ok: false, body: error.encode() };
            self.effects.push_back(HubEffect::Answered { peer, result });
        }
    }

    /// Checks that a worker refers to a call that it was sent. The progress of a call is its arrival.
    fn check_call(&mut self, peer: u32, does: &str, call: u64) {
        if self.peers.get(&peer).is_some_and(|known| !known.is_called(call)) {
            self.notice_offence(format!("worker {peer} {does} call {call}, which was not made"));
            self.count_offence(peer);
        }
    }

    /// Passes on the result of an open call, once; unsolicited results are an offence, since they would only fill the memory.
    fn handle_result(&mut self, peer: u32, result: CallResult) {
        self.check_call(peer, "answered", result.call);
        let Some(known) = self.peers.get_mut(&peer) else { return };
        if !known.handle_answer(result.call) {
            return;
        }
        if known.service == PeerService::Evaluates {
            return self.handle_asked(result);
        }
        let child = known.child;
        self.decide(child, ChildFate::Useful);
        self.effects.push_back(HubEffect::Answered { peer, result });
    }
}
