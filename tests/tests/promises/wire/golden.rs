//! The bytes of messages do not change, for compatibility with peers of other versions.

use std::collections::{BTreeMap, BTreeSet};

use rollmesh_core::{
    config::Config,
    episode::GlobalVars,
    evaluation::{EvalWorkerError, Evaluation, EvaluationRequest},
    filter::Filter,
    ids::{FragmentNo, LeaseId, PolicyId, SlotId, WeightsVersion},
    lease::{FailedStep, Lease, LeasedSlot, SlotSource},
    protocol::{FailureKind, Inability, InabilityKind, Kind, Message, Role, Token, allow, convert, expect, message::*},
    weights::{Tensor, Weights},
    worker::{
        CommandError, CommandErrorKind, DataParallelConfig, NamedFn, PolicyConfig, PolicyRoles, SgdOptions,
        TrainedPolicies, WorkerAnswer, WorkerCommand,
    },
};

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Asserts that the message encodes to these bytes, without the spaces, and that they decode to the message.
pub(super) fn assert_bytes(message: &Message, golden: &str) {
    let golden = golden.replace([' ', '\n'], "");
    assert_eq!(hex(&message.encode()), golden);
    assert_eq!(Message::decode(&message.encode()).as_ref(), Ok(message));
}

#[test]
fn hello_is_frozen() {
    let hello = Message::Hello(Hello {
        protocol_min: 1,
        protocol_max: 300,
        role: 3,
        token: Token::new([0xab; 32]),
        capabilities: 5,
        resume_id: [0x11; 16],
        core_fingerprint: [0x22; 16],
        kind: "native".into(),
        name: "w1".into(),
        device: "cpu".into(),
    });
    let token = "ab".repeat(32);
    let (resume, fingerprint) = ("11".repeat(16), "22".repeat(16));
    assert_bytes(
        &hello,
        &format!(
            "524d010001000000 01 ac02 03 {token} 05 {resume} {fingerprint}
             06 6e6174697665 02 7731 03 637075"
        ),
    );
}

#[test]
fn answers_to_hello() {
    let welcome = Welcome { protocol: 1, peer: 7, resume_id: [0x33; 16], credit: 1 << 20, server: "hub".into() };
    assert_bytes(
        &Message::Welcome(welcome),
        "524d010002000000 01 07 33333333333333333333333333333333 808040 03 687562",
    );
    let refused = Refused { code: 3, reason: "no".into() };
    assert_bytes(&Message::Refused(refused), "524d010003000000 03 02 6e6f");
}

#[test]
fn messages_of_the_transport() {
    assert_bytes(&Message::Goodbye(Goodbye { reason: "bye".into() }), "524d010004000000 03 627965");
    let chunk = Chunk { stream: 1, total: 600, offset: 300, data: vec![0xaa, 0xbb] };
    assert_bytes(&Message::Chunk(chunk), "524d010005000000 01 d804 ac02 02 aabb");
    assert_bytes(&Message::Credit(Credit { bytes: 262_144 }), "524d010006000000 808010");
}

#[test]
fn a_run_and_its_weights() {
    assert_bytes(
        &Message::RunStart(RunStart { run: 1, config: r#"{"env":"E-v1"}"#.into() }),
        "524d010010000000 01 0e 7b22656e76223a22452d7631227d",
    );
    assert_bytes(&Message::RunAnswer(RunAnswer::new(300, Ok(()))), "524d01001d000000 ac02 00 00");
    let unable = Inability::new(InabilityKind::EnvConfig, "no");
    assert_bytes(&Message::RunAnswer(RunAnswer::new(1, Err(&unable))), "524d01001d000000 01 03 02 6e6f");
    assert_bytes(&Message::RunEnd(RunEnd { run: 1 }), "524d010011000000 01");
    let update = WeightsUpdate {
        run: 1,
        version: 9,
        names: "a\nb".into(),
        ranks: vec![1, 0],
        dims: vec![2],
        values: [1.0f32, -2.0, 0.5].iter().flat_map(|value| value.to_le_bytes()).collect(),
    };
    assert_bytes(
        &Message::WeightsUpdate(update),
        "524d010012000000 01 09 03 610a62 02 0100 01 02 0c 0000803f 000000c0 0000003f",
    );
}

#[test]
fn a_lease_and_what_becomes_of_it() {
    let grant = LeaseGrant {
        run: 1,
        lease: 300,
        fragment: 4,
        weights_version: 4,
        slots: vec![0, 1, 200],
        sources: vec![0, 1, 2],
        state_ends: vec![0, 0, 3],
        states: vec![7, 8, 9],
    };
    assert_bytes(
        &Message::LeaseGrant(grant),
        "524d010013000000 01 ac02 04 04 03 0001c801 03 000102 03 000003 03 070809",
    );
    let restarts = [(0, 300), (2, 0)].map(|(episode, t)| FailedStep { episode, t }).to_vec();
    let restarting = Lease {
        id: LeaseId(300),
        fragment: FragmentNo(4),
        weights_version: WeightsVersion(4),
        slots: vec![LeasedSlot { slot: SlotId(5), source: SlotSource::State(vec![7, 8, 9]), restarts }],
    };
    assert_bytes(
        &Message::LeaseGrant(convert::lease_grant(1, &restarting)),
        "524d010013000000 01 ac02 04 04 01 05 01 82 01 15 15 0200 00000000 2c010000 02000000 00000000 070809",
    );
    assert_bytes(&Message::Revoke(Revoke { lease: 300 }), "524d010014000000 ac02");
    let refused = LeaseRefused { lease: 300, reason: "x".into(), failed: None };
    assert_bytes(&Message::LeaseRefused(refused), "524d010015000000 ac02 01 78 00");
    let failed = FailedFragment { kind: FailureKind::Env.to_wire(), slot: Some(5), episode: 2, t: 300 };
    let failed = LeaseRefused { lease: 300, reason: "x".into(), failed: Some(failed) };
    assert_bytes(&Message::LeaseRefused(failed), "524d010015000000 ac02 01 78 01 01 01 05 02 ac02");
    assert_bytes(&Message::Progress(Progress { lease: 300, env_steps: 256 }), "524d010016000000 ac02 8002");
    assert_bytes(&Message::WeightsApplied(WeightsApplied { run: 1, version: 300 }), "524d010018000000 01 ac02");
}

#[test]
fn a_small_upload() {
    let upload = FragmentUpload {
        run: 1,
        lease: 2,
        fragment: 3,
        weights_version: 4,
        slots: vec![5],
        rows: vec![2],
        first_episodes: vec![6],
        first_ts: vec![7],
        column_names: "obs\nactions".into(),
        column_types: vec![1, 7],
        column_ranks: vec![1, 0],
        column_dims: vec![1],
        cuts: vec![1],
        cut_ends: vec![2],
        cut_reasons: vec![0],
        episode_returns: 9.0f64.to_le_bytes().to_vec(),
        data: [&1.0f32.to_le_bytes()[..], &2.0f32.to_le_bytes(), &[0, 1], &0.0f32.to_le_bytes(), &3.0f32.to_le_bytes()]
            .concat(),
        state_ends: vec![2],
        states: vec![0xee, 0xff],
    };
    assert_bytes(
        &Message::FragmentUpload(upload),
        "524d010017000000 01 02 03 04 0105 0102 0106 0107
         0b 6f62730a616374696f6e73 020107 020100 0101
         0101 0102 0100 08 0000000000002240
         12 0000803f 00000040 0001 00000000 00004040
         0102 02 eeff",
    );
}

#[test]
fn a_small_upload_by_policy() {
    let upload = AgentUpload {
        run: 1,
        lease: 2,
        fragment: 3,
        weights_version: 4,
        slots: vec![5],
        batch_ends: vec![3],
        batches: vec![0xaa, 0xbb, 0xcc],
        episodes: vec![1],
        episode_numbers: vec![300],
        episode_lens: vec![6],
        episode_returns: 9.0f64.to_le_bytes().to_vec(),
        metrics: vec![1],
        metric_ends: vec![2],
        metric_names: "ab".into(),
        metric_values: 1.0f64.to_le_bytes().to_vec(),
        state_ends: vec![2],
        states: vec![0xee, 0xff],
    };
    assert_bytes(
        &Message::AgentUpload(upload),
        "524d01001e000000 01 02 03 04 0105 0103 03 aabbcc 0101 01ac02 0106 08 0000000000002240
         0101 0102 02 6162 08 000000000000f03f 0102 02 eeff",
    );
}

#[test]
fn calls_and_what_they_bring() {
    let setup = WorkerSetup {
        call: 300,
        config: r#"{"env":"E-v1"}"#.into(),
        worker_index: 2,
        num_workers: 200,
        recreated_worker: true,
        in_evaluation: false,
    };
    assert_bytes(&Message::WorkerSetup(setup), "524d010019000000 ac02 0e 7b22656e76223a22452d7631227d 02 c801 01 00");
    assert_bytes(&Message::Call(Call { call: 300, body: vec![1, 0xff] }), "524d01001a000000 ac02 02 01ff");
    let done = CallResult { call: 300, ok: true, body: vec![0] };
    assert_bytes(&Message::CallResult(done), "524d01001b000000 ac02 01 01 00");
    assert_bytes(&Message::CallProgress(CallProgress { call: 300 }), "524d01001c000000 ac02");
    assert_bytes(&Message::CallCancel(CallCancel { call: 300 }), "524d01001f000000 ac02");
    let error = CommandError::new(CommandErrorKind::Busy, "no").encode();
    let failed = CallResult { call: 300, ok: false, body: error };
    assert_bytes(&Message::CallResult(failed), "524d01001b000000 ac02 00 04 11 02 6e6f");
}

fn assert_command(command: &WorkerCommand, golden: &str) {
    assert_eq!(hex(&command.encode().unwrap()), golden.replace(' ', ""));
}

#[test]
fn commands_keep_their_numbers() {
    let id = || PolicyId::new("p");
    let p = "01 70";
    let function = || NamedFn::new("f").with(r#"{"a":1}"#.parse().unwrap());
    let f = "01 66 07 7b2261223a317d";
    assert_command(&WorkerCommand::Ping, "00");
    assert_command(&WorkerCommand::Sample, "01");
    let options = SgdOptions { num_sgd_iter: 2, minibatch_size: 128, standardize_fields: vec!["v".into()] };
    assert_command(&WorkerCommand::SampleAndLearn { expected: 300, options }, "02 ac02 02 8001 01 01 76");
    assert_command(&WorkerCommand::ApplyGradients(BTreeMap::new()), "05 00");
    assert_command(&WorkerCommand::Weights { policies: Some(vec![id()]) }, &format!("06 01 01 {p}"));
    let tensor = Tensor { name: "w".into(), shape: vec![1], values: vec![0.5] };
    let weights = BTreeMap::from([(id(), Weights::new(WeightsVersion(9), vec![tensor]).unwrap())]);
    let vars = || GlobalVars { timestep: 300, num_grad_updates_per_policy: [(id(), 2)].into() };
    assert_command(
        &WorkerCommand::SetWeights { weights, global_vars: Some(vars()), weights_seq_no: None },
        &format!("07 01 {p} 00 09 01 77 01 01 01 01 04 0000003f 01 ac02 01 {p} 02 00"),
    );
    assert_command(&WorkerCommand::GlobalVars, "08");
    assert_command(&WorkerCommand::SetGlobalVars { vars: vars(), policies: None }, &format!("09 ac02 01 {p} 02 00"));
    assert_command(&WorkerCommand::Filters { flush_after: true }, "0a 01");
    let filters = BTreeMap::from([(id(), Filter::NoFilter)]);
    assert_command(&WorkerCommand::SyncFilters(filters), &format!("0b 01 {p} 02 0100"));
    assert_command(&WorkerCommand::State, "0c");
    assert_command(&WorkerCommand::SetState(vec![0xff]), "0d 01 ff");
    assert_command(&WorkerCommand::Metrics, "0e");
    let policies_to_train = Some(TrainedPolicies::Ids([id()].into()));
    let roles = PolicyRoles { policy_mapping_fn: Some(function()), policies_to_train };
    let (policy, state) = (PolicyConfig::new("random"), None);
    let json = hex(br#"{"policy":"random","config":{}}"#);
    assert_command(
        &WorkerCommand::AddPolicy { id: id(), policy, state, roles: roles.clone() },
        &format!("0f {p} 1f {json} 00 01 {f} 01 01 01 {p}"),
    );
    assert_command(&WorkerCommand::RemovePolicy { id: id(), roles }, &format!("10 {p} 01 {f} 01 01 01 {p}"));
    assert_command(&WorkerCommand::SetPolicyMappingFn(function()), &format!("11 {f}"));
    assert_command(&WorkerCommand::SetPoliciesToTrain(TrainedPolicies::All), "12 00");
    assert_command(&WorkerCommand::PoliciesToTrain(None), "13 00");
    let numbered = [
        (WorkerCommand::Spaces, "14"),
        (WorkerCommand::AssertHealthy, "15"),
        (WorkerCommand::Hostname, "16"),
        (WorkerCommand::NodeIp, "17"),
        (WorkerCommand::FindFreePort, "18"),
        (WorkerCommand::CreationArgs, "19"),
        (WorkerCommand::Lock, "1a"),
        (WorkerCommand::Unlock, "1b"),
        (WorkerCommand::Stop, "1c"),
    ];
    numbered.iter().for_each(|(command, golden)| assert_command(command, golden));
    assert_command(&WorkerCommand::Apply(function()), &format!("1d {f}"));
    assert_command(&WorkerCommand::ForEachEnv(function()), &format!("1e {f}"));
    assert_command(&WorkerCommand::ForPolicy { id: id(), function: function() }, &format!("1f {p} {f}"));
    assert_command(&WorkerCommand::ForEachPolicy(function()), &format!("20 {f}"));
    assert_command(&WorkerCommand::ForEachPolicyToTrain(function()), &format!("21 {f}"));
    let request = EvaluationRequest::new(300);
    assert_command(&WorkerCommand::Evaluate { weights: None, request }, "23 00 ac02 01 01 00 01 00 00");
    let rank = DataParallelConfig::new("a:5", 1, 300, Token::new([7; 32]));
    let token = "07".repeat(32);
    assert_command(&WorkerCommand::SetupDataParallel(rank), &format!("26 03 613a35 01 ac02 {token} 80 8e ce 1c"));
}

#[test]
fn answers_keep_their_numbers() {
    let golden = [
        (WorkerAnswer::Done, "00"),
        (WorkerAnswer::Pong, "01"),
        (WorkerAnswer::Learned { info: BTreeMap::new(), env_steps: 300 }, "03 00 ac02"),
        (WorkerAnswer::Gradients(BTreeMap::new()), "04 00"),
        (WorkerAnswer::Weights(BTreeMap::new()), "05 00"),
        (WorkerAnswer::GlobalVars(GlobalVars::default()), "06 00 00"),
        (WorkerAnswer::Filters(BTreeMap::new()), "07 00"),
        (WorkerAnswer::State(vec![7]), "08 01 07"),
        (WorkerAnswer::Metrics(Box::default()), "09 00 00 00 00 00 00 00 00 00 00"),
        (WorkerAnswer::PolicyIds(BTreeSet::from([PolicyId::new("p")])), "0a 01 01 70"),
        (WorkerAnswer::Spaces(BTreeMap::new()), "0b 00"),
        (WorkerAnswer::Text("h".into()), "0d 01 68"),
        (WorkerAnswer::Port(300), "0e ac02"),
        (WorkerAnswer::Value(Config::new()), "0f 02 7b7d"),
        (WorkerAnswer::Values(vec![Config::new()]), "10 01 02 7b7d"),
        (WorkerAnswer::Evaluated(Box::new(Ok(Evaluation::default()))), "11 00 00 00 00 00 00 00 00 00 00 00"),
        (WorkerAnswer::Evaluated(Box::new(Err(EvalWorkerError::QueueFull))), "11 01 05"),
    ];
    for (answer, golden) in golden {
        assert_eq!(hex(&answer.encode().unwrap()), golden.replace(' ', ""));
    }
}

#[test]
fn launchers_and_their_workers() {
    let ready = LauncherReady { capacity: 300, token_seconds: 600, running: vec![1 << 32 | 7] };
    assert_bytes(&Message::LauncherReady(ready), "524d010070000000 ac02 d804 01 8780808010");
    let (spec, token) = (r#"{"cpus":1}"#.into(), Token::new([0xcd; 32]));
    assert_bytes(
        &Message::LaunchWorker(LaunchWorker { worker: 300, number: 7, token, spec }),
        &format!("524d010071000000 ac02 07 {} 0a 7b2263707573223a317d", "cd".repeat(32)),
    );
    assert_bytes(&Message::EndWorker(EndWorker { worker: 300 }), "524d010072000000 ac02");
    let ended = WorkerEnded { worker: 300, status: "no".into(), is_crash: true };
    assert_bytes(&Message::WorkerEnded(ended), "524d010073000000 ac02 02 6e6f 01");
    let place = WorkerLocation { worker: 300, host: "h".into(), launcher: String::new() };
    assert_bytes(&Message::WorkerLocation(place), "524d01002a000000 ac02 01 68 00");
}

#[test]
fn messages_for_many_workers() {
    let token = Token::new([0xcd; 32]);
    assert_bytes(&Message::Renew(Renew { token }), &format!("524d010007000000 {}", "cd".repeat(32)));
    let update = HalfWeightsUpdate {
        run: 1,
        version: 300,
        names: "a\nb".into(),
        ranks: vec![1, 0],
        dims: vec![2],
        halves: vec![1, 0],
        values: vec![0, 0x38, 0, 0xbc, 0xcd, 0xcc, 0xcc, 0x3d],
    };
    assert_bytes(
        &Message::HalfWeightsUpdate(update),
        "524d010090000000 01 ac02 03 610a62 02 01 00 01 02 02 01 00 08 0038 00bc cdcccc3d",
    );
    let notice = WeightsNotice { run: 1, version: 300, bytes: 128, hash: [0xab; 32] };
    assert_bytes(&Message::WeightsNotice(notice), &format!("524d010091000000 01 ac02 8001 {}", "ab".repeat(32)));
    assert_bytes(&Message::WeightsRequest(WeightsRequest { run: 300 }), "524d010092000000 ac02");
    let upload = CompressedUpload { bytes: 300, block: vec![1, 2] };
    assert_bytes(&Message::CompressedUpload(upload), "524d010093000000 ac02 02 0102");
}

#[test]
fn requests_to_evaluation_workers() {
    let ask = Ask { ask: 300, name: "ab".into(), body: vec![35, 0xff] };
    assert_bytes(&Message::Ask(ask), "524d010057000000 ac02 02 6162 02 23ff");
    assert_bytes(&Message::AskCancel(AskCancel { ask: 300 }), "524d010058000000 ac02");
    let asked = Asked { ask: 300, outcome: 3, body: vec![] };
    assert_bytes(&Message::Asked(asked), "524d010059000000 ac02 03 00");
}

#[test]
fn rows_of_a_worker_and_their_outputs() {
    let (policy, obs) = ("p".to_owned(), vec![0, 0, 128, 63]);
    let infer = Infer { ask: 300, policy, version: 5, rows: 1, wants: 3, obs, state: vec![] };
    assert_bytes(&Message::Infer(infer), "524d010080000000 ac02 01 70 05 01 03 04 0000803f 00");
    let inferred = Inferred { ask: 300, version: 5, error: "e".into(), outputs: vec![7] };
    assert_bytes(&Message::Inferred(inferred), "524d010081000000 ac02 05 01 65 01 07");
}

/// The example of PROTOCOL.md.
#[test]
fn an_episode_of_a_client() {
    let agents = r#"[{"agent":0,"observation":{"type":"box","dtype":"float32","shape":[2],"low":[-1.0],"high":[1.0]},"observation_type":"float32","action":{"type":"discrete","n":2},"action_type":"int64"}]"#;
    let spaces = Spaces { max_episodes: 8, agents: agents.into() };
    let text = hex(agents.as_bytes());
    assert_bytes(&Message::Spaces(spaces), &format!("524d010040000000 08 b801 {text}"));
    assert_bytes(&Message::StartEpisode(StartEpisode { episode: 300, training: true }), "524d010041000000 ac02 01");
    let done = EpisodeReply { episode: 300, about: 0x41, code: 0, reason: String::new() };
    assert_bytes(&Message::EpisodeReply(done), "524d010048000000 ac02 41 00 00");
    let observations = || [&[0, 0][..], &0.5f32.to_le_bytes(), &(-1.0f32).to_le_bytes()].concat();
    assert_bytes(
        &Message::GetAction(GetAction { episode: 300, observations: observations() }),
        "524d010042000000 ac02 0a 0000 0000003f 000080bf",
    );
    let actions = || [&[0, 0][..], &1i64.to_le_bytes()].concat();
    assert_bytes(
        &Message::Actions(Actions { episode: 300, actions: actions() }),
        "524d010047000000 ac02 0a 0000 0100000000000000",
    );
    let returns = [&[0, 0][..], &1.0f64.to_le_bytes(), &[0]].concat();
    let infos = b"\0\0\x02\0\0\0{}".to_vec();
    assert_bytes(
        &Message::LogReturns(LogReturns { episode: 300, returns, infos }),
        "524d010044000000 ac02 0b 0000 000000000000f03f 00 08 0000 02000000 7b7d",
    );
    assert_bytes(
        &Message::LogAction(LogAction { episode: 300, observations: observations(), actions: actions() }),
        "524d010043000000 ac02 0a 0000 0000003f 000080bf 0a 0000 0100000000000000",
    );
    assert_bytes(
        &Message::EndEpisode(EndEpisode { episode: 300, truncated: true, observations: observations() }),
        "524d010045000000 ac02 01 0a 0000 0000003f 000080bf",
    );
    assert_bytes(&Message::AbandonEpisode(AbandonEpisode { episode: 300 }), "524d010046000000 ac02");
    let bad = EpisodeReply { episode: 300, about: 0x42, code: 1, reason: "no".into() };
    assert_bytes(&Message::EpisodeReply(bad), "524d010048000000 ac02 42 01 02 6e6f");
}

#[test]
fn the_document_lists_every_kind_as_it_is() {
    let document = include_str!("../../../../PROTOCOL.md");
    let roles = [
        (Role::Viewer, 'V'),
        (Role::Operator, 'O'),
        (Role::Worker, 'W'),
        (Role::Client, 'C'),
        (Role::Launcher, 'L'),
        (Role::Relay, 'R'),
    ];
    for &kind in Kind::ALL {
        let who = |may: fn(Role, Kind) -> bool| -> String {
            let letters: String = roles.iter().filter(|(role, _)| may(*role, kind)).map(|(_, letter)| letter).collect();
            if letters.is_empty() { letters } else { letters + " " }
        };
        let from = if kind == Kind::Hello { "first ".into() } else { who(allow) };
        let (number, to, cap) = (kind.to_wire(), who(expect), kind.body_cap());
        let row = format!("| {number:#04x} | {kind:?} | {from}| {to}| {cap} |");
        assert!(document.lines().any(|line| line.starts_with(&row)), "PROTOCOL.md should have the row: {row}");
    }
}
