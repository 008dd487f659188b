//! The evaluation engine: a loop around the core's engine, on a thread.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::mpsc::{Receiver, TryRecvError},
    time::{Duration, Instant},
};

use rollmesh_core::{
    eval_worker::{EvalDone, EvalEngine, EvalMakers, EvalOrder},
    evaluation::EvalWorkerError,
};

use crate::envs::words;

/// Rounds between two checks for orders.
const ROUNDS: u32 = 1;
/// Interval between two progress reports.
const PROGRESS: Duration = Duration::from_millis(50);

/// An engine's report.
#[derive(Debug)]
pub(super) enum Report {
    /// The engine makes progress.
    Progress,
    /// Environments and policy have been made.
    Ready,
    /// They could not be made, and the engine ends.
    Broken(EvalWorkerError),
    /// An evaluation is over.
    Done(EvalDone),
}

/// Executes orders until the sender is dropped. `report` returns false once its receiver is gone.
///
/// The init function runs first, then environment and policy are made.
pub(super) fn run(makers: &EvalMakers, orders: &Receiver<EvalOrder>, mut report: impl FnMut(Report) -> bool) {
    let made = caught("evaluation worker", || {
        makers.init()?;
        makers.evaluator().map(EvalEngine::new)
    });
    let mut engine = match made {
        Ok(engine) => engine,
        Err(error) => {
            report(Report::Broken(error));
            return;
        }
    };
    let mut listens = report(Report::Ready);
    let mut told = Instant::now();
    while listens {
        let playing = engine.playing();
        let order = if playing.is_none() {
            let Ok(order) = orders.recv() else { break };
            Some(order)
        } else {
            match orders.try_recv() {
                Ok(order) => Some(order),
                Err(TryRecvError::Empty) => None,
                Err(TryRecvError::Disconnected) => break,
            }
        };
        let about = match &order {
            Some(EvalOrder::Evaluate { ticket, .. }) => Some(*ticket),
            Some(EvalOrder::Cancel(_)) | None => playing,
        };
        let work = || Ok(order.and_then(|order| engine.obey(order)).or_else(|| engine.advance(ROUNDS)));
        let done = caught("evaluation", work).unwrap_or_else(|error| {
            // After a panic is reported, this engine is not used again.
            about.map(|ticket| EvalDone { ticket, result: Err(error) })
        });
        if let Some(done) = done {
            listens = report(Report::Done(done));
        } else if told.elapsed() >= PROGRESS {
            told = Instant::now();
            listens = report(Report::Progress);
        }
    }
    // A final error can no longer be reported.
    let _ = caught("environment", || engine.stop());
}

/// Converts a panic to an error.
fn caught<T>(part: &str, work: impl FnOnce() -> Result<T, EvalWorkerError>) -> Result<T, EvalWorkerError> {
    let work = catch_unwind(AssertUnwindSafe(work));
    work.unwrap_or_else(|panic| Err(EvalWorkerError::Failed(format!("the {part} {}", words(panic.as_ref())))))
}
