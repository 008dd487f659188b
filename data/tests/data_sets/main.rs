//! Data sets in D4RL's, Minari's and Parquet form: readers return the written rows, each once, and no file makes a
//! reader panic or take more memory than allowed.

mod d4rl;
mod damage;
mod footers;
mod harness;
mod hdf5;
mod line_memory;
mod memory;
mod minari;
mod pages;
mod tables;

use std::{
    fs,
    path::{Path, PathBuf},
};

use rollmesh_core::batch::{AnyBatch, SampleBatch};
use rollmesh_data::dataset::{BatchStream, DatasetError};

const BUFFER: usize = 1 << 20;

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/conformance/data").join(name)
}

fn bytes(name: &str) -> Vec<u8> {
    fs::read(golden(name)).unwrap()
}

fn all(stream: &mut (impl BatchStream + ?Sized)) -> Result<Vec<AnyBatch>, DatasetError> {
    std::iter::from_fn(|| stream.next_batch().transpose()).collect()
}

fn joined(batches: &[AnyBatch]) -> SampleBatch {
    SampleBatch::concat(batches.iter().map(|batch| batch.single().unwrap())).unwrap()
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
