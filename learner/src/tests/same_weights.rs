//! Learned weights have the bits that every other build gives them.

use rollmesh_core::kernels::Kernels;

use super::{super::register_learning_policies, learned::Learned};

#[test]
fn learned_weights_equal_those_of_every_other_build() {
    for run in Learned::read().runs {
        assert_eq!(run.learn(Kernels::PORTABLE, register_learning_policies), run.weights_hash, "{:?}", run.config);
    }
}
