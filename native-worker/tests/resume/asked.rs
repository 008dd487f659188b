//! Checkpoints that are requested from a shell.

use rollmesh::checkpoint::PolicyCheckpoint;

use super::rig::Rig;
use crate::support::{Process, process::Signal, until};

#[tokio::test]
async fn an_operator_has_the_run_saved_when_the_command_returns() {
    let rig = Rig::new(1_000_000);
    let mut run = rig.begin_with(&["--checkpoint-interval", "1000000"]);
    let invitation = run.invitation().await;
    until("an iteration", || rig.iterations() > 0).await;
    for _ in 0..2 {
        let before = rig.iterations() as u64;
        let hub = format!("ws://{}", invitation.address);
        let asked = Process::start_with(["checkpoint", "--hub", &hub], |command| {
            _ = command.env("ROLLMESH_TOKEN", &invitation.operator_token)
        });
        asked.finish_with(0).await;
        assert!(PolicyCheckpoint::load(rig.dir()).unwrap().iteration >= before);
    }
    run.signal(Signal::KILL);
    run.finish().await;
    assert_eq!(rig.checkpoints().len(), 2);
    let mut run = rig.resume();
    run.line("resuming after iteration").await;
    // SIGTERM lets the leases end, and saves their results.
    until("an iteration", || rig.iterations() > 0).await;
    run.signal(Signal::TERM);
    run.finish_with(0).await;
    assert_eq!(PolicyCheckpoint::load(rig.dir()).unwrap().iteration, rig.iterations() as u64);
}
