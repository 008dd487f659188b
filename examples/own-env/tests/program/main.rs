//! Tests of the program with code of its own.

mod commands;
#[cfg(target_os = "linux")]
mod matrix;
mod rules;
#[cfg(target_os = "linux")]
#[path = "../../../../native-worker/tests/support/mod.rs"]
mod support;
