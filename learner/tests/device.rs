//! Acting and learning on a device against the kernels and the learner of the CPU. `ROLLMESH_TEST_DEVICE` names the device,
//! `cpu` by default: then it is candle's CPU.

use candle_core::Device;
use rollmesh_core::{
    batch::{AnyBatch, SampleBatch},
    column::RowShape,
    config::Config,
    env::{EnvRegistry, EnvSpaces, Moment, RowsMut, RowsRef},
    filter::{FILTER_PREFIX, Filter, MeanStdConfig, MeanStdFilter},
    ids::{PolicyId, SlotId, WeightsVersion},
    kernels::Kernels,
    policy::{ActionInput, ActionOutput, Policy, PolicyContext, PolicyRegistry},
    weights::Weights,
    worker::{PolicyConfig, Registry, RolloutConfig, RolloutWorker, WorkerPlace},
};
use rollmesh_learner::{DeviceSpec, forward_on, register_learning_policies, register_learning_policies_on};

const ROWS: usize = 300;
const MODELS: [&str; 8] = [
    r#"{"fcnet_hiddens": [64, 64]}"#,
    r#"{"fcnet_hiddens": []}"#,
    r#"{"fcnet_hiddens": [32], "use_lstm": true, "lstm_cell_size": 16}"#,
    r#"{"fcnet_hiddens": [], "use_lstm": true, "lstm_cell_size": 8}"#,
    r#"{"fcnet_hiddens": [16], "use_gru": true, "gru_cell_size": 8, "fcnet_activation": "relu"}"#,
    r#"{"fcnet_hiddens": [16], "use_gru": true, "gru_cell_size": 8, "lstm_use_prev_action": true, "lstm_use_prev_reward": true}"#,
    r#"{"fcnet_hiddens": [32, 24], "fcnet_use_layernorm": true}"#,
    r#"{"fcnet_hiddens": [16], "vf_share_layers": true, "post_fcnet_hiddens": [8], "fcnet_activation": "gelu"}"#,
];

/// A network for images. The filters of the last convolution do not cover the last row of pixels, but all columns.
const CONVOLUTION: &str =
    r#"{"fcnet_hiddens": [16], "conv_filters": [[8, 3, 1], [8, [3, 4], 2]], "conv_activation": "relu"}"#;

fn spec() -> DeviceSpec {
    std::env::var("ROLLMESH_TEST_DEVICE").map_or(DeviceSpec::Cpu, |name| name.parse().unwrap())
}

fn device() -> Device {
    spec().open().unwrap()
}

fn context(env: &str, model: &str) -> PolicyContext {
    let spaces: EnvSpaces = EnvRegistry::builtin().spec(env).unwrap().spaces().unwrap();
    let config: Config = format!(r#"{{"model": {model}}}"#).parse().unwrap();
    PolicyContext::new(spaces, 7, Kernels::PORTABLE).with_config(config)
}

/// Returns the same policy twice: with the kernels, and on the device.
fn pair(env: &str, model: &str) -> [Box<dyn Policy>; 2] {
    let context = context(env, model);
    let policies = PolicyRegistry::builtin();
    let on_device = PolicyContext { forward: Some(forward_on(device())), ..context.clone() };
    [context, on_device].map(|context| policies.spec("net").unwrap().make(&context).unwrap())
}

fn numbers(len: usize) -> Vec<f32> {
    (0..len).map(|i| (i as f32 * 0.37).sin() * 2.0).collect()
}

/// Returns all outputs of a policy for the rows: log-probabilities, values, distribution inputs and states, and the
/// values alone.
fn outputs(policy: &mut dyn Policy, obs_len: usize, action_len: usize) -> Vec<Vec<f32>> {
    let state_len: usize = policy.state_lens().iter().sum();
    let (obs, before) = (numbers(ROWS * obs_len), numbers(ROWS * state_len));
    let moments: Vec<Moment> = (0..ROWS as u32).map(|t| Moment { slot: SlotId(0), episode: 0, t, agent: 0 }).collect();
    let (mut discrete, mut continuous) = (vec![0i64; ROWS], vec![0.0f32; ROWS * action_len]);
    let (mut logp, mut vf_preds) = (vec![f32::NAN; ROWS], vec![f32::NAN; ROWS]);
    let mut dist_inputs = vec![f32::NAN; ROWS * policy.dist_inputs_len()];
    let mut state = vec![f32::NAN; ROWS * state_len];
    let actions = if action_len == 0 { RowsMut::I64(&mut discrete) } else { RowsMut::F32(&mut continuous) };
    let mut out = ActionOutput::new(actions, &mut logp, &mut vf_preds);
    (out.dist_inputs, out.state) = (&mut dist_inputs, &mut state);
    // The most likely actions, since the last bit of a probability may change a drawn one.
    let input = ActionInput { state: &before, explore: false, ..ActionInput::new(RowsRef::F32(&obs), &moments) };
    policy.compute_actions(input, out).unwrap();
    let mut values = vec![f32::NAN; ROWS];
    policy.compute_values(RowsRef::F32(&obs), &before, &mut values).unwrap();
    vec![logp, vf_preds, dist_inputs, state, values]
}

#[track_caller]
fn assert_close(what: &str, left: &[f32], right: &[f32], tolerance: f32) {
    assert_eq!(left.len(), right.len(), "{what}");
    for (i, (a, b)) in left.iter().zip(right).enumerate() {
        assert!((a - b).abs() <= tolerance * (1.0 + a.abs()), "{what}[{i}]: {a} and {b}");
    }
}

#[track_caller]
fn assert_same_choices(policies: &mut [Box<dyn Policy>; 2], (obs_len, action_len): (usize, usize), what: &str) {
    let [kernels, device] = policies.each_mut().map(|policy| outputs(policy.as_mut(), obs_len, action_len));
    for (name, (kernels, device)) in
        ["logp", "vf_preds", "dist_inputs", "state", "values"].iter().zip(kernels.iter().zip(&device))
    {
        assert_close(&format!("{what}: {name}"), kernels, device, 1e-5);
    }
}

/// Returns larger weights than the first ones, so that rows differ.
fn larger(weights: &Weights) -> Weights {
    let tensors = weights.tensors().iter().cloned().map(|mut tensor| {
        tensor.values.iter_mut().enumerate().for_each(|(i, w)| *w = *w * 2.0 + (i % 3) as f32 * 0.01);
        tensor
    });
    Weights::new(WeightsVersion(1), tensors.collect()).unwrap()
}

#[test]
fn device_acts_like_the_kernels_for_every_model_and_after_new_weights() {
    for (env, obs_len, action_len) in [("CartPole-v1", 4, 0), ("Pendulum-v1", 3, 1)] {
        for model in MODELS {
            let mut policies = pair(env, model);
            assert_same_choices(&mut policies, (obs_len, action_len), model);
            let weights = larger(policies[0].weights());
            policies.iter_mut().for_each(|policy| policy.set_weights(&weights).unwrap());
            assert_same_choices(&mut policies, (obs_len, action_len), model);
        }
    }
}

#[test]
fn device_sees_observations_normalised_by_the_filter_among_the_weights() {
    let mut policies = pair("CartPole-v1", MODELS[0]);
    let before = outputs(policies[1].as_mut(), 4, 0);
    let mut filter = MeanStdFilter::new(RowShape::vector(4), MeanStdConfig::UNCLIPPED).unwrap();
    filter.filter_rows(&mut numbers(40), true).unwrap();
    let weights = policies[0].weights().with_filter(FILTER_PREFIX, &Filter::MeanStdFilter(filter));
    policies.iter_mut().for_each(|policy| policy.set_weights(&weights).unwrap());
    assert_same_choices(&mut policies, (4, 0), "filtered");
    assert_ne!(outputs(policies[1].as_mut(), 4, 0), before);
}

#[test]
fn wide_networks_act_within_the_tolerance_of_audits() {
    let [mut kernels, mut device] = pair("CartPole-v1", r#"{"fcnet_hiddens": [1024, 1024, 1024]}"#);
    let (kernels, device) = (outputs(kernels.as_mut(), 4, 0), outputs(device.as_mut(), 4, 0));
    assert_close("logp", &kernels[0], &device[0], 1e-4);
    assert_close("values", &kernels[1], &device[1], 1e-4);
}

/// Samples a train batch of an environment, with the kernels or on the device.
fn batch(registry: &Registry, env: &str, model: &str) -> (RolloutWorker, SampleBatch) {
    let config = format!(r#"{{"num_sgd_iter": 2, "sgd_minibatch_size": 128, "model": {model}}}"#);
    let policy = PolicyConfig::new("ppo").with_config(config.parse().unwrap());
    let config = RolloutConfig::new(env).num_envs(16).rollout_fragment_length(40).seed(5);
    let config = config.policy(PolicyId::DEFAULT, policy);
    let mut worker = RolloutWorker::from_config(config, registry, WorkerPlace::default()).unwrap();
    match worker.sample().unwrap() {
        AnyBatch::Single(batch) => (worker, batch),
        AnyBatch::Multi(_) => unreachable!("{env} has one agent"),
    }
}

#[test]
fn learner_on_device_has_the_gradients_of_the_one_on_the_cpu() {
    // On the CPU both are the same learner, with equal gradients.
    let recurrent = [("CartPole-v1", MODELS[2]), ("CartPole-v1", MODELS[4])];
    let others = [("CartPole-v1", MODELS[0]), ("Pendulum-v1", MODELS[0]), ("PixelBreakout-v0", CONVOLUTION)];
    for (env, model) in recurrent.into_iter().chain(others) {
        let mut cpu = Registry::builtin();
        register_learning_policies(&mut cpu.policies);
        let mut other = Registry::builtin();
        register_learning_policies_on(&mut other.policies, &device());
        let ((mut cpu, rows), (mut other, _)) = (batch(&cpu, env, model), batch(&other, env, model));
        let gradients = |worker: &mut RolloutWorker| {
            let (gradients, _) = worker.policy_mut(&PolicyId::DEFAULT).unwrap().compute_gradients(&rows).unwrap();
            gradients.0
        };
        let (expected, found) = (gradients(&mut cpu), gradients(&mut other));
        for (expected, found) in expected.tensors().iter().zip(found.tensors()) {
            assert_close(&expected.name, &expected.values, &found.values, 1e-4);
        }
    }
}

#[test]
fn worker_samples_and_learns_on_the_device() {
    let mut registry = Registry::builtin();
    register_learning_policies_on(&mut registry.policies, &device());
    registry.policies.act_with(forward_on(device()));
    let cases = [MODELS[0], MODELS[2], MODELS[4]].map(|model| ("CartPole-v1", model));
    for (env, model) in cases.into_iter().chain([("PixelBreakout-v0", CONVOLUTION)]) {
        let (mut worker, rows) = batch(&registry, env, model);
        assert_eq!(rows.len(), 640);
        let policy = worker.policy_mut(&PolicyId::DEFAULT).unwrap();
        let before = policy.weights().clone();
        let info = policy.learn_on_batch(&rows).unwrap();
        assert!(info.values().all(|value| value.is_finite()), "{info:?}");
        assert!(policy.weights().version() > before.version() && policy.weights().tensors() != before.tensors());
        assert_eq!(worker.sample().unwrap().env_steps(), 640);
    }
}
