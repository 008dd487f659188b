//! Policies: batches of observations in, actions with log-probabilities and value estimates out.
//!
//! A policy computes into the caller's buffers and draws nothing by itself: the randomness of a row's action is
//! addressed by the row's [`Moment`](crate::env::Moment). So a row's action does not depend on which other rows are in its batch.
//!
//! [`NetPolicy`] acts in every space, with the model that its settings ask for ([`ModelConfig`]); [`RandomPolicy`] in
//! every bounded one. A [`PolicyRegistry`] knows them, and those of a program's own, by name: see [`PolicySpec`].
//!
//! A [`PolicyMap`] holds as many policies as its limits allow, and stashes the others in a [`PolicyStore`], from
//! which they are restored bit-identically:
//!
//! ```
//! use rollmesh_core::{
//!     env::EnvRegistry,
//!     kernels::Kernels,
//!     policy::{
//!         MemoryStore, ModelConfig, ModelSpec, NetPolicy, Policy, PolicyEntry, PolicyId, PolicyMap, PolicyMapLimits,
//!     },
//! };
//!
//! let spaces = EnvRegistry::builtin().spec("CartPole-v1")?.spaces()?;
//! let model = ModelConfig::of_widths(&[8]);
//! let make = move |seed| -> Result<Box<dyn Policy>, _> {
//!     let weights = ModelSpec::for_spaces(&spaces, &model)?.init_weights(seed)?;
//!     let policy = NetPolicy::new(&spaces, &model, weights, 7, Kernels::PORTABLE)?;
//!     Ok::<_, rollmesh_core::policy::PolicyError>(Box::new(policy))
//! };
//! // Makes an object for a policy to restore. Its weights are restored afterwards.
//! let again = make.clone();
//! let factory = move |_: &PolicyId, spec: &str| Ok(PolicyEntry::new(spec.to_owned(), again(0)?));
//! let limits = PolicyMapLimits { count: 1, ..PolicyMapLimits::UNLIMITED };
//! let mut policies = PolicyMap::bounded(limits, MemoryStore::default(), factory);
//!
//! let (main, rival) = (PolicyId::new("main"), PolicyId::new("rival"));
//! policies.insert(main.clone(), PolicyEntry::new("net", make(1)?))?;
//! let weights = policies.policy_mut(&main)?.weights().clone();
//! policies.insert(rival.clone(), PolicyEntry::new("net", make(2)?))?;
//! assert!(policies.stashed().eq([&main]) && policies.ids().eq([&main, &rival]));
//! assert_eq!(policies.policy_mut(&main)?.weights(), &weights);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod act;
mod all_reduce;
mod entry;
mod init;
mod io;
mod judge;
mod learn;
mod map;
mod net;
mod normalizer;
mod previous;
mod random;
mod registry;
mod stash;
mod store;

pub use crate::ids::PolicyId;
pub use act::{ActRequest, Acted};
pub use all_reduce::{AllReduce, AllReduceError};
pub use entry::{PolicyEntry, PolicyMaker, PolicyState};
pub use init::weights_seed;
pub use io::{ActionInput, ActionOutput, TakenActions};
pub use judge::{Judge, JudgeError};
pub use learn::{Gradients, LearnInfo, Postprocessing, joined_info};
pub use map::{PolicyMap, PolicyMapError, PolicyMapLimits, UnknownPolicy};
pub(crate) use net::forward_by_kernels;
pub use net::{
    AutoFilters, ConvFilter, ConvFilters, CustomModel, Extent, Forward, ForwardFactory, Input, LayerDescription,
    LayerKind, LayerSpec, MASKED_LOGIT, MaskedObs, ModelConfig, ModelDescription, ModelRegistry, ModelSpec, NetPolicy,
    ObsEncoder, Output, PreviousInputs, WeightsInitializer,
};
pub use previous::PreviousStep;
pub use random::RandomPolicy;
pub use registry::{PolicyContext, PolicyFactory, PolicyRegistry, PolicySpec};
pub use stash::{Stash, StashError, Stashed};
pub use store::{MemoryStore, PolicyStore, StoreError};

use crate::{
    batch::{BatchError, SampleBatch},
    config::ConfigError,
    env::RowsRef,
    episode::{Episode, GlobalVars, OtherAgent},
    filter::{FilterError, FilterTensorError},
    postprocess::PostprocessError,
    prelude::*,
    preprocess::PreprocessError,
    space::PointError,
    view::ViewRequirements,
    weights::{Weights, WeightsError},
};

/// The reason why a policy could not act.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// The policy does not take these observations or give these actions.
    #[error("the policy takes {wanted}, not {found}")]
    Unsupported {
        /// The accepted form.
        wanted: String,
        /// The given form.
        found: String,
    },
    /// A buffer is longer or shorter than the rows.
    #[error("{buffer} has room for {found} values, {wanted} are wanted")]
    BufferLength {
        /// The buffer, as it is called in [`ActionOutput`].
        buffer: &'static str,
        /// The required number of values.
        wanted: usize,
        /// The buffer's number of values.
        found: usize,
    },
    /// These weights are not the policy's.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// The tensors of a filter among the weights are invalid.
    #[error(transparent)]
    FilterTensors(#[from] FilterTensorError),
    /// The observations cannot be filtered.
    #[error(transparent)]
    Filter(#[from] FilterError),
    /// Observations could not be preprocessed.
    #[error(transparent)]
    Preprocess(#[from] PreprocessError),
    /// Actions do not fit their space.
    #[error(transparent)]
    Actions(#[from] PointError),
    /// The batch is not what the policy learns from.
    #[error(transparent)]
    Batch(#[from] BatchError),
    /// The trajectory cannot be postprocessed.
    #[error(transparent)]
    Postprocess(#[from] PostprocessError),
    /// The policy's settings are wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The policy acts and does not learn.
    #[error("this policy does not learn; the learning ones are registered by name, see `rollmesh policies`")]
    NoLearner,
    /// The policy learns by itself alone.
    #[error(
        "this policy cannot learn together with other ranks; of those that come with the program pg, a2c and ppo can, \
         see `Policy::data_parallel`"
    )]
    NoDataParallel,
    /// The ranks that learn together have not agreed.
    #[error(transparent)]
    AllReduce(#[from] AllReduceError),
    /// Training left the range of numbers. The weights are the last good ones.
    #[error("{0}")]
    Diverged(String),
    /// The policy failed by itself.
    #[error("the policy failed: {0}")]
    Failed(String),
}

impl PolicyError {
    /// Checks the length of a buffer.
    fn check_buffer(buffer: &'static str, found: usize, wanted: usize) -> Result<(), Self> {
        if found == wanted { Ok(()) } else { Err(Self::BufferLength { buffer, wanted, found }) }
    }
}

/// Something that acts, and perhaps learns.
pub trait Policy: Send {
    /// Chooses an action for every observation.
    ///
    /// # Errors
    /// [`PolicyError::Unsupported`] for rows of another type, [`PolicyError::BufferLength`] for buffers of other lengths.
    fn compute_actions(&mut self, input: ActionInput<'_>, out: ActionOutput<'_>) -> Result<(), PolicyError>;

    /// Estimates the value of every observation, with the same bits as
    /// [`compute_actions`](Self::compute_actions) would. `state` holds the recurrent states before them, as
    /// [`ActionInput::state`] does.
    ///
    /// # Errors
    /// [`PolicyError::Unsupported`] for rows of another type, [`PolicyError::BufferLength`] for states of another length.
    #[doc(alias = "value_function")]
    fn compute_values(&mut self, obs: RowsRef<'_>, state: &[f32], values: &mut [f32]) -> Result<(), PolicyError>;

    /// Computes the outputs of its networks for rows of encoded observations, which a policy of the same kind with the same
    /// weights has encoded elsewhere. The number of rows is that of `out.values`.
    ///
    /// # Errors
    /// [`PolicyError::BufferLength`] for buffers of other lengths; [`PolicyError::Unsupported`] for a policy without
    /// networks, which is the default.
    fn compute_outputs(&mut self, _input: Input<'_>, _out: Output<'_>) -> Result<(), PolicyError> {
        Err(PolicyError::Unsupported {
            wanted: "no rows of other workers".into(),
            found: "encoded observations".into(),
        })
    }

    /// Returns how many numbers a row of [`compute_outputs`](Self::compute_outputs) has; 0 for a policy without networks, which
    /// is the default.
    fn encoded_obs_len(&self) -> usize {
        0
    }

    /// Lets the policy take these actions for the rows to come, in their order, and compute their probabilities,
    /// instead of drawing its own; `None` ends that. For audits of rows that a policy on a device acted in: the policy
    /// confirms the log-probabilities that the last bits of its networks' outputs can explain.
    ///
    /// # Errors
    /// [`PolicyError::Unsupported`] for a policy that cannot, which is the default.
    fn take_actions(&mut self, _taken: Option<TakenActions>) -> Result<(), PolicyError> {
        Err(PolicyError::Unsupported { wanted: "to choose by itself".into(), found: "actions that were taken".into() })
    }

    /// Returns the lengths of the recurrent states, one after the other; none for a policy without memory.
    #[doc(alias = "get_initial_state")]
    fn state_lens(&self) -> &[usize] {
        &[]
    }

    /// Returns the writer of previous steps, for a policy whose recurrent states end with the action and the reward of the
    /// previous step; `None` by default. Samplers write them after the environment's step.
    fn previous_step(&self) -> Option<&PreviousStep> {
        None
    }

    /// Returns whether the policy follows [action masks](MaskedObs); false by default. Observations with a mask reach such
    /// a policy as they are, without preprocessing, and cannot be filtered.
    fn takes_action_masks(&self) -> bool {
        false
    }

    /// Writes the states at the start of an episode, all of them one after the other. They come filled with zeros.
    fn initial_state(&self, _state: &mut [f32]) {}

    /// Returns the number of parameters per row of the distribution of actions; 0 for a policy that does not return
    /// them.
    fn dist_inputs_len(&self) -> usize {
        0
    }

    /// Returns the view requirements: the rows and columns that the policy sees and learns from, in addition to those
    /// of every batch.
    fn view_requirements(&self) -> ViewRequirements {
        ViewRequirements::default()
    }

    /// Returns the processing of a trajectory before it is learned from.
    fn postprocessing(&self) -> Postprocessing {
        Postprocessing::None
    }

    /// Postprocesses a trajectory where [`postprocessing`](Self::postprocessing) is [`Postprocessing::Custom`]: rows of
    /// one agent from one episode, of which at most the last one has a flag. `others` are those of the other agents of
    /// the episode, not postprocessed.
    ///
    /// # Errors
    /// [`PolicyError`].
    fn postprocess_trajectory(
        &mut self,
        trajectory: SampleBatch,
        _others: &[OtherAgent<'_>],
        _episode: &Episode,
    ) -> Result<SampleBatch, PolicyError> {
        Ok(trajectory)
    }

    /// Receives the run's progress. Only policies that are trained use it.
    fn on_global_var_update(&mut self, _vars: &GlobalVars) {}

    /// Learns from a batch: the gradients of all its rows, or several passes over it, as the policy likes.
    ///
    /// # Errors
    /// [`PolicyError::NoLearner`] for a policy that only acts, which is the default.
    fn learn_on_batch(&mut self, _batch: &SampleBatch) -> Result<LearnInfo, PolicyError> {
        Err(PolicyError::NoLearner)
    }

    /// Computes the gradients of the loss on a batch, without changes to the policy.
    ///
    /// # Errors
    /// As [`learn_on_batch`](Self::learn_on_batch).
    fn compute_gradients(&mut self, _batch: &SampleBatch) -> Result<(Gradients, LearnInfo), PolicyError> {
        Err(PolicyError::NoLearner)
    }

    /// Lets the optimiser take one step along gradients.
    ///
    /// # Errors
    /// As [`learn_on_batch`](Self::learn_on_batch); [`PolicyError::Weights`] for gradients of another model.
    fn apply_gradients(&mut self, _gradients: &Gradients) -> Result<LearnInfo, PolicyError> {
        Err(PolicyError::NoLearner)
    }

    /// Returns a text that must be equal on all ranks that [learn together](Self::learn_on_batch_with), besides names
    /// and shapes of the weights: the settings. `None` for a policy that cannot learn this way, which is the default.
    #[doc(alias = "distributed_world_size")]
    fn data_parallel(&self) -> Option<String> {
        None
    }

    /// [Learns](Self::learn_on_batch) from the rows of all ranks together, of which the batch holds this one's, perhaps
    /// none: then it has no columns. All ranks end with the same weights, bit for bit, and where they learned from the
    /// parts of a batch, with those of one learner of the whole batch, as far as sums in another order go.
    ///
    /// # Errors
    /// [`PolicyError::NoDataParallel`] for a policy that learns by itself alone, which is the default;
    /// [`PolicyError::AllReduce`] if the ranks have not agreed, else as there. The caller notifies the other ranks of an
    /// error that is this one's alone, by [`AllReduce::give_up`].
    fn learn_on_batch_with(
        &mut self,
        _batch: &SampleBatch,
        _ranks: &mut dyn AllReduce,
    ) -> Result<LearnInfo, PolicyError> {
        Err(PolicyError::NoDataParallel)
    }

    /// Computes the [gradients](Self::compute_gradients) of the loss on the rows of all ranks together, the same on
    /// all.
    ///
    /// # Errors
    /// As [`learn_on_batch_with`](Self::learn_on_batch_with).
    fn compute_gradients_with(
        &mut self,
        _batch: &SampleBatch,
        _ranks: &mut dyn AllReduce,
    ) -> Result<(Gradients, LearnInfo), PolicyError> {
        Err(PolicyError::NoDataParallel)
    }

    /// Returns the weights that the policy acts with.
    fn weights(&self) -> &Weights;

    /// Acts with other weights from now on. On an error the old ones stay.
    ///
    /// # Errors
    /// [`PolicyError::Weights`] when they do not fit.
    fn set_weights(&mut self, weights: &Weights) -> Result<(), PolicyError>;

    /// Returns the state besides weights that stashing must preserve, for example an optimiser's moments or a
    /// schedule's place; in bytes that only the policy itself reads. Empty by default.
    #[doc(alias = "get_state")]
    fn extra_state(&self) -> Vec<u8> {
        Vec::new()
    }

    /// Returns the bytes that this state occupies in memory, for limits. Worth overriding where encoding the state is
    /// not cheap.
    fn extra_state_bytes(&self) -> usize {
        self.extra_state().len()
    }

    /// Restores the bytes of [`extra_state`](Self::extra_state).
    ///
    /// # Errors
    /// [`PolicyError::Unsupported`] for bytes that are not the policy's.
    #[doc(alias = "set_state")]
    fn set_extra_state(&mut self, bytes: &[u8]) -> Result<(), PolicyError> {
        let unsupported = || PolicyError::Unsupported {
            wanted: "no state besides weights".into(),
            found: format!("{} bytes", bytes.len()),
        };
        if bytes.is_empty() { Ok(()) } else { Err(unsupported()) }
    }
}
