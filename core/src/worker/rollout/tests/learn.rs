use super::super::test_support::*;
use crate::{
    batch::{ADVANTAGES, AnyBatch, MultiAgentBatch},
    callbacks::{CallbackError, Callbacks},
    ids::PolicyId,
    policy::LearnInfo,
    prelude::*,
    worker::{NewPolicy, PoliciesToTrain, RolloutConfig, RolloutError, RolloutWorker, SgdOptions},
};

fn config() -> RolloutConfig {
    RolloutConfig::default().rollout_fragment_length(6)
}

fn installed(worker: &mut RolloutWorker, id: &PolicyId) -> f32 {
    value_of(&worker.weights(None).unwrap()[id])
}

#[test]
fn only_trained_policies_learn() {
    let mut worker = counting(4, config()).build().unwrap();
    let (a, b) = (PolicyId::DEFAULT, PolicyId::new("b"));
    worker.add_policy(b.clone(), NewPolicy::named("mock"), None, Some([a.clone()].into())).unwrap();
    let rows = worker.sample().unwrap().single().unwrap().clone();
    let both: AnyBatch = MultiAgentBatch::new([(a.clone(), rows.clone()), (b.clone(), rows)].into(), 6).into();
    let infos = worker.learn_on_batch(&both).unwrap();
    assert_eq!(infos.into_iter().map(|(id, info)| (id, info["rows"])).collect::<Vec<_>>(), [(a.clone(), 6.0)]);
    assert_eq!((installed(&mut worker, &a), installed(&mut worker, &b)), (6.0, 0.0));
    // A predicate sees the batch.
    worker.set_is_policy_to_train(PoliciesToTrain::predicate(|id, batch| {
        batch.is_none_or(|batch| batch.env_steps() == 6) && *id == PolicyId::new("b")
    }));
    worker.learn_on_batch(&both).unwrap();
    assert_eq!((installed(&mut worker, &a), installed(&mut worker, &b)), (6.0, 6.0));
    assert_eq!(worker.policies_to_train(None), [b].into());
}

#[test]
fn gradients_are_computed_and_applied() {
    let mut worker = counting(4, config()).build().unwrap();
    let batch = worker.sample().unwrap();
    let gradients = worker.compute_gradients(&batch).unwrap();
    let (own, info) = &gradients[&PolicyId::DEFAULT];
    assert_eq!((value_of(&own.0), info["batch_count"]), (6.0, 6.0));
    assert_eq!(installed(&mut worker, &PolicyId::DEFAULT), 0.0);
    let gradients: BTreeMap<_, _> = gradients.into_iter().map(|(id, (gradients, _))| (id, gradients)).collect();
    worker.apply_gradients(&gradients).unwrap();
    assert_eq!(installed(&mut worker, &PolicyId::DEFAULT), -6.0);
    worker.set_is_policy_to_train(BTreeSet::new());
    assert_eq!(worker.apply_gradients(&gradients), Ok(BTreeMap::new()));
    assert_eq!(installed(&mut worker, &PolicyId::DEFAULT), -6.0);
    let unknown: BTreeMap<_, _> = gradients.into_values().map(|own| (PolicyId::new("x"), own)).collect();
    assert!(matches!(worker.apply_gradients(&unknown), Err(RolloutError::PolicyMap(_))));
}

#[test]
fn policies_that_only_act_say_so() {
    let config = RolloutConfig::new("CartPole-v1").rollout_fragment_length(5).single_policy("random");
    let mut worker = RolloutWorker::builder().config(config).build().unwrap();
    let batch = worker.sample().unwrap();
    let error = worker.learn_on_batch(&batch).unwrap_err().to_string();
    assert!(error.starts_with("policy 'default_policy': this policy does not learn"), "{error}");
}

#[test]
fn another_count_than_expected_changes_nothing() {
    let mut worker = counting(4, config()).build().unwrap();
    let error = worker.sample_and_learn(7, &SgdOptions::default()).unwrap_err();
    assert_eq!(error, RolloutError::Count { expected: 7, found: 6 });
    assert_eq!(installed(&mut worker, &PolicyId::DEFAULT), 0.0);
    let missing = SgdOptions { standardize_fields: vec!["nothing".into()], ..SgdOptions::default() };
    assert!(matches!(worker.sample_and_learn(6, &missing), Err(RolloutError::Batch(_))));
    assert_eq!(installed(&mut worker, &PolicyId::DEFAULT), 0.0);
}

/// Counts the rows that it was shown.
struct Shown(Arc<core::sync::atomic::AtomicU32>);

impl Callbacks for Shown {
    fn on_learn_on_batch(
        &mut self,
        _id: &PolicyId,
        batch: &mut crate::batch::SampleBatch,
        info: &mut LearnInfo,
    ) -> Result<(), CallbackError> {
        let rewards = batch.get(crate::batch::REWARDS).unwrap();
        assert!(rewards.iter().all(|reward| *reward == 0.0), "no reward differs, so all are standardised to 0");
        info.insert("seen".into(), 1.0);
        self.0.fetch_add(rewards.len() as u32, core::sync::atomic::Ordering::Relaxed);
        Ok(())
    }
}

#[test]
fn fields_are_standardised_over_the_whole_sample_and_passes_see_all_rows() {
    let rows = Arc::new(core::sync::atomic::AtomicU32::new(0));
    let config = RolloutConfig { num_envs: 2, ..config() };
    let mut worker = counting(4, config).callbacks(Box::new(Shown(rows.clone()))).build().unwrap();
    let options = SgdOptions { num_sgd_iter: 3, minibatch_size: 5, standardize_fields: vec!["rewards".into()] };
    let (infos, count) = worker.sample_and_learn(12, &options).unwrap();
    assert_eq!((count, rows.load(core::sync::atomic::Ordering::Relaxed)), (12, 36));
    // Batches of 5, 5 and 2 rows.
    let info = &infos[&PolicyId::DEFAULT];
    assert_eq!((info["rows"], info["seen"], installed(&mut worker, &PolicyId::DEFAULT)), (4.0, 1.0, 36.0));
}

#[test]
fn standardised_advantages_have_mean_0_and_deviation_1() {
    let config = RolloutConfig::new("CartPole-v1").rollout_fragment_length(50).fcnet_hiddens(&[4]);
    let mut worker = RolloutWorker::builder().config(config).build().unwrap();
    let mut batch = worker.sample().unwrap().single().unwrap().clone();
    let own = super::super::sgd::moments(&batch, "advantages").unwrap();
    super::super::sgd::standardize(&mut batch, "advantages", &[own]).unwrap();
    let values = batch.get(ADVANTAGES).unwrap();
    let mean = values.iter().sum::<f32>() / 50.0;
    let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f32>() / 50.0;
    assert!(mean.abs() < 1e-5 && (variance - 1.0).abs() < 1e-4, "{mean} {variance}");
}
