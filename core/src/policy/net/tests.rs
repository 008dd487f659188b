//! Policies of all models and spaces.

mod choices;
mod custom;

use proptest::{collection::vec, prelude::*};

use super::*;
use crate::{
    batch::state_out,
    column::{ColumnData, ColumnKey},
    distribution::{ActionDistribution, DiagGaussian, Distribution as _},
    env::{Moment, RowsMut},
    ids::SlotId,
    kernels::nets::Activation,
    rng::{Purpose, Streams},
    space::Point,
    view::{AgentCollector, TrajectoryStart, ViewRow},
    weights::Tensor,
};

fn spaces(observation: Space, action: Space) -> EnvSpaces {
    let dtype = |space: &Space| match space {
        Space::Box(space) => space.dtype(),
        Space::MultiBinary { .. } => DType::U8,
        _ => DType::I64,
    };
    let (observation_type, action_type) = (dtype(&observation), dtype(&action));
    EnvSpaces { observation, observation_type, action, action_type }
}

fn floats(len: usize) -> Space {
    Space::vector(&vec![-9.0; len], &vec![9.0; len])
}

fn model(hidden: &[u32], cells: Option<u32>) -> ModelConfig {
    let lstm_cell_size = cells.and_then(NonZeroU32::new).unwrap_or(NonZeroU32::MIN);
    ModelConfig { fcnet_hiddens: hidden.to_vec(), use_lstm: cells.is_some(), lstm_cell_size, ..ModelConfig::default() }
}

/// Creates a policy with larger weights than the first ones, so that rows differ.
fn policy(spaces: &EnvSpaces, model: &ModelConfig) -> NetPolicy {
    let weights = ModelSpec::for_spaces(spaces, model).unwrap().init_weights(3).unwrap();
    let tensors = weights.tensors().iter().cloned().map(|mut tensor| {
        tensor.values.iter_mut().enumerate().for_each(|(i, w)| *w = *w * 3.0 + (i % 3) as f32 * 0.2);
        tensor
    });
    let weights = Weights::new(weights.version(), tensors.collect()).unwrap();
    NetPolicy::new(spaces, model, weights, 1, Kernels::PORTABLE).unwrap()
}

const NOW: &[Moment] = &[Moment { slot: SlotId(0), episode: 0, t: 0, agent: 0 }];

fn moments(rows: usize) -> Vec<Moment> {
    (0..rows as u32).map(|i| Moment { slot: SlotId(i), episode: 2, t: 5, agent: 1 }).collect()
}

/// All outputs of a policy for some rows.
#[derive(Clone, Debug, PartialEq)]
struct ActionOutputs {
    actions: Vec<f64>,
    logp: Vec<f32>,
    values: Vec<f32>,
    state: Vec<f32>,
    dist_inputs: Vec<f32>,
}

fn act(policy: &mut NetPolicy, input: ActionInput<'_>) -> ActionOutputs {
    macro_rules! act {
        ($ty:ty, $rows:path) => {{
            let (rows, state_len) = (input.moments.len(), policy.net.state_len);
            let mut actions: Vec<$ty> = vec![Default::default(); rows * policy.net.head.action_len()];
            let (mut logp, mut values, mut state) = (vec![9.0; rows], vec![9.0; rows], vec![9.0; rows * state_len]);
            let mut dist_inputs = vec![9.0; rows * policy.dist_inputs_len()];
            let out = ActionOutput {
                state: &mut state,
                dist_inputs: &mut dist_inputs,
                ..ActionOutput::new($rows(&mut actions), &mut logp, &mut values)
            };
            policy.compute_actions(input, out).unwrap();
            let actions = actions.iter().map(|x| crate::column::Element::to_f64(*x)).collect();
            ActionOutputs { actions, logp, values, state, dist_inputs }
        }};
    }
    match policy.action_type {
        DType::F32 => act!(f32, RowsMut::F32),
        DType::F64 => act!(f64, RowsMut::F64),
        DType::I32 => act!(i32, RowsMut::I32),
        DType::I64 => act!(i64, RowsMut::I64),
        DType::U8 => act!(u8, RowsMut::U8),
        DType::Bool => act!(bool, RowsMut::Bool),
    }
}

fn action_spaces() -> Vec<Space> {
    vec![
        Space::Discrete { n: 5 },
        Space::MultiDiscrete { nvec: vec![3, 2] },
        Space::MultiBinary { n: 3 },
        Space::uniform(DType::I32, RowShape::vector(2), -1.0, 2.0),
        Space::vector(&[-2.0, 0.0], &[2.0, 1.0]),
        Space::uniform(DType::F64, RowShape::vector(1), -1.0, 1.0),
    ]
}

/// Creates policies for all kinds of actions, with and without memory.
fn policies() -> Vec<(Space, NetPolicy)> {
    let models = [model(&[7, 5], None), model(&[6], Some(5)), model(&[], Some(3)), model(&[], None)];
    let make = |action: Space| {
        let spaces = spaces(floats(4), action.clone());
        models.clone().map(|model| (action.clone(), policy(&spaces, &model)))
    };
    action_spaces().into_iter().flat_map(make).collect()
}

fn numbers(len: usize) -> Vec<f32> {
    (0..len).map(|i| ((i * 37 % 101) as f32 - 50.0) / 25.0).collect()
}

#[test]
fn a_row_does_not_depend_on_its_batch() {
    for (_, mut policy) in policies() {
        let (obs, state, moments) = (numbers(4 * 19), numbers(policy.net.state_len * 19), moments(19));
        for explore in [true, false] {
            let input = ActionInput { obs: RowsRef::F32(&obs), moments: &moments, state: &state, explore };
            let whole = act(&mut policy, input);
            let mut values = vec![0.0; 19];
            policy.compute_values(RowsRef::F32(&obs), &state, &mut values).unwrap();
            assert_eq!(values, whole.values);
            for i in [0, 15, 16, 18] {
                fn part<T>(values: &[T], i: usize) -> &[T] {
                    let len = values.len() / 19;
                    &values[i * len..][..len]
                }
                let alone = ActionInput {
                    obs: RowsRef::F32(part(&obs, i)),
                    moments: part(&moments, i),
                    state: part(&state, i),
                    explore,
                };
                let alone = act(&mut policy, alone);
                assert_eq!(alone.actions, part(&whole.actions, i));
                assert_eq!((alone.logp[0], alone.values[0]), (whole.logp[i], whole.values[i]));
                assert_eq!(alone.state, part(&whole.state, i));
                assert_eq!(alone.dist_inputs, part(&whole.dist_inputs, i));
            }
        }
    }
}

#[test]
fn logp_and_mode_are_those_of_the_distribution() {
    for (space, mut policy) in policies() {
        let (obs, state, moments) = (numbers(4 * 9), numbers(policy.net.state_len * 9), moments(9));
        let distribution = ActionDistribution::for_space(&space).unwrap();
        for explore in [true, false] {
            let input = ActionInput { obs: RowsRef::F32(&obs), moments: &moments, state: &state, explore };
            let acted = act(&mut policy, input);
            let actions = acted.actions.chunks(policy.net.head.action_len());
            let inputs = acted.dist_inputs.chunks(distribution.input_len());
            for ((action, inputs), (logp, m)) in actions.zip(inputs).zip(acted.logp.iter().zip(&moments)) {
                let mut rng = Streams::new(1, Purpose::Action).at(m.slot, m.episode, m.t, m.agent);
                let expected = match explore {
                    true => distribution.sample(inputs, &mut rng).unwrap(),
                    false => distribution.deterministic(inputs).unwrap(),
                };
                assert_eq!((Point::cast(action, policy.action_type), *logp), expected);
            }
        }
    }
}

#[test]
fn continuous_actions_have_the_density_of_their_gaussian() {
    let mut policy = policy(&spaces(floats(4), floats(2)), &model(&[7], None));
    let (obs, moments) = (numbers(4 * 9), moments(9));
    let acted = act(&mut policy, ActionInput::new(RowsRef::F32(&obs), &moments));
    let actions: Vec<f32> = acted.actions.iter().map(|&x| x as f32).collect();
    let gaussian = DiagGaussian::new(2).unwrap();
    let rows = acted.dist_inputs.chunks(4).zip(actions.chunks(2));
    assert_eq!(acted.logp, rows.map(|(inputs, action)| gaussian.logp(inputs, action).unwrap()).collect::<Vec<f32>>());
    // Means first, and the actions are neither the means nor all alike.
    assert!(acted.dist_inputs.chunks(4).zip(actions.chunks(2)).all(|(inputs, action)| inputs[..2] != *action));
    let mode = act(&mut policy, ActionInput { explore: false, ..ActionInput::new(RowsRef::F32(&obs), &moments) });
    let means = mode.dist_inputs.chunks(4).flat_map(|inputs| inputs[..2].iter().map(|&x| f64::from(x)));
    assert!(means.eq(mode.actions));
}

/// Tensors with simple values, and the numbers that Python makes of them with its own arithmetic.
#[test]
fn two_lstm_steps_are_those_of_the_definition() {
    let row = |f: fn(f32) -> f32| (0..8).map(move |j| f(j as f32));
    let sign = |j: f32| if (j as u32).is_multiple_of(2) { 1.0 } else { -1.0 };
    let weight_ih = row(|j| 0.1 * (j + 1.0)).zip(row(|j| j).map(sign)).map(|(x, sign)| x * sign);
    let tensors = [
        ("encoder.0.weight", vec![2, 2], vec![0.5, -0.25, 0.75, 1.0]),
        ("encoder.0.bias", vec![2], vec![0.1, -0.2]),
        ("lstm.weight_ih", vec![2, 8], weight_ih.chain(row(|j| 0.05 * (j - 3.0))).collect()),
        (
            "lstm.weight_hh",
            vec![2, 8],
            row(|j| 0.2 - 0.05 * j).chain(row(|j| j).map(sign).map(|sign| 0.3 * sign)).collect(),
        ),
        ("lstm.bias", vec![8], vec![0.0, 0.1, 1.0, 1.0, -0.1, 0.2, 0.0, 0.5]),
        ("policy.0.weight", vec![2, 2], vec![1.0, -1.0, 0.5, 2.0]),
        ("policy.0.bias", vec![2], vec![0.0, 0.25]),
        ("value.0.weight", vec![2, 1], vec![1.5, -0.5]),
        ("value.0.bias", vec![1], vec![0.125]),
    ];
    let tensors = tensors.map(|(name, shape, values)| Tensor { name: name.into(), shape, values });
    let weights = Weights::new(Default::default(), tensors.to_vec()).unwrap();
    let spaces = spaces(floats(2), Space::Discrete { n: 2 });
    let mut policy = NetPolicy::new(&spaces, &model(&[2], Some(2)), weights, 0, Kernels::PORTABLE).unwrap();

    let mut state = vec![0.0; 4];
    policy.initial_state(&mut state);
    let steps = [
        (
            [1.0, -0.5],
            [-0.007_177_36, -0.001_952_27, -0.014_047_18, -0.003_591_09],
            [-0.008_153_49, 0.253_272_8],
            0.115_210_1,
        ),
        ([0.25, 2.0], [0.123_408_2, -0.058_553_6, 0.180_915_9, -0.121_390_4], [0.094_131_4, 0.009_484_58], 0.339_389_2),
    ];
    let close = |found: &[f32], expected: &[f32]| {
        found.len() == expected.len() && found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 2e-6)
    };
    for (obs, expected, dist_inputs, value) in steps {
        let input = ActionInput { state: &state, ..ActionInput::new(RowsRef::F32(&obs), NOW) };
        let acted = act(&mut policy, input);
        assert!(close(&acted.state, &expected), "{:?} {expected:?}", acted.state);
        assert!(close(&acted.dist_inputs, &dist_inputs), "{:?} {dist_inputs:?}", acted.dist_inputs);
        assert!(close(&acted.values, &[value]), "{:?} {value}", acted.values);
        state = acted.state;
    }
}

/// Debug, release and every target give these bits.
#[test]
fn bits_are_frozen() {
    let mut bytes = Vec::new();
    for (_, mut policy) in policies() {
        let (obs, state, moments) = (numbers(4 * 5), numbers(policy.net.state_len * 5), moments(5));
        let acted = act(&mut policy, ActionInput { state: &state, ..ActionInput::new(RowsRef::F32(&obs), &moments) });
        acted.actions.iter().for_each(|x| bytes.extend_from_slice(&x.to_le_bytes()));
        let floats = [acted.logp, acted.values, acted.state, acted.dist_inputs].concat();
        floats.iter().for_each(|x| bytes.extend_from_slice(&x.to_le_bytes()));
    }
    assert_eq!(crate::hash::bytes_hash(&bytes).to_string(), "43d3238c9e581863eef45ab6b1f15cdf");
}

/// The same as [`bits_are_frozen`] for models with other layers.
#[test]
fn bits_of_every_layer_are_frozen() {
    let activations =
        Activation::NAMES.map(|name| format!(r#"{{"fcnet_hiddens": [7], "fcnet_activation": "{name}"}}"#));
    let others = [
        r#"{"fcnet_hiddens": [6], "post_fcnet_hiddens": [5], "vf_share_layers": true}"#,
        r#"{"fcnet_hiddens": [6], "weights_initializer": "orthogonal"}"#,
        r#"{"fcnet_hiddens": [6], "conv_filters": [[4, 3, 2], [16, [2, 1], 1]], "conv_activation": "silu"}"#,
        r#"{"fcnet_hiddens": [], "conv_filters": [[3, 2, 1]], "use_lstm": true, "lstm_cell_size": 4}"#,
        r#"{"fcnet_hiddens": [6], "use_gru": true, "gru_cell_size": 5}"#,
        r#"{"fcnet_hiddens": [6], "free_log_std": true}"#,
        r#"{"fcnet_hiddens": [6, 20], "fcnet_use_layernorm": true}"#,
    ];
    let hashes = activations.iter().map(String::as_str).chain(others).map(|model| {
        let images = Space::uniform(DType::F32, RowShape::new(&[4, 5, 2]).unwrap(), -9.0, 9.0);
        let action = if model.contains("free_log_std") { floats(2) } else { Space::Discrete { n: 3 } };
        let mut policy = policy(&spaces(images, action), &serde_json::from_str(model).unwrap());
        let (obs, state, moments) = (numbers(40 * 5), numbers(policy.net.state_len * 5), moments(5));
        let acted = act(&mut policy, ActionInput { state: &state, ..ActionInput::new(RowsRef::F32(&obs), &moments) });
        let floats = [acted.logp, acted.values, acted.state, acted.dist_inputs].concat();
        let bytes: Vec<u8> = floats.iter().flat_map(|x| x.to_le_bytes()).collect();
        crate::hash::bytes_hash(&bytes).to_string()[..8].to_owned()
    });
    let expected = [
        "9ad38a76", "520d2617", "f812fbd7", "b11bc7ef", "b56e011a", "d97032f2", "3332e232", "e04eeb6a", "a78330fd",
        "013eab50", "eb27760c", "432966dd", "bee92473",
    ];
    assert_eq!(hashes.collect::<Vec<_>>(), expected);
}

#[test]
fn layers_are_what_the_settings_say() {
    let layers = |model: &str, obs_shape: &[usize]| {
        let spec = ModelSpec::new(&serde_json::from_str(model).unwrap(), obs_shape, 3).unwrap();
        let layer = |layer: &LayerSpec| format!("{} {} {}", layer.name, layer.outputs(), layer.activation().name());
        [spec.trunk, spec.policy, spec.value].map(|layers| layers.iter().map(layer).collect::<Vec<_>>().join(", "))
    };
    let model =
        r#"{"fcnet_hiddens": [8], "fcnet_activation": "elu", "post_fcnet_hiddens": [7], "vf_share_layers": true}"#;
    assert_eq!(layers(model, &[4]), ["encoder.0 8 elu, encoder.1 7 relu", "policy.0 3 linear", "value.0 1 linear"]);
    let model = r#"{"fcnet_hiddens": [8], "post_fcnet_hiddens": [7], "fcnet_use_layernorm": true}"#;
    let [_, policy, _] = layers(model, &[4]);
    let hidden = "policy.0 8 linear, policy_norm.0 8 tanh, policy.1 7 linear, policy_norm.1 7 relu";
    assert_eq!(policy, format!("{hidden}, policy.2 3 linear"));
    // RLlib's convolutions of Atari's pictures, to 21x21, 11x11 and a single place.
    let convolutions =
        format!("{0}_conv.0 {1} relu, {0}_conv.1 {2} relu, {0}_conv.2 256 relu", "NET", 21 * 21 * 16, 11 * 11 * 32);
    let [trunk, policy, value] = layers(r#"{"conv_filters": "auto", "fcnet_hiddens": []}"#, &[84, 84, 4]);
    assert_eq!((trunk.as_str(), policy), ("", format!("{convolutions}, policy.0 3 linear").replace("NET", "policy")));
    assert_eq!(value, format!("{convolutions}, value.0 1 linear").replace("NET", "value"));
    // Places of the others: all but the last are padded to as many as strides fit into the image.
    for (image, places) in [
        ([480, 640], [35 * 36, 9 * 9]),
        ([240, 320], [35 * 36, 9 * 9]),
        ([96, 96], [24 * 24, 12 * 12]),
        ([42, 42], [21 * 21, 11 * 11]),
    ] {
        let [_, policy, _] = layers(r#"{"conv_filters": "auto", "fcnet_hiddens": []}"#, &[image[0], image[1], 1]);
        let [first, second] = [places[0] * 16, places[1] * 32];
        let convolutions = format!("policy_conv.0 {first} relu, policy_conv.1 {second} relu, policy_conv.2 256 relu");
        assert_eq!(policy, format!("{convolutions}, policy.0 3 linear"), "{image:?}");
    }
    let [_, policy, _] = layers(r#"{"conv_filters": "auto", "fcnet_hiddens": []}"#, &[64, 64, 3]);
    let outputs = [32 * 32 * 32, 16 * 16 * 64, 8 * 8 * 128, 3 * 3 * 256];
    let convolutions: Vec<_> = outputs.iter().enumerate().map(|(i, n)| format!("policy_conv.{i} {n} relu")).collect();
    assert_eq!(policy, format!("{}, policy.0 3 linear", convolutions.join(", ")));
    let [_, policy, _] = layers(r#"{"conv_filters": "auto", "fcnet_hiddens": [128]}"#, &[10, 10, 4]);
    assert_eq!(policy, "policy_conv.0 1024 relu, policy.0 128 tanh, policy.1 3 linear");
    let model =
        r#"{"conv_filters": [[2, [3, 1], [2, 1]]], "fcnet_hiddens": [5], "use_lstm": true, "lstm_cell_size": 4}"#;
    let [trunk, policy, _] = layers(model, &[6, 3, 1]);
    assert_eq!(
        (trunk.as_str(), policy.as_str()),
        ("encoder_conv.0 12 relu, encoder.0 5 tanh, lstm 4 linear", "policy.0 3 linear")
    );
    let error = |model: &str, obs_shape: &[usize]| {
        ModelSpec::new(&serde_json::from_str(model).unwrap(), obs_shape, 3).unwrap_err().to_string()
    };
    let found = error(r#"{"conv_filters": "auto"}"#, &[12, 10, 1]);
    assert!(found.contains("not 12x10: list conv_filters as [filters, kernel, stride]"), "{found}");
    assert!(error(r#"{"conv_filters": [[4, 3, 1]]}"#, &[12]).contains("not observations of shape [12]"));
    for filter in ["[4, 5, 1]", "[0, 1, 1]", "[1, 0, 1]", "[1, 1, 0]", "[4294967295, 1, 1]"] {
        let found = error(&format!(r#"{{"conv_filters": [{filter}]}}"#), &[4, 9, 1]);
        assert!(found.starts_with("the policy takes "), "{filter}: {found}");
    }
    let found = error(r#"{"fcnet_hiddens": [4000, 4000], "weights_initializer": "orthogonal"}"#, &[4]);
    assert!(found.contains("one of 4000x4000: use weights_initializer = \"glorot_uniform\""), "{found}");
    let found = error(r#"{"conv_filters": [[1, 256, 1], [1, 1, 1]]}"#, &[256, 256, 3]);
    assert!(found.contains("policy_conv.0 with 12884901888: use smaller kernels or larger strides"), "{found}");
}

/// Layers by hand, as a user's own model has them.
#[test]
fn layers_that_do_not_fit_each_other_are_refused() {
    let whole = ModelSpec::new(&model(&[4], Some(3)), &[2], 3).unwrap();
    let error = |change: fn(&mut ModelSpec)| {
        let mut spec = whole.clone();
        change(&mut spec);
        spec.check().unwrap_err().to_string()
    };
    let found = error(|spec| spec.policy[0].inputs = 4);
    assert_eq!(found, "the policy takes layers that fit each other, not policy.0 with 4 inputs after 3 outputs");
    assert!(error(|spec| spec.trunk.reverse()).starts_with("the policy takes layers that fit"));
    let found = error(|spec| spec.policy.insert(0, LayerSpec { inputs: 3, ..spec.trunk[1].clone() }));
    assert!(found.starts_with("the policy takes memory as the last layer of the trunk"), "{found}");
    assert!(error(|spec| spec.value.clear()).contains("a value network with one output"));
    let error = |model: &str, action: Space| {
        let model = serde_json::from_str(model).unwrap();
        ModelSpec::for_spaces(&spaces(floats(2), action), &model).unwrap_err().to_string()
    };
    let found = error(r#"{"free_log_std": true}"#, Space::Discrete { n: 2 });
    assert_eq!(found, "the policy takes actions of real numbers with free_log_std, not Discrete(2)");
    let found = error(r#"{"use_lstm": true, "use_gru": true}"#, floats(1));
    assert_eq!(found, "the policy takes models with one memory, not one with use_lstm and use_gru");
}

#[test]
fn outputs_depend_on_earlier_observations_only_with_memory() {
    for cells in [None, Some(4)] {
        let mut policy = policy(&spaces(floats(2), Space::Discrete { n: 3 }), &model(&[5], cells));
        let mut last = [&[0.5, -0.5], &[-1.0, 2.0]].map(|first: &[f32; 2]| {
            let zeros = vec![0.0; policy.net.state_len];
            let input = ActionInput { state: &zeros, ..ActionInput::new(RowsRef::F32(first), NOW) };
            let state = act(&mut policy, input).state;
            let input = ActionInput { state: &state, ..ActionInput::new(RowsRef::F32(&[1.0, 1.0]), NOW) };
            act(&mut policy, input)
        });
        let [a, b] = last.each_mut();
        assert_eq!(a.dist_inputs == b.dist_inputs, cells.is_none());
        assert_eq!(a.values == b.values, cells.is_none());
    }
}

#[test]
fn empty_buffers_change_nothing() {
    for cells in [None, Some(3)] {
        let mut policy = policy(&spaces(floats(4), floats(2)), &model(&[5], cells));
        let (obs, state) = (numbers(4), numbers(policy.net.state_len));
        let input = ActionInput { state: &state, ..ActionInput::new(RowsRef::F32(&obs), NOW) };
        let (mut actions, mut logp, mut values) = ([0.0; 2], [0.0], [0.0]);
        let out = ActionOutput::new(RowsMut::F32(&mut actions), &mut logp, &mut values);
        policy.compute_actions(input, out).unwrap();
        let acted = act(&mut policy, input);
        assert_eq!(actions.map(f64::from)[..], acted.actions);
        assert_eq!((&logp[..], &values[..]), (&acted.logp[..], &acted.values[..]));
    }
}

#[test]
fn wrong_buffers_are_named() {
    let mut policy = policy(&spaces(floats(2), floats(1)), &model(&[3], Some(2)));
    let mut act = |state: &[f32], next: &mut [f32], dist_inputs: &mut [f32], action: RowsMut<'_>| {
        let input = ActionInput { state, ..ActionInput::new(RowsRef::F32(&[0.0; 2]), NOW) };
        let (mut logp, mut values) = ([0.0], [0.0]);
        let out = ActionOutput { state: next, dist_inputs, ..ActionOutput::new(action, &mut logp, &mut values) };
        policy.compute_actions(input, out)
    };
    let length = |buffer, wanted, found| Err(PolicyError::BufferLength { buffer, wanted, found });
    assert_eq!(act(&[], &mut [], &mut [], RowsMut::F32(&mut [0.0])), length("state", 4, 0));
    assert_eq!(act(&[0.0; 4], &mut [0.0; 3], &mut [], RowsMut::F32(&mut [0.0])), length("state", 4, 3));
    assert_eq!(act(&[0.0; 4], &mut [], &mut [0.0; 9], RowsMut::F32(&mut [0.0])), length("dist_inputs", 2, 9));
    let error = act(&[0.0; 4], &mut [], &mut [], RowsMut::I64(&mut [0])).unwrap_err().to_string();
    assert_eq!(error, "the policy takes actions of float32, not actions of int64");
    assert_eq!(act(&[0.0; 4], &mut [0.0; 4], &mut [0.0; 2], RowsMut::F32(&mut [0.0])), Ok(()));
    assert_eq!(policy.compute_values(RowsRef::F32(&[0.0; 2]), &[0.0], &mut [0.0]), length("state", 4, 1));
    let error = policy.compute_values(RowsRef::F32(&[0.0; 3]), &[0.0; 4], &mut [0.0]).unwrap_err().to_string();
    assert!(error.ends_with("not 3 values of float32"), "{error}");
}

#[test]
fn buffers_have_an_entry_per_row() {
    let mut policy = policy(&spaces(floats(4), Space::Discrete { n: 3 }), &model(&[5], None));
    let (obs, moments) = (numbers(12), moments(3));
    let mut act = |actions: &mut [i64], logp: &mut [f32], vf_preds: &mut [f32]| {
        let out = ActionOutput::new(RowsMut::I64(actions), logp, vf_preds);
        policy.compute_actions(ActionInput::new(RowsRef::F32(&obs), &moments), out)
    };
    let length = |buffer, found| Err(PolicyError::BufferLength { buffer, wanted: 3, found });
    assert_eq!(act(&mut [7; 2], &mut [0.0; 3], &mut [0.0; 3]), length("actions", 2));
    assert_eq!(act(&mut [7; 3], &mut [], &mut [0.0; 3]), length("logp", 0));
    assert_eq!(act(&mut [7; 3], &mut [0.0; 3], &mut [0.0; 4]), length("vf_preds", 4));
    assert_eq!(act(&mut [7; 3], &mut [0.0; 3], &mut [0.0; 3]), Ok(()));
}

#[test]
fn observations_of_all_spaces_are_taken() {
    let discrete = spaces(Space::Discrete { n: 500 }, Space::Discrete { n: 6 });
    let acted = act(&mut policy(&discrete, &model(&[8], None)), ActionInput::new(RowsRef::I64(&[499, 0]), &moments(2)));
    assert_ne!(acted.values[0], acted.values[1]);
    let pixels = spaces(Space::uniform(DType::U8, RowShape::vector(400), 0.0, 1.0), floats(1));
    let mut policy = policy(&pixels, &model(&[8], Some(4)));
    let input = ActionInput { state: &[0.0; 8], ..ActionInput::new(RowsRef::U8(&[1; 400]), NOW) };
    assert!(act(&mut policy, input).logp[0].is_finite());
}

#[test]
fn impossible_models_are_refused() {
    let error = |spaces: EnvSpaces, model| ModelSpec::for_spaces(&spaces, &model).unwrap_err().to_string();
    let found = error(spaces(Space::Discrete { n: 0 }, floats(1)), model(&[4], None));
    assert!(found.starts_with("the policy takes observations of a valid space"), "{found}");
    let unbounded = Space::uniform(DType::I64, RowShape::SCALAR, 0.0, f64::INFINITY);
    assert!(error(spaces(floats(1), unbounded), model(&[4], None)).starts_with("the policy takes actions"));
    let found = error(spaces(floats(1), floats(1)), model(&[4, 0], None));
    assert_eq!(found, "the policy takes layers with elements, not one without");
    for model in [model(&[u32::MAX; 3], None), model(&[], Some(u32::MAX)), model(&[1 << 14; 2], Some(1))] {
        let found = error(spaces(floats(1), floats(1)), model);
        assert!(found.starts_with("the policy takes models of at most 67108864 weights"), "{found}");
    }
    for (obs_len, outputs) in [(usize::MAX, 1), (0, 1), (1, 0)] {
        assert!(ModelSpec::new(&model(&[], None), &[obs_len], outputs).is_err());
    }
}

#[test]
fn the_default_policy_begins_as_it_always_has() {
    let spaces = spaces(floats(4), Space::Discrete { n: 2 });
    let context = PolicyContext::new(spaces, 9, Kernels::PORTABLE);
    let spec = ModelSpec::new(&ModelConfig::of_widths(&[64, 64]), &[4], 2).unwrap();
    assert_eq!(NetPolicy::for_context(&context).unwrap().weights(), &spec.init_weights(9).unwrap());
    let other = PolicyContext { id: crate::ids::PolicyId::new("car1"), ..context.clone() };
    assert_ne!(NetPolicy::for_context(&other).unwrap().weights(), NetPolicy::for_context(&context).unwrap().weights());
}

#[test]
fn settings_reach_the_policy() {
    let config = r#"{"gamma": 0.9, "lambda": 0.5, "model": {"use_lstm": true, "lstm_cell_size": 3, "max_seq_len": 4}}"#;
    let context = PolicyContext::new(spaces(floats(4), floats(1)), 9, Kernels::PORTABLE);
    let context = context.with_config(config.parse().unwrap());
    let policy = NetPolicy::for_context(&context).unwrap();
    assert_eq!(policy.state_lens(), [3, 3]);
    assert!(matches!(policy.postprocessing(), Postprocessing::Advantages(of) if of.gamma == 0.9 && of.lambda == 0.5));
    let bad = context.with_config(r#"{"model": {"use_lstm": 1}}"#.parse().unwrap());
    assert!(matches!(NetPolicy::for_context(&bad), Err(PolicyError::Config(_))));
}

/// Acts through a collector with the policy's own views, and finds the states that begin the sequences.
#[test]
fn views_give_states_per_sequence() {
    let config = ModelConfig { max_seq_len: NonZeroU32::new(3).unwrap(), ..model(&[4], Some(2)) };
    let mut policy = policy(&spaces(floats(1), Space::Discrete { n: 2 }), &config);
    assert!(policy.view_requirements().keys().eq(["state_in_0", "state_in_1"]));
    let zeros = crate::column::Column::from(ColumnData::new(vec![0.0f32; 2], RowShape::vector(2)).unwrap());
    let states = [zeros.clone(), zeros];
    let mut agent = AgentCollector::recurrent(policy.view_requirements(), &states, config.max_seq_len).unwrap();
    let start = TrajectoryStart { eps_id: 0, agent_index: 0, env_id: 0, t: 0 };
    agent.add_init_obs(start, &[("obs", ViewRow::from(&0.0f32))]).unwrap();
    let mut outs = Vec::new();
    for t in 0..5 {
        let view = agent.build_for_inference().unwrap();
        let read = |name| view.get(ColumnKey::<f32>::new(name)).unwrap().to_vec();
        let state = [read("state_in_0"), read("state_in_1")].concat();
        let obs = [t as f32];
        let input = ActionInput { state: &state, ..ActionInput::new(RowsRef::F32(&obs), NOW) };
        let next = act(&mut policy, input).state;
        let (hidden, cell) = next.split_at(2);
        let names = [state_out(0), state_out(1)];
        let rows = [ViewRow::from(hidden), ViewRow::from(cell)];
        let new_obs = t as f32 + 1.0;
        let step = [("new_obs", ViewRow::from(&new_obs)), (names[0].as_str(), rows[0]), (names[1].as_str(), rows[1])];
        agent.add_action_reward_next_obs(&step).unwrap();
        outs.push(next);
    }
    let fragment = agent.build_for_training(0).unwrap();
    assert_eq!(fragment.batch.seq_lens().unwrap(), [3, 2]);
    let hidden = fragment.batch.get(ColumnKey::<f32>::new("state_in_0")).unwrap();
    assert_eq!(hidden, [0.0, 0.0, outs[2][0], outs[2][1]]);
}

fn weights(spec: &ModelSpec) -> impl Strategy<Value = Weights> + use<> {
    let tensors = spec.tensors().unwrap().into_iter().map(|(name, shape)| {
        let len = shape.iter().product::<usize>();
        let shape: Vec<u32> = shape.iter().map(|&dim| dim as u32).collect();
        vec(-1e3..1e3f32, len).prop_map(move |values| Tensor { name: name.clone(), shape: shape.clone(), values })
    });
    (any::<u64>(), tensors.collect::<Vec<_>>())
        .prop_map(|(version, tensors)| Weights::new(crate::ids::WeightsVersion(version), tensors).unwrap())
}

proptest! {
    #[test]
    fn any_weights_round_trip_and_act(
        (cells, weights) in proptest::option::of(1..5u32).prop_flat_map(|cells| {
            let spec = ModelSpec::for_spaces(&spaces(floats(2), floats(1)), &model(&[3], cells)).unwrap();
            (Just(cells), weights(&spec))
        }),
        obs in proptest::array::uniform2(any::<f32>()),
    ) {
        let spaces = spaces(floats(2), floats(1));
        let mut policy = policy(&spaces, &model(&[3], cells));
        policy.set_weights(&weights).unwrap();
        prop_assert_eq!(policy.weights(), &weights);
        let mut fresh = NetPolicy::new(&spaces, &model(&[3], cells), weights, 1, Kernels::PORTABLE).unwrap();
        let state = vec![0.5; policy.net.state_len];
        let input = ActionInput { state: &state, ..ActionInput::new(RowsRef::F32(&obs), NOW) };
        // As text, since numbers may have become none.
        prop_assert_eq!(format!("{:?}", act(&mut policy, input)), format!("{:?}", act(&mut fresh, input)));
    }
}

#[test]
fn wrong_weights_leave_the_old_ones() {
    let small = policy(&spaces(floats(2), floats(1)), &model(&[3], Some(2)));
    let mut large = policy(&spaces(floats(2), floats(1)), &model(&[3], Some(4)));
    let before = large.weights().clone();
    let error = large.set_weights(small.weights()).unwrap_err().to_string();
    assert_eq!(error, "the policy wants tensor 'lstm.weight_ih [3, 16]'");
    assert_eq!(large.weights(), &before);
}

/// Says the same of every row: its first weight.
#[derive(Debug, Default)]
struct Constant(f32);

impl Forward for Constant {
    fn set_weights(&mut self, weights: &Weights) -> Result<(), PolicyError> {
        self.0 = weights.tensors()[0].values[0];
        Ok(())
    }

    fn forward(&mut self, _input: Input<'_>, out: Output<'_>) -> Result<(), PolicyError> {
        out.values.fill(self.0);
        out.dist_inputs.fill(0.0);
        Ok(())
    }
}

#[test]
fn policy_draws_from_outputs_of_another_forward_with_its_weights() {
    let spaces = spaces(floats(2), Space::Discrete { n: 4 });
    let mut policy = policy(&spaces, &model(&[3], None)).with_forward(Box::new(Constant::default()));
    for first in [policy.weights().tensors()[0].values[0], 5.0] {
        let moments = moments(6);
        let acted = act(&mut policy, ActionInput::new(RowsRef::F32(&[0.5; 12]), &moments));
        assert_eq!((acted.values, acted.dist_inputs), (vec![first; 6], vec![0.0; 24]));
        assert!(acted.logp.iter().all(|logp| (logp + 4f32.ln()).abs() < 1e-6), "{:?}", acted.logp);
        let mut tensors = policy.weights().tensors().to_vec();
        tensors[0].values[0] = 5.0;
        policy.set_weights(&Weights::new(policy.weights().version(), tensors).unwrap()).unwrap();
    }
}
