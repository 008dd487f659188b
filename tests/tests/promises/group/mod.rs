//! The group that leases slots to workers, and the calls to workers of a group: without processes and sockets, with the
//! test's own clock.

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
