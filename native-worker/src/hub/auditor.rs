//! Which workers a hub audits, and the consequences of a failed audit.

use rollmesh_core::{group::AuditPolicy, ids::FragmentNo, protocol::Phase};

use super::{actor::Actor, checkpoints::CheckpointNowError};
use crate::train::{Undone, Work};

/// Which workers a hub does not trust, and how it audits them.
///
/// Browser tabs are not trusted, nor are workers with a token that a page requested. Local workers are trusted. Other remote
/// workers are trusted unless [`distrust_remote`](Self::distrust_remote) is set.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Distrust {
    /// Which of their fragments the hub recomputes.
    pub audits: AuditPolicy,
    /// Whether to distrust all workers that are not the hub's own. Give each such worker a token of its own: if workers
    /// share the hub's own token, each principal is a single connection, and no token is revoked.
    pub distrust_remote: bool,
    /// What happens to a run after a failed audit.
    pub on_divergence: OnDivergence,
}

/// What happens to a run after an untrusted worker failed an audit and its token was revoked. A run that only samples always
/// continues, marked as tainted: its batches have been handed over and cannot be recalled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnDivergence {
    /// The run goes back to before the divergent worker's first unaudited fragment.
    #[default]
    RollBack,
    /// It continues, and its summary says that it is tainted.
    Continue,
}

impl Actor {
    /// Rolls the run back to before a batch.
    pub(super) fn roll_back(&mut self, FragmentNo(first): FragmentNo) {
        self.hub.forget_run();
        let Some(mut run) = self.hub.run.take() else { return };
        self.update = None;
        self.next_lease = run.state.group.next_lease_id();
        let (before, phase, undone) = (run.state.iteration(), run.state.phase(), run.undo(first));
        drop(run);
        let restarted = match undone {
            Ok(Undone { task, iteration, rejected }) => {
                self.hub.notice(
                    1,
                    format!("the run goes back from iteration {before} to {iteration}, before the rows of a quarantined principal"),
                );
                // This environment could be made before, so the hub does not wait for long.
                let parts = self.maker.make(task, Work::Learn);
                let started = parts.and_then(|parts| self.begin_run(None, parts)).map_err(|error| error.to_string());
                if let Some(run) = &mut self.hub.run {
                    run.state.group.count_taken_back(rejected);
                }
                started
            }
            Err(error) => Err(error),
        };
        match restarted {
            Ok(()) => self.be_again(phase),
            Err(error) => {
                self.hub.notice(2, format!("the run could not go back to before these rows, and is over: {error}"));
                self.run_is_lost();
            }
        }
    }

    /// Re-applies operators' commands (pause, stop, checkpoints) to a run that was rolled back.
    fn be_again(&mut self, phase: Phase) {
        self.askers.ask_again();
        let now = self.now();
        let now_paused =
            self.hub.run.as_mut().filter(|_| phase == Phase::Paused).map_or(Ok(()), |run| run.state.pause(now));
        debug_assert!(now_paused.is_ok(), "a run that has just begun can be paused");
        if phase == Phase::Draining {
            self.hub.drain_run();
        }
        self.save_if_due();
    }

    /// Cleans up after a run that was lost during a rollback and therefore has no summary.
    fn run_is_lost(&mut self) {
        self.done = None;
        // Commands for the lost run must not apply to the next one.
        self.hub.course.reset();
        self.turn = None;
        self.syncing.clear();
        self.refuse_checkpoints(CheckpointNowError::Ended);
        self.refresh_dashboards();
    }
}
