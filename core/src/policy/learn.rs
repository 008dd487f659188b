//! What learning takes and gives.

use crate::{postprocess::AdvantageConfig, prelude::*, weights::Weights};

/// What becomes of a trajectory between sampling and learning.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Postprocessing {
    /// It stays as it is.
    None,
    /// It gets advantages and value targets. Where its last row does not terminate, the policy's own value of the
    /// observation after it stands for what would have come.
    #[doc(alias("compute_gae_for_sample_batch", "compute_advantages"))]
    Advantages(AdvantageConfig),
    /// The policy does something of its own.
    Custom,
}

/// Gradients by the names of the weights they belong to. The version is the weights'.
#[derive(Clone, Debug, PartialEq)]
pub struct Gradients(pub Weights);

/// What a policy says of a learning step: named numbers, for example `policy_loss`.
pub type LearnInfo = BTreeMap<String, f64>;
