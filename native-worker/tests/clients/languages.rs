//! The clients in Python and JavaScript: the same game ends in the same batches.

use std::process::Stdio;

use tokio::process::Command;

use super::{
    Game, hash, in_process,
    program::{Program, folder},
};
use crate::support::{json, soon};

/// Samples four batches while a program plays.
async fn assert_same(command: &[&str]) {
    for game in [Game::Single, Game::Pair] {
        let config = folder().join(format!("{game:?}.json").to_lowercase());
        let args = ["sample", "--config", config.to_str().unwrap(), "--env-steps", "200", "--json"];
        let program = Program::start(&args).await;
        let mut player = Command::new(command[0]);
        player.args(&command[1..]).arg(&program.url).arg(&program.token).kill_on_drop(true);
        player.env("PYTHONPATH", folder().join("../../../examples/external"));
        player.env("PYTHONDONTWRITEBYTECODE", "1").stdin(Stdio::null());
        let player = player.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let end = program.process.finish_with(0).await;
        let output = soon("the end of the player", player.wait_with_output()).await.unwrap();
        assert!(output.status.success(), "{command:?}");
        let expected = hash(&in_process(game, game.config(), 4).await);
        assert_eq!(json(&end.stdout)["batch_hash"], expected, "{command:?} {game:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_episode_from_python_ends_in_the_same_batches() {
    let game = folder().join("game.py");
    assert_same(&["python3", "-X", "dev", "-W", "error", game.to_str().unwrap()]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_episode_from_javascript_ends_in_the_same_batches() {
    let game = folder().join("game.mjs");
    assert_same(&["node", "--experimental-websocket", "--no-warnings", game.to_str().unwrap()]).await;
}
