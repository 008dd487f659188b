//! Learned weights have the bits that every other build gives them.

use rollmesh_core::{kernels::Kernels, time::Micros, worker::Registry};

use super::{
    super::{InlineRun, InlineWork, register_learning_policies},
    learned::{Journalled, Learned},
};

#[test]
fn learned_weights_equal_those_of_every_other_build() {
    for run in Learned::read().runs {
        assert_eq!(run.learn(Kernels::PORTABLE, register_learning_policies), run.weights_hash, "{:?}", run.config);
    }
}

#[test]
fn runs_in_one_thread_learn_the_weights_of_every_other_build() {
    for trained in Learned::read().trains {
        let mut run =
            InlineRun::new(1, trained.run(), &Registry::builtin(), Kernels::PORTABLE, Micros(0)).expect("a run");
        while run.work(7, Micros(0)).expect("work") != InlineWork::Over {}
        assert_eq!(run.state().weights_hash().to_string(), trained.weights_hash, "{:?}", trained.config);
    }
}

#[test]
fn journals_repeat_with_the_weights_of_every_other_build() {
    for Journalled { trained, entries } in Learned::read().journals {
        let registry = Registry::builtin();
        let mut run = InlineRun::replaying(1, trained.run(), &registry, Kernels::PORTABLE, entries).expect("a run");
        while run.work(7, Micros(0)).expect("work") != InlineWork::Over {}
        assert_eq!(run.state().weights_hash().to_string(), trained.weights_hash, "{:?}", trained.config);
    }
}
