//! Errors on the thread are reported by the worker.

use rollmesh_core::{callbacks::CallbackError, policy::PolicyError};

use super::{
    changes::{set, weight_worker},
    *,
};

/// Samples until there is an error.
fn trouble(worker: &mut RolloutWorker) -> RolloutError {
    (0..20).find_map(|_| worker.sample().err()).unwrap()
}

#[test]
fn failing_policy_fails_the_sample_and_sampling_continues() {
    let mut worker = weight_worker();
    for _ in 0..2 {
        worker.sample().unwrap();
        set(&mut worker, -1.0);
        let source = PolicyError::Failed("less than nothing".into());
        let wanted = RolloutError::Sample(SampleError::Policy { id: PolicyId::DEFAULT, source });
        assert_eq!(trouble(&mut worker), wanted);
        // Every call reports it as long as it lasts, once per call.
        assert_eq!(worker.sample(), Err(wanted));
        set(&mut worker, 1.0);
        for _ in 0..10 {
            worker.sample().unwrap();
        }
    }
}

#[test]
fn a_panic_ends_the_thread_and_says_why() {
    let mut worker = weight_worker();
    worker.sample().unwrap();
    set(&mut worker, -2.0);
    let wanted = RolloutError::Sample(SampleError::Died("panicked: far less than nothing".into()));
    assert_eq!(trouble(&mut worker), wanted);
    assert_eq!(worker.sample(), Err(wanted.clone()));
    assert_eq!(wanted.to_string(), "the sampling thread has died: panicked: far less than nothing; make a new worker");
    assert_eq!(worker.foreach_env(|_| ()).len(), 0);
    worker.stop().unwrap();
    assert_eq!(worker.sample(), Err(RolloutError::Stopped));
}

/// Fails in every episode.
struct Fails;

impl Callbacks for Fails {
    fn on_episode_start(&mut self, _hook: &mut rollmesh_core::callbacks::EpisodeHook<'_>) -> Result<(), CallbackError> {
        Err(CallbackError::new("on_episode_start", "no"))
    }
}

#[test]
fn errors_of_hooks_come_here() {
    let mut worker = builder(on_a_thread(cartpoles())).callbacks(Box::new(Fails)).build().unwrap();
    let wanted = RolloutError::Sample(CallbackError::new("on_episode_start", "no").into());
    for _ in 0..3 {
        assert_eq!(worker.sample(), Err(wanted.clone()));
    }
    worker.stop().unwrap();
}

#[test]
fn policy_that_cannot_be_rebuilt_is_refused_before_sampling() {
    let object = NewPolicy::object(Box::new(RandomPolicy::new(2, 0)));
    let error = builder(on_a_thread(cartpoles())).policy(PolicyId::DEFAULT, object).build().unwrap_err();
    assert!(error.to_string().contains("give a registered kind or a PolicySpec"), "{error}");
}
