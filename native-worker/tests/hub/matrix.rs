//! Environments and policies of every kind over leases: one weights hash for any number of workers, those that come, go and
//! are killed included.

use rollmesh::Registry;

use crate::support::{cases::CASES, matrix::has_one_result};

#[tokio::test]
async fn continuous_actions_train_with_one_hash_for_any_workers() {
    for (env, settings) in &CASES[..2] {
        has_one_result(&Registry::builtin(), env, settings).await;
    }
}

#[tokio::test]
async fn table_observations_train_with_one_hash_for_any_workers() {
    for (env, settings) in &CASES[2..4] {
        has_one_result(&Registry::builtin(), env, settings).await;
    }
}

#[tokio::test]
async fn pictures_and_recurrent_policies_train_with_one_hash_for_any_workers() {
    for (env, settings) in &CASES[4..6] {
        has_one_result(&Registry::builtin(), env, settings).await;
    }
}

#[tokio::test]
async fn several_agents_train_with_one_hash_for_any_workers() {
    for (env, settings) in &CASES[6..9] {
        has_one_result(&Registry::builtin(), env, settings).await;
    }
}

/// Trains with environments in processes of their own, which have no snapshots: a slot that moves replays its episode.
#[tokio::test]
async fn environments_in_processes_train_with_one_hash_for_any_workers() {
    for (env, settings) in &CASES[9..11] {
        has_one_result(&Registry::builtin(), env, settings).await;
    }
}

/// Trains with fragments of different lengths, and with environments that continue at the end of an episode.
#[tokio::test]
async fn every_batch_mode_count_and_horizon_trains_with_one_hash_for_any_workers() {
    for (env, settings) in &CASES[11..] {
        has_one_result(&Registry::builtin(), env, settings).await;
    }
}
