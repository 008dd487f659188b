//! Policies by id.

use core::fmt;

use super::Policy;
pub use crate::ids::PolicyId;
use crate::prelude::*;

/// Why a policy could not be added or found.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PolicyMapError {
    /// The id is taken.
    #[error("policy '{0}' exists already; remove it first")]
    AlreadyExists(PolicyId),
    /// Nobody has this id.
    #[error("there is no policy '{0}'")]
    Unknown(PolicyId),
}

/// The policies of a worker, by id.
#[derive(Default)]
pub struct PolicyMap {
    policies: BTreeMap<PolicyId, Box<dyn Policy>>,
}

impl PolicyMap {
    /// A map with one policy under [`PolicyId::DEFAULT`].
    #[must_use]
    pub fn single(policy: Box<dyn Policy>) -> Self {
        Self { policies: BTreeMap::from([(PolicyId::DEFAULT, policy)]) }
    }

    /// Adds a policy.
    ///
    /// # Errors
    /// [`PolicyMapError::AlreadyExists`].
    pub fn insert(&mut self, id: PolicyId, policy: Box<dyn Policy>) -> Result<(), PolicyMapError> {
        if self.policies.contains_key(&id) {
            return Err(PolicyMapError::AlreadyExists(id));
        }
        self.policies.insert(id, policy);
        Ok(())
    }

    /// A policy by id.
    ///
    /// # Errors
    /// [`PolicyMapError::Unknown`].
    pub fn policy_mut(&mut self, id: &PolicyId) -> Result<&mut dyn Policy, PolicyMapError> {
        match self.policies.get_mut(id) {
            Some(policy) => Ok(policy.as_mut()),
            None => Err(PolicyMapError::Unknown(id.clone())),
        }
    }

    /// Takes a policy out.
    ///
    /// # Errors
    /// [`PolicyMapError::Unknown`].
    pub fn remove(&mut self, id: &PolicyId) -> Result<Box<dyn Policy>, PolicyMapError> {
        self.policies.remove(id).ok_or_else(|| PolicyMapError::Unknown(id.clone()))
    }

    /// Ids in order.
    pub fn ids(&self) -> impl ExactSizeIterator<Item = &PolicyId> {
        self.policies.keys()
    }
}

impl fmt::Debug for PolicyMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.ids()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::{super::RandomPolicy, *};

    #[test]
    fn ids_are_unique_and_known() {
        let mut map = PolicyMap::single(Box::new(RandomPolicy::new(2, 0)));
        let again = map.insert(PolicyId::DEFAULT, Box::new(RandomPolicy::new(2, 0)));
        assert_eq!(again, Err(PolicyMapError::AlreadyExists(PolicyId::DEFAULT)));
        let other = PolicyId::new("other");
        assert_eq!(map.policy_mut(&other).err().unwrap().to_string(), "there is no policy 'other'");
        map.insert(other.clone(), Box::new(RandomPolicy::new(2, 0))).unwrap();
        assert_eq!(map.ids().map(|id| id.to_string()).collect::<Vec<_>>(), ["default_policy", "other"]);
        assert!(map.remove(&other).is_ok() && map.remove(&other).is_err());
    }
}
