//! The learning policies of a run, on a thread of their own, so that an update never blocks a socket.

use std::{
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::mpsc as std_mpsc,
    thread,
    time::Duration,
};

use tokio::sync::{mpsc, oneshot};

use super::{LearnError, Learners};
use crate::panics::panic_message;

/// A handle to the learner's thread. Dropping it ends the thread after its pending jobs.
#[derive(Debug)]
pub(crate) struct LearnerThread<L = Learners> {
    jobs: mpsc::UnboundedSender<LearnerJob<L>>,
    thread: thread::JoinHandle<()>,
    /// Disconnected once the thread has dropped all that it owns.
    ended: std_mpsc::Receiver<()>,
}

/// A job for the learner; returns false if the learner must not be used afterwards.
type LearnerJob<L> = Box<dyn FnOnce(&mut L) -> bool + Send>;

impl<L: Send + 'static> LearnerThread<L> {
    /// Starts the thread.
    ///
    /// # Errors
    /// The operating system's, if it does not start a thread.
    pub(crate) fn spawn(mut learners: L) -> io::Result<Self> {
        let (jobs, mut queue) = mpsc::unbounded_channel::<LearnerJob<L>>();
        let (end, ended) = std_mpsc::channel();
        let thread = thread::Builder::new().name("learner".into()).spawn(move || {
            while let Some(job) = queue.blocking_recv() {
                if !job(&mut learners) {
                    break;
                }
            }
            drop(learners);
            drop(end);
        })?;
        Ok(Self { jobs, thread, ended })
    }

    /// Waits for the pending jobs, and ends the thread.
    pub(crate) fn finish(self) {
        drop(self.jobs);
        // Jobs report their panics themselves.
        let _ = self.thread.join();
    }

    /// Waits in the same way for jobs that may hang: after `patience` the thread is abandoned.
    pub(crate) fn finish_within(self, patience: Duration) {
        drop(self.jobs);
        // The thread drops its end of the channel last.
        let _ = self.ended.recv_timeout(patience);
    }

    /// Runs a job on the learner after all earlier ones. Returns [`LearnError::Panicked`] if it panicked; later jobs get no
    /// answer.
    pub(crate) fn ask<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut L) -> Result<T, LearnError> + Send + 'static,
    ) -> oneshot::Receiver<Result<T, LearnError>> {
        let (reply, result) = oneshot::channel();
        let job = move |learners: &mut L| {
            let result = catch_unwind(AssertUnwindSafe(|| work(learners)));
            // After an incomplete update the learner must not be used.
            let is_sound = result.is_ok();
            // The receiver may be dropped.
            let _ = reply.send(result.unwrap_or_else(|panic| Err(LearnError::Panicked(panic_message(&*panic).into()))));
            is_sound
        };
        // Without a thread the job is dropped here, and its reply channel with it.
        let _ = self.jobs.send(Box::new(job));
        result
    }
}

impl LearnerThread {
    /// Returns the learner's state besides its weights, after all submitted updates. No answer if the thread has ended.
    pub(crate) fn state(&self) -> oneshot::Receiver<Result<Vec<u8>, LearnError>> {
        self.ask(|learners| Ok(learners.state()))
    }
}

#[cfg(test)]
mod tests {
    use rollmesh_core::{
        batch::{MultiAgentBatch, SampleBatch},
        callbacks::{CallbackList, WorkerInfo},
        config::Config,
        ids::PolicyId,
        kernels::Kernels,
        policy::{Policy, PolicyContext},
    };

    use super::{super::test_support::*, *};
    use crate::learner::{AlgorithmConfig, Learned, LearningPolicy, Results};

    type UpdateResult = Result<Learned, LearnError>;

    fn policy() -> Box<dyn Policy> {
        let context = PolicyContext { whole_batches: true, ..PolicyContext::new(discrete(2, 2), 1, Kernels::PORTABLE) };
        let algorithm = AlgorithmConfig::ppo(&Config::new()).unwrap();
        Box::new(LearningPolicy::for_context(&context, algorithm, candle_core::Device::Cpu).unwrap())
    }

    fn learner() -> LearnerThread {
        let policies = [(PolicyId::DEFAULT, policy())].into();
        let learners = Learners::new(policies, None, CallbackList::new(), WorkerInfo::default()).unwrap();
        LearnerThread::spawn(learners).unwrap()
    }

    fn submit(learner: &LearnerThread, batch: SampleBatch) -> impl Future<Output = UpdateResult> + use<> {
        submit_of(learner, PolicyId::DEFAULT, batch)
    }

    fn submit_of(
        learner: &LearnerThread,
        policy: PolicyId,
        batch: SampleBatch,
    ) -> impl Future<Output = UpdateResult> + use<> {
        let env_steps = batch.len();
        let batch = MultiAgentBatch::new([(policy, batch)].into(), env_steps);
        let update = learner.ask(move |learners| learners.learn(batch, Results::new()));
        async { update.await.unwrap_or(Err(LearnError::Gone)) }
    }

    #[tokio::test]
    async fn updates_are_applied_in_order_of_submission() {
        let learner = learner();
        let (first, second) = (submit(&learner, bandit(32, 1)), submit(&learner, bandit(32, 2)));
        assert_eq!(second.await.unwrap().weights.version().0, 2);
        assert_eq!(first.await.unwrap().weights.version().0, 1);
    }

    #[tokio::test]
    async fn state_is_that_after_the_updates_before() {
        let learner = learner();
        let (update, state) = (submit(&learner, bandit(32, 1)), learner.state());
        let later = submit(&learner, bandit(32, 2));
        let state = state.await.unwrap().unwrap();
        assert_ne!(state, LearnerThread::state(&self::learner()).await.unwrap().unwrap());
        let weights = update.await.unwrap().weights;
        let mut other = policy();
        other.set_weights(&weights).unwrap();
        other.set_extra_state(&state).unwrap();
        other.learn_on_batch(&bandit(32, 2)).unwrap();
        assert_eq!(other.weights(), &later.await.unwrap().weights);
    }

    #[tokio::test]
    async fn errors_travel_and_do_not_end_it() {
        let learner = learner();
        let stranger = submit_of(&learner, PolicyId::new("other"), bandit(32, 1));
        let error = stranger.await.expect_err("no policy has this name");
        assert!(error.to_string().contains("other"), "{error}");
        assert!(submit(&learner, bandit(32, 1)).await.is_ok());
    }

    #[tokio::test]
    async fn a_panic_becomes_an_error() {
        let learner = learner();
        let job = learner.ask(|_: &mut Learners| -> Result<(), LearnError> { panic!("out of {}", "luck") });
        assert_eq!(job.await.unwrap().unwrap_err().to_string(), "the learner panicked: out of luck");
        assert!(matches!(submit(&learner, SampleBatch::new()).await, Err(LearnError::Gone)));
    }
}
