//! A store of policies on disk, which the core does not have.
//!
//! ```
//! use rollmesh::policies::DiskStore;
//! use rollmesh_core::policy::{Policy, PolicyEntry, PolicyId, PolicyMap, PolicyMapLimits, RandomPolicy};
//!
//! # let dir = tempfile::tempdir()?;
//! # let dir = dir.path();
//! let random = || -> Box<dyn Policy> { Box::new(RandomPolicy::new(2, 7)) };
//! let limits = PolicyMapLimits { count: 2, ..PolicyMapLimits::UNLIMITED };
//! let factory = move |_: &PolicyId, spec: &str| Ok(PolicyEntry::new(spec.to_owned(), random()));
//! let mut policies = PolicyMap::bounded(limits, DiskStore::open(dir)?, factory);
//! let ids: Vec<PolicyId> = (0..8).map(|i| PolicyId::new(format!("p{i}"))).collect();
//! for id in &ids {
//!     policies.insert(id.clone(), PolicyEntry::new("random", random()))?;
//! }
//! assert_eq!(policies.stashed().count(), 6);
//! policies.policy_mut(&ids[0])?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod disk_store;

pub use disk_store::DiskStore;
