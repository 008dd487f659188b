//! The learner, [`rollmesh_learner`], and its thread in this process.

#[cfg(test)]
#[path = "../../../learner/src/test_support.rs"]
// The learner's own tests use the rest.
#[allow(dead_code)]
pub(crate) mod test_support;
mod thread;

pub use rollmesh_learner::{
    ALGORITHMS, AlgorithmConfig, AlgorithmSettingsError, AlgorithmSpec, CommonConfig, ConfigError, DeviceError,
    DeviceSpec, Fit, FittedQ, FittedQConfig, LearnError, Learner, LearningPolicy, MarwilConfig, ModelError, OldPolicy,
    OnnxError, PolicyGradientConfig, PpoConfig, UpdateStats, algorithm, all_settings, forward_on, learns,
    register_learning_policies, register_learning_policies_on, run_schema, to_onnx,
};
pub(crate) use rollmesh_learner::{
    ENV_STEPS, Learned, Learners, LearningStart, LearningStartError, PolicyFile, Results, filter_of, gamma_of,
    report_results, results_before, written_out,
};
pub(crate) use thread::LearnerThread;
