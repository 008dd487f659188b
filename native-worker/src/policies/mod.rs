//! Policies and filters for native threads and disks, which the core does not have.
//!
//! [`DiskStore`] keeps evicted policies in files. [`SharedPolicyMap`] is the core's
//! [`PolicyMap`](rollmesh_core::policy::PolicyMap) for several threads, [`ConcurrentMeanStdFilter`] its filter.
//!
//! ```
//! use rollmesh::policies::{DiskStore, SharedPolicyMap};
//! use rollmesh_core::policy::{Policy, PolicyEntry, PolicyId, PolicyMapLimits, RandomPolicy};
//!
//! # let dir = tempfile::tempdir()?;
//! # let dir = dir.path();
//! let random = || -> Box<dyn Policy + Send> { Box::new(RandomPolicy::new(2, 7)) };
//! let limits = PolicyMapLimits { count: 2, ..PolicyMapLimits::UNLIMITED };
//! let factory = move |_: &PolicyId, spec: &str| Ok(PolicyEntry::new(spec.to_owned(), random()));
//! let policies = SharedPolicyMap::new(limits, DiskStore::open(dir)?, factory);
//! let ids: Vec<PolicyId> = (0..8).map(|i| PolicyId::new(format!("p{i}"))).collect();
//! for id in &ids {
//!     policies.insert(id.clone(), PolicyEntry::new("random", random()))?;
//! }
//! std::thread::scope(|scope| {
//!     for id in &ids {
//!         // Each thread has its policy for itself, and with it the filter.
//!         scope.spawn(|| policies.checkout(id).map(|entry| entry.policy.weights().version()));
//!     }
//! });
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod concurrent_filter;
mod disk_store;
mod shared;

pub use concurrent_filter::ConcurrentMeanStdFilter;
pub use disk_store::DiskStore;
pub use shared::{PolicyGuard, SharedPolicyMap, SharedPolicyMapError};
