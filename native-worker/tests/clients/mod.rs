//! Clients that drive episodes through a hub: the same batches as in process, and the consequences if they are wrong,
//! slow, too fast or disconnected. Some of them are programs in Python and JavaScript, so that no bare `cargo test`
//! runs any of this: `cargo xtask test clients` does.

mod connections;
mod episodes;
mod game;
mod languages;
mod mistakes;
mod program;

use crate::support::{client::Client, soon};
use game::{Far, Game};
use rollmesh::{
    NativeWorker as _, Registry,
    external::ExternalMultiAgentEnv,
    hub::{Hub, HubConfig},
    kernels::AUTO,
};
use rollmesh_core::{
    batch::AnyBatch,
    episode::RolloutMetrics,
    hash::BatchHasher,
    protocol::Role,
    worker::{RolloutConfig, RolloutWorker},
};
use tokio::task::spawn_blocking;

/// Starts a hub in this process, for clients of an environment.
async fn hub(env: &ExternalMultiAgentEnv) -> Hub {
    let config = HubConfig {
        listen: "127.0.0.1:0".parse().unwrap(),
        dashboard: false,
        assets: None,
        runs_dir: None,
        worker_program: env!("CARGO_BIN_EXE_rollmesh").into(),
        kernels: AUTO,
        external: Some(env.clone()),
        allow_origins: vec!["https://game.example".into()],
        security: rollmesh::hub::SecurityConfig::default(),
    };
    Hub::start(config, &Registry::builtin()).await.unwrap()
}

async fn join(hub: &Hub) -> Far {
    Far::new(Client::join(hub.address(), Role::Client, hub.client_token()).await).await
}

/// Samples the given number of batches with a worker on a thread of its own.
async fn sample(
    env: &ExternalMultiAgentEnv,
    config: RolloutConfig,
    count: usize,
) -> (Vec<AnyBatch>, Vec<RolloutMetrics>) {
    let creator = env.creator();
    let work = move || {
        let builder = RolloutWorker::builder().config(RolloutConfig { env: None, ..config }).native();
        let mut worker = builder.base_env_creator(creator).build().unwrap();
        let batches = (0..count).map(|_| worker.sample().unwrap()).collect();
        (batches, worker.metrics().episodes)
    };
    soon("the batches", spawn_blocking(work)).await.unwrap()
}

/// Returns the batches of a game that is played in this process.
async fn in_process(game: Game, config: RolloutConfig, count: usize) -> Vec<AnyBatch> {
    let env = game.env(1);
    let mut world = env.clone();
    let player = tokio::spawn(async move { game.play(&mut world).await });
    let (batches, _) = sample(&env, config, count).await;
    env.stop();
    soon("the end of the game", player).await.unwrap();
    batches
}

/// Returns the hash that `rollmesh sample` prints.
fn hash(batches: &[AnyBatch]) -> String {
    let mut hasher = BatchHasher::new();
    batches.iter().for_each(|batch| hasher.add(batch).unwrap());
    hasher.finish().to_string()
}
