//! Policies that act and learn.

use rollmesh_core::{
    batch::{ACTIONS, ADVANTAGES, BatchParts, MultiAgentBatch, OBS, SampleBatch, state_in},
    callbacks::{CallbackList, WorkerInfo},
    column::{Column, ColumnData, RowShape},
    config::Config,
    env::{Moment, RowsMut, RowsRef},
    episode::GlobalVars,
    ids::{PolicyId, SlotId},
    kernels::Kernels,
    policy::{
        ActionInput, ActionOutput, Gradients, ModelConfig, NetPolicy, Policy, PolicyContext, PolicyEntry, PolicyError,
        PolicyRegistry, PolicySpec, Postprocessing, RandomPolicy, Stash,
    },
    space::Space,
    weights::WeightsError,
};

use super::super::{test_support::*, *};

fn policy(algorithm: impl Into<AlgorithmConfig>) -> LearningPolicy {
    let (spaces, config) = (discrete(2, 2), ModelConfig::of_widths(&[8]));
    let acting = NetPolicy::new(&spaces, &config, weights(2, &[8], 2), 1, Kernels::PORTABLE).unwrap();
    LearningPolicy::new(acting, &discrete(2, 2), algorithm, 3).unwrap()
}

fn algorithms() -> [AlgorithmConfig; 3] {
    let ppo = r#"{"num_sgd_iter": 2, "sgd_minibatch_size": 16, "kl_coeff": 0.2}"#.parse().unwrap();
    [AlgorithmConfig::pg(&Config::new()), AlgorithmConfig::a2c(&Config::new()), AlgorithmConfig::ppo(&ppo)]
        .map(Result::unwrap)
}

fn bad_batch() -> SampleBatch {
    bandit(8, 1).with(ADVANTAGES, ColumnData::scalars(vec![f32::NAN; 8])).unwrap()
}

#[test]
fn a_step_is_the_gradient_and_its_application() {
    for algorithm in &algorithms()[..2] {
        let (mut one, mut two) = (policy(algorithm.clone()), policy(algorithm.clone()));
        for seed in 0..3 {
            let info = one.learn_on_batch(&bandit(50, seed)).unwrap();
            let before = two.weights().clone();
            let (gradients, computed) = two.compute_gradients(&bandit(50, seed)).unwrap();
            assert_eq!(two.weights(), &before);
            assert_eq!(gradients.0.version(), before.version());
            two.apply_gradients(&gradients).unwrap();
            assert_eq!(bits(one.weights()), bits(two.weights()));
            assert_ne!(bits(one.weights()), bits(&before));
            assert_eq!(one.weights().version(), two.weights().version());
            assert_eq!((info["policy_loss"], info["grad_gnorm"]), (computed["policy_loss"], computed["grad_gnorm"]));
        }
    }
}

/// The policy is stashed during training, as by policy maps and checkpoints.
#[test]
fn a_restored_policy_resumes_bit_identically() {
    for algorithm in algorithms() {
        let entry = || PolicyEntry::<dyn Policy>::new("", Box::new(policy(algorithm.clone())));
        let learn = |entry: &mut PolicyEntry, seed| drop(entry.policy.learn_on_batch(&bandit(50, seed)).unwrap());
        let mut whole = entry();
        (0..2).for_each(|seed| learn(&mut whole, seed));
        let bytes = whole.stash().unwrap();
        assert_eq!(whole.policy.extra_state().len(), whole.policy.extra_state_bytes());
        (2..4).for_each(|seed| learn(&mut whole, seed));

        let mut restored = entry();
        learn(&mut restored, 9);
        restored.restore(&bytes).unwrap();
        assert_eq!(restored.stash().unwrap(), bytes);
        (2..4).for_each(|seed| learn(&mut restored, seed));
        assert_eq!(restored.stash().unwrap(), whole.stash().unwrap());
    }
}

#[test]
fn no_state_is_that_of_a_new_policy() {
    let fresh = policy(algorithms()[2].clone()).extra_state();
    let mut policy = policy(algorithms()[2].clone());
    policy.learn_on_batch(&bandit(50, 1)).unwrap();
    assert_ne!(policy.extra_state(), fresh);
    policy.set_extra_state(&[]).unwrap();
    assert_eq!(policy.extra_state(), fresh);
}

#[test]
fn foreign_states_are_refused_and_change_nothing() {
    let mut policy = policy(algorithms()[1].clone());
    policy.learn_on_batch(&bandit(50, 1)).unwrap();
    let state = policy.extra_state();
    let mut other_version = state.clone();
    other_version[0] = 9;
    let mut not_finite = state.clone();
    let end = not_finite.len();
    not_finite[end - 4..].copy_from_slice(&f32::NAN.to_le_bytes());
    for (bytes, reason) in [
        (&state[..20], "it is too short"),
        (&state[..state.len() - 1], "it has another number of moments"),
        (&other_version, "it is of another version"),
        (&not_finite, "it holds numbers out of range"),
    ] {
        let error = policy.set_extra_state(bytes).unwrap_err().to_string();
        assert_eq!(error, format!("the policy failed: this is no state of a learner with 75 parameters: {reason}"));
        assert_eq!(policy.extra_state(), state);
    }
}

#[test]
fn policy_acts_with_the_learned_weights() {
    let mut policy = policy(algorithms()[2].clone());
    for version in 1..3 {
        policy.learn_on_batch(&bandit(50, version)).unwrap();
        assert_eq!(policy.weights().version().0, version);
        assert_eq!(policy.weights(), policy.learner().weights());
    }
}

/// The rows of the first batch are more than its env steps, as those of several agents are.
#[test]
fn clock_of_a_single_policy_follows_env_steps_after_a_batch_with_other_rows() {
    let common = CommonConfig { anneal_over_env_steps: Some(200), anneal_to: 0.0, ..PpoConfig::default().common };
    let policies = [(PolicyId::DEFAULT, Box::new(policy(PpoConfig { common, ..PpoConfig::default() })) as _)];
    let mut learners = Learners::new(policies.into(), None, CallbackList::new(), WorkerInfo::default()).unwrap();
    for (rows, env_steps, so_far) in [(50, 20, 20.0), (30, 30, 50.0), (50, 50, 100.0)] {
        let batch = MultiAgentBatch::new([(PolicyId::DEFAULT, bandit(rows, 1))].into(), env_steps);
        let learned = learners.learn(batch, [(ENV_STEPS.into(), so_far)].into()).unwrap();
        let remaining = 1.0 - (so_far - env_steps as f64) / 200.0;
        assert_eq!(learned.infos[&PolicyId::DEFAULT]["cur_lr"], common.lr * remaining);
    }
}

#[test]
fn gradients_of_another_model_are_refused() {
    let mut policy = policy(algorithms()[1].clone());
    let before = policy.weights().clone();
    let error = policy.apply_gradients(&Gradients(weights(2, &[7], 2))).unwrap_err();
    assert!(matches!(error, PolicyError::Weights(WeightsError::Missing { .. })), "{error}");
    assert_eq!(policy.weights(), &before);
}

#[test]
fn bad_batches_are_typed_errors() {
    let mut policy = policy(algorithms()[1].clone());
    let before = policy.weights().clone();
    let mut error = |batch: SampleBatch| policy.learn_on_batch(&batch).unwrap_err().to_string();
    let mut without = bandit(8, 1);
    without.remove("advantages");
    assert_eq!(error(without), "the batch has no column 'advantages'");
    let narrow = bandit(8, 1).with(OBS, ColumnData::scalars(vec![1.0; 8])).unwrap();
    assert_eq!(
        error(narrow),
        "the policy takes 8 observations of Box(-9.0, 9.0, (2,), float32), not 8 values of float32"
    );
    let wild = bandit(8, 1).with(ACTIONS, ColumnData::scalars(vec![2; 8])).unwrap();
    assert_eq!(error(wild), "the policy takes actions from 0 to 1, not 2");
    assert_eq!(error(SampleBatch::new()), "the policy takes at least one row to learn from, not an empty batch");
    assert_eq!(policy.weights(), &before);
}

#[test]
fn bad_numbers_are_skipped_twice_and_then_an_error() {
    let mut policy = policy(algorithms()[1].clone());
    policy.learn_on_batch(&bandit(50, 1)).unwrap();
    let good = bits(policy.weights());
    for _ in 0..2 {
        assert_eq!(policy.learn_on_batch(&bad_batch()).unwrap()["skipped_steps"], 1.0);
    }
    let error = policy.learn_on_batch(&bad_batch()).unwrap_err();
    assert!(matches!(&error, PolicyError::Diverged(text) if text.starts_with("training diverged")), "{error}");
    assert_eq!(bits(policy.weights()), good);
    assert!(policy.compute_gradients(&bad_batch()).is_err());
    policy.learn_on_batch(&bandit(50, 1)).unwrap();
    assert_ne!(bits(policy.weights()), good);
}

/// A policy may be used after training has diverged: it restarts from the last good weights.
#[test]
fn weights_that_are_not_finite_leave_the_good_ones() {
    let common = CommonConfig { lr: 1e39, ..PolicyGradientConfig::a2c().common };
    let mut policy = policy(PolicyGradientConfig { common, ..PolicyGradientConfig::a2c() });
    let good = policy.weights().clone();
    assert!(matches!(policy.learn_on_batch(&bandit(50, 1)), Err(PolicyError::Diverged(_))));
    assert_eq!(policy.weights(), &good);
    assert!(policy.compute_gradients(&bandit(50, 1)).unwrap().1["policy_loss"].is_finite());
}

/// A worker passes its train batch in minibatches: ratios start from the policy that took the actions.
#[test]
fn ppo_clips_over_several_calls() {
    let config = r#"{"lr": 0.05, "num_sgd_iter": 1, "sgd_minibatch_size": 1000, "anneal_over_env_steps": null}"#;
    let mut policy = policy(AlgorithmConfig::ppo(&config.parse().unwrap()).unwrap());
    let clipped: Vec<f64> = (0..8).map(|_| policy.learn_on_batch(&bandit(200, 1)).unwrap()["clip_fraction"]).collect();
    assert!(clipped[7] > clipped[0] + 0.1, "{clipped:?}");
}

#[test]
fn the_runs_clock_anneals() {
    let config = r#"{"lr": 0.01, "anneal_over_env_steps": 1000, "anneal_to": 0.0}"#.parse().unwrap();
    let mut policy = policy(AlgorithmConfig::a2c(&config).unwrap());
    let rates = [0, 500, 1000].map(|timestep| {
        policy.on_global_var_update(&GlobalVars { timestep, ..GlobalVars::default() });
        policy.learn_on_batch(&bandit(8, 1)).unwrap()["cur_lr"]
    });
    assert_eq!(rates, [0.01, 0.005, 0.0]);
}

#[test]
fn settings_say_how_trajectories_are_postprocessed() {
    let config = r#"{"gamma": 0.95, "lambda": 0.7}"#.parse().unwrap();
    let Postprocessing::Advantages(config) = policy(AlgorithmConfig::a2c(&config).unwrap()).postprocessing() else {
        panic!()
    };
    assert_eq!((config.gamma, config.lambda, config.use_gae, config.use_critic), (0.95, 0.7, true, true));
}

fn registered(name: &str, context: &PolicyContext) -> Result<Box<dyn Policy>, PolicyError> {
    let mut policies = PolicyRegistry::builtin();
    register_learning_policies(&mut policies);
    policies.spec(name).unwrap().make(context)
}

#[test]
fn policies_are_made_by_name() {
    let context = PolicyContext::new(discrete(2, 2), 1, Kernels::PORTABLE);
    for name in ["pg", "a2c", "ppo"] {
        let mut policy = registered(name, &context).unwrap();
        // A worker that only acts samples the same rows.
        let acting = PolicyRegistry::builtin().spec(name).unwrap().make(&context).unwrap();
        assert_eq!(acting.postprocessing(), policy.postprocessing(), "{name}");
        let before = policy.weights().clone();
        assert!(policy.learn_on_batch(&bandit(50, 1)).is_ok());
        assert_ne!(bits(policy.weights()), bits(&before), "{name}");
    }
    let unknown = context.with_config(r#"{"learning_rate": 1}"#.parse().unwrap());
    let error = registered("ppo", &unknown).err().unwrap().to_string();
    assert!(error.contains("there is no setting 'learning_rate'; known are: gamma, "), "{error}");
}

#[test]
fn a_users_policy_of_the_same_name_stays() {
    let mut policies = PolicyRegistry::default();
    policies.register(PolicySpec::new("ppo", |context| {
        Ok(Box::new(RandomPolicy::for_space(&context.spaces.action, context.seed)?))
    }));
    register_learning_policies(&mut policies);
    let context = PolicyContext::new(discrete(2, 2), 1, Kernels::PORTABLE);
    let mut policy = policies.spec("ppo").unwrap().make(&context).unwrap();
    assert!(matches!(policy.learn_on_batch(&bandit(8, 1)), Err(PolicyError::NoLearner)));
    assert!(policies.spec("a2c").is_ok() && policies.spec("pg").is_ok());
}

/// Without a critic the state after the end of a batch has the value 0.
#[test]
fn values_without_a_critic_are_zero() {
    let context = PolicyContext::new(discrete(2, 2), 1, Kernels::PORTABLE);
    let mut policy = registered("pg", &context).unwrap();
    for _ in 0..2 {
        let mut values = [1.0; 2];
        policy.compute_values(RowsRef::F32(&[0.1, 0.2, -0.3, 0.4]), &[], &mut values).unwrap();
        assert_eq!(values, [0.0; 2]);
        policy.learn_on_batch(&bandit(50, 1)).unwrap();
    }
}

/// Lets a recurrent policy act on some sequences and returns the rows, as a worker would.
fn sequences(policy: &mut dyn Policy, lens: &[i32]) -> SampleBatch {
    let floats = |values: Vec<f32>, width: u32| Column::from(ColumnData::new(values, RowShape::vector(width)).unwrap());
    let [hidden, cells] = *policy.state_lens() else { panic!("no LSTM") };
    let (mut all_obs, mut all_actions, mut all_logp) = (Vec::new(), Vec::new(), Vec::new());
    let mut states = [Vec::new(), Vec::new()];
    for (slot, &len) in lens.iter().enumerate() {
        let mut state: Vec<f32> = (0..hidden + cells).map(|i| ((i + slot) as f32).sin() * 0.5).collect();
        states[0].extend_from_slice(&state[..hidden]);
        states[1].extend_from_slice(&state[hidden..]);
        for t in 0..len as u32 {
            let obs = [(t as f32).cos(), slot as f32 - 1.0];
            let moments = [Moment { slot: SlotId(slot as u32), t, ..Moment::default() }];
            let (before, mut actions, mut logp) = (state.clone(), [0.0; 2], [0.0]);
            let mut out = ActionOutput::new(RowsMut::F32(&mut actions), &mut logp, &mut []);
            let mut value = [0.0];
            out.vf_preds = &mut value;
            out.state = &mut state;
            let input = ActionInput { state: &before, ..ActionInput::new(RowsRef::F32(&obs), &moments) };
            policy.compute_actions(input, out).unwrap();
            all_obs.extend(obs);
            all_actions.extend(actions);
            all_logp.extend(logp);
        }
    }
    let [h, c] = states;
    let parts = BatchParts {
        columns: vec![
            (OBS.name().into(), floats(all_obs, 2)),
            (ACTIONS.name().into(), floats(all_actions, 2)),
            (state_in(0), floats(h, hidden as u32)),
            (state_in(1), floats(c, cells as u32)),
        ],
        seq_lens: Some(ColumnData::scalars(lens.to_vec())),
        ..BatchParts::default()
    };
    let rewards: Vec<f32> = (0..all_logp.len()).map(|row| (row as f32).sin()).collect();
    learnable(SampleBatch::from_parts(parts).unwrap(), &all_logp, &rewards)
}

/// Creates a policy with an LSTM, for two continuous actions.
fn recurrent(name: &str, config: &str) -> Box<dyn Policy> {
    let model =
        r#"{"model": {"fcnet_hiddens": [7], "use_lstm": true, "lstm_cell_size": 5}}"#.parse::<Config>().unwrap();
    let action = Space::vector(&[-1.0, -1.0], &[1.0, 1.0]);
    let context = PolicyContext::new(spaces(2, action), 1, Kernels::PORTABLE);
    registered(name, &context.with_config(model.merged(&config.parse().unwrap()))).unwrap()
}

#[test]
fn steps_and_states_of_recurrent_policies_are_as_exact() {
    let (mut one, mut two) = (PolicyEntry::from(recurrent("a2c", "{}")), PolicyEntry::from(recurrent("a2c", "{}")));
    for _ in 0..2 {
        let batch = sequences(&mut *one.policy, &[3, 6, 1]);
        one.policy.learn_on_batch(&batch).unwrap();
        let (gradients, _) = two.policy.compute_gradients(&batch).unwrap();
        two.policy.apply_gradients(&gradients).unwrap();
        assert_eq!(one.policy.weights(), two.policy.weights());
        // Into a new object, from which it continues.
        let bytes = two.stash().unwrap();
        two = PolicyEntry::from(recurrent("a2c", "{}"));
        two.restore(&bytes).unwrap();
    }
}

/// The core and the learner are two implementations of one function.
#[test]
fn a_recurrent_policy_learns_from_what_it_did() {
    let mut policy = recurrent("ppo", r#"{"num_sgd_iter": 1, "lr": 0.01}"#);
    for _ in 0..3 {
        let batch = sequences(&mut *policy, &[3, 6, 1, 6]);
        let info = policy.learn_on_batch(&batch).unwrap();
        assert!(info["logp_gap"] < 1e-5, "{info:?}");
        assert_eq!((info["gradient_steps"], info["skipped_steps"]), (1.0, 0.0));
    }
}
