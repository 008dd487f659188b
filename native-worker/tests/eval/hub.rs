//! Workers that are found through a hub.

use std::{num::NonZeroU32, path::Path, process::Command, thread, time::Duration};

use rollmesh::{
    Registry,
    control::Trust,
    eval::{EvalHub, EvalNames, EvalWorkerError},
    hub::{Hub, HubConfig, SecurityConfig},
    kernels::AUTO,
    train::RunConfig,
};
use rollmesh_core::{
    evaluation::{Earlier, EvaluationRequest},
    protocol::Token,
};
use serde_json::json;

use super::{
    contract::{both, heard, result},
    lab::{lab, one},
};

/// Returns a hub without a page, whose local workers run this program.
pub(crate) fn config(program: &Path) -> HubConfig {
    HubConfig {
        listen: "127.0.0.1:0".parse().unwrap(),
        dashboard: false,
        assets: None,
        runs_dir: None,
        worker_program: program.into(),
        kernels: AUTO,
        external: None,
        allow_origins: Vec::new(),
        security: SecurityConfig::default(),
    }
}

pub(crate) fn others_find_a_worker_through_a_hub() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let hub = runtime.block_on(Hub::start(config("/nowhere".as_ref()), &Registry::builtin())).unwrap();
    let url = format!("ws://{}", hub.address()).parse().unwrap();
    let at_hub = EvalHub { url, token: hub.worker_token(), trust: Trust::default() };
    let dirs = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let [here, elsewhere] = dirs.each_ref().map(|dir| EvalNames::new(dir.path()).with_hub(at_hub.clone()));

    let mut run = one("CartPole-v1", "random");
    run.evaluation.num_envs = 2;
    let mut worker = here.create("judge", &run).unwrap();
    assert!(matches!(elsewhere.create("judge", &run), Err(EvalWorkerError::NameTaken(_))));
    assert!(elsewhere.list().is_empty());
    assert!(matches!(at_hub.find("missing"), Err(EvalWorkerError::UnknownName { .. })));
    let stranger = EvalHub { token: hub.viewer_token(), ..at_hub.clone() };
    assert!(matches!(stranger.find("judge"), Err(EvalWorkerError::Io(_))));

    let mut far = elsewhere.find("judge").unwrap();
    assert_eq!(far.poll(Duration::ZERO), Ok(None));
    let episodes = NonZeroU32::new(2).unwrap();
    let request =
        EvaluationRequest { deterministic: false, render: true, ..EvaluationRequest::of_episodes(episodes, 500) };
    far.submit_request(None, request.clone(), Earlier::Cancel).unwrap();
    worker.submit_request(None, request, Earlier::Cancel).unwrap();
    let found = result(&mut far);
    // More than may be sent without further credit.
    assert!(found.frames.as_ref().is_some_and(|frames| frames.rgb().len() > 1 << 20));
    assert_eq!((found.episodes.len(), result(&mut worker)), (2, found));

    far.shutdown();
    assert!(matches!(heard(&mut worker), EvalWorkerError::Io(_)));
    while at_hub.find("judge").is_ok() {
        thread::sleep(Duration::from_millis(5));
    }
    runtime.block_on(hub.shutdown());
}

/// Evaluates a town whose cars and lights have a policy each.
pub(crate) fn policies_of_several_agents_are_evaluated_everywhere() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let hub = runtime.block_on(Hub::start(config("/nowhere".as_ref()), &Registry::builtin())).unwrap();
    let url = format!("ws://{}", hub.address()).parse().unwrap();
    let at_hub = EvalHub { url, token: hub.worker_token(), trust: Trust::default() };
    let dir = tempfile::tempdir().unwrap();

    let mut run = RunConfig::new("MultiAgentTrafficGrid-v0").seed(3);
    run.evaluation.num_envs = 2;
    let mut named = EvalNames::new(dir.path()).with_hub(at_hub.clone()).create("judge", &run).unwrap();
    let [thread, process] = both(&run);
    let found = [thread, process, at_hub.find("judge").unwrap()].map(|mut worker| {
        let request = EvaluationRequest { render: true, ..EvaluationRequest::of_episodes(NonZeroU32::MIN, 50) };
        worker.submit_request(None, request, Earlier::Cancel).unwrap();
        result(&mut worker)
    });
    assert!(found[0].env_steps > 0 && found[0].frames.is_some());
    assert!(found[0] == found[1] && found[0] == found[2]);
    named.shutdown();
    runtime.block_on(hub.shutdown());
}

pub(crate) fn worker_reconnects_to_a_restarted_hub() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let tokens = dir.path().join("tokens.json");
    let mut create = Command::new(env!("CARGO_BIN_EXE_rollmesh"));
    create.args(["tokens", "create", "--role", "worker", "--file"]).arg(&tokens);
    let token = String::from_utf8(create.output().unwrap().stdout).unwrap();
    let token = token.split_whitespace().find_map(|word| Token::from_hex(word).ok()).unwrap();
    let start = |listen| {
        let security = SecurityConfig { token_file: Some(tokens.clone()), ..SecurityConfig::default() };
        let config = HubConfig { listen, security, ..config("/nowhere".as_ref()) };
        runtime.block_on(Hub::start(config, &Registry::builtin())).unwrap()
    };
    let hub = start("127.0.0.1:0".parse().unwrap());
    let address = hub.address();
    let at_hub = EvalHub { url: format!("ws://{address}").parse().unwrap(), token, trust: Trust::default() };
    let names = EvalNames::new(dir.path().join("names")).with_hub(at_hub.clone());
    let mut worker = names.create("judge", &lab(json!({}))).unwrap();
    let mut far = at_hub.find("judge").unwrap();
    runtime.block_on(hub.shutdown());
    assert!(matches!(heard(&mut far), EvalWorkerError::Io(_)));
    assert!(at_hub.find("judge").is_err());
    // Here it was there all the time.
    worker.submit(None, 100, true, true).unwrap();
    assert_eq!(result(&mut worker).reward(), 5.0);

    let hub = start(address);
    let mut far = loop {
        match at_hub.find("judge") {
            Ok(found) => break found,
            Err(_) => thread::sleep(Duration::from_millis(5)),
        }
    };
    far.submit(None, 2, true, true).unwrap();
    assert_eq!(result(&mut far).env_steps, 2);
    worker.shutdown();
    runtime.block_on(hub.shutdown());
}
