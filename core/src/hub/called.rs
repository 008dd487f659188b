//! Workers that the program calls itself, such as those of a worker group, as dashboards show them.

use super::{Hub, HubRun, PeerConnection, logs::HUB};
use crate::{
    group::RateMeter,
    prelude::*,
    protocol::{
        Message,
        message::{WorkerGone, WorkerRow},
    },
};

/// A worker that the program calls, and how fast it makes env steps.
#[derive(Debug)]
pub(super) struct ProgramWorker {
    row: WorkerRow,
    rate: RateMeter,
}

impl<C: PeerConnection, R: HubRun> Hub<C, R> {
    /// Returns a number that no peer has or will have, for a worker without a connection.
    pub fn number_without_peer(&mut self) -> u32 {
        self.next_peer += 1;
        self.next_peer - 1
    }

    /// Replaces the schema of the settings of runs, for dashboards that connect from now on.
    pub fn set_schema(&mut self, schema: String) {
        self.setup.schema = schema;
    }

    /// Replaces the rows of the workers that the program calls. A row without a kind is
    /// about a peer: its state, reason and env steps are shown in the peer's row. Others are shown as they are.
    pub fn show_called(&mut self, rows: Vec<WorkerRow>) {
        let (now, mut before) = (self.now, core::mem::take(&mut self.dashboards.called));
        for row in rows {
            let known = before.remove(&row.worker);
            // Env steps are counted from the worker's start: those before its first row have no known time.
            let (made, mut rate) =
                known.map_or_else(|| (row.env_steps, RateMeter::new(now)), |known| (known.row.env_steps, known.rate));
            rate.add(row.env_steps.saturating_sub(made), now);
            self.dashboards.called.insert(row.worker, ProgramWorker { row, rate });
        }
        for worker in before.into_values().filter(ProgramWorker::has_no_peer).map(|called| called.row.worker) {
            self.dashboards.forget_peer(worker);
            self.broadcast(&Message::WorkerGone(WorkerGone { worker }));
        }
    }

    /// Shows dashboards a notice of the program about these workers, which its user has seen.
    pub fn show_notice(&mut self, text: &str) {
        self.broadcast_notice(1, text);
        self.log(HUB, 1, text);
    }

    /// Merges the program's rows into those of peers.
    pub(super) fn with_called(&self, mut rows: Vec<WorkerRow>) -> Vec<WorkerRow> {
        let rate = |called: &ProgramWorker| called.rate.per_second(self.now) as f32;
        for row in &mut rows {
            if let Some(called) = self.dashboards.called.get(&row.worker) {
                let WorkerRow { state, reason, env_steps, .. } = called.row.clone();
                *row = WorkerRow { state, reason, env_steps, steps_per_s: rate(called), ..row.clone() };
            }
        }
        let others = self.dashboards.called.values().filter(|called| called.has_no_peer());
        rows.extend(others.map(|called| WorkerRow { steps_per_s: rate(called), ..called.row.clone() }));
        rows
    }
}

impl ProgramWorker {
    fn has_no_peer(&self) -> bool {
        !self.row.kind.is_empty()
    }
}
