//! The learner on a thread of its own, so that an update never holds up a socket.

use std::{
    any::Any,
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    thread,
};

use rollmesh_core::{batch::SampleBatch, weights::Weights};
use tokio::sync::{mpsc, oneshot};

use super::{error::LearnError, stats::UpdateStats, update::Learner};

type UpdateResult = Result<(Weights, UpdateStats), LearnError>;

/// A handle to the learner's thread. When it is dropped, the thread finishes the update at hand and ends.
#[derive(Debug)]
pub struct LearnerThread {
    jobs: mpsc::UnboundedSender<Job>,
}

struct Job {
    batch: SampleBatch,
    reply: oneshot::Sender<UpdateResult>,
}

impl LearnerThread {
    /// Starts the thread.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub fn spawn(mut learner: Learner) -> io::Result<Self> {
        let (jobs, queue) = mpsc::unbounded_channel();
        thread::Builder::new().name("learner".into()).spawn(move || run(queue, |batch| learner.update(batch)))?;
        Ok(Self { jobs })
    }

    /// Hands over a train batch at once and gives the future of its update. Updates happen in the order of these
    /// calls, whether anybody waits for them or not.
    ///
    /// # Errors
    /// The future gives what [`Learner::update`] gives; [`LearnError::Panicked`] if it panicked, and
    /// [`LearnError::Gone`] ever after.
    pub fn submit(&self, batch: SampleBatch) -> impl Future<Output = UpdateResult> + Send + use<> {
        let (reply, result) = oneshot::channel();
        // Without a thread the job is dropped here, and its reply channel with it.
        let _ = self.jobs.send(Job { batch, reply });
        async { result.await.unwrap_or(Err(LearnError::Gone)) }
    }
}

fn run(mut queue: mpsc::UnboundedReceiver<Job>, mut update: impl FnMut(&SampleBatch) -> UpdateResult) {
    while let Some(Job { batch, reply }) = queue.blocking_recv() {
        let result = catch_unwind(AssertUnwindSafe(|| update(&batch)));
        let panicked = result.is_err();
        // Whoever asked may have lost interest.
        let _ = reply.send(result.unwrap_or_else(|panic| Err(LearnError::Panicked(message(&*panic)))));
        if panicked {
            // Half an update may have happened: nothing may be built on it.
            return;
        }
    }
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("no message").to_owned()
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::{super::test_support::*, *};
    use crate::learner::PpoConfig;

    fn learner() -> LearnerThread {
        LearnerThread::spawn(
            Learner::new(PpoConfig::default(), &discrete(2, 2), 1, &weights(2, &[4], 2), Device::Cpu).unwrap(),
        )
        .unwrap()
    }

    #[tokio::test]
    async fn updates_come_back_in_order() {
        let learner = learner();
        let (first, second) = (learner.submit(bandit(32, 1)), learner.submit(bandit(32, 2)));
        assert_eq!(second.await.unwrap().0.version().0, 2);
        assert_eq!(first.await.unwrap().0.version().0, 1);
    }

    #[tokio::test]
    async fn errors_travel_and_do_not_end_it() {
        let learner = learner();
        assert!(matches!(learner.submit(SampleBatch::new()).await, Err(LearnError::EmptyBatch)));
        assert!(learner.submit(bandit(32, 1)).await.is_ok());
    }

    #[tokio::test]
    async fn a_panic_becomes_an_error() {
        let (jobs, queue) = mpsc::unbounded_channel();
        let thread = thread::spawn(move || run(queue, |_| panic!("out of {}", "luck")));
        let learner = LearnerThread { jobs };
        let error = learner.submit(SampleBatch::new()).await.unwrap_err();
        assert_eq!(error.to_string(), "the learner panicked: out of luck");
        thread.join().unwrap();
        assert!(matches!(learner.submit(SampleBatch::new()).await, Err(LearnError::Gone)));
    }
}
