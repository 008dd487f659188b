//! Tokens: their expiry, and that they are never shown.

use std::{
    fs,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use rollmesh::{
    hub::HubError,
    train::{RunConfig, RunRequest},
};
use rollmesh_core::protocol::{
    Message, Role, Token, TokenAction,
    message::{ManageTokens, NewToken, Renew},
};

use super::{TestHub, config, create, fresh_address, id_of, list, revoke};
use crate::support::{
    Process,
    client::{Client, Frame, hello},
    soon,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn peer_with_revoked_token_is_disconnected_within_a_second() {
    let hub = TestHub::start().await;
    let mut operator = hub.operator().await;
    for &role in Role::ALL {
        let token = create(&mut operator, role, 0).await;
        let [listening, deaf] = [(); 2].map(|()| Client::join_from(fresh_address(), hub.hub.address(), role, token));
        let (listening, mut deaf) = (listening.await, deaf.await);
        let rows = list(&mut operator).await;
        let place = rows.ids.iter().position(|id| *id == id_of(&token).0).unwrap();
        assert_eq!((rows.roles[place], rows.connections[place]), (role.to_wire(), 2));

        let began = Instant::now();
        assert_eq!(revoke(&mut operator, id_of(&token)).await, "");
        listening.refusal().await;
        assert!(began.elapsed() < Duration::from_secs(1), "{role:?}: {:?}", began.elapsed());
        assert!(!list(&mut operator).await.ids.contains(&id_of(&token).0));
        // Its further messages are ignored.
        while deaf.receive().await.is_some() {}
        assert!(began.elapsed() < Duration::from_secs(1), "{role:?}: {:?}", began.elapsed());
    }
    assert!(revoke(&mut operator, id_of(&Token::new([1; 32]))).await.contains("there is no token"));
    // An operator may shut itself out, too.
    let (action, token) = (TokenAction::Revoke.to_wire(), id_of(&hub.operator_token()).0);
    operator.say(&Message::ManageTokens(ManageTokens { request: 1, action, token, ..ManageTokens::default() })).await;
    operator.refusal().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rotated_token_hands_over_and_runs_out() {
    let hub = TestHub::start().await;
    let mut operator = hub.operator().await;
    let old = create(&mut operator, Role::Worker, 0).await;
    let holder = Client::join_from(fresh_address(), hub.hub.address(), Role::Worker, old).await;
    let wish =
        ManageTokens { request: 9, action: TokenAction::Rotate.to_wire(), role: 0, token: id_of(&old).0, seconds: 1 };
    operator.say(&Message::ManageTokens(wish)).await;
    let new = operator.wait_for(|message| match message {
        Message::NewToken(NewToken { request: 9, role: 3, expires: 0, token }) => Some(*token),
        _ => None,
    });
    let new = new.await;
    Client::join_from(fresh_address(), hub.hub.address(), Role::Worker, new).await;
    holder.refusal().await;
    let mut late = Client::connect_from(fresh_address(), hub.hub.address()).await;
    late.say(&Message::Hello(hello(Role::Worker, old))).await;
    assert!(late.refusal().await.is_some());
}

/// Rotates a token, which expires after a second. Returns its successor.
async fn rotate(operator: &mut Client, old: &Token) -> Token {
    let (action, token) = (TokenAction::Rotate.to_wire(), id_of(old).0);
    operator.say(&Message::ManageTokens(ManageTokens { request: 9, action, role: 0, token, seconds: 1 })).await;
    let new = operator.wait_for(|message| match message {
        Message::NewToken(NewToken { request: 9, token, .. }) => Some(*token),
        _ => None,
    });
    new.await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn peer_that_presents_the_new_token_stays_connected() {
    let hub = TestHub::start().await;
    let mut operator = hub.operator().await;
    let old = create(&mut operator, Role::Worker, 0).await;
    let [mut renewed, idle, mut thief] = {
        let join = || Client::join_from(fresh_address(), hub.hub.address(), Role::Worker, old);
        [join().await, join().await, join().await]
    };
    let new = rotate(&mut operator, &old).await;
    renewed.say(&Message::Renew(Renew { token: new })).await;
    // A token of another role, and one that does not exist, renew nothing.
    for token in [hub.viewer_token(), Token::new([1; 32])] {
        thief.say(&Message::Renew(Renew { token })).await;
    }
    idle.refusal().await;
    thief.refusal().await;
    let rows = list(&mut operator).await;
    let connections = |token: &Token| rows.connections[rows.ids.iter().position(|id| *id == id_of(token).0).unwrap()];
    assert_eq!((connections(&old), connections(&new)), (0, 1));
    assert!(hub.audit().contains(r#""event":"renewed""#));
    assert_eq!(revoke(&mut operator, id_of(&new)).await, "");
    renewed.refusal().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn worker_presents_the_token_that_replaces_its_own_in_the_file() {
    let hub = TestHub::start().await;
    let mut operator = hub.operator().await;
    let old = create(&mut operator, Role::Worker, 0).await;
    let file = hub.directory.path().join("worker.token");
    fs::write(&file, old.to_hex()).unwrap();
    let args = ["worker", "--hub", &hub.hub.worker_url(), "--token-file", file.to_str().unwrap(), "--processes", "1"];
    let worker = Process::start(args);
    let connections = async |operator: &mut Client, token: &Token| {
        let rows = list(operator).await;
        rows.ids.iter().position(|id| *id == id_of(token).0).map(|place| rows.connections[place])
    };
    soon("the worker", async { while connections(&mut operator, &old).await != Some(1) {} }).await;
    let new = create(&mut operator, Role::Worker, 0).await;
    fs::write(&file, new.to_hex()).unwrap();
    soon("the new token", async { while connections(&mut operator, &new).await != Some(1) {} }).await;
    assert_eq!(revoke(&mut operator, id_of(&old)).await, "");
    assert_eq!(connections(&mut operator, &new).await, Some(1));
    let is_admission = |line: &&str| line.contains(r#""event":"admitted""#) && line.contains(r#""role":"Worker""#);
    assert_eq!(hub.audit().lines().filter(is_admission).count(), 1, "one connection: {}", hub.audit());
    drop(worker);
}

/// Checks peers that present a token earlier than the hub's next check of its file, which it reads every second.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn token_counts_from_the_moment_at_which_it_is_in_the_hubs_file() {
    let hub = TestHub::start().await;
    let create = || Token::from_hex(tokens(&hub, &["create", "--role", "worker"]).0.trim()).unwrap();
    for _ in 0..3 {
        let mut worker = Client::join_from(fresh_address(), hub.hub.address(), Role::Worker, create()).await;
        let renewals = || hub.audit().matches(r#""event":"renewed""#).count();
        let (before, token) = (renewals(), create());
        worker.say(&Message::Renew(Renew { token })).await;
        soon("the renewal", async {
            while renewals() == before {
                _ = worker.ping().await
            }
        })
        .await;
    }
}

fn tokens(hub: &TestHub, args: &[&str]) -> (String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rollmesh"));
    command.arg("tokens").args(args).stdin(Stdio::null());
    if !args.contains(&"--hub") {
        command.arg("--file").arg(hub.token_file());
    }
    let output = command.env("ROLLMESH_TOKEN", hub.operator_token().to_hex()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_command_line_makes_and_revokes_tokens_at_the_hub_and_in_its_file() {
    let hub = TestHub::start().await;
    let url = format!("ws://{}", hub.hub.address());
    for at in [&["--hub", &url][..], &[]] {
        let (token, about) = tokens(&hub, &[&["create", "--role", "viewer", "--expires", "24h"], at].concat());
        let token = Token::from_hex(token.trim()).unwrap();
        assert!(about.contains(&id_of(&token).to_string()) && !about.contains(&token.to_hex()), "{about}");
        // The hub follows its file.
        let mut holder = loop {
            let mut client = Client::connect_from(fresh_address(), hub.hub.address()).await;
            client.say(&Message::Hello(hello(Role::Viewer, token))).await;
            if let Some(Message::Welcome(_)) = client.receive().await {
                break client;
            }
        };
        let (rows, _) = tokens(&hub, &[&["list"], at].concat());
        let row = rows.lines().find(|row| row.starts_with(&id_of(&token).to_string())).unwrap();
        assert!(row.contains("viewer") && row.contains("expires in 24 hours"), "{row}");
        let (listed, _) = tokens(&hub, &[&["list", "--json"], at].concat());
        let listed: serde_json::Value = serde_json::from_str(&listed).unwrap();
        let is_it = |row: &&serde_json::Value| row["id"] == id_of(&token).to_string();
        let row = listed["tokens"].as_array().unwrap().iter().find(is_it).unwrap();
        assert!(row["role"] == "viewer" && row["expires"].as_u64().is_some(), "{row}");
        tokens(&hub, &[&["revoke", &id_of(&token).to_string()], at].concat());
        let revoked = Instant::now();
        while holder.receive().await.is_some() {}
        assert!(revoked.elapsed() < Duration::from_secs(1), "{:?}", revoked.elapsed());
    }
    let text = fs::read_to_string(hub.token_file()).unwrap();
    assert!(!text.contains(&hub.operator_token().to_hex()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_token_is_written_anywhere() {
    let mut hub = TestHub::start().await;
    let mut operator = hub.operator().await;
    let mut secrets = vec![hub.operator_token(), hub.viewer_token(), hub.hub.worker_token()];
    let mut said = String::new();
    for &role in Role::ALL {
        secrets.push(create(&mut operator, role, 0).await);
    }
    // Valid and invalid ways of presenting a token.
    for (i, token) in secrets.clone().into_iter().enumerate() {
        let role = [Role::Viewer, Role::Worker, Role::Operator, Role::Client][i % 4];
        let mut client = Client::connect_from(fresh_address(), hub.hub.address()).await;
        client.say(&Message::Hello(hello(role, token))).await;
        // An admitted peer may not send it twice; a refused one has disconnected.
        let _ = client.send(Frame::Binary(Message::Hello(hello(role, token)).encode().into())).await;
        while let Some(message) = client.receive().await {
            said += &format!("{message:?}\n");
        }
    }
    let config = RunConfig::new("CartPole-v1").num_workers(1).stop_after(500);
    let config = RunRequest { run_dir: Some(hub.directory.path().join("run")), ..config.into() };
    soon("the end of the run", hub.hub.train(config).await.unwrap()).await.unwrap();
    for token in &secrets[3..] {
        revoke(&mut operator, id_of(token)).await;
    }
    while let Ok(Some(notice)) = tokio::time::timeout(Duration::from_millis(1), hub.hub.next_notice()).await {
        said += &notice.text;
    }
    let mut files = vec![hub.directory.path().to_owned()];
    while let Some(path) = files.pop() {
        if path.is_dir() {
            files.extend(fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
        } else {
            said += &String::from_utf8_lossy(&fs::read(path).unwrap());
        }
    }
    assert!(said.contains("token_made") && said.contains("admitted"), "{said}");
    let said = said.to_lowercase();
    for (i, token) in secrets.iter().enumerate() {
        // Half of a token must not be shown either.
        let hex = token.to_hex();
        assert!(!said.contains(&hex[..32]) && !said.contains(&hex[32..]), "token {i}");
    }
}

#[tokio::test]
async fn a_token_file_that_others_may_read_is_refused() {
    use std::os::unix::fs::PermissionsExt as _;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tokens.json");
    fs::write(&path, r#"{"tokens": []}"#).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    let mut config = config();
    config.security.token_file = Some(path);
    let error = rollmesh::hub::Hub::start(config, &rollmesh::Registry::builtin()).await.unwrap_err();
    assert!(matches!(error, HubError::TokenFile(_)) && error.to_string().contains("chmod 600"), "{error}");
}
