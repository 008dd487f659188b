//! Ranks that learn together are one learner of all their rows.

mod learners;
mod workers;

use rollmesh_core::weights::Weights;

/// The largest distance between two weights of the same name.
fn distance(one: &Weights, other: &Weights) -> f32 {
    let pairs = one.tensors().iter().zip(other.tensors());
    let values = pairs.flat_map(|(a, b)| a.values.iter().zip(&b.values));
    values.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}
