//! The program: its output, its end, and the arguments that it refuses.

use std::path::Path;

use super::{Game, game::Far};
use crate::support::{Process, client::Client, process::Signal};
use rollmesh_core::protocol::{Role, Token};

/// Returns the folder of this test.
pub(crate) fn folder() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clients"))
}

/// A program that waits for clients.
pub(crate) struct Program {
    pub(crate) process: Process,
    /// `ws://HOST:PORT`
    pub(crate) url: String,
    pub(crate) token: String,
    /// That of the certificate, if it has one.
    pub(crate) fingerprint: Option<String>,
}

impl Program {
    pub(crate) async fn start(args: &[&str]) -> Self {
        Self::of(Process::start(args.iter().copied().chain(["--listen", "127.0.0.1:0"])), false).await
    }

    /// Starts a program whose hub keeps its certificate in a directory, if it has one.
    pub(crate) async fn start_in(args: &[&str], state: &str) -> Self {
        let all = args.iter().copied().chain(["--listen", "127.0.0.1:0"]);
        let process = Process::start_with(all, |command| _ = command.env("XDG_STATE_HOME", state));
        Self::of(process, args.contains(&"--tls-self-signed")).await
    }

    async fn of(mut process: Process, is_secure: bool) -> Self {
        let url = process.line("clients  ws").await.trim_start_matches("clients  ").to_owned();
        let token = process.line("token    ").await.trim_start_matches("token    ").to_owned();
        let fingerprint = match is_secure {
            true => Some(process.line("sha256   ").await.trim_start_matches("sha256   ").to_owned()),
            false => None,
        };
        Self { process, url, token, fingerprint }
    }

    async fn join(&self) -> Far {
        let address = self.url.trim_start_matches("ws://");
        Far::new(Client::join(address, Role::Client, Token::from_hex(&self.token).unwrap()).await).await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn learning_continues_while_a_client_plays() {
    let directory = tempfile::tempdir().unwrap();
    let (config, run) = (folder().join("single.json"), directory.path().join("run"));
    let train = ["train", "--config", config.to_str().unwrap(), "--run-dir", run.to_str().unwrap()];
    let args = [&train[..], &["--max-env-steps", "800", "--no-dashboard", "--json"]].concat();
    let program = Program::start(&args).await;
    let mut world = program.join().await;
    let player = tokio::spawn(async move { Game::Single.play(&mut world).await });
    let end = program.process.finish_with(0).await;
    player.await.unwrap();
    let summary = crate::support::json(&end.stdout);
    assert_eq!((&summary["iterations"], &summary["env_steps"]), (&2.into(), &800.into()));
}

#[tokio::test(flavor = "multi_thread")]
async fn interruption_without_players_saves_and_ends() {
    let directory = tempfile::tempdir().unwrap();
    let (config, run) = (folder().join("single.json"), directory.path().join("run"));
    let args = ["train", "--config", config.to_str().unwrap(), "--run-dir", run.to_str().unwrap(), "--no-dashboard"];
    let mut program = Program::start(&args).await;
    let world = program.join().await;
    program.process.line("client 1 joined: by-hand (native)").await;
    drop(world);
    program.process.line("client 1 left").await;
    program.process.signal(Signal::INT);
    program.process.finish_with(3).await;
    assert!(run.join("policy.json").is_file());
}

#[tokio::test]
async fn wrong_settings_are_named() {
    let spaces = r#"{"spaces_of": "CartPole-v1"}"#;
    let listen = ["--listen", "127.0.0.1:0"];
    let external = ["--env", "External-v0", "--env-config"];
    let cases: [(Vec<&str>, &str); 6] = [
        (
            ["--env", "External-v0"].to_vec(),
            "clients drive External-v0: say where they connect, --listen 127.0.0.1:7878",
        ),
        (listen.to_vec(), "--listen is for clients, and they drive External-v0"),
        ([&listen[..], &external, &["{}"]].concat(), "an external environment has no spaces of its own: set one of"),
        (
            [&listen[..], &external, &[r#"{"spaces_of": "Pong-v9"}"#]].concat(),
            "spaces_of: there is no environment 'Pong-v9'; Gymnasium's would be gym:Pong-v9; known are: Acrobot-v1",
        ),
        (
            [&listen[..], &external, &[spaces, "--allow-origin", "game.example"]].concat(),
            "'game.example' is no origin: write it as browsers do",
        ),
        ([&["--listen", "0.0.0.0:0"][..], &external, &[spaces]].concat(), "can be reached from other machines"),
    ];
    for (args, message) in cases {
        // A hub of a run listens for workers, too, and somewhere in any case.
        let for_clients = message.contains("say where they connect") || message.contains("--listen is for clients");
        for command in if for_clients { &["sample"][..] } else { &["train", "sample"] } {
            let end = Process::start([*command].iter().chain(&args)).finish_with(2).await;
            assert!(end.stderr.contains(message), "{command} {args:?}: {}", end.stderr);
        }
    }
}
