//! Runs that are killed and continue: `rollmesh train --resume`, as people and machines do that.

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
mod tokens;
mod weights;
