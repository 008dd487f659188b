use core::num::NonZeroU32;

use proptest::{collection::vec, prelude::*};

use super::*;
use crate::{
    batch::{EPS_ID, NEW_OBS, REWARDS, T},
    column::{ColumnData, ColumnKey, DType, RowShape},
    space::Space,
};

const START: TrajectoryStart = TrajectoryStart { eps_id: 70, agent_index: 3, env_id: 1, t: 0 };
const STACK: ColumnKey<f32> = ColumnKey::new("stack");
const PREV_ACTIONS: ColumnKey<i64> = ColumnKey::new("prev_actions");
const ACTIONS: ColumnKey<i64> = ColumnKey::new("actions");

fn views(list: &[(&str, &str, &str)]) -> ViewRequirements {
    let view = |&(name, column, shift): &(&str, &str, &str)| {
        (name.to_string(), ViewRequirement::shifted(column, shift.parse().unwrap()))
    };
    list.iter().map(view).collect()
}

fn step(agent: &mut AgentCollector, action: i64, obs: f32) -> Result<(), ViewError> {
    agent.add_action_reward_next_obs(&[
        ("actions", ViewRow::from(&action)),
        ("rewards", ViewRow::from(&(action as f32))),
        ("new_obs", ViewRow::from(&obs)),
    ])
}

fn started(views: ViewRequirements) -> AgentCollector {
    let mut agent = AgentCollector::new(views);
    agent.add_init_obs(START, &[("obs", ViewRow::from(&10.0f32))]).unwrap();
    agent
}

#[test]
fn views_continue_across_fragments() {
    let mut agent = started(views(&[
        ("stack", "obs", "-2:0"),
        ("prev_actions", "actions", "-1"),
        ("new_obs", "obs", "1"),
        ("unroll_id", "unroll_id", "0"),
    ]));
    for action in 0..5 {
        step(&mut agent, action, 11.0 + action as f32).unwrap();
    }
    let fragment = agent.build_for_training(4).unwrap().batch;
    let rows = [[10, 10, 10], [10, 10, 11], [10, 11, 12], [11, 12, 13], [12, 13, 14]];
    let expected: Vec<f32> = rows.iter().flatten().map(|&obs| obs as f32).collect();
    assert_eq!(fragment.get(STACK).unwrap(), expected);
    assert_eq!(fragment.data(STACK).unwrap().shape(), RowShape::vector(3));
    assert_eq!(fragment.get(PREV_ACTIONS).unwrap(), [0, 0, 1, 2, 3]);
    assert_eq!(fragment.get(NEW_OBS).unwrap(), [11.0, 12.0, 13.0, 14.0, 15.0]);
    assert_eq!(fragment.get(ColumnKey::<i64>::new("unroll_id")).unwrap(), [4; 5]);
    step(&mut agent, 5, 16.0).unwrap();
    let fragment = agent.build_for_training(5).unwrap().batch;
    assert_eq!(fragment.get(STACK).unwrap(), [13.0, 14.0, 15.0]);
    assert_eq!(fragment.get(PREV_ACTIONS).unwrap(), [4]);
    assert_eq!(fragment.get(NEW_OBS).unwrap(), [16.0]);
}

#[test]
fn beyond_the_end_are_zeros_and_repeats_take_every_nth_step() {
    let mut requirements = views(&[("fut", "actions", "1"), ("ctx", "obs", "-4:-1")]);
    requirements.get_mut("ctx").unwrap().batch_repeat_value = NonZeroU32::new(2).unwrap();
    let mut agent = started(requirements);
    for action in 1..=3 {
        step(&mut agent, action, 10.0 + action as f32).unwrap();
    }
    let fragment = agent.build_for_training(0).unwrap();
    assert_eq!(fragment.batch.get(ColumnKey::<i64>::new("fut")).unwrap(), [2, 3, 0]);
    let columns: Vec<_> = fragment.columns().collect();
    assert_eq!(columns[1].0, "ctx");
    let values = [10.0, 10.0, 10.0, 10.0, 10.0, 10.0, 10.0, 11.0];
    assert_eq!(columns[1].1.typed::<f32>().unwrap().values(), values);
    // The context of step 3, the first of the next fragment.
    step(&mut agent, 4, 14.0).unwrap();
    let fragment = agent.build_for_training(1).unwrap();
    assert_eq!(fragment.repeated[0].1.typed::<f32>().unwrap().values(), [10.0, 10.0, 11.0, 12.0]);
}

#[test]
fn ids_and_time_come_from_the_start() {
    let mut agent = AgentCollector::new(views(&[
        ("t", "t", "0"),
        ("prev_t", "t", "-1"),
        ("eps_id", "eps_id", "0"),
        ("agent_index", "agent_index", "0"),
        ("env_id", "env_id", "0"),
    ]));
    let late = TrajectoryStart { t: 5, ..START };
    agent.add_init_obs(late, &[("obs", ViewRow::from(&0.0f32))]).unwrap();
    assert_eq!(agent.build_for_inference().unwrap().get(T).unwrap(), [5]);
    step(&mut agent, 0, 1.0).unwrap();
    agent.add_action_reward_next_obs(&[("t", ViewRow::from(&9i64)), ("new_obs", ViewRow::from(&2.0f32))]).unwrap();
    let inference = agent.build_for_inference().unwrap();
    assert_eq!((inference.get(T).unwrap(), inference.get(EPS_ID).unwrap()), (&[10][..], &[70][..]));
    let fragment = agent.build_for_training(0).unwrap().batch;
    assert_eq!(fragment.get(T).unwrap(), [5, 9]);
    assert_eq!(fragment.get(ColumnKey::<i64>::new("prev_t")).unwrap(), [4, 5]);
    for (name, value) in [("eps_id", 70), ("agent_index", 3), ("env_id", 1)] {
        assert_eq!(fragment.column(name).unwrap().typed::<i64>().unwrap().values(), [value; 2]);
    }
}

#[test]
fn recurrent_policies_get_sequences_and_the_state_of_each() {
    let length = NonZeroU32::new(4).unwrap();
    let requirements = ViewRequirements::from([
        ("state_in_0".to_string(), ViewRequirement::state_in(0, length)),
        ("state_out_0".to_string(), ViewRequirement::default().only_for_training()),
    ]);
    let initial = Column::from(ColumnData::new(vec![0.5f32, 0.25], RowShape::vector(2)).unwrap());
    let mut agent = AgentCollector::recurrent(requirements, core::slice::from_ref(&initial), length).unwrap();
    agent.add_init_obs(START, &[("obs", ViewRow::from(&0u8))]).unwrap();
    let state_in = |batch: &SampleBatch| batch.get(ColumnKey::<f32>::new("state_in_0")).unwrap().to_vec();
    assert_eq!(state_in(&agent.build_for_inference().unwrap()), [0.5, 0.25]);
    for i in 1..=5u8 {
        let state = [f32::from(i), -f32::from(i)];
        agent
            .add_action_reward_next_obs(&[("state_out_0", ViewRow::from(&state)), ("new_obs", ViewRow::from(&i))])
            .unwrap();
    }
    assert_eq!(state_in(&agent.build_for_inference().unwrap()), [5.0, -5.0]);
    let fragment = agent.build_for_training(0).unwrap();
    assert_eq!(fragment.batch.seq_lens(), Some(&[4, 1][..]));
    assert_eq!(fragment.batch.len(), 5);
    assert_eq!(state_in(&fragment.batch), [0.5, 0.25, 4.0, -4.0]);
    let error = agent.add_action_reward_next_obs(&[("new_obs", ViewRow::from(&1u8))]).unwrap_err();
    assert_eq!(error, ViewError::MissingColumn { name: "state_out_0".into() });
    // A new trajectory starts with the initial state again.
    agent.add_init_obs(START, &[("obs", ViewRow::from(&0u8))]).unwrap();
    assert_eq!(state_in(&agent.build_for_inference().unwrap()), [0.5, 0.25]);
    let two_rows = Column::from(ColumnData::scalars(vec![0.0f32; 2]));
    let error = AgentCollector::recurrent(ViewRequirements::new(), &[initial, two_rows], length).unwrap_err();
    assert_eq!(error, ViewError::InitialState { index: 1 });
}

#[test]
fn nested_observations_have_views_of_their_parts() {
    let mut agent = AgentCollector::new(views(&[("stack", "obs", "-1:0")]));
    let (pos, pixels) = ([1.0f64, 2.0], [7u8]);
    agent.add_init_obs(START, &[("obs.pos", ViewRow::from(&pos)), ("obs.pixels", ViewRow::from(&pixels))]).unwrap();
    let pos = [3.0f64, 4.0];
    let error = agent.add_action_reward_next_obs(&[("new_obs.pos", ViewRow::from(&pos))]).unwrap_err();
    assert_eq!(error, ViewError::MissingColumn { name: "new_obs.pixels".into() });
    let values = [("new_obs.pos", ViewRow::from(&pos)), ("new_obs.pixels", ViewRow::from(&pixels))];
    agent.add_action_reward_next_obs(&values).unwrap();
    let row = agent.build_for_inference().unwrap();
    assert_eq!(row.column("stack.pos").unwrap().typed::<f64>().unwrap().values(), [1.0, 2.0, 3.0, 4.0]);
    assert_eq!(row.column("stack.pos").unwrap().shape().dims(), [2, 2]);
    assert_eq!(row.column("stack.pixels").unwrap().dtype(), Some(DType::U8));
}

#[test]
fn inference_refuses_future_rows_and_unknown_layouts() {
    let agent = started(views(&[("new_obs", "obs", "1")]));
    let error = agent.build_for_inference().unwrap_err();
    assert_eq!(
        error.to_string(),
        "view 'new_obs' reaches 1 steps into the future; set its used_for_compute_actions to false"
    );
    let mut requirements = views(&[("prev_actions", "actions", "-1")]);
    let agent = started(requirements.clone());
    let error = agent.build_for_inference().unwrap_err();
    assert_eq!(error, ViewError::UnknownLayout { view: "prev_actions".into(), data_col: "actions".into() });
    requirements.get_mut("prev_actions").unwrap().space = Some(Space::Discrete { n: 2 });
    let agent = started(requirements);
    assert_eq!(agent.build_for_inference().unwrap().get(PREV_ACTIONS).unwrap(), [0]);
}

#[test]
fn misuse_is_named_and_changes_nothing() {
    let requirements = views(&[("obs", "obs", "0"), ("actions", "actions", "0"), ("rewards", "rewards", "0")]);
    let mut agent = AgentCollector::new(requirements);
    assert_eq!(step(&mut agent, 0, 0.0).unwrap_err(), ViewError::NoInitialObs);
    assert_eq!(agent.build_for_inference().unwrap_err(), ViewError::NoInitialObs);
    let error = agent.add_init_obs(START, &[("actions", ViewRow::from(&0i64))]).unwrap_err();
    assert_eq!(error, ViewError::NotObs { name: "actions".into() });
    assert_eq!(agent.add_init_obs(START, &[]).unwrap_err(), ViewError::MissingColumn { name: "obs".into() });
    agent.add_init_obs(START, &[("obs", ViewRow::from(&0.0f32))]).unwrap();
    agent
        .add_action_reward_next_obs(&[("actions", ViewRow::from(&1i64)), ("new_obs", ViewRow::from(&1.0f32))])
        .unwrap();
    let error = step(&mut agent, 2, 2.0).unwrap_err();
    assert_eq!(error, ViewError::Unexpected { name: "rewards".into() });
    let wrong = [("actions", ViewRow::from(&1.0f32)), ("new_obs", ViewRow::from(&1.0f32))];
    let error = agent.add_action_reward_next_obs(&wrong).unwrap_err();
    assert_eq!(error.to_string(), "column 'actions' has rows int64(), not float32()");
    let error = agent.add_init_obs(START, &[("obs", ViewRow::from(&0.0f32))]).unwrap_err();
    assert_eq!(error, ViewError::Unbuilt { steps: 1 });
    let fragment = agent.build_for_training(0).unwrap().batch;
    assert_eq!((fragment.len(), fragment.get(ACTIONS).unwrap()), (1, &[1][..]));
    // Columns that postprocessing will add have no data yet.
    assert!(fragment.column("rewards").is_none());
    let error = agent.add_init_obs(START, &[("obs", ViewRow::from(&[0.0f32, 1.0]))]).unwrap_err();
    assert_eq!(error.to_string(), "column 'obs' has rows float32(), not float32(2)");
}

#[test]
fn buffers_do_not_grow_with_the_trajectory() {
    let mut agent = started(views(&[("stack", "obs", "-3:0"), ("prev_actions", "actions", "-2"), ("t", "t", "0")]));
    let mut sizes = Vec::new();
    for fragment in 0..50 {
        for action in 0..8 {
            step(&mut agent, action, 1.0).unwrap();
        }
        if fragment % 2 == 0 {
            agent.build_for_training(fragment).unwrap();
        } else {
            agent.forget_steps();
        }
        sizes.push(agent.series.iter().map(series::Series::capacity).sum::<usize>());
    }
    assert!(sizes[2..].iter().all(|&size| size == sizes[2]), "{sizes:?}");
    assert!(sizes[2] < 100, "{sizes:?}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// Checks for any division into fragments that the policy and the learner have the same views, and that both match the
    /// definition of the shift.
    #[test]
    fn acting_and_training_agree_with_the_definition(
        steps in vec((any::<bool>(), -5.0f32..5.0), 1..40),
        from in -5i32..=0,
        width in 0i32..4,
    ) {
        let to = (from + width).min(0);
        let shift = format!("{from}:{to}");
        let list = [("stack", "obs", &*shift), ("prev_actions", "actions", &shift), ("rewards", "rewards", "0")];
        let mut agent = started(views(&list));
        let known: Vec<f32> = core::iter::once(10.0).chain(steps.iter().map(|step| step.1)).collect();
        let (mut seen, mut seen_actions, mut built, mut built_actions) = (vec![], vec![], vec![], vec![]);
        for (i, &(cut, obs)) in steps.iter().enumerate() {
            if i > 0 {
                let row = agent.build_for_inference().unwrap();
                seen.extend_from_slice(row.get(STACK).unwrap());
                seen_actions.extend_from_slice(row.get(PREV_ACTIONS).unwrap());
            }
            step(&mut agent, i as i64 + 1, obs).unwrap();
            if cut || i + 1 == steps.len() {
                let fragment = agent.build_for_training(i as i64).unwrap().batch;
                built.extend_from_slice(fragment.get(STACK).unwrap());
                built_actions.extend_from_slice(fragment.get(PREV_ACTIONS).unwrap());
                prop_assert_eq!(fragment.get(REWARDS).unwrap().last(), Some(&(i as f32 + 1.0)));
            }
        }
        let offsets = (to - from + 1) as usize;
        for (i, row) in built.chunks(offsets).enumerate() {
            for (offset, &obs) in (from..=to).zip(row) {
                prop_assert_eq!(obs, known[(i as i32 + offset).max(0) as usize]);
            }
        }
        prop_assert_eq!(&seen[..], &built[offsets..]);
        for (i, row) in built_actions.chunks(offsets).enumerate() {
            for (j, (offset, &action)) in (from..=to).zip(row).enumerate() {
                prop_assert_eq!(action, i64::from((i as i32 + offset + 1).max(0)));
                // The action of the step itself is unknown when the policy chooses it.
                if i > 0 {
                    prop_assert_eq!(seen_actions[(i - 1) * offsets + j], if offset == 0 { 0 } else { action });
                }
            }
        }
    }
}
