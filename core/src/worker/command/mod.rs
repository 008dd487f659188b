//! Commands that a worker can be sent: built-in ones, and functions of its program by name. No code is sent.

mod answer;
mod called;
mod error;
mod execute;
mod setup;
#[cfg(test)]
mod tests;
mod wire;

pub use answer::WorkerAnswer;
pub(crate) use called::unguarded;
pub use called::{CalledWorker, Guard};
pub(super) use called::{PanicWords, guarded};
pub use error::{CommandError, CommandErrorKind};
pub use setup::WorkerSetup;

use super::{DataParallelConfig, NamedFn, PolicyConfig, SgdOptions};
use crate::{
    batch::AnyBatch,
    episode::GlobalVars,
    evaluation::EvaluationRequest,
    filter::Filter,
    ids::PolicyId,
    policy::{Gradients, PolicyState},
    prelude::*,
    weights::Weights,
};

/// The mapping of agents to policies from now on, and the policies to train. `None` keeps the present setting.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PolicyRoles {
    /// A registered mapping function.
    pub policy_mapping_fn: Option<NamedFn>,
    /// The policies that are trained.
    pub policies_to_train: Option<TrainedPolicies>,
}

/// The policies that are trained, in a serialisable form, which a predicate does not have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TrainedPolicies {
    /// All policies.
    All,
    /// The policies with these ids.
    Ids(BTreeSet<PolicyId>),
}

wire::wire_form! {
    /// A command for a worker. Each corresponds to a method of [`RolloutWorker`](super::RolloutWorker), and
    /// [`execute`](super::RolloutWorker::execute) calls it. The order is part of the wire format: new commands come last.
    #[derive(Clone, Debug, PartialEq)]
    #[doc(alias("foreach_worker", "apply"))]
    #[allow(clippy::large_enum_variant)] // Commands are made and done one by one.
    pub enum WorkerCommand {
        /// Checks that the worker is alive.
        Ping,
        /// Returns a sample.
        #[doc(alias("par_iter_next", "par_iter_next_batch"))]
        Sample,
        /// Samples and learns from the sample.
        SampleAndLearn {
            /// Env steps that the sample must have.
            expected: usize,
            /// Settings of the learning.
            options: SgdOptions,
        },
        /// Learns from a batch.
        LearnOnBatch(AnyBatch),
        /// Returns the gradients of a batch.
        ComputeGradients(AnyBatch),
        /// Applies gradients with the optimisers.
        ApplyGradients(BTreeMap<PolicyId, Gradients>),

        /// Returns the weights of the given policies, or of all policies if `None`.
        #[doc(alias = "get_weights")]
        Weights {
            /// The policies; `None` for all.
            policies: Option<Vec<PolicyId>>,
        },
        /// Sets the weights to act with.
        SetWeights {
            /// The weights.
            weights: BTreeMap<PolicyId, Weights>,
            /// The run's progress, if it is to be set as well.
            global_vars: Option<GlobalVars>,
            /// Sequence number: weights with the same number as the last ones are skipped.
            weights_seq_no: Option<u64>,
        },
        /// Returns the run's progress as the worker knows it.
        #[doc(alias = "get_global_vars")]
        GlobalVars,
        /// Sets the run's progress.
        SetGlobalVars {
            /// The progress.
            vars: GlobalVars,
            /// The policies that are notified; `None` for all.
            policies: Option<Vec<PolicyId>>,
        },
        /// Returns the filters.
        #[doc(alias = "get_filters")]
        Filters {
            /// Whether to clear the observations collected since the last exchange from the worker's filters afterwards.
            flush_after: bool,
        },
        /// Sets the filters' shared statistics.
        SyncFilters(BTreeMap<PolicyId, Filter>),
        /// Returns the worker's state.
        #[doc(alias = "get_state")]
        State,
        /// Restores the worker's state.
        SetState(Vec<u8>),
        /// Returns the metrics of its episodes.
        #[doc(alias = "get_metrics")]
        Metrics,

        /// Adds a policy.
        AddPolicy {
            /// Its id.
            id: PolicyId,
            /// Its registered class, its spaces and settings.
            policy: PolicyConfig,
            /// The state that it resumes from.
            state: Option<PolicyState>,
            /// Changes of the policies' roles.
            roles: PolicyRoles,
        },
        /// Removes a policy.
        RemovePolicy {
            /// Its id.
            id: PolicyId,
            /// Changes of the policies' roles.
            roles: PolicyRoles,
        },
        /// Sets the function that maps agents to policies.
        SetPolicyMappingFn(NamedFn),
        /// Sets which policies are trained.
        #[doc(alias = "set_is_policy_to_train")]
        SetPoliciesToTrain(TrainedPolicies),
        /// Returns the policies that are trained, on this batch if there is one.
        #[doc(alias("get_policies_to_train", "is_policy_to_train"))]
        PoliciesToTrain(Option<AnyBatch>),
        /// Returns the spaces of its policies.
        #[doc(alias = "get_spaces")]
        Spaces,

        /// Checks that no part of the worker is missing.
        AssertHealthy,
        /// Returns the name of its machine.
        #[doc(alias = "get_host")]
        Hostname,
        /// Returns the address of its machine.
        #[doc(alias = "get_node_ip")]
        NodeIp,
        /// Returns a free port of its machine.
        FindFreePort,
        /// Returns its settings.
        CreationArgs,
        /// Locks it.
        Lock,
        /// Unlocks it.
        Unlock,
        /// Stops it.
        Stop,

        /// Calls a [worker function](super::Registry::with_worker_fn).
        Apply(NamedFn),
        /// Calls an [environment function](super::Registry::with_env_fn) with each of its sub-environments.
        #[doc(alias = "foreach_env_with_context")]
        ForEachEnv(NamedFn),
        /// Calls a [policy function](super::Registry::with_policy_fn) with one of its policies.
        ForPolicy {
            /// The policy.
            id: PolicyId,
            /// The function.
            function: NamedFn,
        },
        /// Calls a [policy function](super::Registry::with_policy_fn) with each of its policies.
        ForEachPolicy(NamedFn),
        /// Calls a [policy function](super::Registry::with_policy_fn) with each of its trained policies.
        ForEachPolicyToTrain(NamedFn),

        /// Returns the next sample of a slice, see [`Samples::next_of_slice`](super::Samples::next_of_slice). Without slices,
        /// [`Sample`](Self::Sample) returns the next one.
        #[doc(alias("par_iter_slice", "par_iter_slice_batch"))]
        SampleOfSlice {
            /// Distance from one of its samples to the next.
            step: u64,
            /// Index of its first sample.
            start: u64,
        },
        /// Evaluates the policies of the worker's own description: see [`Evaluates`](crate::evaluation::Evaluates). Unlike other
        /// commands it can be cancelled.
        #[doc(alias = "RayEvalWorker")]
        Evaluate {
            /// The weights; `None` for the latest ones that the worker was given.
            weights: Option<Weights>,
            /// The evaluation.
            request: EvaluationRequest,
        },
        /// Returns the positions of the sampler and the input, without the policies.
        SamplerState,
        /// Restores the positions of the sampler and the input.
        SetSamplerState(Vec<u8>),
        /// Joins the other ranks, with which it learns from now on. Returns when all have joined, so all ranks must be sent
        /// this at the same time.
        #[doc(alias = "setup_torch_data_parallel")]
        SetupDataParallel(DataParallelConfig),
    }
}

impl WorkerCommand {
    /// Returns whether workers report progress while they execute it. Learning reports none.
    #[must_use]
    pub fn reports_progress(&self) -> bool {
        matches!(self, Self::Sample | Self::Evaluate { .. })
    }

    /// Returns whether workers may send this command to evaluation workers: an evaluation, or the end of all. Checks only
    /// the number of the command; the worker decodes the rest.
    #[must_use]
    pub fn is_for_others(body: &[u8]) -> bool {
        wire::is_for_others(body)
    }

    /// Returns whether it samples.
    #[must_use]
    pub fn is_sample(&self) -> bool {
        matches!(self, Self::Sample | Self::SampleAndLearn { .. })
    }
}
