//! Estimates of policies by what was logged.

use core::sync::atomic::{AtomicUsize, Ordering};

use super::super::*;
use crate::{
    batch::{ACTION_PROB, AnyBatch, EPS_ID, REWARDS, SampleBatch, T},
    column::{ColumnData, ColumnKey},
    config::Config,
    estimate::{EstimateError, Transitions},
    sampler::{InputReader, OutputWriter, SampleError, SamplerHost},
    worker::QModelContext,
};

/// Every action is worth the same, and what was learned is counted.
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
    // All but the last row, of which nobody knows what follows.
    assert!((59..=60).contains(&steps.load(Ordering::Relaxed)));
    assert_eq!(estimates.iter().filter(|of| of.by == by[0]).count() * 2, estimates.len());
    for estimate in estimates {
        match estimate.by {
            InputEvaluation::Dm => assert!((estimate.sample.v_target - 3.5).abs() < 1e-5),
            // Who acted is judged, so that the model's mistakes take each other away.
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
fn what_has_no_model_is_told_how_to_get_one() {
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
        // Every step is worth 1, the last one at least a bit more than half of that.
        let gap = new.sample.v_behavior - old.sample.v_behavior;
        assert!(gap > 0.5 && gap <= 1.0, "{gap}");
        assert!((old.metrics()[2].1 - 1.0).abs() < 1e-3);
    }
}

/// Joined lines of two environments, or rows of which nobody says how likely their actions were.
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
fn episodes_of_several_environments_are_told_apart() {
    let by = [InputEvaluation::Is, InputEvaluation::Wis, InputEvaluation::Cwpdis];
    let written = Written::default();
    let estimates = sampled(reading(&by, true, &written)).estimates;
    let of = |by| estimates.iter().filter(move |of| of.by == by).map(|of| (of.sample.v_behavior, of.sample.v_target));
    assert_eq!(of(by[0]).collect::<Vec<_>>(), [(3.0, 3.0), (30.0, 10.0)], "half and a quarter of it");
    assert_eq!((of(by[1]).count(), of(by[2]).count()), (2, 2));
    assert_eq!(written.0.load(Ordering::Relaxed), 1);
}

#[test]
fn what_cannot_be_estimated_is_not_written() {
    let written = Written::default();
    let mut worker = reading(&[InputEvaluation::Is], false, &written);
    assert!(worker.sample().is_err());
    assert_eq!((written.0.load(Ordering::Relaxed), worker.metrics().discarded_env_steps), (0, 4));
}

#[test]
fn estimators_go_by_rllibs_names() {
    let text = r#"{"input_evaluation": ["pdis", "wis", "dm", "dr", "trajectory_is", "cwpdis", "simulation"]}"#;
    let config: RolloutConfig = serde_json::from_str(text).unwrap();
    let names: Vec<&str> = config.input_evaluation.iter().filter_map(|by| Some(by.estimator()?.name())).collect();
    assert_eq!(names, ["is", "wis", "trajectory_is", "cwpdis", "dm", "dr"]);
}
