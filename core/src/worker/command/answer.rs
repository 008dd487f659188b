//! Answers of a worker.

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

super::wire::wire_form! {
    /// The answer of a worker to a [`WorkerCommand`](super::WorkerCommand). The order is part of the wire format: new answers come last.
    #[derive(Clone, Debug, PartialEq)]
    pub enum WorkerAnswer {
        /// The command was executed and returns nothing.
        Done,
        /// The worker is alive.
        Pong,
        /// A sample.
        Sample(AnyBatch),
        /// Metrics of the policies' learning, and env steps of the batch.
        Learned {
            /// Metrics by policy.
            info: TrainInfo,
            /// Env steps of the batch.
            env_steps: usize,
        },
        /// Gradients by policy, with the metrics of their computation.
        Gradients(BTreeMap<PolicyId, (Gradients, LearnInfo)>),
        /// Weights by policy.
        Weights(BTreeMap<PolicyId, Weights>),
        /// The worker's global variables: the run's progress.
        GlobalVars(GlobalVars),
        /// Filters by policy.
        Filters(BTreeMap<PolicyId, Filter>),
        /// The worker's state.
        State(Vec<u8>),
        /// Metrics of its episodes.
        Metrics(Box<WorkerMetrics>),
        /// Ids of policies.
        PolicyIds(BTreeSet<PolicyId>),
        /// Spaces of its policies, before preprocessing.
        Spaces(BTreeMap<PolicyId, EnvSpaces>),
        /// Its settings.
        CreationArgs(Box<RolloutConfig>),
        /// A text.
        Text(String),
        /// A port.
        Port(u16),
        /// The result of a function.
        Value(Config),
        /// The results of a function for each environment or policy, in their order.
        Values(Vec<Config>),
        /// The outcome of an evaluation.
        Evaluated(Box<EvalOutcome>),
    }
}
