//! The bytes of the messages between dashboards and the hub.

use rollmesh_core::{
    group::{Expired, Ledger, Rejected, Uninvited},
    protocol::{Message, MessageFrame, Token, message::*},
    run::RunConfig,
};

use super::golden::assert_bytes;

#[test]
fn requests_and_replies() {
    let requests = [
        (Message::Pause as fn(Request) -> Message, "30"),
        (Message::Resume, "31"),
        (Message::Stop, "32"),
        (Message::AddWorker, "33"),
        (Message::WorkerTokenRequest, "37"),
        (Message::Drain, "3b"),
        (Message::Checkpoint, "3c"),
    ];
    for (message, kind) in requests {
        assert_bytes(&message(Request { request: 128 }), &format!("524d0100{kind}000000 8001"));
    }
    assert_bytes(&Message::RemoveWorker(WorkerRequest { request: 1, worker: 3 }), "524d010034000000 01 03");
    assert_bytes(&Message::RestartWorker(WorkerRequest { request: 1, worker: 3 }), "524d0100a0000000 01 03");
    assert_bytes(&Message::Watch(Watch { request: 1, slot: 3 }), "524d010036000000 01 03");
    assert_bytes(&Message::Scale(Scale { request: 1, num_workers: 300 }), "524d01003a000000 01 ac02");
    assert_bytes(&Message::Reply(Reply { request: 1, error: "x".into(), run: 0 }), "524d010038000000 01 01 78 00");
    let token = WorkerToken { request: 1, token: Token::new([0xcd; 32]) };
    assert_bytes(&Message::WorkerToken(token), &format!("524d010039000000 01 {}", "cd".repeat(32)));
    let wish = ManageTokens { request: 1, action: 1, role: 3, token: 300, seconds: 3600 };
    assert_bytes(&Message::ManageTokens(wish), "524d01003d000000 01 01 03 ac02 901c");
    let rows = TokenRows { request: 1, ids: vec![300], roles: vec![2], expires: vec![3600], connections: vec![1, 0] };
    assert_bytes(&Message::TokenRows(rows), "524d01003e000000 01 01 ac02 01 02 01 901c 02 0100");
    let token = NewToken { request: 1, role: 3, expires: 0, token: Token::new([0xcd; 32]) };
    assert_bytes(&Message::NewToken(token), &format!("524d01003f000000 01 03 00 {}", "cd".repeat(32)));
}

#[test]
fn the_ledger_of_a_run() {
    let rejected = |first: u64| Rejected {
        late: first,
        duplicate: first + 1,
        not_leased: first + 2,
        corrupt: first + 3,
        mismatched: first + 100,
        stale: first + 4,
        early: first + 5,
        wrong_length: first + 6,
        audit: first + 7,
    };
    let ledger = Ledger {
        granted: 300,
        committed: 2,
        superseded: 3,
        rejected: rejected(4),
        expired: Expired { timed_out: 12, left: 13, refused: 14, revoked: 15 },
        outstanding: 16,
        queued: 30,
        consumed: 31,
        dropped_stale: 32,
        regenerated: 17,
        abandoned_episodes: 28,
        uninvited: Uninvited { superseded: 18, rejected: rejected(19) },
    };
    assert_bytes(
        &Message::LedgerReport(LedgerReport { run: 1, ledger, num_worker_restarts: 27 }),
        "524d010026000000 01 ac02 02 03 0405060768 08090a0b 0c0d0e0f 10 1e1f20 11 1c 12 1314151677 1718191a 1b",
    );
}

#[test]
fn settings_of_a_run() {
    let start = StartRun { request: 300, settings: r#"{"seed":7}"#.into() };
    assert_bytes(&Message::StartRun(start), "524d010035000000 ac02 0a 7b2273656564223a377d");
    let row = RunRow {
        run: 300,
        phase: 3,
        place: 2,
        env: "e".into(),
        algo: "a".into(),
        seed: 7,
        env_steps: 1000,
        episode_return_mean: 1.5,
        error: "x".into(),
        run_dir: "d".into(),
    };
    let list = "524d010028000000 01 01 ac02 03 02 01 65 01 61 07 e807 0000c03f 01 78 01 64";
    assert_bytes(&Message::RunList(RunList { may_wait: true, runs: vec![row] }), list);
    assert_bytes(&Message::RemoveRun(RemoveRun { request: 1, run: 300 }), "524d010060000000 01 ac02");
    assert_bytes(&Message::RunSchema(RunSchema { schema: "{}".into() }), "524d010027000000 02 7b7d");
    let certificate = HubCertificate { sha256: [0xcd; 32] };
    assert_bytes(&Message::HubCertificate(certificate), &format!("524d01002d000000 {}", "cd".repeat(32)));
}

#[test]
fn metrics_and_history_of_a_run() {
    let metrics = [("a/b", 1.5), ("c\nd", 2.0), ("nan", f64::NAN), ("e", -2.0)];
    let metrics = NamedMetrics::new(1, 300, metrics.map(|(name, value)| (name.to_owned(), value)));
    assert_eq!(metrics.iter().collect::<Vec<_>>(), [("a/b", 1.5), ("e", -2.0)], "others cannot be sent");
    let golden = "524d010029000000 01 ac02 05 612f620a65 02 0000c03f 000000c0";
    assert_bytes(&Message::NamedMetrics(metrics), golden);
    let request = RunHistoryRequest { request: 1, run: 300 };
    assert_bytes(&Message::RunHistoryRequest(request), "524d010061000000 01 ac02");
    let history = RunHistory {
        request: 1,
        run: 300,
        config: "{}".into(),
        iterations: vec![Iteration { run: 300, iteration: 2, env_steps: 7, wall_ms: 9, ..Iteration::default() }],
        evaluations: vec![EvaluationPoint { run: 300, iteration: 2, env_steps: 7, episodes: 1, ..Default::default() }],
    };
    let (seven, four) = ("00000000".repeat(7), "00000000".repeat(4));
    let golden = format!("524d010062000000 01 ac02 02 7b7d 01 ac02 02 07 09 {seven} 01 ac02 02 07 01 00 {four}");
    assert_bytes(&Message::RunHistory(history), &golden);
}

#[test]
fn saved_runs() {
    let asked = || SavedRunRequest { request: 1, id: "ab".into() };
    assert_bytes(&Message::SavedRunsRequest(Request { request: 1 }), "524d010063000000 01");
    assert_bytes(&Message::SavedRunRequest(asked()), "524d010065000000 01 02 6162");
    assert_bytes(&Message::ResumeRun(asked()), "524d010066000000 01 02 6162");
    assert_bytes(&Message::DeleteRun(asked()), "524d010067000000 01 02 6162");
    let row = SavedRunRow {
        id: "i".into(),
        state: "s".into(),
        env: "e".into(),
        algo: "a".into(),
        seed: 300,
        env_steps: 2,
        episode_return_mean: 1.5,
        error: "x".into(),
    };
    let golden = "524d010064000000 01 ac02 01 01 69 01 73 01 65 01 61 ac02 02 0000c03f 01 78";
    assert_bytes(&Message::SavedRuns(SavedRuns { request: 1, left_out: 300, runs: vec![row] }), golden);
}

#[test]
fn hosts_logs_and_fragments() {
    let gpu = GpuReport { name: "g".into(), percent: 1.5, memory_used: 2, memory_total: 3 };
    let host = HostReport {
        worker: 1,
        host: "h".into(),
        version: "v".into(),
        cpus: 2,
        cpu_percent: 1.5,
        memory_used: 300,
        memory_total: 4,
        process_memory: 5,
        gpus: vec![gpu],
    };
    let golden = "524d010068000000 01 01 68 01 76 02 0000c03f ac02 04 05 01 01 67 0000c03f 02 03";
    assert_bytes(&Message::HostReport(host), golden);
    let lines = vec![LogLine { seconds: 300, level: 2, text: "x".into() }];
    assert_bytes(
        &Message::WorkerLog(WorkerLog { worker: 3, first: 300, lines }),
        "524d010069000000 03 ac02 01 ac02 02 01 78",
    );
    assert_bytes(&Message::FragmentRequest(Request { request: 1 }), "524d01006a000000 01");
    let fragment = FragmentReport {
        request: 1,
        run: 2,
        slot: 3,
        fragment: 300,
        worker: 4,
        weights_version: 5,
        rows: 6,
        batch: vec![7],
        cut_ends: vec![8],
        cut_reasons: vec![1],
    };
    let golden = "524d01006b000000 01 02 03 ac02 04 05 06 01 07 01 08 01 01";
    assert_bytes(&Message::FragmentReport(fragment), golden);
}

#[test]
fn largest_history_and_largest_metrics_fit_into_their_messages() {
    let max = u64::MAX;
    let iteration = Iteration { run: u32::MAX, iteration: max, env_steps: max, wall_ms: max, ..Iteration::default() };
    let evaluation = EvaluationPoint {
        run: u32::MAX,
        iteration: max,
        env_steps: max,
        episodes: u32::MAX,
        unfinished: u32::MAX,
        ..EvaluationPoint::default()
    };
    let history = Message::RunHistory(RunHistory {
        request: u32::MAX,
        run: u32::MAX,
        config: "x".repeat(RunConfig::MAX_WIRE_BYTES),
        iterations: vec![iteration; RunHistory::MAX_ITERATIONS],
        evaluations: vec![evaluation; RunHistory::MAX_EVALUATIONS],
    });
    let name = |number| format!("{number:0width$}", width = NamedMetrics::MAX_NAME);
    let metrics = NamedMetrics::new(u32::MAX, max, (0..100).map(|number| (name(number), 1.0)));
    assert_eq!(metrics.values.len(), NamedMetrics::MAX);
    for message in [history, Message::NamedMetrics(metrics)] {
        assert!(MessageFrame::new(&message).is_ok(), "{:?}", message.kind());
    }
}

#[test]
fn results_of_an_evaluation() {
    let point = EvaluationPoint {
        run: 1,
        iteration: 300,
        env_steps: 1000,
        episodes: 20,
        unfinished: 2,
        episode_return_mean: 1.5,
        episode_return_min: -1.0,
        episode_return_max: 2.0,
        episode_len_mean: 0.5,
    };
    assert_bytes(
        &Message::Evaluation(point),
        "524d010050000000 01 ac02 e807 14 02 0000c03f 000080bf 00000040 0000003f",
    );
    let clip = EnvClip {
        run: 1,
        slot: 300,
        weights_version: 2,
        steps: vec![3, 0, 0, 0, 4, 0, 0, 0],
        width: 300,
        height: 200,
        stride: 1,
        film: vec![9, 8],
        batch: vec![7],
        reason: "no".into(),
    };
    let body = "01 ac02 02 08 0300000004000000 ac02 c801 01 02 0908 01 07 02 6e6f";
    let messages = [Message::EvaluationClip, Message::BestEvaluationClip, Message::SlotClip];
    for (message, kind) in messages.into_iter().zip(["5a", "5b", "6c"]) {
        assert_bytes(&message(clip.clone()), &format!("524d0100{kind}000000 {body}"));
    }
    let others = OtherPeers::new([(3, "viewer", "a"), (300, "launcher", "b")].into_iter());
    let golden = "524d01002b000000 02 03 ac02 0f 7669657765720a6c61756e63686572 03 610a62 00";
    assert_bytes(&Message::OtherPeers(others), golden);
    let row = LauncherRow { name: "ssh".into(), capacity: 300, running: 3, absent: true };
    let list = LauncherList { launchers: vec![row] };
    assert_bytes(&Message::LauncherList(list), "524d01002c000000 01 03 737368 ac02 03 01");
    let request = RecentFragmentRequest { request: 300, slot: 2, back: 1 };
    assert_bytes(&Message::RecentFragmentRequest(request), "524d01006d000000 ac02 02 01");
}
