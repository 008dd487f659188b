//! Runs that are killed and go on: `rollmesh train --resume`, as people and machines do that.
#![cfg(target_os = "linux")]

mod asked;
mod damage;
#[cfg(feature = "offline-parquet")]
mod from_files;
mod kills;
mod matrix;
mod outputs;
mod rig;
mod sampling;
mod settings;
#[path = "../support/mod.rs"]
mod support;
mod tokens;
mod weights;
