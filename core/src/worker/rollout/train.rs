//! The policies that are trained.

use core::fmt;

use super::RolloutWorker;
use crate::{batch::AnyBatch, ids::PolicyId, prelude::*};

/// Returns whether a policy is trained, on this batch if there is one.
type Predicate = Arc<dyn Fn(&PolicyId, Option<&AnyBatch>) -> bool + Send + Sync>;

/// The policies that are trained.
#[derive(Clone, Default)]
#[doc(alias = "is_policy_to_train")]
pub enum PoliciesToTrain {
    /// All policies.
    #[default]
    All,
    /// The policies with these ids.
    Ids(BTreeSet<PolicyId>),
    /// Those for which the predicate is true; called for every batch.
    Where(Predicate),
}

impl PoliciesToTrain {
    /// Returns those for which `predicate` is true.
    pub fn predicate(predicate: impl Fn(&PolicyId, Option<&AnyBatch>) -> bool + Send + Sync + 'static) -> Self {
        Self::Where(Arc::new(predicate))
    }

    /// Returns whether a policy is trained, on this batch if there is one.
    #[must_use]
    pub fn contains(&self, id: &PolicyId, batch: Option<&AnyBatch>) -> bool {
        match self {
            Self::All => true,
            Self::Ids(ids) => ids.contains(id),
            Self::Where(predicate) => predicate(id, batch),
        }
    }
}

impl<const N: usize> From<[PolicyId; N]> for PoliciesToTrain {
    fn from(ids: [PolicyId; N]) -> Self {
        Self::Ids(ids.into())
    }
}

impl From<BTreeSet<PolicyId>> for PoliciesToTrain {
    fn from(ids: BTreeSet<PolicyId>) -> Self {
        Self::Ids(ids)
    }
}

impl fmt::Debug for PoliciesToTrain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("All"),
            Self::Ids(ids) => f.debug_tuple("Ids").field(ids).finish(),
            Self::Where(_) => f.write_str("Where(..)"),
        }
    }
}

impl RolloutWorker {
    /// Sets which policies are trained.
    #[doc(alias = "set_policies_to_train")]
    pub fn set_is_policy_to_train(&mut self, policies: impl Into<PoliciesToTrain>) {
        self.parts.policies_to_train = policies.into();
    }

    /// Returns the ids of the trained policies, on this batch if there is one.
    #[doc(alias = "get_policies_to_train")]
    #[must_use]
    pub fn policies_to_train(&self, batch: Option<&AnyBatch>) -> BTreeSet<PolicyId> {
        let trained = &self.parts.policies_to_train;
        self.parts.policies.ids().filter(|id| trained.contains(id, batch)).cloned().collect_ordered()
    }
}
