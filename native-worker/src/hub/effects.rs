//! Execution of the effects that the hub's state machine requests.

use rollmesh_core::{
    hub::{ChildFate, HubEffect, Record},
    protocol::{Role, handshake::PeerService},
};

use super::{HubNotice, actor::Actor, calls::WorkerNotification, link::PeerLink};
use crate::{
    lines::LineNotice,
    runs::{Run, RunEnd, StartError},
};

impl Actor {
    /// Executes all effects that are due after an event. Each may make others due.
    pub(super) fn settle(&mut self) {
        // An effect may take long.
        self.set_time();
        while let Some(effect) = self.hub.poll_effect() {
            self.execute(effect);
            self.set_time();
        }
        self.report_end();
        self.tend_in_process();
    }

    fn execute(&mut self, effect: HubEffect<PeerLink>) {
        match effect {
            HubEffect::Record(record) => {
                if let Record::Command { .. } = record {
                    self.publish_status();
                }
                let notices = self.audit.add(&record);
                self.report_lines(notices);
            }
            // Notices that the program does not read are dropped.
            HubEffect::Notice { level, text } => _ = self.notices.try_send(HubNotice { level, text }),
            HubEffect::Joined(peer) => self.notify_joined(peer),
            HubEffect::Left { id, peer, reason } => match (peer.role, peer.service) {
                (Role::Worker, PeerService::Runs) => {
                    // A disconnected spare has exited, reconnects, or hangs.
                    let now = self.now();
                    peer.child.into_iter().for_each(|child| self.children.local.handle_disconnected(child, id, now));
                    if peer.is_worker() {
                        self.left_bytes += peer.link.received_bytes();
                        self.notify(WorkerNotification::Left { peer: id, reason });
                    }
                }
                (Role::Launcher, _) => {
                    let now = self.now();
                    self.launchers.with(|launchers| launchers.handle_lost(id, now));
                }
                _ => {}
            },
            HubEffect::Answered { peer, result } => self.notify(WorkerNotification::Result { peer, result }),
            HubEffect::Child { child, fate } => match fate {
                ChildFate::Useful => self.children.local.handle_useful(child),
                ChildFate::Last => self.children.local.dismiss(child),
                ChildFate::Dismissed => self.children.dismiss(child),
                ChildFate::Replaced => self.replace_quarantined(child),
                ChildFate::Restarted => self.restart_worker(child),
            },
            HubEffect::Hung { worker, child, patience } => self.end_hung(worker, child, patience),
            HubEffect::Quarantine { tokens, .. } => {
                for token in tokens {
                    if self.tokens.revoke(&mut self.hub.tokens, token).is_ok() {
                        self.hub.record(Record::TokenRevoked { token });
                    }
                }
                self.expel_invalid();
            }
            HubEffect::Reply { peer, kind, request } => self.hub.reply(peer, kind, request, Ok(0)),
            HubEffect::WeightsApplied => self.record_applied(),
            HubEffect::Consume(Ok(work)) => self.update = self.hub.run.as_mut().and_then(|run| run.submit(work)),
            HubEffect::Consume(Err(error)) => self.end_run(RunEnd::Failed(error.to_string())),
            HubEffect::Journal(entry) => {
                let notices = self.hub.run.as_mut().and_then(|run| run.add_to_journal(&entry));
                self.report_lines(notices);
            }
            HubEffect::Audit { run, task, weights } => self.audit_fragment(run, *task, weights),
            HubEffect::Draw(job) => self.draw_fragment(*job),
            HubEffect::Step(step) => self.take_step(step),
            HubEffect::MakeRun(waiting) => self.make_waiting(waiting.config),
            HubEffect::GiveUpStart => self.handle_parts(Err(StartError::Removed)),
        }
    }

    /// Retries lines that could not be written, and writes the audit log's pending counts.
    pub(super) fn catch_up_lines(&mut self) {
        let notices = self.hub.run.as_mut().map_or_else(Vec::new, Run::retry_lines);
        self.report_lines(notices);
        let notices = self.audit.catch_up();
        self.report_lines(notices);
    }

    /// Reports failures and recoveries of files of lines.
    pub(super) fn report_lines(&mut self, notices: impl IntoIterator<Item = LineNotice>) {
        notices.into_iter().for_each(|notice| self.hub.notice(notice.level(), notice.to_string()));
    }
}
