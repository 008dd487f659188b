use std::sync::Arc;

use rollmesh_core::{
    batch::{
        ACTIONS, ADVANTAGES, AnyBatch, BatchError, EPS_ID, MultiAgentBatch, NEW_OBS, REWARDS, SampleBatch, T,
        TERMINATEDS, TRUNCATEDS, VF_PREDS,
    },
    callbacks::{CallbackList, PolicyMappingFn, WorkerInfo},
    column::{Column, ColumnData, ColumnKey, DType, RowShape},
    env::RowsRef,
    ids::PolicyId,
    policy::{ActionInput, ActionOutput, Policy, PolicyEntry, PolicyError, PolicyMap, Postprocessing, RandomPolicy},
    postprocess::AdvantageConfig,
    preprocess::Preprocessor,
    sampler::{IoContext, SamplerHost},
    space::Space,
    time::Micros,
    weights::Weights,
};

use super::{ActionChange, Preparation};

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

#[test]
fn integers_of_bounded_boxes_count_from_zero_for_policies() {
    let space = Space::uniform(DType::I32, RowShape::vector(1), 3.0, 7.0);
    let rows = |actions: Vec<i64>| {
        SampleBatch::new().with(ACTIONS, ColumnData::new(actions, RowShape::vector(1)).unwrap()).unwrap()
    };
    let changed = |change: ActionChange, actions: Vec<i64>| {
        let mut rows = rows(actions);
        let has_clamped = change.apply(&mut rows, &space).unwrap();
        (rows.column("actions").and_then(Column::numbers).unwrap(), has_clamped)
    };
    assert_eq!(changed(ActionChange::ToEnv, vec![0, 4]), (vec![3.0, 7.0], false));
    assert_eq!(changed(ActionChange::ToEnv, vec![0, 5]), (vec![3.0, 8.0], false), "integers are not clamped");
    assert_eq!(changed(ActionChange::ToPolicy, vec![3, 7]), (vec![0.0, 4.0], false));
    assert_eq!(changed(ActionChange::Clip, vec![3, 8]), (vec![3.0, 7.0], true));
    let mut floats =
        SampleBatch::new().with(ColumnKey::<f64>::new("actions"), ColumnData::scalars(vec![-0.5, 1.5])).unwrap();
    assert_eq!(ActionChange::ToEnv.apply(&mut floats, &Space::vector(&[-2.0], &[2.0])), Ok(true));
    assert_eq!(floats.get(ColumnKey::<f32>::new("actions")).unwrap(), [-1.0, 2.0]);
    let missing = ActionChange::Clip.apply(&mut SampleBatch::new(), &space).unwrap_err();
    assert_eq!(missing.to_string(), BatchError::MissingColumn("actions".into()).to_string());
}

#[test]
fn actions_of_tuples_are_changed_within_their_column() {
    let integers = Space::uniform(DType::I32, RowShape::SCALAR, 3.0, 7.0);
    let parts = [Space::vector(&[-2.0], &[6.0]), Space::Discrete { n: 3 }, integers];
    let space = Space::tuple(parts).unwrap();
    let changed = |change: ActionChange, actions: Vec<f64>| {
        let data = ColumnData::new(actions, RowShape::vector(3)).unwrap();
        let mut rows = SampleBatch::new().with(ColumnKey::<f64>::new("actions"), data).unwrap();
        let has_clamped = change.apply(&mut rows, &space).unwrap();
        (rows.get(ColumnKey::<f64>::new("actions")).unwrap().to_vec(), has_clamped)
    };
    let (of_env, of_policy) = (vec![-2.0, 2.0, 3.0, 4.0, 1.0, 7.0], vec![-1.0, 2.0, 0.0, 0.5, 1.0, 4.0]);
    assert_eq!(changed(ActionChange::ToPolicy, of_env.clone()), (of_policy.clone(), false));
    assert_eq!(changed(ActionChange::ToEnv, of_policy), (of_env.clone(), false));
    assert_eq!(changed(ActionChange::Clip, of_env.clone()), (of_env, false));
    assert_eq!(changed(ActionChange::ToEnv, vec![1.5, 2.0, 0.0]), (vec![6.0, 2.0, 3.0], true));
    assert_eq!(changed(ActionChange::Clip, vec![7.0, 2.0, 3.0]), (vec![6.0, 2.0, 3.0], true));
}

#[test]
fn observations_are_encoded_for_the_policy_unless_they_are() {
    let space = Space::Discrete { n: 3 };
    let encoder = Preprocessor::for_space(&space).unwrap();
    let mut policies = PolicyMap::new();
    let entry = PolicyEntry::from(Box::new(RandomPolicy::new(2, 7)) as Box<dyn Policy>);
    policies.insert(PolicyId::new("p"), entry.with_preprocessor(Some(encoder))).unwrap();
    let preparation =
        Preparation { observation_spaces: [(PolicyId::new("p"), space)].into(), ..Preparation::default() };
    let one_hot = vec![0.0, 0.0, 1.0, 1.0, 0.0, 0.0];
    let own: Column = ColumnData::scalars(vec![2_i64, 0]).into();
    let encoded: Column = ColumnData::new(one_hot.clone(), RowShape::vector(3)).unwrap().into();
    let wide: Column = ColumnData::new(vec![0.0_f64; 8], RowShape::vector(4)).unwrap().into();
    let outside: Column = ColumnData::scalars(vec![3_i64, 0]).into();
    with_policies(policies, |host| {
        let mut prepared = |obs: &Column| {
            let mut rows = SampleBatch::new();
            rows.insert("obs", obs.clone()).unwrap();
            rows.insert("new_obs", obs.clone()).unwrap();
            let batch = preparation.prepare(rows.into(), host).map_err(|error| error.to_string())?;
            let rows = batch.single().unwrap();
            Ok::<_, String>((rows.get(NEW_OBS).unwrap().to_vec(), rows.column("obs").unwrap().shape()))
        };
        for obs in [own, encoded] {
            assert_eq!(prepared(&obs), Ok((one_hot.clone(), RowShape::vector(3))));
        }
        let error = prepared(&wide).unwrap_err();
        assert!(error.contains("'obs' has 4 numbers per row, observations in Discrete(3) have 1"), "{error}");
        assert!(prepared(&outside).unwrap_err().contains("column 'obs': bad observation"));
    });
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
