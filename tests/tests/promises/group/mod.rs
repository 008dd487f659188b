//! The group that leases slots to workers, and the calls to workers of a group: without processes and sockets, in the test's
//! own time.

mod audits;
mod calls;
mod failures;
mod follow_ups;
mod history;
mod leases;
mod modes;
mod ops;
mod rollouts;
mod sim;
