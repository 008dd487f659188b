//! Every instantiation of the hot loops gives the same bits.

use rollmesh::kernels::KernelChoice;
use rollmesh_core::worker::{Registry, RolloutConfig, core_fingerprint, rollout_hash};

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
