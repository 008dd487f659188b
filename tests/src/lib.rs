//! What the tests across crates share. Not published.

pub mod conformance;
pub mod fake_rows;
pub mod fake_worker;
pub mod history;
pub mod scenario;
pub mod simnet;
