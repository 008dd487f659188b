//! A tab takes part in runs of every kind, whose weights equal those of a single process.

use std::{fs, path::Path};

use rollmesh::control::{Control, ControlConfig, Trust};
use rollmesh_core::{
    config::Config,
    protocol::{Role, Token},
};
use serde_json::json;
use tempfile::TempDir;

use super::{
    DEADLINE,
    cases::CASES,
    dashboard::Dashboard,
    program::{Program, summary, train_alone},
};

/// The number of kinds that a tab supports: those without environments in separate processes.
const KINDS: usize = 9;
const SLOTS: u64 = 6;
const FRAGMENT: u64 = 32;
const UPDATES: u64 = 60;

#[tokio::test(flavor = "multi_thread")]
async fn runs_of_every_kind_with_a_tab_have_the_weights_of_one_process() {
    let page = Dashboard::start().await;
    let directory = TempDir::new().expect("a directory");
    let at = |name: String| directory.path().join(name);
    let program = Program::start("hub", ["--runs-dir".into(), at("runs".into())]);
    page.go_to(program.url()).await;
    page.wait_for("connection", "data-state", "online").await;
    page.click("join").await;
    let tab = page.own_row().await as u32;

    // Each run has a different number of env steps, by which the workers' rows of the table are recognised as that
    // run's.
    for ((env, settings), updates) in CASES[..KINDS].iter().zip(UPDATES..) {
        let env_steps = updates * SLOTS * FRAGMENT;
        let settings = of_run(env, settings, env_steps);
        let (file, alone) = (at(format!("{updates}.json")), at(format!("alone-{updates}")));
        fs::write(&file, settings.to_string()).expect("a file of settings");
        train_alone(&["--workers", "0", "--config", file.to_str().expect("a plain name")], &alone);
        let expected = summary(&alone);
        assert_eq!(expected["env_steps"], env_steps, "{env}");

        let mut hub = Control::connect(&operator(&program)).await.expect("the hub is there");
        let run = hub.start_run(settings.to_string()).await.unwrap_or_else(|error| panic!("{env}: {error}"));
        let is_notified = |hub: &Control| {
            let made: u64 = hub.workers().values().map(|row| row.env_steps).sum();
            hub.status().run == run && !hub.phase().is_active() && made == env_steps
        };
        hub.until("the run's end", is_notified).await.unwrap_or_else(|error| panic!("{env}: {error}"));
        let of_tab = hub.workers()[&tab].env_steps;
        assert!(of_tab > 0, "{env}: the tab has made no rows");
        let row = hub.runs().iter().find(|row| row.run == run).expect("the hub lists its runs");
        let found = summary(Path::new(&row.run_dir));
        assert_eq!(found["weights_hash"], expected["weights_hash"], "{env}: {of_tab} env steps of the tab");
        hub.leave().await;
    }
    page.assert_quiet_console().await;
}

/// Returns the settings of a run with one local worker alongside the tab.
fn of_run(env: &str, settings: &str, env_steps: u64) -> Config {
    let usual = json!({
        "env": env, "seed": 1, "num_workers": 1, "num_slots": SLOTS, "num_envs": 3, "rollout_fragment_length": FRAGMENT,
        "model_config": { "fcnet_hiddens": [16, 16] }, "stop": { "env_steps": env_steps },
    });
    Config::of(&usual).expect("an object").merged(&settings.parse().expect("settings"))
}

fn operator(program: &Program) -> ControlConfig {
    let (_, token) = program.url().split_once("#token=").expect("the page's token is an operator's");
    ControlConfig {
        hub: format!("ws://{}", program.address()).parse().expect("an address"),
        token: Token::from_hex(token).expect("a token"),
        role: Role::Operator,
        trust: Trust::default(),
        patience: DEADLINE,
    }
}
