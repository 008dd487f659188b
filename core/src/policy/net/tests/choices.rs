//! Action masks, actions of several parts, and memories that see the previous step.

use super::*;

const ACTIONS: usize = 5;

/// Returns rows with masks that exclude some actions; at least one of `0..3` and one of `3..5` is possible.
fn masked_rows(rows: usize) -> Vec<f32> {
    let row = |i: usize| {
        let open = [
            i.is_multiple_of(3),
            i % 3 == 1,
            i % 3 == 2 || i.is_multiple_of(4),
            i.is_multiple_of(2),
            !i.is_multiple_of(2),
        ];
        open.map(|open| f32::from(u8::from(open))).into_iter().chain([(i as f32).sin(), (i as f32).cos()])
    };
    (0..rows).flat_map(row).collect()
}

fn masked(action: Space) -> EnvSpaces {
    let mask = Space::multi_binary(ACTIONS as u32).unwrap();
    EnvSpaces::with_usual_types(Space::dict([("action_mask", mask), ("observations", floats(2))]).unwrap(), action)
}

#[test]
fn masked_actions_are_never_chosen() {
    let rows = 600;
    let obs = masked_rows(rows);
    let plain: Vec<f32> = obs.chunks(ACTIONS + 2).flat_map(|row| row[ACTIONS..].to_vec()).collect();
    for action in [Space::Discrete { n: 5 }, Space::MultiDiscrete { nvec: vec![3, 2] }] {
        let spaces = masked(action.clone());
        let mut masking = policy(&spaces, &model(&[6], None));
        let seen = EnvSpaces { observation: floats(2), ..spaces };
        let mut free =
            NetPolicy::new(&seen, &model(&[6], None), masking.weights().clone(), 1, Kernels::PORTABLE).unwrap();
        for explore in [true, false] {
            let moments = moments(rows);
            let input = |obs| ActionInput { explore, ..ActionInput::new(RowsRef::F32(obs), &moments) };
            let (acted, unmasked) = (act(&mut masking, input(&obs)), act(&mut free, input(&plain)));
            assert_eq!(acted.values, unmasked.values);
            let distribution = ActionDistribution::for_space(&action).unwrap();
            for (row, mask) in obs.chunks(ACTIONS + 2).map(|row| &row[..ACTIONS]).enumerate() {
                let actions = &acted.actions[row * action.shape().elements()..][..action.shape().elements()];
                let first = |component: usize| if component == 0 { 0 } else { 3 };
                let is_open = actions.iter().enumerate().all(|(i, a)| mask[first(i) + *a as usize] == 1.0);
                assert!(is_open, "{actions:?} with {mask:?}");
                let inputs = |acted: &ActionOutputs| acted.dist_inputs[row * ACTIONS..][..ACTIONS].to_vec();
                let expected: Vec<f32> = inputs(&unmasked)
                    .iter()
                    .zip(mask)
                    .map(|(x, m)| if *m == 0.0 { MASKED_LOGIT } else { *x })
                    .collect();
                assert_eq!(inputs(&acted), expected);
                let point = match actions {
                    [one] => Point::from(*one as i64),
                    more => more.iter().map(|a| *a as i64).collect::<Vec<_>>().into(),
                };
                let logp = distribution.logp(&expected, &point).unwrap();
                assert!((logp - acted.logp[row]).abs() < 1e-5, "{logp} {}", acted.logp[row]);
            }
        }
    }
}

#[test]
fn masks_that_allow_nothing_or_do_not_fit_are_refused() {
    let mut policy = policy(&masked(Space::MultiDiscrete { nvec: vec![3, 2] }), &model(&[3], None));
    let obs = [[0.0, 1.0, 0.0, 1.0, 0.0, 0.5, 0.5], [1.0, 0.0, 0.0, 0.0, 0.0, 0.5, 0.5]].concat();
    let (mut actions, mut logp, mut values) = ([0; 4], [0.0; 2], [0.0; 2]);
    let out = ActionOutput::new(RowsMut::I64(&mut actions), &mut logp, &mut values);
    let error = policy.compute_actions(ActionInput::new(RowsRef::F32(&obs), &moments(2)), out).unwrap_err().to_string();
    assert_eq!(error, "the policy takes action masks that allow at least one action, not one of zeros in row 1");
    // A value needs no action.
    policy.compute_values(RowsRef::F32(&obs), &[], &mut values).unwrap();

    let error = |action| ModelSpec::for_spaces(&masked(action), &model(&[3], None)).unwrap_err().to_string();
    assert_eq!(
        error(Space::Discrete { n: 4 }),
        "the policy takes an action_mask of 4 numbers, one for each choice of Discrete(4), not MultiBinary(5)"
    );
    assert!(error(floats(2)).starts_with("the policy takes action_mask for discrete actions, not for Box("));
}

#[test]
fn parts_of_an_action_draw_in_order() {
    let parts = [("b", Space::MultiBinary { n: 2 }), ("a", floats(2)), ("c", Space::Discrete { n: 3 })];
    for action in [Space::dict(parts.clone()).unwrap(), Space::tuple(parts.map(|(_, part)| part)).unwrap()] {
        let spaces = EnvSpaces::with_usual_types(floats(4), action.clone());
        let mut policy = policy(&spaces, &model(&[6], None));
        let (obs, moments) = (numbers(4 * 40), moments(40));
        let distribution = ActionDistribution::for_space(&action).unwrap();
        assert_eq!(policy.dist_inputs_len(), distribution.input_len());
        for explore in [true, false] {
            let acted = act(&mut policy, ActionInput { explore, ..ActionInput::new(RowsRef::F32(&obs), &moments) });
            for (row, m) in moments.iter().enumerate() {
                let inputs = &acted.dist_inputs[row * 9..][..9];
                let mut rng = Streams::new(1, Purpose::Action).at(m.slot, m.episode, m.t, m.agent);
                let drawn =
                    if explore { distribution.sample(inputs, &mut rng) } else { distribution.deterministic(inputs) };
                let (point, logp) = drawn.unwrap();
                let mut numbers: Vec<f64> = Vec::new();
                leaves(&point, &mut numbers);
                assert_eq!(&acted.actions[row * 5..][..5], numbers, "{action}");
                assert!((acted.logp[row] - logp).abs() < 1e-5, "{} {logp}", acted.logp[row]);
            }
        }
    }
}

fn leaves(point: &Point, out: &mut Vec<f64>) {
    match point {
        Point::Tuple(parts) => parts.iter().for_each(|part| leaves(part, out)),
        Point::Dict(parts) => parts.values().for_each(|part| leaves(part, out)),
        Point::F32(values) => out.extend(values.iter().map(|x| f64::from(*x))),
        Point::I64(values) => out.extend(values.iter().map(|x| *x as f64)),
        Point::U8(values) => out.extend(values.iter().map(|x| f64::from(*x))),
        other => panic!("{other:?}"),
    }
}

#[test]
fn memories_see_the_previous_step_at_the_end_of_their_state() {
    for memory in ["use_lstm", "use_gru"] {
        let model = format!(
            r#"{{"fcnet_hiddens": [4], "{memory}": true, "lstm_cell_size": 3, "gru_cell_size": 3,
                "lstm_use_prev_action": true, "lstm_use_prev_reward": true}}"#
        );
        let spaces = spaces(floats(2), Space::MultiDiscrete { nvec: vec![2, 3] });
        let mut policy = policy(&spaces, &serde_json::from_str(&model).unwrap());
        let own = if memory == "use_lstm" { 6 } else { 3 };
        assert_eq!((policy.net.state_len, policy.state_lens().last()), (own + 6, Some(&6)));
        assert!(policy.view_requirements().len() == policy.state_lens().len());
        let mut state = vec![0.25; own + 6];
        let obs = [0.5, -0.5];
        let acted = |policy: &mut NetPolicy, state: &[f32]| {
            act(policy, ActionInput { state, ..ActionInput::new(RowsRef::F32(&obs), NOW) })
        };
        let first = acted(&mut policy, &state);
        // The chosen action, and no reward yet.
        let mut one_hot = [0.0; 6];
        one_hot[first.actions[0] as usize] = 1.0;
        one_hot[2 + first.actions[1] as usize] = 1.0;
        assert_eq!(first.state[own..], one_hot);
        state[own + 5] = 1.0;
        assert_ne!(acted(&mut policy, &state).values, first.values);
    }
    let error = ModelSpec::new(&serde_json::from_str(r#"{"lstm_use_prev_reward": true}"#).unwrap(), &[2], 2);
    assert!(error.unwrap_err().to_string().ends_with("gated recurrent units, not a model without memory"));
}
