//! What evaluates: a loop around the core's engine, in a thread.

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

/// Rounds between two looks at what else is wanted.
const ROUNDS: u32 = 1;
/// How often it is told that there is progress.
const PROGRESS: Duration = Duration::from_millis(50);

/// What an engine tells.
#[derive(Debug)]
pub(super) enum Report {
    /// Something moves.
    Progress,
    /// Environments and policy are there.
    Ready,
    /// They are not, and the engine ends.
    Broken(EvalWorkerError),
    /// An evaluation is over.
    Done(EvalDone),
}

/// Evaluates what it is told until nobody tells anything any more. `report` is false once nobody listens.
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
            // Whoever is told of a panic has no more use for this engine.
            about.map(|ticket| EvalDone { ticket, result: Err(error) })
        });
        if let Some(done) = done {
            listens = report(Report::Done(done));
        } else if told.elapsed() >= PROGRESS {
            told = Instant::now();
            listens = report(Report::Progress);
        }
    }
    // Whoever does not stop has nobody left to tell.
    let _ = caught("environment", || engine.stop());
}

/// A panic is an error.
fn caught<T>(part: &str, work: impl FnOnce() -> Result<T, EvalWorkerError>) -> Result<T, EvalWorkerError> {
    let work = catch_unwind(AssertUnwindSafe(work));
    work.unwrap_or_else(|panic| Err(EvalWorkerError::Failed(format!("the {part} {}", words(panic.as_ref())))))
}
