//! Guarantees of a call manager, situation by situation, and laws over all situations.

mod health;
mod laws;
mod situations;

use super::*;
use crate::worker::{CommandError, CommandErrorKind};

/// A request: to sample, to fail, or another one, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ask {
    Number(u32),
    Sample,
}

impl CallRequest for Ask {
    fn is_sample(&self) -> bool {
        *self == Self::Sample
    }

    fn reports_progress(&self) -> bool {
        *self == Self::Sample
    }
}

/// Ids of workers, and the results of their calls.
type Outcomes = Vec<(u32, Result<u32, CallError>)>;

/// A manager and its workers: each answers how many calls it has done, as in RLlib's tests, unless it fails or is silent.
struct Workers {
    calls: CallManager<Ask, u32>,
    done: BTreeMap<WorkerId, u32>,
    failing: BTreeSet<WorkerId>,
    silent: BTreeSet<WorkerId>,
    now: Micros,
}

impl Workers {
    fn new(count: u32) -> Self {
        Self::with(count, CallConfig::default())
    }

    fn with(count: u32, config: CallConfig) -> Self {
        let mut calls = CallManager::new(config);
        (0..count).for_each(|_| _ = calls.add_worker());
        let (done, failing, silent) = (BTreeMap::new(), BTreeSet::new(), BTreeSet::new());
        Self { calls, done, failing, silent, now: Micros(0) }
    }

    /// Lets all workers do the calls sent to them.
    fn work(&mut self) {
        while let Some(CallCommand { worker, call, .. }) = self.calls.poll_command() {
            if self.silent.contains(&worker) {
                continue;
            }
            let done = self.done.entry(worker).or_default();
            *done += 1;
            let result = if self.failing.contains(&worker) { Err(broken()) } else { Ok(*done) };
            self.calls.handle_result(worker, call, result, self.now);
        }
    }

    /// Starts calls, lets the workers do them, and returns the results.
    fn foreach(&mut self, what: ForEach<Ask>) -> Outcomes {
        let set = self.calls.foreach(what, self.now).unwrap();
        self.work();
        self.calls.handle_timeout(self.now);
        outcomes(self.calls.poll_results(set).expect("all have answered, or the time is up"))
    }

    fn healthy(&self) -> Vec<u32> {
        self.calls.healthy_worker_ids().map(|id| id.0).collect()
    }

    fn events(&mut self) -> Vec<String> {
        core::iter::from_fn(|| self.calls.poll_event()).map(|event| event.to_string()).collect()
    }

    /// Lets time pass.
    fn wait(&mut self, span: Micros) {
        self.now = self.now + span;
        self.calls.handle_timeout(self.now);
    }
}

fn broken() -> CommandError {
    CommandError::new(CommandErrorKind::Sample, "the environment is broken")
}

fn ask() -> ForEach<Ask> {
    ForEach::new(Ask::Number(0))
}

fn ids(ids: &[u32]) -> Vec<WorkerId> {
    ids.iter().map(|&id| WorkerId(id)).collect()
}

fn outcomes(results: Vec<CallResult<u32>>) -> Outcomes {
    results.into_iter().map(|result| (result.worker.0, result.result)).collect()
}

/// Returns the answers of workers that have all succeeded.
fn ok(answers: &[(u32, u32)]) -> Outcomes {
    answers.iter().map(|&(worker, answer)| (worker, Ok(answer))).collect()
}
