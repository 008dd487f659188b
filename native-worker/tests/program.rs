//! The program `rollmesh` and its library, with real sockets, files and processes.

#[cfg(target_os = "linux")]
mod algorithm;
#[cfg(target_os = "linux")]
mod control;
#[cfg(all(target_os = "linux", feature = "offline-parquet"))]
mod data;
#[cfg(all(target_os = "linux", feature = "offline-parquet"))]
mod data_forms;
#[cfg(target_os = "linux")]
mod data_parallel;
mod data_sets;
mod external;
#[cfg(target_os = "linux")]
mod filters;
#[cfg(target_os = "linux")]
mod hub;
#[cfg(target_os = "linux")]
mod inference;
mod kernels;
#[path = "../../learner/src/tests/learned.rs"]
mod learned;
#[cfg(target_os = "linux")]
mod learning;
#[cfg(target_os = "linux")]
mod ope;
mod ope_coverage;
#[cfg(target_os = "linux")]
mod resume;
#[cfg(target_os = "linux")]
mod sample;
#[cfg(unix)]
mod schema;
#[cfg(target_os = "linux")]
mod security;
#[cfg(target_os = "linux")]
mod support;
#[cfg(target_os = "linux")]
mod train;
