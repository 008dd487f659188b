use std::sync::Arc;

use rollmesh_core::{
    batch::{
        ACTIONS, ADVANTAGES, AnyBatch, EPS_ID, MultiAgentBatch, NEW_OBS, REWARDS, SampleBatch, T, TERMINATEDS,
        TRUNCATEDS, VF_PREDS,
    },
    callbacks::{CallbackList, PolicyMappingFn, WorkerInfo},
    column::{ColumnData, ColumnKey},
    env::RowsRef,
    ids::PolicyId,
    policy::{ActionInput, ActionOutput, Policy, PolicyError, PolicyMap, Postprocessing, RandomPolicy},
    postprocess::AdvantageConfig,
    sampler::{IoContext, SamplerHost},
    space::Space,
    time::Micros,
    weights::Weights,
};

use super::Preparation;

fn with_policies<R>(mut policies: PolicyMap, f: impl FnOnce(&mut SamplerHost<'_>) -> R) -> R {
    let mapping: PolicyMappingFn = Arc::new(|_, _, _, _| PolicyId::DEFAULT);
    f(&mut SamplerHost {
        worker: &WorkerInfo::default(),
        policies: &mut policies,
        mapping: &mapping,
        observation_fn: None,
        callbacks: &mut CallbackList::new(),
        clock: &|| Micros(0),
        interrupt: None,
    })
}

fn rows(actions: Vec<f64>) -> AnyBatch {
    let n = actions.len();
    SampleBatch::new()
        .with(ColumnKey::<f64>::new("actions"), ColumnData::scalars(actions))
        .and_then(|batch| batch.with(T, ColumnData::scalars((0..n as i64).collect())))
        .unwrap()
        .into()
}

fn box_context(config: &str) -> IoContext {
    let mut context = IoContext::new(WorkerInfo::default(), config.parse().unwrap(), None);
    context.normalize_actions = true;
    context.action_spaces = [(PolicyId::DEFAULT, Space::vector(&[-2.0], &[6.0]))].into();
    context
}

#[test]
fn actions_of_the_environment_become_those_of_policies() {
    let actions = |config: &str| {
        let preparation = Preparation::from_context(&box_context(config)).unwrap();
        let policies = PolicyMap::single(Box::new(RandomPolicy::new(2, 7)));
        let batch = with_policies(policies, |host| preparation.prepare(rows(vec![-2.0, 2.0, 10.0]), host)).unwrap();
        batch.single().unwrap().get(ColumnKey::<f32>::new("actions")).unwrap().to_vec()
    };
    // By default, actions count as recorded in the policies' form.
    assert_eq!(actions("{}"), [-2.0, 2.0, 10.0]);
    assert_eq!(actions(r#"{"actions_in_input_normalized": false}"#), [-1.0, 0.0, 2.0]);
    assert_eq!(actions(r#"{"clip_actions": true}"#), [-2.0, 2.0, 6.0]);
    let recorded = Preparation::from_context_or(&box_context("{}"), false).unwrap();
    assert!(recorded.normalize_actions);
    let said = box_context(r#"{"actions_in_input_normalized": true}"#);
    assert!(!Preparation::from_context_or(&said, false).unwrap().normalize_actions);
    assert_eq!(actions(r#"{"actions_in_input_normalized": false, "clip_actions": true}"#), [-1.0, 0.0, 1.0]);
    assert_eq!(actions(r#"{"actions_in_input_normalized": false, "normalize_actions": false}"#), [-2.0, 2.0, 10.0]);
}

#[test]
fn actions_of_unknown_spaces_are_an_error() {
    let mut context = box_context(r#"{"clip_actions": true}"#);
    context.action_spaces.clear();
    let preparation = Preparation::from_context(&context).unwrap();
    let policies = PolicyMap::single(Box::new(RandomPolicy::new(2, 7)));
    let error = with_policies(policies, |host| preparation.prepare(rows(vec![0.0]), host)).unwrap_err();
    assert!(error.to_string().contains("their space is not known"), "{error}");
    assert!(Preparation::from_context(&box_context(r#"{"clip_actions": 3}"#)).is_err());
}

#[test]
fn rows_without_policies_are_for_a_single_one() {
    let mut policies = PolicyMap::single(Box::new(RandomPolicy::new(2, 7)));
    policies.insert(PolicyId::new("other"), Box::new(RandomPolicy::new(2, 7)) as Box<dyn Policy>).unwrap();
    let preparation = Preparation::default();
    let error = with_policies(policies, |host| preparation.prepare(rows(vec![0.0]), host)).unwrap_err();
    assert!(error.to_string().contains("there are 2"), "{error}");
}

/// A policy whose value estimate is the observation itself.
struct Believer(RandomPolicy);

impl Policy for Believer {
    fn compute_actions(&mut self, _input: ActionInput<'_>, _out: ActionOutput<'_>) -> Result<(), PolicyError> {
        Ok(())
    }

    fn compute_values(&mut self, obs: RowsRef<'_>, _state: &[f32], values: &mut [f32]) -> Result<(), PolicyError> {
        let RowsRef::F32(obs) = obs else { return Err(PolicyError::Failed("floats only".into())) };
        values.copy_from_slice(obs);
        Ok(())
    }

    fn postprocessing(&self) -> Postprocessing {
        Postprocessing::Advantages(AdvantageConfig { gamma: 0.5, lambda: 1.0, use_gae: true, use_critic: true })
    }

    fn weights(&self) -> &Weights {
        self.0.weights()
    }

    fn set_weights(&mut self, weights: &Weights) -> Result<(), PolicyError> {
        self.0.set_weights(weights)
    }
}

#[test]
fn every_episode_is_postprocessed_by_itself() {
    let batch = SampleBatch::new()
        .with(EPS_ID, ColumnData::scalars(vec![1, 1, 2, 2]))
        .and_then(|batch| batch.with(REWARDS, ColumnData::scalars(vec![1.0; 4])))
        .and_then(|batch| batch.with(VF_PREDS, ColumnData::scalars(vec![0.0; 4])))
        .and_then(|batch| batch.with(NEW_OBS, ColumnData::scalars(vec![1.0, 2.0, 3.0, 8.0])))
        .and_then(|batch| batch.with(ACTIONS, ColumnData::scalars(vec![0; 4])))
        .and_then(|batch| batch.with(TERMINATEDS, ColumnData::scalars(vec![false, true, false, false])))
        .and_then(|batch| batch.with(TRUNCATEDS, ColumnData::scalars(vec![false; 4])))
        .unwrap();
    let preparation = Preparation { postprocess_inputs: true, ..Preparation::default() };
    let policies = || PolicyMap::single(Box::new(Believer(RandomPolicy::new(2, 0))));
    let done = with_policies(policies(), |host| preparation.prepare(batch.clone().into(), host)).unwrap();
    // The first one terminates; the second continues from an observation with value 8.
    assert_eq!(done.single().unwrap().get(ADVANTAGES).unwrap(), [1.5, 1.0, 3.5, 5.0]);

    // A step is missing in the second one: two pieces, the first of which continues from an observation with value 3.
    let gap = batch.clone().with(T, ColumnData::scalars(vec![0, 1, 0, 2])).unwrap();
    let done = with_policies(policies(), |host| preparation.prepare(gap.into(), host)).unwrap();
    assert_eq!(done.single().unwrap().get(ADVANTAGES).unwrap(), [1.5, 1.0, 2.5, 5.0]);

    let several = MultiAgentBatch::new([(PolicyId::new("a"), batch)].into(), 4);
    let error = with_policies(policies(), |host| preparation.prepare(several.into(), host)).unwrap_err();
    assert!(error.to_string().contains("single agents only"), "{error}");
}
