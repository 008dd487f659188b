//! Files of lines and archives of them, as workers read them.

mod damage;
#[path = "../../../data/tests/data_sets/harness.rs"]
mod harness;
mod lines;
mod memory;

use std::{
    fs,
    path::{Path, PathBuf},
};

use rollmesh_core::batch::AnyBatch;

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/conformance/data").join(name)
}

fn bytes(name: &str) -> Vec<u8> {
    fs::read(golden(name)).unwrap()
}

fn same_bits(a: &AnyBatch, b: &AnyBatch) -> bool {
    match (a, b) {
        (AnyBatch::Single(a), AnyBatch::Single(b)) => a.same_bits(b),
        (AnyBatch::Multi(a), AnyBatch::Multi(b)) => {
            let pairs = || a.policy_batches.iter().zip(&b.policy_batches);
            a.env_steps == b.env_steps
                && a.policy_batches.len() == b.policy_batches.len()
                && pairs().all(|((p, a), (q, b))| p == q && a.same_bits(b))
        }
        _ => false,
    }
}
