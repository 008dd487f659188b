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

/// A handle to the learner's thread. When it is dropped, the thread finishes what it was asked for and ends.
#[derive(Debug)]
pub struct LearnerThread {
    jobs: mpsc::UnboundedSender<Job>,
}

/// Something for the learner to do; false if nothing may be built on it afterwards.
type Job = Box<dyn FnOnce(&mut Learner) -> bool + Send>;

impl LearnerThread {
    /// Starts the thread.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub fn spawn(mut learner: Learner) -> io::Result<Self> {
        let (jobs, mut queue) = mpsc::unbounded_channel::<Job>();
        thread::Builder::new().name("learner".into()).spawn(move || {
            while let Some(job) = queue.blocking_recv() {
                if !job(&mut learner) {
                    return;
                }
            }
        })?;
        Ok(Self { jobs })
    }

    /// Hands over a train batch at once and gives the future of its update. Updates happen in the order of these
    /// calls, whether anybody waits for them or not.
    ///
    /// # Errors
    /// The future gives what [`Learner::update`] gives; [`LearnError::Panicked`] if it panicked, and
    /// [`LearnError::Gone`] ever after.
    pub fn submit(&self, batch: SampleBatch) -> impl Future<Output = UpdateResult> + Send + use<> {
        let result = self.ask(move |learner| learner.update(&batch));
        async { result.await.unwrap_or(Err(LearnError::Gone)) }
    }

    /// What the learner has besides its weights, after all updates that were submitted. No answer if it is gone.
    pub(crate) fn state(&self) -> oneshot::Receiver<Result<Vec<u8>, LearnError>> {
        self.ask(|learner| learner.state())
    }

    fn ask<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Learner) -> Result<T, LearnError> + Send + 'static,
    ) -> oneshot::Receiver<Result<T, LearnError>> {
        let (reply, result) = oneshot::channel();
        let job = move |learner: &mut Learner| {
            let result = catch_unwind(AssertUnwindSafe(|| work(learner)));
            // After half an update nothing may be built on the learner.
            let is_sound = result.is_ok();
            // Whoever asked may have lost interest.
            let _ = reply.send(result.unwrap_or_else(|panic| Err(LearnError::Panicked(message(&*panic)))));
            is_sound
        };
        // Without a thread the job is dropped here, and its reply channel with it.
        let _ = self.jobs.send(Box::new(job));
        result
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
    async fn its_state_is_that_after_the_updates_before() {
        let learner = learner();
        let (update, state) = (learner.submit(bandit(32, 1)), learner.state());
        let later = learner.submit(bandit(32, 2));
        let state = state.await.unwrap().unwrap();
        assert_ne!(state, LearnerThread::state(&self::learner()).await.unwrap().unwrap());
        let (weights, _) = update.await.unwrap();
        let mut other = Learner::new(PpoConfig::default(), &discrete(2, 2), 1, &weights, Device::Cpu).unwrap();
        other.set_state(&state).unwrap();
        assert_eq!(other.update(&bandit(32, 2)).unwrap().0, later.await.unwrap().0);
    }

    #[tokio::test]
    async fn errors_travel_and_do_not_end_it() {
        let learner = learner();
        assert!(matches!(learner.submit(SampleBatch::new()).await, Err(LearnError::EmptyBatch)));
        assert!(learner.submit(bandit(32, 1)).await.is_ok());
    }

    #[tokio::test]
    async fn a_panic_becomes_an_error() {
        let learner = learner();
        let job = learner.ask(|_| -> Result<(), LearnError> { panic!("out of {}", "luck") });
        assert_eq!(job.await.unwrap().unwrap_err().to_string(), "the learner panicked: out of luck");
        assert!(matches!(learner.submit(SampleBatch::new()).await, Err(LearnError::Gone)));
    }
}
