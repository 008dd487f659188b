//! Clients that make mistakes, and clients that try to block others.

use rollmesh::hub::HubError;
use rollmesh_core::{
    env::{RowsRef, multi_agent::AgentRows},
    protocol::{
        EpisodeCode, Kind, Message, RefusalCode, Role,
        message::{AbandonEpisode, EpisodeReply, GetAction, Goodbye, LogReturns, Progress, StartEpisode},
    },
};
use tokio_tungstenite::{connect_async, tungstenite::client::IntoClientRequest as _};

use super::{
    Game,
    game::{World as _, reply},
    hub, join, sample,
};
use crate::support::{
    client::{Client, Frame, hello},
    soon,
};

fn ask(episode: u32, observations: Vec<u8>) -> Message {
    Message::GetAction(GetAction { episode, observations })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mistake_is_named_and_nothing_else_happens() {
    let game = Game::Single;
    let env = game.env(1);
    let hub = hub(&env).await;
    let mut world = join(&hub).await;
    world.start(7).await.unwrap();
    let nan = [&[0, 0][..], &f32::NAN.to_le_bytes(), &[0; 8]].concat();
    let cases = [
        (ask(8, vec![0; 14]), EpisodeCode::NotOpen, "there is no episode 8: start it first"),
        (ask(7, vec![0; 13]), EpisodeCode::BadRows, "the bytes of agent 0 need 12 bytes, 11 are left"),
        (ask(7, nan), EpisodeCode::BadRows, "element 0 of agent 0 is not finite"),
        (
            Message::LogReturns(LogReturns { episode: 7, returns: vec![0; 11], infos: vec![] }),
            EpisodeCode::OutOfTurn,
            "episode 7: returns come after the first observation",
        ),
    ];
    for (message, code, reason) in cases {
        let about = message.kind();
        world.client.say(&message).await;
        assert_eq!(reply(world.client.receive().await, about), (code.to_wire(), reason.into()));
    }
    // And the episode continues, to the same rows.
    let player = tokio::spawn(async move {
        world.end(7, &AgentRows::single(RowsRef::F32(&[0.0; 3])), false).await.unwrap();
        game.play(&mut world).await
    });
    let (batches, _) = sample(&env, game.config(), 2).await;
    assert_eq!(batches, super::in_process(game, game.config(), 2).await);
    hub.shutdown().await;
    soon("the end of the game", player).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_opens_one_role_and_a_role_one_kind_of_messages() {
    let env = Game::Single.env(1);
    let hub = hub(&env).await;
    for (role, token) in [
        (Role::Client, hub.worker_token()),
        (Role::Worker, hub.client_token()),
        (Role::Operator, hub.client_token()),
        (Role::Viewer, hub.client_token()),
    ] {
        let mut peer = Client::connect(hub.address()).await;
        peer.say(&Message::Hello(hello(role, token))).await;
        let refused = peer.refusal().await.expect("a reason");
        assert_eq!(refused.code, RefusalCode::Token.to_wire(), "{role:?}");
    }
    let mut client = join(&hub).await.client;
    client.say(&Message::Progress(Progress { lease: 1, env_steps: 1 })).await;
    let goodbye = client.receive().await;
    let Some(Message::Goodbye(Goodbye { reason })) = goodbye else { panic!("{goodbye:?}") };
    assert_eq!(reason, "a peer with role Client may not send Progress");
    let mut worker = Client::join(hub.address(), Role::Worker, hub.worker_token()).await;
    worker.say(&Message::StartEpisode(StartEpisode { episode: 0, training: true })).await;
    let goodbye = worker.receive().await;
    assert!(matches!(&goodbye, Some(Message::Goodbye(bye)) if bye.reason.contains("StartEpisode")), "{goodbye:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_of_allowed_origins_connect_and_others_do_not() {
    let env = Game::Single.env(1);
    let hub = hub(&env).await;
    let from = async |origin: &'static str| {
        let mut request = format!("ws://{}/ws", hub.address()).into_client_request().unwrap();
        request.headers_mut().insert("Origin", origin.parse().unwrap());
        soon("an answer", connect_async(request)).await.is_ok()
    };
    assert!(from("https://game.example").await);
    assert!(!from("https://game.example.evil.example").await && !from("http://game.example").await);
    let config = rollmesh::hub::HubConfig {
        listen: "127.0.0.1:0".parse().unwrap(),
        dashboard: false,
        assets: None,
        runs_dir: None,
        worker_program: "rollmesh".into(),
        kernels: rollmesh::kernels::AUTO,
        external: None,
        allow_origins: vec!["https://game.example/".into()],
        security: rollmesh::hub::SecurityConfig::default(),
    };
    let error = rollmesh::hub::Hub::start(config, &rollmesh::Registry::builtin()).await.unwrap_err();
    assert!(matches!(error, HubError::Origin(_)), "{error}");
}

/// Sends messages without reading: answers queue up, and then the hub stops reading from it.
#[tokio::test(flavor = "multi_thread")]
async fn client_that_never_reads_blocks_no_other() {
    let game = Game::Single;
    let env = game.env(2);
    let hub = hub(&env).await;
    let mut flood = join(&hub).await.client;
    let wrong = Frame::Binary(ask(1, vec![]).encode().into());
    let (began, begun) = tokio::sync::oneshot::channel();
    let flooding = tokio::spawn(async move {
        let mut began = Some(began);
        for said in 0.. {
            // The hub may hang up.
            if flood.send(wrong.clone()).await.is_err() {
                return;
            }
            if said == 1000 {
                _ = began.take().map(|began| began.send(()));
            }
        }
    });
    soon("a flood", begun).await.unwrap();
    let mut world = join(&hub).await;
    let player = tokio::spawn(async move { game.play(&mut world).await });
    let config = rollmesh_core::worker::RolloutConfig { num_envs: 2, ..game.config() };
    let (batches, _) = sample(&env, config, 3).await;
    assert_eq!(batches.iter().map(|batch| batch.env_steps()).sum::<usize>(), 300);
    flooding.abort();
    hub.shutdown().await;
    soon("the end of the game", player).await.unwrap();
}

/// Takes every lane that it can get, repeatedly: other waiting clients are served round-robin.
#[tokio::test(flavor = "multi_thread")]
async fn client_that_requests_all_lanes_does_not_starve_others() {
    let game = Game::Single;
    let env = game.env(1);
    let hub = hub(&env).await;
    let mut greedy = join(&hub).await.client;
    let start = |episode| Message::StartEpisode(StartEpisode { episode, training: true });
    for episode in 0..100 {
        greedy.say(&start(episode)).await;
    }
    let taking = tokio::spawn(async move {
        while let Some(Message::EpisodeReply(EpisodeReply { episode, about, .. })) = greedy.receive().await {
            let has_begun = about == Kind::StartEpisode.to_wire();
            let abandon = Message::AbandonEpisode(AbandonEpisode { episode });
            greedy.say(&if has_begun { abandon } else { start(episode) }).await;
        }
    });
    let mut world = join(&hub).await;
    let player = tokio::spawn(async move { game.play(&mut world).await });
    let (batches, _) = sample(&env, game.config(), 2).await;
    assert_eq!(batches, super::in_process(game, game.config(), 2).await);
    taking.abort();
    hub.shutdown().await;
    soon("the end of the game", player).await.unwrap();
}

/// Checks that a repeated request is answered once, and reported as a mistake.
#[tokio::test(flavor = "multi_thread")]
async fn a_second_question_before_the_answer_is_a_mistake() {
    let game = Game::Single;
    let env = game.env(1);
    let hub = hub(&env).await;
    let mut world = join(&hub).await;
    world.start(1).await.unwrap();
    world.client.say(&ask(1, vec![0; 14])).await;
    world.client.say(&ask(1, vec![0; 14])).await;
    let about = Kind::GetAction.to_wire();
    let (code, reason) = (EpisodeCode::OutOfTurn.to_wire(), "episode 1 waits for actions: take them first".into());
    let expected = Message::EpisodeReply(EpisodeReply { episode: 1, about, code, reason });
    assert_eq!(world.client.receive().await, Some(expected));
    // A worker that exits without having sampled enough: waiting clients are notified.
    let sampling = tokio::task::spawn_blocking({
        let (creator, config) = (env.creator(), game.config());
        move || {
            use rollmesh_core::worker::{RolloutConfig, RolloutWorker};
            let builder = RolloutWorker::builder().config(RolloutConfig { env: None, ..config });
            let mut worker = builder.base_env_creator(creator).build().unwrap();
            worker.sample().map(drop)
        }
    });
    assert!(matches!(world.client.receive().await, Some(Message::Actions(_))));
    world.client.say(&ask(2, vec![0; 14])).await;
    assert_eq!(reply(world.client.receive().await, Kind::GetAction).0, EpisodeCode::NotOpen.to_wire());
    env.stop();
    assert!(soon("the worker's end", sampling).await.unwrap().is_err());
    world.client.say(&ask(1, vec![0; 14])).await;
    assert_eq!(reply(world.client.receive().await, Kind::GetAction).0, EpisodeCode::Stopped.to_wire());
}
