//! Every instantiation of the hot loops gives the same bits.

use rollmesh::{kernels::KernelChoice, learner::register_learning_policies};
use rollmesh_core::kernels::Kernels;
use rollmesh_core::time::Micros;
use rollmesh_core::worker::{Registry, RolloutConfig, RolloutWorker, core_fingerprint, rollout_hash};
use rollmesh_learner::{InlineRun, InlineWork};

use crate::learned::{Journalled, Learned};

/// Returns the tables that this machine can run.
fn tables() -> Vec<Kernels> {
    let tables: Vec<Kernels> = KernelChoice::ALL.into_iter().filter_map(|choice| choice.table().ok()).collect();
    assert!(tables.len() >= 2, "the portable one and the automatic one run anywhere");
    tables
}

#[test]
fn learned_weights_are_the_same_with_all_tables() {
    for run in Learned::read().runs {
        for kernels in tables() {
            let hash = run.learn(kernels, register_learning_policies);
            assert_eq!(hash, run.weights_hash, "{} {:?}", kernels.name, run.config);
        }
    }
}

#[test]
fn journals_repeat_with_the_weights_of_every_other_build() {
    for Journalled { trained, entries } in Learned::read().journals {
        for kernels in tables() {
            let run = InlineRun::replaying(1, trained.run(), &Registry::builtin(), kernels, entries.clone());
            let mut run = run.unwrap();
            while run.work(u32::MAX, Micros(0)).unwrap() != InlineWork::Over {}
            assert_eq!(run.state().weights_hash().to_string(), trained.weights_hash, "{}", kernels.name);
        }
    }
}

#[test]
fn tables_agree() {
    let hash = |kernels: Kernels| {
        // 37 environments: the last block of rows is not full.
        let config = RolloutConfig::new("CartPole-v1").num_envs(37).rollout_fragment_length(50).seed(2);
        rollout_hash(config, 5_000, &Registry::builtin(), kernels).unwrap()
    };
    for kernels in tables() {
        assert_eq!(hash(kernels), hash(Kernels::PORTABLE), "{}", kernels.name);
        assert_eq!(core_fingerprint(kernels), core_fingerprint(Kernels::PORTABLE), "{}", kernels.name);
    }
}

#[test]
fn tables_agree_in_every_space_and_with_memory() {
    // Actions of both kinds; floats, one-hot vectors and pictures; whole tiles of rows, some rows, one.
    for (env, num_envs) in [("CartPole-v1", 21), ("Pendulum-v1", 19), ("Taxi-v4", 5), ("PixelBreakout-v0", 1)] {
        let models = [
            r#"{"fcnet_hiddens": [70, 12]}"#,
            r#"{"use_lstm": true, "lstm_cell_size": 20}"#,
            r#"{"fcnet_hiddens": [30], "fcnet_activation": "gelu", "use_gru": true, "gru_cell_size": 20}"#,
            r#"{"fcnet_hiddens": [30], "fcnet_activation": "elu", "conv_filters": [[5, 3, 2], [16, 2, 1]]}"#,
        ];
        for model in models {
            if model.contains("conv") && !env.starts_with("Pixel") {
                continue;
            }
            let sample = |kernels: Kernels| {
                let config = RolloutConfig::new(env).num_envs(num_envs).rollout_fragment_length(30).seed(3);
                let config = RolloutConfig { model_config: model.parse().unwrap(), ..config };
                let mut worker = RolloutWorker::new(config, &Registry::builtin(), kernels).unwrap();
                worker.sample().unwrap().single().unwrap().clone()
            };
            for kernels in tables() {
                assert_eq!(sample(kernels), sample(Kernels::PORTABLE), "{} {env} {model}", kernels.name);
            }
        }
    }
}
