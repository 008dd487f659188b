//! Estimates of policies by what was logged.

use core::sync::atomic::{AtomicUsize, Ordering};

use super::super::*;
use crate::{
    config::Config,
    estimate::{EstimateError, Transitions},
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

#[test]
fn estimators_go_by_rllibs_names() {
    let text = r#"{"input_evaluation": ["pdis", "wis", "dm", "dr", "trajectory_is", "cwpdis", "simulation"]}"#;
    let config: RolloutConfig = serde_json::from_str(text).unwrap();
    let names: Vec<&str> = config.input_evaluation.iter().filter_map(|by| Some(by.estimator()?.name())).collect();
    assert_eq!(names, ["is", "wis", "trajectory_is", "cwpdis", "dm", "dr"]);
}
