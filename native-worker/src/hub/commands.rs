//! Operators' commands about processes, tokens and files.

use rollmesh_core::{
    hub::Record,
    protocol::{
        Kind, Message, Role,
        message::{Scale, WorkerToken},
    },
};

use super::{actor::Actor, checkpoints::Asker, queue::Starter, random_token, socket::Received, token_file};
use crate::runs::MAX_LOCAL_WORKERS;

impl Actor {
    pub(super) fn handle_received(&mut self, peer: u32, received: Received) {
        match received {
            Received::Message(message) => {
                if let Some((request, reason)) = self.refusal_of_listener(&message) {
                    return self.hub.reply(peer, message.kind(), request, Err(reason.into()));
                }
                let is_renewal = matches!(message, Message::Renew(_));
                if is_renewal {
                    self.follow_tokens();
                }
                let request = self.hub.handle_message(peer, message);
                if is_renewal {
                    self.rename_launcher(peer);
                }
                request.into_iter().for_each(|request| self.handle_request(peer, request));
            }
            Received::Upload(upload) => self.hub.handle_upload(peer, upload),
            Received::Decoded(upload) => self.hub.handle_decoded(peer, upload),
        }
    }

    fn handle_request(&mut self, peer: u32, message: Message) {
        let kind = message.kind();
        match message {
            Message::Goodbye(goodbye) => {
                match self.launchers.with(|launchers| launchers.of_peer(peer)) {
                    Some(key) => self.remove_launcher(&key, &goodbye.reason),
                    // It is not ready yet, or a newer connection has taken its place.
                    None => self.hub.dismiss(peer),
                }
            }
            Message::LauncherReady(ready) => self.handle_launcher_ready(peer, &ready),
            Message::WorkerEnded(ended) => self.launchers.with(|launchers| launchers.handle_ended(peer, &ended)),
            Message::AddWorker(asked) => {
                let done = self.add_worker();
                self.hub.reply(peer, kind, asked.request, done.map(|()| 0));
            }
            Message::Scale(Scale { request, num_workers }) => {
                let done = self.scale(num_workers);
                self.hub.reply(peer, kind, request, done.map(|()| 0));
            }
            Message::StartRun(start) => {
                let starter = Starter { peer, kind, request: start.request };
                if let Some(done) = self.start_from_page(starter, &start.settings).transpose() {
                    self.hub.reply(peer, kind, start.request, done);
                }
            }
            Message::SavedRunsRequest(asked) => self.list_saved_runs(peer, asked.request),
            Message::SavedRunRequest(asked) => self.answer_saved_run(peer, asked),
            Message::ResumeRun(asked) => self.resume_saved_run(peer, asked),
            Message::DeleteRun(asked) => self.delete_saved_run(peer, asked),
            Message::Checkpoint(asked) => self.checkpoint_now(Asker::Peer { peer, request: asked.request }),
            Message::WorkerTokenRequest(asked) => self.give_worker_token(peer, asked.request),
            Message::ManageTokens(wish) => self.manage_tokens(peer, &wish),
            // The connection lets no other kind through.
            _ => {}
        }
    }

    fn add_worker(&mut self) -> Result<(), String> {
        if self.children.local.count() >= MAX_LOCAL_WORKERS as usize {
            return Err(format!("a hub has at most {MAX_LOCAL_WORKERS} local workers"));
        }
        self.add_children(1).map_err(|error| error.to_string())
    }

    /// Starts local workers, or removes the most recent ones after their leases.
    fn scale(&mut self, num_workers: u32) -> Result<(), String> {
        if num_workers > MAX_LOCAL_WORKERS {
            return Err(format!("a hub has at most {MAX_LOCAL_WORKERS} local workers"));
        }
        let wanted = num_workers as usize;
        self.children.forget_replacements();
        self.add_children(wanted.saturating_sub(self.children.local.count())).map_err(|error| error.to_string())?;
        for child in self.children.local.staying().into_iter().skip(wanted) {
            match self.hub.peer_of_child(child) {
                Some(worker) => self.hub.remove_worker(worker)?,
                // It has not joined yet and has no lease to finish.
                None => self.children.dismiss(child),
            }
        }
        Ok(())
    }

    fn give_worker_token(&mut self, peer: u32, request: u32) {
        let token = random_token().map_err(|error| error.to_string());
        let answer = token.map(|token| {
            let (id, expires) = self.hub.tokens.add_for_page(&token, token_file::now());
            self.hub.record(Record::TokenMade { token: id, role: Role::Worker, expires });
            Message::WorkerToken(WorkerToken { request, token })
        });
        self.hub.record(Record::Command { peer, kind: Kind::WorkerTokenRequest, done: answer.is_ok() });
        self.hub.answer(peer, request, answer);
    }
}
