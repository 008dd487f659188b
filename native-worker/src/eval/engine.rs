//! What evaluates: a loop in a thread, or in a process of its own.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::mpsc::{Receiver, RecvError, TryRecvError},
    time::{Duration, Instant},
};

use rollmesh_core::{
    evaluation::{Evaluation, EvaluationRequest, Ticket},
    weights::Weights,
};

use super::{EvalMakers, EvalWorkerError};
use crate::envs::words;

/// Rounds between two looks at what else is wanted.
const ROUNDS: u32 = 1;
/// How often it is told that there is progress.
const PROGRESS: Duration = Duration::from_millis(50);

/// What an engine is told.
#[derive(Debug)]
pub(super) enum Order {
    /// An evaluation, with other weights if there are some.
    Evaluate { ticket: Ticket, weights: Option<Weights>, request: EvaluationRequest },
    /// This evaluation is not wanted any more.
    Cancel(Ticket),
}

/// What an engine tells.
#[derive(Debug)]
pub(super) enum Report {
    /// Something moves.
    Progress,
    /// Environments and policy are there.
    Ready,
    /// They are not, and the engine ends.
    Broken(EvalWorkerError),
    /// An evaluation is over; none if it was cancelled.
    Done(Ticket, Result<Option<Evaluation>, EvalWorkerError>),
}

/// Evaluates what it is told until nobody tells anything any more. `report` is false once nobody listens.
///
/// The init function runs first, then `begin`, then there are environment and policy.
pub(super) fn run(
    makers: &EvalMakers,
    orders: &Receiver<Order>,
    begin: impl FnOnce(),
    mut report: impl FnMut(Report) -> bool,
) {
    let made = caught("evaluation worker", || {
        makers.init()?;
        begin();
        makers.evaluator()
    });
    let mut evaluator = match made {
        Ok(evaluator) => evaluator,
        Err(error) => {
            report(Report::Broken(error));
            return;
        }
    };
    if !report(Report::Ready) {
        return;
    }
    let mut next = None;
    loop {
        let order = next.take().map_or_else(|| orders.recv(), Ok);
        let (ticket, weights, request) = match order {
            Ok(Order::Evaluate { ticket, weights, request }) => (ticket, weights, request),
            Ok(Order::Cancel(_)) => continue,
            Err(RecvError) => break,
        };
        let mut told = Instant::now();
        let result = caught("evaluation", || {
            if let Some(weights) = weights {
                evaluator.set_weights(&weights).map_err(EvalWorkerError::failed)?;
            }
            evaluator.begin(request).map_err(EvalWorkerError::failed)?;
            loop {
                if let Some(found) = evaluator.advance(ROUNDS).map_err(EvalWorkerError::failed)? {
                    return Ok(Some(found));
                }
                match orders.try_recv() {
                    Ok(Order::Cancel(cancelled)) if cancelled == ticket => break,
                    Ok(Order::Cancel(_)) | Err(TryRecvError::Empty) => {}
                    Ok(order @ Order::Evaluate { .. }) => {
                        // Nobody asks for another one before this is cancelled.
                        next = Some(order);
                        break;
                    }
                    Err(TryRecvError::Disconnected) => break,
                }
                if told.elapsed() >= PROGRESS {
                    told = Instant::now();
                    if !report(Report::Progress) {
                        break;
                    }
                }
            }
            evaluator.cancel();
            Ok(None)
        });
        if !report(Report::Done(ticket, result)) {
            break;
        }
    }
    // Whoever does not stop has nobody left to tell.
    let _ = caught("environment", || evaluator.stop().map_err(EvalWorkerError::failed));
}

/// A panic is an error.
fn caught<T>(part: &str, work: impl FnOnce() -> Result<T, EvalWorkerError>) -> Result<T, EvalWorkerError> {
    let work = catch_unwind(AssertUnwindSafe(work));
    work.unwrap_or_else(|panic| Err(EvalWorkerError::Failed(format!("the {part} {}", words(panic.as_ref())))))
}
