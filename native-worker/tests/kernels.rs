//! Every instantiation of the hot loops gives the same bits.

use rollmesh::kernels::KernelChoice;
use rollmesh_core::worker::{Registry, RolloutConfig, RolloutWorker, core_fingerprint, rollout_hash};

#[test]
fn tables_agree() {
    let hash = |choice: KernelChoice| {
        // 37 environments: the last block of rows is not full.
        let config = RolloutConfig::new("CartPole-v1").num_envs(37).rollout_fragment_length(50).seed(2);
        rollout_hash(config, 5_000, &Registry::builtin(), choice.table()).unwrap()
    };
    assert_eq!(hash(KernelChoice::Auto), hash(KernelChoice::Portable));
    let fingerprint = |choice: KernelChoice| core_fingerprint(choice.table());
    assert_eq!(fingerprint(KernelChoice::Auto), fingerprint(KernelChoice::Portable));
}

#[test]
fn tables_agree_in_every_space_and_with_memory() {
    // Actions of both kinds; floats, one-hot vectors and pictures; whole tiles of rows, some rows, one.
    for (env, num_envs) in [("CartPole-v1", 21), ("Pendulum-v1", 19), ("Taxi-v4", 5), ("PixelBreakout-v0", 1)] {
        for model in [r#"{"fcnet_hiddens": [70, 12]}"#, r#"{"use_lstm": true, "lstm_cell_size": 20}"#] {
            let sample = |choice: KernelChoice| {
                let config = RolloutConfig::new(env).num_envs(num_envs).rollout_fragment_length(30).seed(3);
                let config = RolloutConfig { model_config: model.parse().unwrap(), ..config };
                let mut worker = RolloutWorker::new(config, &Registry::builtin(), choice.table()).unwrap();
                worker.sample().unwrap().single().unwrap().clone()
            };
            assert_eq!(sample(KernelChoice::Auto), sample(KernelChoice::Portable), "{env} {model}");
        }
    }
}
