use proptest::prelude::*;

use super::super::test_support::*;
use crate::{
    batch::{EPS_ID, T, UNROLL_ID},
    callbacks::{CallbackError, Callbacks},
    episode::GlobalVars,
    filter::FilterKind,
    ids::{PolicyId, SlotId},
    policy::Policy,
    prelude::*,
    sampler::{CountStepsBy, Position},
    time::Micros,
    worker::{
        NewPolicy, PoliciesToTrain, Registry, RolloutConfig, RolloutError, RolloutWorker, SamplerChoice, SgdOptions,
        WorkerPlace, WorkerStateError,
    },
};

fn config() -> RolloutConfig {
    RolloutConfig { policy_mapping_fn: Some("default".into()), ..RolloutConfig::default() }.rollout_fragment_length(6)
}

fn lived() -> RolloutWorker {
    let mut worker = counting(4, config()).build().unwrap();
    worker.set_weights(&by_id(&weight(3.0)), None, Some(5)).unwrap();
    worker.add_policy(PolicyId::new("p"), NewPolicy::named("mock"), None, Some([PolicyId::new("p")].into())).unwrap();
    let updates = [(PolicyId::new("p"), 4)].into();
    worker.set_global_vars(&GlobalVars { timestep: 77, num_grad_updates_per_policy: updates }, None).unwrap();
    worker.sample().unwrap();
    worker
}

#[test]
fn restored_worker_resumes_from_the_saved_state() {
    let mut saved = lived();
    let bytes = saved.save().unwrap();
    let mut restored = counting(4, config()).build().unwrap();
    restored.restore(&bytes).unwrap();
    assert_eq!(restored.save().unwrap(), bytes);
    assert_eq!(restored.weights(None).unwrap(), saved.weights(None).unwrap());
    assert_eq!(restored.global_vars(), saved.global_vars());
    assert_eq!(restored.policies_to_train(None), [PolicyId::new("p")].into());
    // In the middle of an episode.
    let (a, b) = (restored.sample().unwrap(), saved.sample().unwrap());
    assert!(a.single().unwrap().same_bits(b.single().unwrap()));
    assert_eq!(a.single().unwrap().get(T).unwrap()[0], 2);
    // The sequence number of the latest weights is restored, too.
    restored.set_weights(&by_id(&weight(9.0)), None, Some(5)).unwrap();
    assert_eq!(value_of(&restored.weights(None).unwrap()[&PolicyId::DEFAULT]), 3.0);
}

/// Counted by agent steps, a round of environments leaves fragments for the next sample.
#[test]
fn batches_that_wait_for_the_next_sample_are_part_of_the_state() {
    let worker = || {
        let count_steps_by = CountStepsBy::AgentSteps;
        let config = RolloutConfig { count_steps_by, ..RolloutConfig::new("RockPaperScissors-v0") };
        let config = config.num_envs(10).rollout_fragment_length(5).single_policy("random");
        RolloutWorker::from_config(config, &Registry::builtin(), WorkerPlace::LOCAL).unwrap()
    };
    let (mut saved, mut restored) = (worker(), worker());
    for _ in 0..7 {
        saved.sample().unwrap();
        restored.set_sampler_state(&saved.sampler_state().unwrap()).unwrap();
        let again = restored.sampler_state().unwrap();
        assert_eq!(again, saved.sampler_state().unwrap());
        assert_eq!(RolloutWorker::lost_episodes(&again), Some(0));
        for end in [1, again.len() / 2, again.len() - 1] {
            assert!(worker().set_sampler_state(&again[..end]).is_err(), "{end} bytes");
            assert_eq!(RolloutWorker::lost_episodes(&again[..end]), None);
        }
    }
    for _ in 0..7 {
        assert_eq!(restored.sample().unwrap(), saved.sample().unwrap());
    }
}

#[test]
fn filters_are_saved_with_what_is_not_flushed() {
    let filtered = || {
        let config = RolloutConfig { observation_filter: FilterKind::MeanStdFilter, ..config() };
        counting(4, config).build().unwrap()
    };
    let mut saved = filtered();
    saved.sample().unwrap();
    let bytes = saved.save().unwrap();
    let filters = saved.filters(false).unwrap();
    let mut restored = filtered();
    restored.restore(&bytes).unwrap();
    assert_eq!(restored.filters(false).unwrap(), filters);
    let batch = restored.sample().unwrap();
    let ids = |key| batch.single().unwrap().get(key).unwrap().to_vec();
    assert_eq!((ids(EPS_ID), ids(T)), (vec![1, 1, 2, 2, 2, 2], vec![2, 3, 0, 1, 2, 3]));
    let steps = |id: i64| id >> 32;
    assert_eq!(ids(UNROLL_ID).into_iter().map(steps).collect::<Vec<_>>(), [6, 6, 8, 8, 8, 8]);
    // Each observation is counted once.
    assert!(batch.single().unwrap().same_bits(saved.sample().unwrap().single().unwrap()));
    assert_eq!(restored.filters(false).unwrap(), saved.filters(false).unwrap());
}

#[test]
fn damaged_bytes_change_nothing() {
    let bytes = lived().save().unwrap();
    let mut worker = counting(4, config()).build().unwrap();
    let before = worker.save().unwrap();
    for at in 0..bytes.len() {
        for bit in [0, 3, 7] {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1 << bit;
            let error = worker.restore(&damaged).unwrap_err();
            assert!(matches!(error, RolloutError::State(_)), "byte {at}: {error}");
        }
        let error = worker.restore(&bytes[..at]).unwrap_err();
        assert!(matches!(error, RolloutError::State(_)), "length {at}: {error}");
    }
    let longer = [&bytes[..], &[0]].concat();
    assert_eq!(worker.restore(&longer), Err(WorkerStateError::Damaged.into()));
    assert_eq!(worker.restore(b"RMWS\x09"), Err(WorkerStateError::Version(9).into()));
    assert_eq!(worker.restore(b"PKL"), Err(WorkerStateError::NotAState.into()));
    assert_eq!(worker.save().unwrap(), before);
}

#[test]
fn failed_restore_names_the_policy_and_changes_nothing() {
    let mut saved = lived();
    let object = NewPolicy::object(Box::new(crate::policy::RandomPolicy::new(2, 0)));
    saved.add_policy(PolicyId::new("object"), object, None, None).unwrap();
    let bytes = saved.save().unwrap();
    let mut worker = counting(4, config()).build().unwrap();
    let before = worker.save().unwrap();
    let error = worker.restore(&bytes).unwrap_err().to_string();
    assert!(error.starts_with("policy 'object': ") && error.contains("no registered kind recreates it"), "{error}");
    assert_eq!(worker.save().unwrap(), before);
    // Once the policy exists, its state fits.
    let object = NewPolicy::object(Box::new(crate::policy::RandomPolicy::new(2, 0)));
    worker.add_policy(PolicyId::new("object"), object, None, None).unwrap();
    worker.restore(&bytes).unwrap();
    // Weights of another shape do not.
    let other = RolloutConfig::new("CartPole-v1").rollout_fragment_length(6);
    let mut other = RolloutWorker::builder().config(other).build().unwrap();
    let before = other.save().unwrap();
    assert!(other.restore(&lived().save().unwrap()).is_err());
    assert_eq!(other.save().unwrap(), before);
}

#[test]
fn a_function_that_says_what_is_trained_stays() {
    let mut saved = counting(4, config()).build().unwrap();
    saved.set_is_policy_to_train(PoliciesToTrain::predicate(|_, _| false));
    let mut restored = counting(4, config()).build().unwrap();
    restored.restore(&saved.save().unwrap()).unwrap();
    assert_eq!(restored.policies_to_train(None).len(), 1);
}

/// Implausibly large numbers of steps.
#[test]
fn forged_numbers_of_steps_are_refused() {
    let mut worker = counting(4, config()).build().unwrap();
    let state = crate::sampler::SlotState { episode: u32::MAX, ..Default::default() }.encode();
    for (next, steps) in [(u64::MAX, 0), (0, u64::MAX)] {
        let forged = Position::new(&(next, vec![(SlotId(0), steps, state.clone(), Vec::<f64>::new())]));
        assert!(worker.restore_sampler(Some(&forged)).is_err(), "{next} {steps}");
        assert_eq!(worker.sample().unwrap().env_steps(), 6);
    }
    // The largest episode number is valid.
    let last = |seen: Vec<f64>| Position::new(&(0u64, vec![(SlotId(0), 0u64, state.clone(), seen)]));
    // Statistics of a filter do not fit without one.
    assert!(worker.restore_sampler(Some(&last(vec![0.5]))).is_err());
    worker.restore_sampler(Some(&last(vec![]))).unwrap();
    let ids = worker.sample().unwrap().single().unwrap().get(EPS_ID).unwrap().to_vec();
    assert_eq!(ids, [i64::from(u32::MAX), i64::from(u32::MAX), i64::from(u32::MAX), i64::from(u32::MAX), 0, 0]);
}

/// The slot's state is damaged, not the list around it.
#[test]
fn damaged_state_of_a_slot_does_not_cost_the_sample_in_progress() {
    let mut worker = counting(4, config()).build().unwrap();
    assert_eq!(worker.sample_within(Micros(0)), Ok(None));
    let damaged = Position::new(&(0u64, vec![(SlotId(0), 0u64, vec![255u8; 3], Vec::<f64>::new())]));
    assert!(worker.restore_sampler(Some(&damaged)).is_err());
    assert_eq!((worker.sample().unwrap().env_steps(), worker.metrics().discarded_env_steps), (6, 0));
}

/// Rejects every policy but the first one.
struct Picky(bool);

impl Callbacks for Picky {
    fn on_create_policy(&mut self, _id: &PolicyId, _policy: &mut dyn Policy) -> Result<(), CallbackError> {
        if core::mem::replace(&mut self.0, true) {
            Err(CallbackError::new("on_create_policy", "no more"))
        } else {
            Ok(())
        }
    }
}

#[test]
fn a_callback_that_refuses_a_policy_changes_nothing() {
    let bytes = lived().save().unwrap();
    let mut worker = counting(4, config()).callbacks(Box::new(Picky(false))).build().unwrap();
    let before = worker.save().unwrap();
    assert!(matches!(worker.restore(&bytes), Err(RolloutError::Callback(_))));
    assert_eq!(worker.save().unwrap(), before);
}

/// Records the rows that policies learn from.
struct Rows(Arc<std::sync::Mutex<Vec<i64>>>);

impl Callbacks for Rows {
    fn on_learn_on_batch(
        &mut self,
        _id: &PolicyId,
        batch: &mut crate::batch::SampleBatch,
        _info: &mut crate::policy::LearnInfo,
    ) -> Result<(), CallbackError> {
        self.0.lock().unwrap().extend(batch.get(T).unwrap());
        Ok(())
    }
}

#[test]
fn a_restored_worker_shuffles_as_the_saved_one_would_have() {
    let rows = Arc::new(std::sync::Mutex::new(Vec::new()));
    let build = || {
        let config = RolloutConfig::default().rollout_fragment_length(64);
        let builder = counting(1_000, config).sampler(SamplerChoice::Episodic);
        builder.callbacks(Box::new(Rows(rows.clone()))).build().unwrap()
    };
    let options = SgdOptions { minibatch_size: 64, ..SgdOptions::default() };
    let order = |worker: &mut RolloutWorker| {
        worker.sample_and_learn(64, &options).unwrap();
        let rows = core::mem::take(&mut *rows.lock().unwrap());
        let first = rows.iter().min().copied().unwrap();
        rows.into_iter().map(|t| t - first).collect::<Vec<_>>()
    };
    let mut saved = build();
    let first = order(&mut saved);
    let bytes = saved.save().unwrap();
    let second = order(&mut saved);
    assert_ne!(first, second);
    let mut restored = build();
    restored.restore(&bytes).unwrap();
    assert_eq!(order(&mut restored), second);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// With a matching hash, as a malicious peer would write it.
    #[test]
    fn no_forged_state_panics(at in 5..400usize, byte in any::<u8>()) {
        let mut bytes = lived().save().unwrap();
        let end = bytes.len() - 16;
        bytes[5 + at % (end - 5)] = byte;
        let hash = crate::hash::bytes_hash(&bytes[..end]).0;
        bytes[end..].copy_from_slice(&hash);
        let _ = counting(4, config()).build().unwrap().restore(&bytes);
    }
}
