//! Which policies are trained.

use core::fmt;

use super::RolloutWorker;
use crate::{batch::AnyBatch, ids::PolicyId, prelude::*};

/// Whether a policy is trained, on a certain batch or at all.
type Predicate = Arc<dyn Fn(&PolicyId, Option<&AnyBatch>) -> bool + Send + Sync>;

/// The policies that are trained.
#[derive(Clone, Default)]
#[doc(alias = "is_policy_to_train")]
pub enum PoliciesToTrain {
    /// All.
    #[default]
    All,
    /// These.
    Ids(BTreeSet<PolicyId>),
    /// Those of which this is true; asked again for every batch.
    Where(Predicate),
}

impl PoliciesToTrain {
    /// Those of which `predicate` is true.
    pub fn predicate(predicate: impl Fn(&PolicyId, Option<&AnyBatch>) -> bool + Send + Sync + 'static) -> Self {
        Self::Where(Arc::new(predicate))
    }

    /// Whether a policy is trained, on a certain batch or at all.
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
    /// Says anew which policies are trained.
    #[doc(alias = "set_policies_to_train")]
    pub fn set_is_policy_to_train(&mut self, policies: impl Into<PoliciesToTrain>) {
        self.parts.policies_to_train = policies.into();
    }

    /// Ids of the policies that are trained, on a certain batch or at all.
    #[doc(alias = "get_policies_to_train")]
    #[must_use]
    pub fn policies_to_train(&self, batch: Option<&AnyBatch>) -> BTreeSet<PolicyId> {
        let trained = &self.parts.policies_to_train;
        self.parts.policies.ids().filter(|id| trained.contains(id, batch)).cloned().collect()
    }
}
