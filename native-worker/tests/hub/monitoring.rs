//! The hub's reports about hosts, workers and fragments, on the page and to Prometheus.

use rollmesh_core::{
    batch::codec,
    env::render::Film,
    protocol::{
        Message,
        message::{FragmentReport, HostReport, RecentFragmentRequest, Request, WorkerLog},
    },
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use super::{TestHub, small};
use crate::support::{client::Client, soon};

async fn metrics(hub: &TestHub, headers: &str) -> String {
    let address = hub.hub.address();
    let mut socket = TcpStream::connect(address).await.unwrap();
    let request = format!("GET /metrics HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n{headers}\r\n");
    socket.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    soon("an answer", socket.read_to_end(&mut answer)).await.unwrap();
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test]
async fn prometheus_needs_the_token_of_a_dashboard() {
    let hub = TestHub::start().await;
    let _run = hub.train(small(1, 1_000_000_000)).await;
    hub.status("an iteration", |status| status.iteration > 0).await;
    let bearer = |token: rollmesh_core::protocol::Token| format!("Authorization: Bearer {}\r\n", token.to_hex());
    for refused in [String::new(), "Authorization: Bearer 7\r\n".into(), bearer(hub.hub.worker_token())] {
        let answer = metrics(&hub, &refused).await;
        assert!(answer.starts_with("HTTP/1.1 401 ") && !answer.contains("rollmesh_info"), "{answer}");
    }
    for token in [hub.hub.viewer_token(), hub.operator_token()] {
        let answer = metrics(&hub, &bearer(token)).await;
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        for line in [
            "# TYPE rollmesh_run_env_steps_total counter",
            "env=\"CartPole-v1\",algorithm=\"ppo\",phase=\"running\"} 1",
            "rollmesh_workers{state=\"sampling\"}",
            "name=\"local-1\",kind=\"native\"}",
            "rollmesh_ledger_env_steps{outcome=\"committed\"}",
            "rollmesh_host_memory_bytes{host=",
        ] {
            assert!(answer.contains(line), "{line} in {answer}");
        }
    }
}

/// Waits for the report about a worker; 0 is the hub.
async fn host(peer: &mut Client, is_it: impl Fn(&HostReport) -> bool) -> HostReport {
    let report = peer.wait_for(|message| match message {
        Message::HostReport(report) if is_it(report) => Some(report.clone()),
        _ => None,
    });
    report.await
}

#[tokio::test]
async fn operators_see_hosts_logs_and_the_latest_fragment() {
    let hub = TestHub::start().await;
    let mut operator = hub.operator().await;
    let own = host(&mut operator, |report| report.worker == 0).await;
    assert!(own.memory_total > 0 && own.version.starts_with("rollmesh "), "{own:?}");
    let _run = hub.train(small(1, 1_000_000_000)).await;
    // In any order.
    let (mut of_worker, mut log, mut audit) = (None, None, None);
    while of_worker.is_none() || log.is_none() || audit.is_none() {
        match operator.receive().await.expect("the hub continues") {
            Message::HostReport(report) if report.worker != 0 => of_worker = Some(report),
            Message::WorkerLog(lines) if lines.worker == u32::MAX => audit = audit.or(Some(lines)),
            Message::WorkerLog(lines) if lines.worker != 0 => log = log.or(Some(lines)),
            _ => {}
        }
    }
    let (of_worker, log): (HostReport, WorkerLog) = of_worker.zip(log).expect("both have come");
    assert_eq!((of_worker.host, of_worker.memory_total), (own.host, 0), "the hub measures its own machine");
    let audit: WorkerLog = audit.expect("it has come");
    assert!(audit.lines[0].text.starts_with(r#"{"event":""#), "{audit:?}");
    assert!(log.first == 0 && log.lines[0].text.contains("joined: local-1"), "{log:?}");

    hub.status("an iteration", |status| status.iteration > 0).await;
    operator.say(&Message::FragmentRequest(Request { request: 70 })).await;
    let fragment: FragmentReport = operator
        .wait_for(|message| match message {
            Message::FragmentReport(report) => Some(report.clone()),
            _ => None,
        })
        .await;
    assert_eq!((fragment.request, fragment.run, fragment.slot, fragment.rows), (70, 1, 0, 16));
    assert_eq!(fragment.worker, of_worker.worker);
    let rows = codec::decode(&fragment.batch).expect("a batch");
    assert!(rows.len() == 16 && rows.column("rewards").is_some());
    assert_eq!(fragment.cuts().last().map(|(end, _)| end), Some(16));

    // The watched slot, drawn from its first step on, and a fragment of another slot.
    let clip = operator
        .wait_for(|message| match message {
            Message::SlotClip(clip) => Some(clip.clone()),
            _ => None,
        })
        .await;
    assert!(clip.reason.is_empty() && clip.steps().count() == 16, "{clip:?}");
    assert_eq!(Film::read(clip.width, clip.height, &clip.film).expect("a film").len(), 16);
    operator.say(&Message::RecentFragmentRequest(RecentFragmentRequest { request: 71, slot: 1, back: 1 })).await;
    let (request, slot) = operator
        .wait_for(|message| match message {
            Message::FragmentReport(report) => Some((report.request, report.slot)),
            Message::Reply(reply) => panic!("{reply:?}"),
            _ => None,
        })
        .await;
    assert_eq!((request, slot), (71, 1));

    // A viewer sees hosts, and no logs: these come before the ledger, which ends the first state.
    let mut viewer = hub.viewer().await;
    loop {
        match viewer.receive().await.expect("the hub continues") {
            Message::WorkerLog(log) => panic!("{log:?}"),
            Message::LedgerReport(_) => break,
            _ => {}
        }
    }
}
