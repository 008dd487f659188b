//! The loop of an engine: executes commands on a thread, or in a process of its own.

use std::{
    sync::mpsc::{Receiver, RecvTimeoutError},
    time::{Duration, Instant},
};

use rollmesh_core::{
    eval_worker::{EvalCommand, EvalDone, EvalEngine, EvalMakers},
    evaluation::{EvalWorkerError, Ticket},
};

/// Rounds between two checks for commands.
const ROUNDS: u32 = 1;
/// Interval between two progress reports.
const PROGRESS: Duration = Duration::from_millis(50);

/// An engine's report.
#[derive(Debug)]
pub(super) enum EngineReport {
    /// This evaluation makes progress.
    Progress(Ticket),
    /// Environments and policy have been made.
    Ready,
    /// They could not be made, and the engine ends.
    Broken(EvalWorkerError),
    /// An evaluation is over.
    Done(EvalDone),
}

/// Makes environments and policy, whose init function has run, and executes commands until the sender is dropped. `report`
/// returns false once its receiver was dropped.
pub(super) fn run(
    makers: Result<EvalMakers, EvalWorkerError>,
    commands: &Receiver<EvalCommand>,
    report: impl Fn(EngineReport) -> bool,
) {
    let mut engine = match makers.and_then(|makers| EvalEngine::start(&makers)) {
        Ok(engine) => engine,
        Err(error) => {
            report(EngineReport::Broken(error));
            return;
        }
    };
    let mut listens = report(EngineReport::Ready);
    let mut reported_at = Instant::now();
    while listens {
        let patience = engine.playing().map_or(Duration::MAX, |_| Duration::ZERO);
        let command = match commands.recv_timeout(patience) {
            Ok(command) => Some(command),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        if let Some(done) = engine.work(command, ROUNDS) {
            listens = report(EngineReport::Done(done));
        } else if let Some(ticket) = engine.playing().filter(|_| reported_at.elapsed() >= PROGRESS) {
            reported_at = Instant::now();
            listens = report(EngineReport::Progress(ticket));
        }
    }
}
