//! Episodes as they should be.

use std::{collections::BTreeSet, time::Duration};

use rollmesh_core::{
    batch::OBS,
    env::{RowsRef, multi_agent::AgentRows},
    ids::PolicyId,
    protocol::{EpisodeCode, Kind, Message, message::StartEpisode},
    sampler::BatchMode,
    worker::RolloutConfig,
};

use super::{
    Game,
    game::{World as _, reply},
    hash, hub, in_process, join, sample,
};
use crate::support::soon;

#[tokio::test(flavor = "multi_thread")]
async fn an_episode_through_the_hub_ends_in_the_same_batches() {
    for game in [Game::Single, Game::Pair] {
        for batch_mode in [BatchMode::TruncateEpisodes, BatchMode::CompleteEpisodes] {
            let config = RolloutConfig { batch_mode, ..game.config() };
            let env = game.env(1);
            let hub = hub(&env).await;
            let mut world = join(&hub).await;
            let player = tokio::spawn(async move { game.play(&mut world).await });
            let (batches, _) = sample(&env, config.clone(), 4).await;
            hub.shutdown().await;
            soon("the end of the game", player).await.unwrap();
            assert_eq!(batches, in_process(game, config, 4).await, "{game:?} {batch_mode:?}");
        }
    }
}

/// Checks the hash that `tests/tests/e2e/clients.rs` expects of a page.
#[tokio::test(flavor = "multi_thread")]
async fn the_game_in_process_is_the_one_that_pages_are_compared_with() {
    for (game, golden) in
        [(Game::Single, "ea7cd3b04e6efe2ea7e46b1024240a86"), (Game::Pair, "2c0eb4e725dcce19482ee66e21291f6d")]
    {
        assert_eq!(hash(&in_process(game, game.config(), 4).await), golden, "{game:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn several_clients_drive_several_episodes_each() {
    let game = Game::Single;
    let env = game.env(3);
    let hub = hub(&env).await;
    let mut players = Vec::new();
    for _ in 0..4 {
        // The same numbers: they are each client's own. There are fewer lanes than clients, so they take turns.
        let mut world = join(&hub).await;
        players.push(tokio::spawn(async move {
            for episode in 0..20 {
                game.play_one(&mut world, episode).await.unwrap();
            }
            world
        }));
    }
    let steps = 4 * (0..20).map(|episode| 4 + episode % 3).sum::<u32>();
    let config = RolloutConfig { batch_mode: BatchMode::CompleteEpisodes, num_envs: 3, ..game.config() };
    let config = config.rollout_fragment_length(steps / 3);
    let (batches, episodes) = sample(&env, config, 1).await;
    for player in players {
        soon("the last episode", player).await.unwrap();
    }
    assert_eq!((batches[0].env_steps(), episodes.len()), (steps as usize, 80));
    assert!(episodes.iter().all(|episode| episode.faulty.is_none()));
    let lanes: BTreeSet<usize> = episodes.iter().map(|episode| episode.env).collect();
    assert_eq!(lanes.len(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn disconnecting_client_abandons_its_episodes() {
    let game = Game::Single;
    let env = game.env(2);
    let mut hub = hub(&env).await;
    let (mut stays, mut goes) = (join(&hub).await, join(&hub).await);
    let config = game.config().num_envs(2);
    let sampling = tokio::spawn({
        let env = env.clone();
        async move { sample(&env, config, 1).await }
    });
    goes.start(0).await.unwrap();
    let obs = AgentRows::single(RowsRef::F32(&[0.0, 0.0, 0.0]));
    goes.act(0, &obs).await.unwrap();
    drop(goes);
    let notice = loop {
        let notice = soon("the client to be missed", hub.next_notice()).await.unwrap().text;
        if notice.contains("left") {
            break notice;
        }
    };
    assert!(notice.contains("client 2 left") && notice.ends_with("1 of its episodes abandoned"), "{notice}");
    let player = tokio::spawn(async move { game.play(&mut stays).await });
    let (batches, episodes) = soon("the batch", sampling).await.unwrap();
    let faulty: Vec<_> = episodes.iter().filter(|episode| episode.faulty.is_some()).collect();
    assert_eq!((batches[0].env_steps(), faulty.len(), faulty[0].env), (100, 1, 0));
    hub.shutdown().await;
    soon("the end of the game", player).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_client_loses_its_lane_to_another() {
    let env = Game::Single.env(1).with_episode_timeout(Duration::from_millis(50));
    let hub = hub(&env).await;
    let (mut silent, mut other) = (join(&hub).await, join(&hub).await);
    silent.start(3).await.unwrap();
    // It only answers pings.
    let (refusal, started) = tokio::join!(silent.client.receive(), other.start(3));
    let (code, reason) = reply(refusal, Kind::StartEpisode);
    assert_eq!(code, EpisodeCode::TimedOut.to_wire());
    assert_eq!(reason, "episode 3 was given up: nothing was said of it for 0.05 s; start another one");
    started.unwrap();
    // It may begin again.
    silent.start(3).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_of_an_episode_without_training_are_in_no_batch() {
    let game = Game::Single;
    let env = game.env(1);
    let hub = hub(&env).await;
    let mut world = join(&hub).await;
    let player = tokio::spawn(async move {
        let start = StartEpisode { episode: 1000, training: false };
        world.ask(Message::StartEpisode(start)).await.unwrap();
        let obs = AgentRows::single(RowsRef::F32(&[-1.0, 0.0, 0.0]));
        world.act(1000, &obs).await.unwrap();
        world.end(1000, &obs, false).await.unwrap();
        game.play(&mut world).await
    });
    let (batches, _) = sample(&env, game.config(), 1).await;
    let batch = batches[0].as_multi_agent();
    let obs = batch.policy_batches[&PolicyId::DEFAULT].get(OBS).unwrap();
    assert!(!obs.is_empty() && obs.iter().all(|value| *value >= 0.0), "{obs:?}");
    hub.shutdown().await;
    soon("the end of the game", player).await.unwrap();
}
