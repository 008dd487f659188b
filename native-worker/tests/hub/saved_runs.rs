//! Runs in the hub's directory: found, read, resumed and deleted by their ids.

use rollmesh::{
    Registry,
    hub::{Hub, HubConfig},
};
use rollmesh_core::{
    protocol::{
        Message, Phase,
        message::{Request, RunHistory, RunStatus, SavedRunRequest, SavedRuns, StartRun},
    },
    run::RunConfig,
};

use super::TestHub;
use crate::support::client::Client;

async fn list(peer: &mut Client) -> SavedRuns {
    peer.say(&Message::SavedRunsRequest(Request { request: 70 })).await;
    let list = peer.wait_for(|message| match message {
        Message::SavedRuns(runs) => Some(runs.clone()),
        _ => None,
    });
    list.await
}

#[tokio::test]
async fn runs_in_the_directory_are_listed_resumed_and_deleted_by_operators() {
    let directory = tempfile::tempdir().unwrap();
    let runs_dir = directory.path().join("runs");
    let at = |config| HubConfig { runs_dir: Some(runs_dir.clone()), ..config };
    let hub = TestHub::start_by("127.0.0.1:0", |config| async { Hub::start(at(config), &Registry::builtin()).await });
    let hub = hub.await;
    let mut operator = hub.operator().await;
    assert_eq!(list(&mut operator).await, SavedRuns { request: 70, ..SavedRuns::default() });

    let settings =
        r#"{"seed": 3, "num_workers": 1, "num_envs": 4, "output": "rows", "stop": {"env_steps": 1000000000}}"#;
    let start = |request| Message::StartRun(StartRun { request, settings: settings.into() });
    assert_eq!(operator.ask(start).await, "");
    hub.status("an iteration", |status| status.iteration > 0).await;
    let row = list(&mut operator).await.runs.remove(0);
    assert_eq!((&*row.state, &*row.env, row.seed), ("running", "CartPole-v1", 3));
    let asked = |request| SavedRunRequest { request, id: row.id.clone() };
    assert!(operator.ask(|request| Message::DeleteRun(asked(request))).await.contains("in progress"));
    assert!(operator.ask(|request| Message::ResumeRun(asked(request))).await.contains("in progress"));
    assert_eq!(operator.ask(|request| Message::Stop(Request { request })).await, "");
    let is_stopped = |run| move |status: &RunStatus| (status.run, status.phase) == (run, Phase::Stopped.to_wire());
    hub.status("the end of run 1", is_stopped(1)).await;

    // A viewer sees its curves and settings.
    let mut viewer = hub.viewer().await;
    viewer.say(&Message::SavedRunRequest(asked(71))).await;
    let history: RunHistory = viewer
        .wait_for(|message| match message {
            Message::RunHistory(history) if history.request == 71 => Some(history.clone()),
            _ => None,
        })
        .await;
    assert_eq!(RunConfig::from_wire(&history.config).expect("a configuration").rollout.seed, 3);
    let learned = history.iterations.last().expect("an iteration").env_steps;

    let rows = || {
        let files = std::fs::read_dir(runs_dir.join(&row.id).join("outputs/rows")).expect("the output");
        files.map(|file| file.unwrap().metadata().unwrap().len()).sum::<u64>()
    };
    let before = rows();
    assert!(before > 0);
    assert_eq!(operator.ask(|request| Message::ResumeRun(asked(request))).await, "");
    let resumed = hub.status("more steps", |status| status.run == 2 && status.env_steps > learned).await;
    assert!(resumed.run_dir.ends_with(&row.id));
    assert_eq!(operator.ask(|request| Message::Stop(Request { request })).await, "");
    hub.status("the end of run 2", is_stopped(2)).await;
    assert!(rows() > before, "a resumed run continues to write its rows");

    for id in ["../runs", "..", "/", "unknown"] {
        let wrong = |request| Message::DeleteRun(SavedRunRequest { request, id: id.into() });
        assert!(operator.ask(wrong).await.contains("there is no saved run"), "{id}");
    }
    assert_eq!(operator.ask(|request| Message::DeleteRun(asked(request))).await, "");
    assert_eq!(list(&mut operator).await.runs, []);
    assert_eq!(std::fs::read_dir(&runs_dir).unwrap().count(), 0);
}
