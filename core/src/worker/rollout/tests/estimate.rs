//! Off-policy estimates from logged batches.

use core::sync::atomic::{AtomicUsize, Ordering};

use super::super::*;
use crate::{
    batch::{ACTION_PROB, AGENT_INDEX, AnyBatch, EPS_ID, MultiAgentBatch, REWARDS, SampleBatch, T},
    column::{ColumnData, ColumnKey},
    config::Config,
    estimate::{EstimateError, Transitions},
    sampler::{InputReader, OutputWriter, SampleError, SamplerHost},
    worker::{QModelContext, config::PolicyConfig},
};

/// Every action has the same value; counts the steps that it has learned from.
struct Flat {
    value: f32,
    steps: Arc<AtomicUsize>,
}

impl QModel for Flat {
    fn fit(&mut self, transitions: &Transitions) -> Result<f64, EstimateError> {
        transitions.check()?;
        self.steps.fetch_add(transitions.len(), Ordering::Relaxed);
        Ok(0.0)
    }

    fn q_values(&mut self, _obs: &[f32], q: &mut [f32]) -> Result<(), EstimateError> {
        q.fill(self.value);
        Ok(())
    }
}

fn config(by: &[InputEvaluation]) -> RolloutConfig {
    let config = RolloutConfig { input_evaluation: by.iter().copied().collect(), ..RolloutConfig::new("CartPole-v1") };
    config.rollout_fragment_length(60).fcnet_hiddens(&[8])
}

fn sampled(mut worker: RolloutWorker) -> WorkerMetrics {
    worker.sample().unwrap();
    worker.metrics()
}

#[test]
fn models_learn_from_the_batch_and_judge_it() {
    let steps = Arc::new(AtomicUsize::new(0));
    let by = [InputEvaluation::Dm, InputEvaluation::Dr];
    let model = Box::new(Flat { value: 3.5, steps: steps.clone() });
    let worker = RolloutWorker::builder().config(config(&by)).q_model(model).build().unwrap();
    let estimates = sampled(worker).estimates;
    // All rows but the last, whose successor is unknown.
    assert!((59..=60).contains(&steps.load(Ordering::Relaxed)));
    assert_eq!(estimates.iter().filter(|of| of.by == by[0]).count() * 2, estimates.len());
    for estimate in estimates {
        match estimate.by {
            InputEvaluation::Dm => assert!((estimate.sample.v_target - 3.5).abs() < 1e-5),
            // The behaviour policy itself is estimated, so that the model's errors cancel out.
            _ => assert!((estimate.sample.v_target - estimate.sample.v_behavior).abs() < 1e-3, "{estimate:?}"),
        }
    }
}

#[test]
fn a_registry_makes_models_with_their_settings() {
    let mut registry = Registry::builtin();
    registry.q_model = Some(Arc::new(|context: &QModelContext| {
        assert_eq!((context.obs_len, context.num_actions, context.gamma), (4, 2, 0.5));
        let value = context.config.get("value").ok().flatten().ok_or(EstimateError::NoSamples)?;
        Ok(Box::new(Flat { value, steps: Arc::default() }))
    }));
    let settings = RolloutConfig {
        q_model_config: Config::new().with("value", 2.0).unwrap(),
        policy_config: Config::new().with("gamma", 0.5).unwrap(),
        ..config(&[InputEvaluation::Dm])
    };
    let worker = RolloutWorker::new(settings, &registry, Kernels::PORTABLE).unwrap();
    let estimates = sampled(worker).estimates;
    assert!(!estimates.is_empty() && estimates.iter().all(|of| (of.sample.v_target - 2.0).abs() < 1e-5));
}

#[test]
fn estimate_without_model_gets_a_fix() {
    let mut worker = RolloutWorker::builder().config(config(&[InputEvaluation::Dr])).build().unwrap();
    let error = worker.sample().unwrap_err().to_string();
    assert!(error.contains("'dm' and 'dr' need a model of values: take `rollmesh::native`'s registry"), "{error}");
}

#[test]
fn the_old_metrics_leave_last_steps_out() {
    let by = [InputEvaluation::Is, InputEvaluation::Wis];
    let estimates = |legacy_step_estimates| {
        let config = RolloutConfig { legacy_step_estimates, ..config(&by) };
        sampled(RolloutWorker::builder().config(config).build().unwrap()).estimates
    };
    let (new, old) = (estimates(false), estimates(true));
    assert_eq!(new.len(), old.len());
    for (new, old) in new.iter().zip(&old) {
        let names = |of: &OffPolicyEstimate| of.metrics().into_iter().map(|(name, _)| name).collect::<Vec<_>>();
        assert_eq!(names(new), ["v_behavior", "v_target", "v_gain", "v_delta"]);
        let step = if old.by == InputEvaluation::Is { "V_step_IS" } else { "V_step_WIS" };
        assert_eq!(names(old), ["V_prev", step, "V_gain_est"]);
        // Every step has the value 1, the last one at least a bit more than half of that.
        let gap = new.sample.v_behavior - old.sample.v_behavior;
        assert!(gap > 0.5 && gap <= 1.0, "{gap}");
        assert!((old.metrics()[2].1 - 1.0).abs() < 1e-3);
    }
}

/// Joined lines of two environments, optionally without the actions' probabilities.
struct Lines {
    probs: bool,
}

impl InputReader for Lines {
    fn next(&mut self, _host: &mut SamplerHost<'_>) -> Result<AnyBatch, SampleError> {
        let column = |values: &[f32]| ColumnData::scalars(values.to_vec());
        let batch = SampleBatch::new()
            .with(REWARDS, column(&[1.0, 10.0, 2.0, 20.0]))?
            .with(EPS_ID, ColumnData::scalars(vec![7, 8, 7, 8]))?
            .with(T, ColumnData::scalars(vec![0, 0, 1, 1]))?
            .with(ColumnKey::new("new_action_prob"), column(&[0.5, 0.25, 0.5, 0.25]))?;
        Ok(if self.probs { batch.with(ACTION_PROB, column(&[0.5; 4]))? } else { batch }.into())
    }
}

/// Counts what is written.
#[derive(Clone, Default)]
struct Written(Arc<AtomicUsize>);

impl OutputWriter for Written {
    fn write(&mut self, _batch: &AnyBatch) -> Result<(), SampleError> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

fn reading(by: &[InputEvaluation], probs: bool, written: &Written) -> RolloutWorker {
    let (config, output) = (config(by).rollout_fragment_length(4), written.clone());
    let config = RolloutConfig { policy_config: Config::new().with("gamma", 1.0).unwrap(), ..config };
    let worker = RolloutWorker::builder().config(config).input_creator(move |_| Ok(Box::new(Lines { probs })));
    worker.output_creator(move |_| Ok(Box::new(output))).build().unwrap()
}

#[test]
fn episodes_of_several_environments_are_distinguished() {
    let by = [InputEvaluation::Is, InputEvaluation::Wis, InputEvaluation::Cwpdis];
    let written = Written::default();
    let estimates = sampled(reading(&by, true, &written)).estimates;
    let of = |by| estimates.iter().filter(move |of| of.by == by).map(|of| (of.sample.v_behavior, of.sample.v_target));
    assert_eq!(of(by[0]).collect::<Vec<_>>(), [(3.0, 3.0), (30.0, 10.0)], "half and a quarter of it");
    assert_eq!((of(by[1]).count(), of(by[2]).count()), (2, 2));
    assert_eq!(written.0.load(Ordering::Relaxed), 1);
}

/// A line of an episode with three agents under two policies: two under `p`, one of which takes other actions than the
/// logged ones, and one under `q`, which does not act at step 1.
struct Agents;

impl InputReader for Agents {
    fn next(&mut self, _host: &mut SamplerHost<'_>) -> Result<AnyBatch, SampleError> {
        let rows = |rewards: &[f32], agents: &[i64], ts: &[i64], probs: &[f32]| {
            SampleBatch::new()
                .with(REWARDS, ColumnData::scalars(rewards.to_vec()))?
                .with(EPS_ID, ColumnData::scalars(vec![7; rewards.len()]))?
                .with(AGENT_INDEX, ColumnData::scalars(agents.to_vec()))?
                .with(T, ColumnData::scalars(ts.to_vec()))?
                .with(ACTION_PROB, ColumnData::scalars(vec![0.5; rewards.len()]))?
                .with(ColumnKey::new("new_action_prob"), ColumnData::scalars(probs.to_vec()))
        };
        let p = rows(&[1.0, 10.0, 2.0, 20.0], &[0, 1, 0, 1], &[0, 0, 1, 1], &[0.5, 0.25, 0.5, 0.25])?;
        let q = rows(&[4.0, 8.0], &[2, 2], &[0, 2], &[1.0, 1.0])?;
        let batches = [(PolicyId::new("p"), p), (PolicyId::new("q"), q)];
        Ok(MultiAgentBatch::new(batches.into_iter().collect(), 4).into())
    }
}

#[test]
fn each_of_several_policies_is_estimated_by_its_own_agents() {
    let found = |legacy_step_estimates| {
        let halved = Config::new().with("gamma", 0.5).unwrap();
        let env = Some("TwoStepGame-v0".into());
        let config = RolloutConfig { legacy_step_estimates, env, ..config(&[InputEvaluation::Is]) }
            .rollout_fragment_length(4)
            .policy(
                PolicyId::new("p"),
                PolicyConfig { config: halved.clone().with("gamma", 1.0).unwrap(), ..PolicyConfig::new("random") },
            )
            .policy(PolicyId::new("q"), PolicyConfig { config: halved, ..PolicyConfig::new("random") });
        let worker = RolloutWorker::builder().config(config).input_creator(|_| Ok(Box::new(Agents)));
        let estimates = sampled(worker.build().unwrap()).estimates;
        let numbers = |of: &OffPolicyEstimate| (of.policy.to_string(), of.sample.v_behavior, of.sample.v_target);
        estimates.iter().map(numbers).collect::<Vec<_>>()
    };
    let [p, q] = ["p", "q"].map(String::from);
    let expected = [(p.clone(), 3.0, 3.0), (p.clone(), 30.0, 10.0), (q.clone(), 4.0 + 4.0, 8.0 + 16.0)];
    assert_eq!(found(false), expected);
    let without_last_steps = [(p.clone(), 1.0, 1.0), (p, 10.0, 5.0), (q, 4.0, 8.0)];
    assert_eq!(found(true), without_last_steps);
}

#[test]
fn several_policies_have_probabilities_and_models_of_their_own() {
    let made = Arc::new(AtomicUsize::new(0));
    let (counted, steps) = (made.clone(), Arc::new(AtomicUsize::new(0)));
    let mut registry = Registry::builtin();
    registry.q_model = Some(Arc::new(move |context: &QModelContext| {
        counted.fetch_add(1, Ordering::Relaxed);
        Ok(Box::new(Flat { value: context.gamma as f32, steps: steps.clone() }))
    }));
    let with_gamma =
        |gamma| PolicyConfig { config: Config::new().with("gamma", gamma).unwrap(), ..PolicyConfig::new("net") };
    let by = [InputEvaluation::Is, InputEvaluation::Dm];
    let config =
        RolloutConfig { policy_mapping_fn: Some("agent_id".into()), env: Some("TwoStepGame-v0".into()), ..config(&by) }
            .policy(PolicyId::new("0"), with_gamma(0.25))
            .policy(PolicyId::new("1"), with_gamma(0.75));
    let mut worker = RolloutWorker::new(config, &registry, Kernels::PORTABLE).unwrap();
    for _ in 0..2 {
        worker.sample().unwrap();
        let estimates = worker.metrics().estimates;
        for (policy, gamma) in [("0", 0.25), ("1", 0.75)] {
            let of = |by| estimates.iter().filter(move |of| of.policy.as_str() == policy && of.by == by);
            assert_eq!((of(by[0]).count(), of(by[1]).count()), (30, 30), "episodes of two steps");
            assert!(
                of(by[0]).all(|of| (of.sample.v_target - of.sample.v_behavior).abs() < 1e-3),
                "the acting policy is judged"
            );
            assert!(of(by[1]).all(|of| (of.sample.v_target - gamma).abs() < 1e-5));
        }
    }
    assert_eq!(made.load(Ordering::Relaxed), 2);
}

#[test]
fn a_model_that_is_given_is_of_the_only_policy() {
    let config = config(&[InputEvaluation::Dm]).policy(PolicyId::new("b"), PolicyConfig::new("random"));
    let model = Box::new(Flat { value: 0.0, steps: Arc::default() });
    let error = RolloutWorker::builder().config(config).q_model(model).build().unwrap_err();
    assert!(error.to_string().contains("let the registry make one for each"), "{error}");
}

#[test]
fn batch_that_cannot_be_estimated_is_not_written() {
    let written = Written::default();
    let mut worker = reading(&[InputEvaluation::Is], false, &written);
    assert!(worker.sample().is_err());
    assert_eq!((written.0.load(Ordering::Relaxed), worker.metrics().discarded_env_steps), (0, 4));
}

#[test]
fn estimators_go_by_rllibs_names() {
    let text = r#"{"input_evaluation": ["pdis", "wis", "dm", "dr", "trajectory_is", "cwpdis", "simulation"]}"#;
    let config = RolloutConfig::of_settings(&text.parse().unwrap()).unwrap();
    let names: Vec<&str> = config.input_evaluation.iter().filter_map(|by| Some(by.estimator()?.name())).collect();
    assert_eq!(names, ["is", "wis", "trajectory_is", "cwpdis", "dm", "dr"]);
}
