use core::num::NonZeroU32;

use proptest::{
    collection::{btree_set, vec},
    prelude::*,
};

use super::*;
use crate::{
    batch::{NEW_OBS, OBS, REWARDS, T},
    column::{ColumnData, ColumnKey, RowShape},
};

const CONTEXT: ColumnKey<f32> = ColumnKey::new("ctx");
const START: TrajectoryStart = TrajectoryStart { eps_id: 0, agent_index: 0, env_id: 0, t: 0 };

fn views() -> ViewRequirements {
    let shifted = |column: &str, shift: &str| ViewRequirement::shifted(column, shift.parse().unwrap());
    ViewRequirements::from([
        ("obs".to_string(), ViewRequirement::default()),
        ("stack".to_string(), shifted("obs", "-2:0")),
        ("prev_actions".to_string(), shifted("actions", "-1")),
        ("state_in_0".to_string(), shifted("state_out_0", "-1")),
        ("t".to_string(), ViewRequirement::default()),
        ("new_obs".to_string(), shifted("obs", "1").only_for_training()),
    ])
}

fn batch() -> SampleBatch {
    let mut batch = SampleBatch::new()
        .with(OBS, ColumnData::scalars(vec![12.0, 13.0]))
        .and_then(|b| b.with(NEW_OBS, ColumnData::scalars(vec![13.0, 14.0])))
        .and_then(|b| b.with(T, ColumnData::scalars(vec![2, 3])))
        .unwrap();
    let stack = ColumnData::new(vec![10.0f32, 11.0, 12.0, 11.0, 12.0, 13.0], RowShape::vector(3));
    batch.insert("stack", stack.unwrap()).unwrap();
    batch.insert("actions", ColumnData::scalars(vec![7i64, 8])).unwrap();
    batch.insert("prev_actions", ColumnData::scalars(vec![6i64, 7])).unwrap();
    batch.insert("state_out_0", ColumnData::scalars(vec![0.5f32, 0.25])).unwrap();
    batch.insert("state_in_0", ColumnData::scalars(vec![1.0f32, 0.5])).unwrap();
    batch
}

fn float(batch: &SampleBatch, name: &'static str) -> Vec<f32> {
    batch.get(ColumnKey::<f32>::new(name)).unwrap().to_vec()
}

#[test]
fn after_the_last_row_the_new_is_the_current() {
    let input = single_step_input(&batch(), &views(), StepIndex::Last).unwrap();
    assert_eq!(float(&input, "obs"), [14.0]);
    assert_eq!(float(&input, "stack"), [12.0, 13.0, 14.0]);
    assert_eq!(float(&input, "state_in_0"), [0.25]);
    assert_eq!(input.get(ColumnKey::<i64>::new("prev_actions")).unwrap(), [8]);
    assert_eq!(input.get(T).unwrap(), [4]);
    assert!(input.column("new_obs").is_none());
}

#[test]
fn views_are_built_at_any_row() {
    let input = single_step_input(&batch(), &views(), StepIndex::At(0)).unwrap();
    assert_eq!(float(&input, "stack"), [10.0, 11.0, 12.0]);
    assert_eq!(float(&input, "state_in_0"), [1.0]);
    assert_eq!(input.get(ColumnKey::<i64>::new("prev_actions")).unwrap(), [6]);
}

#[test]
fn errors_name_what_is_missing() {
    let bare = SampleBatch::new().with(REWARDS, ColumnData::scalars(vec![1.0])).unwrap();
    let error = single_step_input(&bare, &views(), StepIndex::Last).unwrap_err();
    assert_eq!(error.to_string(), "the batch has no column 'new_obs'");
    let error = single_step_input(&bare, &views(), StepIndex::At(1)).unwrap_err();
    assert_eq!(error, ViewError::NoSuchStep { row: 1, steps: 1 });
    assert!(single_step_input(&SampleBatch::new(), &views(), StepIndex::Last).is_err());
}

fn shifted(column: &str, shift: &str) -> ViewRequirement {
    ViewRequirement::shifted(column, shift.parse().unwrap())
}

/// Splits a trajectory of observations 10, 11, … into fragments of these lengths, and returns the last one and the policy's
/// input at its end, which is the same before and after the fragment is built.
fn last_fragment(views: &ViewRequirements, fragments: &[usize]) -> (SampleBatch, SampleBatch) {
    let mut agent = AgentCollector::new(views.clone());
    agent.add_init_obs(START, &[("obs", ViewRow::from(&10.0f32))]).unwrap();
    let mut step = 0i64;
    let mut last = None;
    for &steps in fragments {
        for _ in 0..steps {
            step += 1;
            let obs = 10.0 + step as f32;
            agent
                .add_action_reward_next_obs(&[("new_obs", ViewRow::from(&obs)), ("actions", ViewRow::from(&step))])
                .unwrap();
        }
        let live = agent.build_for_inference().unwrap();
        let fragment = agent.build_for_training(0).unwrap().batch;
        assert_eq!(agent.build_for_inference().unwrap(), live);
        last = Some((fragment, live));
    }
    last.unwrap()
}

#[test]
fn shifts_are_met_by_whatever_shows_the_step_or_refused() {
    let not_held = [("-4:0:2", 1), ("-5", 2)];
    for (shift, steps) in [("-1", 1), ("-2:-1", 1), ("-3:-2", 2), ("-3:0", 2), ("-4:0:2", 2), ("-4:0:2", 3)] {
        let views = ViewRequirements::from([
            ("obs".to_string(), ViewRequirement::default()),
            ("new_obs".to_string(), ViewRequirement::default().only_for_training()),
            ("ctx".to_string(), shifted("obs", shift)),
        ]);
        let (fragment, live) = last_fragment(&views, &[steps]);
        let after = single_step_input(&fragment, &views, StepIndex::Last).unwrap();
        assert_eq!(after.get(CONTEXT).unwrap(), live.get(CONTEXT).unwrap(), "{shift} after {steps}");
    }
    for (shift, steps) in not_held {
        let views = ViewRequirements::from([
            ("new_obs".to_string(), shifted("obs", "1").only_for_training()),
            ("ctx".to_string(), shifted("obs", shift)),
        ]);
        let (fragment, _) = last_fragment(&views, &[steps]);
        let error = single_step_input(&fragment, &views, StepIndex::Last).unwrap_err();
        assert!(matches!(error, ViewError::NotInBatch { .. }), "{error}");
    }
}

/// Checks that only the collector knows the steps of earlier fragments.
#[test]
fn steps_of_earlier_fragments() {
    let views = ViewRequirements::from([
        ("actions".to_string(), ViewRequirement::default().only_for_training()),
        ("before".to_string(), shifted("actions", "-3")),
    ]);
    let (fragment, live) = last_fragment(&views, &[4, 2]);
    assert_eq!(live.get(ColumnKey::<i64>::new("before")).unwrap(), [4]);
    let error = single_step_input(&fragment, &views, StepIndex::Last).unwrap_err();
    let expected = ViewError::NotInBatch { view: "before".into(), data_col: "actions".into(), before: 3 };
    assert_eq!(error, expected);
}

#[test]
fn agent_that_cannot_act_is_recorded() {
    let views = ViewRequirements::from([("new_obs".to_string(), ViewRequirement::default())]);
    let mut agent = AgentCollector::new(views);
    assert_eq!(agent.build_for_training(0).unwrap().batch.len(), 0);
    agent.add_init_obs(START, &[("obs", ViewRow::from(&0.0f32))]).unwrap();
    agent.add_action_reward_next_obs(&[("new_obs", ViewRow::from(&1.0f32))]).unwrap();
    assert_eq!(agent.build_for_inference(), Err(ViewError::Future { view: "new_obs".into(), offset: 1 }));
    // The name alone identifies the column.
    assert_eq!(agent.build_for_training(0).unwrap().batch.get(NEW_OBS).unwrap(), [1.0]);
}

/// Five steps in sequences of two; the state after step `i` is `10 (i + 1)`, the initial one 100.
#[test]
fn states_within_sequences_and_zeros_behind_them() {
    let length = NonZeroU32::new(2).unwrap();
    let views = ViewRequirements::from([
        ("obs".to_string(), ViewRequirement::default()),
        ("new_obs".to_string(), shifted("obs", "1").only_for_training()),
        ("state_in_0".to_string(), ViewRequirement::state_in(0, length)),
        ("state_out_0".to_string(), ViewRequirement::default().only_for_training()),
    ]);
    let initial = Column::from(ColumnData::scalars(vec![100.0f32]));
    let mut agent = AgentCollector::recurrent(views.clone(), &[initial], length).unwrap();
    agent.add_init_obs(START, &[("obs", ViewRow::from(&0.0f32))]).unwrap();
    for i in 1..=5 {
        let (obs, state) = (i as f32, 10.0 * i as f32);
        let values = [("new_obs", ViewRow::from(&obs)), ("state_out_0", ViewRow::from(&state))];
        agent.add_action_reward_next_obs(&values).unwrap();
    }
    let batch = agent.build_for_training(0).unwrap().batch;
    let padded = batch.right_zero_pad(3).unwrap();
    for batch in [&batch, &padded] {
        for (step, state) in [100.0, 10.0, 20.0, 30.0, 40.0].into_iter().enumerate() {
            let input = single_step_input(batch, &views, StepIndex::At(step)).unwrap();
            assert_eq!((float(&input, "obs"), float(&input, "state_in_0")), (vec![step as f32], vec![state]));
        }
        let input = single_step_input(batch, &views, StepIndex::Last).unwrap();
        assert_eq!((float(&input, "obs"), float(&input, "state_in_0")), (vec![5.0], vec![50.0]));
        let error = single_step_input(batch, &views, StepIndex::At(5)).unwrap_err();
        assert_eq!(error, ViewError::NoSuchStep { row: 5, steps: 5 });
    }
}

#[test]
fn rows_without_elements_are_named() {
    let views = ViewRequirements::from([
        ("obs".to_string(), ViewRequirement::default()),
        ("actions".to_string(), ViewRequirement::default()),
    ]);
    let mut agent = AgentCollector::new(views);
    let nothing: [f32; 0] = [];
    let error = agent.add_init_obs(START, &[("obs", ViewRow::from(&nothing))]).unwrap_err();
    assert_eq!(error, ViewError::EmptyRows { name: "obs".into() });
    agent.add_init_obs(START, &[("obs", ViewRow::from(&1.0f32))]).unwrap();
    let values = [("new_obs", ViewRow::from(&1.0f32)), ("actions", ViewRow::from(&nothing))];
    let error = agent.add_action_reward_next_obs(&values).unwrap_err();
    assert_eq!(error, ViewError::EmptyRows { name: "actions".into() });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    /// Checks that any input after the last step equals the policy's actual input, or is an error.
    #[test]
    fn after_the_last_step_stands_what_the_policy_sees(
        fragments in vec(1usize..5, 1..4),
        obs in btree_set(-6i32..=0, 1..4),
        actions in btree_set(-6i32..=0, 1..4),
        window in 0i32..6,
        with_data in any::<bool>(),
    ) {
        let list = |data: &str, offsets: Vec<i32>| ViewRequirement::shifted(data, Shift::list(offsets).unwrap());
        let mut views = ViewRequirements::from([
            ("new_obs".to_string(), shifted("obs", "1").only_for_training()),
            ("t".to_string(), ViewRequirement::default()),
            ("eps_id".to_string(), ViewRequirement::default()),
            ("stack".to_string(), shifted("obs", &format!("-{window}:0"))),
        ]);
        let (fragment, live) = last_fragment(&views, &fragments);
        // Windows that end at the step itself are always in the batch.
        let input = single_step_input(&fragment, &views, StepIndex::Last);
        prop_assert_eq!(input.as_ref(), Ok(&live));
        views.insert("ctx".into(), list("obs", obs.into_iter().collect()));
        views.insert("before".into(), list("actions", actions.into_iter().collect()));
        if with_data {
            views.insert("obs".into(), ViewRequirement::default());
            views.insert("actions".into(), ViewRequirement::default().only_for_training());
        }
        let (fragment, live) = last_fragment(&views, &fragments);
        match single_step_input(&fragment, &views, StepIndex::Last) {
            Ok(input) => prop_assert_eq!(&input, &live),
            Err(error) => prop_assert!(matches!(error, ViewError::NotInBatch { .. }), "{error}"),
        }
    }
}
