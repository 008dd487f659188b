//! What a worker answers.

use crate::{
    batch::AnyBatch,
    config::Config,
    env::EnvSpaces,
    episode::GlobalVars,
    evaluation::EvalOutcome,
    filter::Filter,
    ids::PolicyId,
    policy::{Gradients, LearnInfo},
    prelude::*,
    weights::Weights,
    worker::{RolloutConfig, TrainInfo, WorkerMetrics},
};

/// What a worker answers to a [`WorkerCommand`](super::WorkerCommand).
#[derive(Clone, Debug, PartialEq)]
pub enum WorkerAnswer {
    /// It is done.
    Done,
    /// It is there.
    Pong,
    /// A sample.
    Sample(AnyBatch),
    /// What policies say of their learning, and env steps of the batch.
    Learned {
        /// What the policies say.
        info: TrainInfo,
        /// Env steps of the batch.
        env_steps: usize,
    },
    /// Gradients, and what policies say of them.
    Gradients(BTreeMap<PolicyId, (Gradients, LearnInfo)>),
    /// Weights.
    Weights(BTreeMap<PolicyId, Weights>),
    /// What it knows of the run's progress.
    GlobalVars(GlobalVars),
    /// Filters.
    Filters(BTreeMap<PolicyId, Filter>),
    /// Its state.
    State(Vec<u8>),
    /// What became of its episodes.
    Metrics(Box<WorkerMetrics>),
    /// Policies.
    PolicyIds(BTreeSet<PolicyId>),
    /// Spaces of its policies, before preprocessing.
    Spaces(BTreeMap<PolicyId, EnvSpaces>),
    /// Its settings.
    CreationArgs(Box<RolloutConfig>),
    /// A text.
    Text(String),
    /// A port.
    Port(u16),
    /// What a function has answered.
    Value(Config),
    /// What a function has answered for each environment or policy, in their order.
    Values(Vec<Config>),
    /// The outcome of an evaluation.
    Evaluated(Box<EvalOutcome>),
}
