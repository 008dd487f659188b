//! What a worker can be asked from elsewhere: built-in commands, and functions of its program by name. No code travels.

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

use super::{NamedFn, PolicyConfig, SgdOptions};
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

/// How agents get their policies from now on, and which ones are trained. What is none stays as it is.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PolicyRoles {
    /// A registered mapping function.
    pub policy_mapping_fn: Option<NamedFn>,
    /// The policies that are trained.
    pub policies_to_train: Option<TrainedPolicies>,
}

/// Policies that are trained, in a form that can travel: a predicate cannot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TrainedPolicies {
    /// All.
    All,
    /// These.
    Ids(BTreeSet<PolicyId>),
}

/// What a worker is asked. Every command is a method of [`RolloutWorker`](super::RolloutWorker), and
/// [`execute`](super::RolloutWorker::execute) calls it.
#[derive(Clone, Debug, PartialEq)]
#[doc(alias("foreach_worker", "apply"))]
#[allow(clippy::large_enum_variant)] // Commands are made and done one by one.
pub enum WorkerCommand {
    /// For a sign of life.
    Ping,
    /// For a sample.
    #[doc(alias("par_iter_next", "par_iter_next_batch"))]
    Sample,
    /// For the next sample of a slice, see [`Samples::next_of_slice`](super::Samples::next_of_slice). Without slices,
    /// [`Sample`](Self::Sample) gives the next one.
    #[doc(alias("par_iter_slice", "par_iter_slice_batch"))]
    SampleOfSlice {
        /// From one of its samples to the next.
        step: u64,
        /// Number of its first sample.
        start: u64,
    },
    /// To sample and to learn from that.
    SampleAndLearn {
        /// Env steps that the sample must have.
        expected: usize,
        /// How to learn.
        options: SgdOptions,
    },
    /// To learn.
    LearnOnBatch(AnyBatch),
    /// For the gradients on a batch.
    ComputeGradients(AnyBatch),
    /// To take a step along gradients.
    ApplyGradients(BTreeMap<PolicyId, Gradients>),

    /// For weights, of all policies or of these.
    #[doc(alias = "get_weights")]
    Weights {
        /// The policies; none for all.
        policies: Option<Vec<PolicyId>>,
    },
    /// To act with other weights.
    SetWeights {
        /// The weights.
        weights: BTreeMap<PolicyId, Weights>,
        /// What is known of the run's progress.
        global_vars: Option<GlobalVars>,
        /// Weights with the number that was given last are known already.
        weights_seq_no: Option<u64>,
    },
    /// For what it knows of the run's progress.
    #[doc(alias = "get_global_vars")]
    GlobalVars,
    /// To take over what is known of the run's progress.
    SetGlobalVars {
        /// The news.
        vars: GlobalVars,
        /// The policies that hear of them; none for all.
        policies: Option<Vec<PolicyId>>,
    },
    /// For its filters.
    #[doc(alias = "get_filters")]
    Filters {
        /// Whether what is new since the last exchange is only in the answer afterwards.
        flush_after: bool,
    },
    /// To take over the statistics of others.
    SyncFilters(BTreeMap<PolicyId, Filter>),
    /// For its state.
    #[doc(alias = "get_state")]
    State,
    /// To go on from a state.
    SetState(Vec<u8>),
    /// For where its sampler and its input are, without its policies.
    SamplerState,
    /// To sample and read on from there.
    SetSamplerState(Vec<u8>),
    /// For what became of its episodes.
    #[doc(alias = "get_metrics")]
    Metrics,

    /// To add a policy.
    AddPolicy {
        /// Its id.
        id: PolicyId,
        /// Its registered kind, its spaces and settings.
        policy: PolicyConfig,
        /// From where it goes on.
        state: Option<PolicyState>,
        /// What changes for the other policies.
        roles: PolicyRoles,
    },
    /// To remove a policy.
    RemovePolicy {
        /// Its id.
        id: PolicyId,
        /// What changes for the other policies.
        roles: PolicyRoles,
    },
    /// To let agents get their policies in another way.
    SetPolicyMappingFn(NamedFn),
    /// To train other policies.
    #[doc(alias = "set_is_policy_to_train")]
    SetPoliciesToTrain(TrainedPolicies),
    /// For the policies that are trained, on a certain batch or at all.
    #[doc(alias("get_policies_to_train", "is_policy_to_train"))]
    PoliciesToTrain(Option<AnyBatch>),
    /// For the spaces of its policies.
    #[doc(alias = "get_spaces")]
    Spaces,

    /// Whether it has all that it needs.
    AssertHealthy,
    /// For the name of its machine.
    #[doc(alias = "get_host")]
    Hostname,
    /// For the address of its machine.
    #[doc(alias = "get_node_ip")]
    NodeIp,
    /// For a port of its machine.
    FindFreePort,
    /// For its settings.
    CreationArgs,
    /// To lock it.
    Lock,
    /// To unlock it.
    Unlock,
    /// To stop.
    Stop,

    /// To call a [worker function](super::Registry::with_worker_fn).
    Apply(NamedFn),
    /// To call an [environment function](super::Registry::with_env_fn) with each of its sub-environments.
    #[doc(alias = "foreach_env_with_context")]
    ForEachEnv(NamedFn),
    /// To call a [policy function](super::Registry::with_policy_fn) with one of its policies.
    ForPolicy {
        /// The policy.
        id: PolicyId,
        /// The function.
        function: NamedFn,
    },
    /// To call a [policy function](super::Registry::with_policy_fn) with each of its policies.
    ForEachPolicy(NamedFn),
    /// To call a [policy function](super::Registry::with_policy_fn) with each of its policies that is trained.
    ForEachPolicyToTrain(NamedFn),

    /// For an evaluation, of the worker's own description: see [`Evaluates`](crate::evaluation::Evaluates). Unlike other
    /// commands it can be cancelled.
    #[doc(alias = "RayEvalWorker")]
    Evaluate {
        /// The weights; none for those that the worker was given last.
        weights: Option<Weights>,
        /// What to play.
        request: EvaluationRequest,
    },
}

impl WorkerCommand {
    /// Whether workers tell that they get on with it while they do it. Learning is done in one go.
    #[must_use]
    pub fn reports_progress(&self) -> bool {
        matches!(self, Self::Sample | Self::Evaluate { .. })
    }

    /// Whether workers that evaluate do it for others: an evaluation, or the end of all. Looks at the number of the command
    /// alone; the worker reads the rest.
    #[must_use]
    pub fn is_for_others(body: &[u8]) -> bool {
        wire::is_for_others(body)
    }

    /// Whether it samples.
    #[must_use]
    pub fn is_sample(&self) -> bool {
        matches!(self, Self::Sample | Self::SampleAndLearn { .. })
    }
}
