//! Workers on other machines outlive the hub: their tokens are in the run's directory.

use std::{fs, net::TcpListener, os::unix::fs::PermissionsExt as _};

use super::rig::{Rig, undisturbed};
use crate::support::{Process, process::Signal, until};

#[tokio::test]
async fn a_remote_worker_works_on_for_a_hub_that_was_killed_and_resumed() {
    // A port of an address that no other test uses, on which two hubs listen one after the other.
    let address = TcpListener::bind("127.0.0.3:0").unwrap().local_addr().unwrap().to_string();
    let rig = Rig::remote(200).with_always(&["--remote-only", "--listen", &address]);
    let mut hub = rig.begin();
    let token = hub.invitation().await.worker_token;
    let worker = Process::worker(&address, &token);
    until("some iterations", || rig.iterations() > 20).await;
    let tokens = fs::metadata(rig.path("hub_tokens.json")).unwrap();
    assert_eq!(tokens.permissions().mode() & 0o777, 0o600);
    hub.signal(Signal::KILL);
    hub.finish().await;

    let mut hub = rig.resume();
    assert_eq!(hub.invitation().await.worker_token, token);
    hub.finish_with(0).await;
    assert_eq!(rig.outcome().weights_hash, undisturbed(200).await.weights_hash);
    assert!(worker.finish_with(0).await.stderr.contains("trying again"));

    let mut hub = rig.resume_with(&["--new-tokens", "--max-env-steps", "40000"]);
    assert_ne!(hub.invitation().await.worker_token, token);
    let refused = Process::worker(&address, &token).finish_with(2).await.stderr;
    assert!(refused.contains("a hub that was restarted may have new tokens: take the one that it prints"), "{refused}");
    hub.signal(Signal::INT);
    hub.finish_with(3).await;
}
