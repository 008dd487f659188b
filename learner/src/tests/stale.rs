//! Rows of older weights than the learner's.

use candle_core::Device;
use rollmesh_core::{
    batch::{ACTION_LOGP, ADVANTAGES, OBS, REWARDS, SampleBatch, TERMINATEDS, VALUE_TARGETS, WEIGHTS_VERSION},
    column::ColumnData,
    ids::{PolicyId, WeightsVersion},
    kernels::Kernels,
    policy::Gradients,
    postprocess::{AdvantageConfig, discounted_returns, gae},
    worker::{PolicyConfig, RolloutConfig, RolloutWorker},
};

use super::{
    super::{
        columns::Columns,
        stale::{Current, Lags, Targets},
        test_support::*,
        *,
    },
    golden,
};

#[track_caller]
fn close(what: &str, got: &[f32], want: &[f32]) {
    let gap = got.iter().zip(want).map(|(got, want)| (got - want).abs()).fold(0.0, f32::max);
    assert!(got.len() == want.len() && gap < 2e-5, "{what}: {got:?}, not {want:?}");
}

#[test]
fn gradients_of_stale_batches_are_those_of_pytorch() {
    for case in golden::cases(include_str!("../../../tests/golden/stale_batches.json")) {
        let stats = case.check_gradients(&mut case.learner());
        // Five rows of version 3, four of 5, three of 6 and six of the learner's 7.
        assert_eq!((stats.lag_mean, stats.lag_max), ((5 * 4 + 4 * 2 + 3) as f64 / 18.0, 4.0), "{}", case.name());
        assert!(stats.logp_gap < 1e-5, "{}: stale rows are not part of the gap, {}", case.name(), stats.logp_gap);
    }
}

/// Returns two steps of weights of version 1, in an episode that continues.
fn two_rows(behaviour: [f32; 2], batch_target: f32) -> SampleBatch {
    let columns = [
        (REWARDS, vec![1.0, 2.0]),
        (ACTION_LOGP, behaviour.to_vec()),
        (ADVANTAGES, vec![9.0, batch_target]),
        (VALUE_TARGETS, vec![9.0, batch_target]),
    ];
    let batch = SampleBatch::new()
        .with(OBS, ColumnData::scalars(vec![0.0; 2]))
        .and_then(|batch| batch.with(TERMINATEDS, ColumnData::scalars(vec![false; 2])))
        .and_then(|batch| batch.with(WEIGHTS_VERSION, ColumnData::scalars(vec![1; 2])))
        .unwrap();
    columns.into_iter().fold(batch, |batch, (key, values)| batch.with(key, ColumnData::scalars(values)).unwrap())
}

fn corrected(batch: &SampleBatch, now: &Current<'_>, config: &AdvantageConfig, has_ratios: bool) -> Targets {
    let columns = Columns::new(batch).unwrap();
    let lags = Lags::of(&columns, WeightsVersion(3)).unwrap();
    Targets::corrected(&columns, &lags, now, config, has_ratios).unwrap()
}

const HALF: AdvantageConfig = AdvantageConfig { gamma: 0.5, lambda: 1.0, use_gae: true, use_critic: true };

#[test]
fn vtrace_by_hand() {
    // The learner takes the first action half as often and the second one twice as often; the next state has the value
    // 4.
    let batch = two_rows([0.5f32.ln(), 0.25f32.ln()], 2.0 + 0.5 * 4.0);
    let now = Current { logp: &[0.25f32.ln(), 0.5f32.ln()], values: &[0.5, 1.0] };
    // A_1 = 2 + 2 - 1 = 3, v_1 = 1 + 3 = 4; A_0 = 1 + 0.5 x 4 - 0.5 = 2.5, v_0 = 0.5 + 0.5 x 2.5.
    let targets = corrected(&batch, &now, &HALF, true);
    close("advantages", &targets.advantages, &[2.5, 3.0]);
    close("targets", &targets.value_targets, &[1.75, 4.0]);
    let weighted = corrected(&batch, &now, &HALF, false);
    close("weighted advantages", &weighted.advantages, &[1.25, 3.0]);
    assert_eq!(weighted.value_targets, targets.value_targets);
}

#[test]
fn on_policy_targets_are_returns_and_advantages_generalised_ones() {
    let batch = two_rows([0.5f32.ln(); 2], 4.0);
    let now = Current { logp: &[0.5f32.ln(); 2], values: &[0.5, 1.0] };
    let returns: Vec<f32> = discounted_returns(&[1.0f32, 2.0], 4.0, 0.5).into_iter().map(|x| x as f32).collect();
    assert_eq!(corrected(&batch, &now, &HALF, true).value_targets, returns);
    let decaying = AdvantageConfig { lambda: 0.7, ..HALF };
    let (mut advantages, mut targets) = ([0.0; 2], [0.0; 2]);
    gae(&[1.0f32, 2.0], now.values, 4.0, 0.5, 0.7, &mut advantages, &mut targets);
    for has_ratios in [true, false] {
        let found = corrected(&batch, &now, &decaying, has_ratios);
        close("advantages", &found.advantages, &advantages);
        close("targets", &found.value_targets, &targets);
    }
    // Without a critic there are no values, and advantages are returns.
    let plain = AdvantageConfig { use_gae: false, use_critic: false, ..HALF };
    let nothing = Current { values: &[0.0; 2], ..now };
    assert_eq!(corrected(&batch, &nothing, &plain, false).advantages, returns);
}

/// Rows of a worker stand for rows of equal, older weights: the targets are the same, so the gradient is, too, wherever
/// pieces end.
#[test]
fn equal_policies_of_two_versions_give_one_gradient() {
    let town = r#"{"env": "MultiAgentTrafficGrid-v0", "env_config": {"num_cars": 4, "size": 2},
        "policy_mapping_fn": "traffic", "policies": {"car_policy1": {"policy": "ppo"}, "car_policy2": {"policy": "a2c"},
        "traffic_light_policy": {"policy": "ppo"}}}"#;
    let memory = r#"{"env": "StatelessCartPole-v1", "policy_config": {"kl_coeff": 0.1},
        "model_config": {"use_lstm": true, "lstm_cell_size": 8, "max_seq_len": 7}}"#;
    let returns = r#"{"env": "CartPole-v1", "policy_config": {"use_gae": false}}"#;
    for (kind, settings) in [
        ("ppo", town),
        ("ppo", memory),
        ("a2c", r#"{"env": "Pendulum-v1"}"#),
        ("ppo", returns),
        ("pg", r#"{"env": "CartPole-v1"}"#),
    ] {
        let config: RolloutConfig = serde_json::from_str(settings).unwrap();
        let mut config = config.num_envs(3).rollout_fragment_length(40).seed(3);
        if config.policies.is_empty() {
            config.policies.insert(PolicyId::DEFAULT, PolicyConfig::new(kind));
        }
        let mut worker = RolloutWorker::new(config, &registry(), Kernels::PORTABLE).unwrap();
        let mut batch = worker.sample().unwrap().as_multi_agent();
        let fresh = worker.compute_gradients(&batch.clone().into()).unwrap();
        for rows in batch.policy_batches.values_mut() {
            let versions = ColumnData::scalars(vec![0i64; rows.len()]);
            rows.insert(WEIGHTS_VERSION.name(), versions).unwrap();
        }
        let newer = worker.weights(None).unwrap().into_iter();
        let newer = newer.map(|(id, weights)| (id, weights.with_version(WeightsVersion(5)))).collect();
        worker.set_weights(&newer, None, None).unwrap();
        let stale = worker.compute_gradients(&batch.into()).unwrap();
        for (id, (Gradients(fresh), _)) in fresh {
            let (Gradients(stale), info) = &stale[&id];
            assert_eq!(info["lag_mean"], 5.0, "{settings}: {id}");
            for (fresh, stale) in fresh.tensors().iter().zip(stale.tensors()) {
                let largest = fresh.values.iter().fold(0f32, |largest, value| largest.max(value.abs()));
                let scaled = |values: &[f32]| values.iter().map(|value| value / largest.max(1e-6) / 50.0).collect();
                let (stale, fresh): (Vec<f32>, Vec<f32>) = (scaled(&stale.values), scaled(&fresh.values));
                close(settings, &stale, &fresh);
            }
        }
    }
}

#[test]
fn rows_of_the_learners_weights_are_learned_from_as_ever() {
    let learned = |versions: Option<i64>| {
        let mut batch = bandit(64, 1);
        if let Some(version) = versions {
            batch.insert(WEIGHTS_VERSION.name(), ColumnData::scalars(vec![version; 64])).unwrap();
        }
        let mut learner =
            new_learner(PpoConfig::default(), &discrete(2, 2), 1, &weights(2, &[8], 2), Device::Cpu, Kernels::PORTABLE)
                .unwrap();
        learner.update(&batch).map(|(weights, stats)| (bits(&weights), stats.lag_max))
    };
    assert_eq!(learned(None).unwrap(), learned(Some(0)).unwrap());
}

#[test]
fn error_names_the_column_that_stale_rows_lack() {
    let mut batch = bandit(8, 1).with(WEIGHTS_VERSION, ColumnData::scalars(vec![0; 8])).unwrap();
    let newer = weights(2, &[8], 2).with_version(WeightsVersion(2));
    let mut learner =
        new_learner(PpoConfig::default(), &discrete(2, 2), 1, &newer, Device::Cpu, Kernels::PORTABLE).unwrap();
    let error = learner.update(&batch).unwrap_err().to_string();
    assert_eq!(error, "the batch has no column 'rewards'");
    batch.insert(REWARDS.name(), ColumnData::scalars(vec![1.0f32; 8])).unwrap();
    let error = learner.update(&batch).unwrap_err().to_string();
    assert_eq!(error, "rows of older weights cannot be corrected: the batch has no column 'terminateds'");
}
