//! The workers that a hub in a page starts itself, and replaces when they fail.

use std::collections::BTreeMap;

use rollmesh_core::{
    hub::{ChildFate, RunEnd},
    protocol::Role,
};

use super::{HubOutput, InlineHub, PortId};

/// Maximum number of consecutive workers that end without having done anything useful. After them the hub starts no
/// more.
const MAX_FUTILE: u32 = 5;

#[derive(Default)]
pub(super) struct Workers {
    by_number: BTreeMap<u32, Worker>,
    last: u32,
    /// The number of workers that failed since one was useful.
    futile: u32,
}

struct Worker {
    port: PortId,
    /// True if another worker takes its place when it fails.
    stays: bool,
}

impl InlineHub {
    /// Maximum number of workers that a hub starts.
    pub const MAX_WORKERS: u32 = 64;

    /// Starts or dismisses workers until the given number remains.
    ///
    /// # Errors
    /// It is more than [`MAX_WORKERS`](Self::MAX_WORKERS).
    pub fn scale(&mut self, wanted: u32) -> Result<(), String> {
        if wanted > Self::MAX_WORKERS {
            return Err(format!("a hub in a page has at most {} workers", Self::MAX_WORKERS));
        }
        self.workers.futile = 0;
        let staying: Vec<(u32, PortId)> = self.staying().collect();
        for &(child, port) in staying.iter().skip(wanted as usize) {
            match self.hub.peer_of_child(child) {
                // It finishes its lease first.
                Some(peer) => self.hub.remove_worker(peer)?,
                None => self.end_worker(child, port),
            }
        }
        (staying.len()..wanted as usize).for_each(|_| self.start_worker());
        Ok(())
    }

    pub(super) fn num_staying(&self) -> u32 {
        self.staying().count() as u32
    }

    fn staying(&self) -> impl Iterator<Item = (u32, PortId)> + '_ {
        self.workers.by_number.iter().filter(|(_, worker)| worker.stays).map(|(child, worker)| (*child, worker.port))
    }

    fn start_worker(&mut self) {
        self.workers.last += 1;
        let child = self.workers.last;
        let (port, token) = self.open(Role::Worker, Some(child));
        self.workers.by_number.insert(child, Worker { port, stays: true });
        self.outputs.push_back(HubOutput::Start { port, token });
    }

    fn end_worker(&mut self, child: u32, port: PortId) {
        self.workers.by_number.remove(&child);
        self.close(port, "the hub has ended this worker");
    }

    /// Handles the end of a port that may be a worker's; another worker takes its place if it was to stay.
    pub(super) fn replace_if_worker(&mut self, port: PortId, reason: &str) {
        let of_port = |(_, worker): &(&u32, &Worker)| worker.port == port;
        let Some(child) = self.workers.by_number.iter().find(of_port).map(|(child, _)| *child) else { return };
        let stayed = self.workers.by_number.remove(&child).is_some_and(|worker| worker.stays);
        if !stayed {
            return;
        }
        self.workers.futile += 1;
        if self.workers.futile > MAX_FUTILE {
            self.hub.notice(2, format!("workers end as soon as they start ({reason}); no more attempts"));
            return;
        }
        self.hub.num_worker_restarts += 1;
        self.hub.notice(1, format!("worker-{child} ended ({reason}); another one takes its place"));
        self.start_worker();
    }

    pub(super) fn decide(&mut self, child: u32, fate: ChildFate) {
        let Some(worker) = self.workers.by_number.get_mut(&child) else { return };
        match fate {
            ChildFate::Useful => self.workers.futile = 0,
            ChildFate::Last | ChildFate::Dismissed => worker.stays = false,
            ChildFate::Replaced | ChildFate::Restarted => {
                let (port, is_fault) = (worker.port, fate == ChildFate::Replaced);
                if !is_fault {
                    self.workers.futile = 0;
                }
                self.lose(port, if is_fault { "it is in quarantine" } else { "it is restarted" }, is_fault);
            }
        }
    }

    /// Ends a worker without progress, also one that the page has invited; another one takes its place if the hub started it.
    pub(super) fn end_hung(&mut self, worker: u32) {
        let port = self.ports.iter().find(|(_, port)| port.peer == Some(worker)).map(|(id, _)| *id);
        port.into_iter().for_each(|port| self.lose(port, "it makes no progress", true));
    }

    /// Ends a run that no worker can sample for, if none is starting.
    pub(super) fn end_hopeless(&mut self) {
        let is_connected = |(child, _)| self.hub.peer_of_child(child).is_some();
        let expects_worker = !self.staying().all(is_connected);
        self.hub.sweep_hopeless(expects_worker);
        if expects_worker || self.workers.futile <= MAX_FUTILE {
            return;
        }
        let Some(run) = self.hub.state().filter(|run| !run.is_over()) else { return };
        if run.group.workers(self.now).next().is_none() {
            let last = run.last_failure().map_or_else(String::new, |failure| format!("; the last failure: {failure}"));
            self.end_run(RunEnd::Failed(format!("no worker can continue, none of them starts{last}")));
        }
    }
}
