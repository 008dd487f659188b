//! The hub's own workers: started, replaced, given up.

use std::collections::BTreeMap;

use rollmesh_core::protocol::{Role, TokenGrant};

use super::{actor::Actor, calls::WorkerNews, children::Ended};
use crate::{launch::LaunchError, train::RunEnd};

impl Actor {
    /// Starts a local worker as the run wants it, or as the hub does without one.
    pub(super) fn add_child(&mut self) -> Result<u32, LaunchError> {
        let none = BTreeMap::new();
        let terms = self.run.as_ref().map(|run| &run.terms);
        let spec = terms.and_then(|terms| terms.worker.as_ref()).unwrap_or(&self.worker);
        let (number, token) = self.children.start(spec, terms.map_or(&none, |terms| &terms.extra_environs))?;
        let grant = TokenGrant { role: Role::Worker, child: Some(number), expires: None };
        self.tokens.add(&token, grant);
        Ok(number)
    }

    pub(super) fn replace_child(&mut self) {
        if let Err(error) = self.add_child() {
            self.tell(WorkerNews::GaveUp(error.to_string()));
            self.notice(2, format!("a local worker could not be started: {error}"));
        }
    }

    pub(super) fn handle_child_exit(&mut self, number: u32, status: &str) {
        let Some((token, ended)) = self.children.handle_exit(number) else { return };
        self.tokens.forget(token);
        match ended {
            Ended::AsWished => {}
            Ended::NotReplaced => {
                let text = format!("local worker {number} ended ({status}), and is not replaced");
                self.tell(WorkerNews::GaveUp(text.clone()));
                self.notice(1, text);
            }
            // Whoever ends the hub may have told its workers, too.
            Ended::Replace(_) if self.is_leaving => {}
            Ended::Replace(pause) => {
                self.num_worker_restarts += 1;
                self.notice(1, format!("local worker {number} ended ({status}); another one takes its place"));
                if pause.is_zero() {
                    self.replace_child();
                } else {
                    self.children.replace_after(pause);
                }
            }
            Ended::GiveUp => {
                let reason = format!("local workers end as soon as they start ({status}); no more attempts");
                self.notice(2, reason.clone());
                self.tell(WorkerNews::GaveUp(reason.clone()));
                let has_workers = self.peers.values().any(|peer| peer.role == Role::Worker);
                if !has_workers && self.done.is_some() {
                    // Nobody would ever work for it.
                    self.end_run(RunEnd::Failed(reason));
                }
            }
        }
    }
}
