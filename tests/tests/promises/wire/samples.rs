//! Valid messages of every kind, which tests mutate.

use std::num::NonZeroU32;

use rollmesh_core::{
    batch::SlotFragment,
    config::Config,
    env::{
        EnvContext, EnvRegistry, RowsRef,
        multi_agent::{AgentRows, Outcome},
    },
    episode::GlobalVars,
    evaluation::{EpisodeTrace, EvalWorkerError, EvaluatedEpisode, Evaluation, EvaluationRequest, Frames},
    filter::FilterKind,
    ids::{AgentId, CallId, FragmentNo, HomeIndex, LeaseId, PolicyId, SlotId, WeightsVersion},
    kernels::Kernels,
    lease::{FailedStep, Lease, LeasedSlot, SlotSource},
    policy::{ModelConfig, ModelSpec, NetPolicy, Policy, PolicyEntry},
    protocol::{
        CHUNK_BYTES, Message, Role, Token,
        convert::{self, AgentReturn, AgentTable, FragmentLimits, RowKind},
        handshake::Identity,
        message::*,
    },
    run::RunConfig,
    sampler::{Collector as _, FragmentLayout, LaneStart, Lockstep, RecurrentShape, SamplerOptions, drive},
    worker::{
        Advance, CalledWorker, CommandError, CommandErrorKind, NamedFn, PolicyConfig, PolicyRoles, Registry,
        RolloutConfig, RolloutWorkerBuilder, SlotRunner, TrainedPolicies, WorkerAnswer, WorkerCommand, WorkerPlace,
        WorkerSetup,
    },
};

pub(super) const RUN: u32 = 1;

pub(super) fn spec() -> RunConfig {
    RunConfig::new("CartPole-v1").seed(5).slots(8).num_envs(4).rollout_fragment_length(20).fcnet_hiddens(&[4])
}

pub(super) fn limits(recurrent: RecurrentShape) -> FragmentLimits {
    let spaces = EnvRegistry::builtin().spec("CartPole-v1").unwrap().spaces().unwrap();
    FragmentLimits::new(&spec(), &FragmentLayout::Lane { spaces, recurrent })
}

/// Returns a recurrent policy, whose sequences have at most seven steps.
pub(super) fn recurrent() -> NetPolicy {
    let spaces = EnvRegistry::builtin().spec("CartPole-v1").unwrap().spaces().unwrap();
    let (three, seven) = (NonZeroU32::new(3).unwrap(), NonZeroU32::new(7).unwrap());
    let model = ModelConfig {
        fcnet_hiddens: vec![4],
        use_lstm: true,
        lstm_cell_size: three,
        max_seq_len: seven,
        ..ModelConfig::default()
    };
    let weights = ModelSpec::for_spaces(&spaces, &model).unwrap().init_weights(1).unwrap();
    NetPolicy::new(&spaces, &model, weights, 5, Kernels::PORTABLE).unwrap()
}

/// Returns the fragments of the recurrent policy for the lease.
fn fragments_with_memory() -> Vec<SlotFragment> {
    let mut policy = PolicyEntry::<dyn Policy>::new("", Box::new(recurrent()));
    let registry = EnvRegistry::builtin();
    let starts: Vec<_> = lease().slots.iter().map(|leased| LaneStart { slot: leased.slot, state: None }).collect();
    let home = HomeIndex { worker_index: 1, vector_index: 0 };
    let contexts = vec![EnvContext::new(home); starts.len()];
    let mut env = registry.spec("CartPole-v1").unwrap().make(&contexts, Kernels::PORTABLE).unwrap();
    let options = SamplerOptions { seed: 5, ..SamplerOptions::default() };
    let mut lanes = Lockstep::<f32>::new(&starts, &options, &policy, env.as_mut()).unwrap();
    lanes.begin(FragmentNo(0), WeightsVersion(0), 20);
    drive(&mut lanes, env.as_mut(), &mut policy, u32::MAX).unwrap();
    lanes.take(env.as_ref()).unwrap()
}

pub(super) fn lease() -> Lease {
    let slots = [1, 4].map(|slot| LeasedSlot::new(SlotId(slot), SlotSource::New));
    Lease { id: LeaseId(2), fragment: FragmentNo(0), weights_version: WeightsVersion(0), slots: slots.to_vec() }
}

fn fragments() -> Vec<SlotFragment> {
    let mut runner = SlotRunner::new(&spec(), RolloutWorkerBuilder::new(Registry::builtin())).unwrap();
    runner.begin(lease()).unwrap();
    match runner.advance(u32::MAX) {
        Advance::Done { fragments, .. } => fragments,
        other => panic!("{other:?}"),
    }
}

fn game() -> RunConfig {
    RunConfig::new("TwoStepGame-v0").slots(6).rollout_fragment_length(5).fcnet_hiddens(&[4])
}

/// Returns the fragments of a lease of a game with several agents, and the limits of their uploads.
pub(super) fn agent_fragments() -> (Vec<SlotFragment>, FragmentLimits) {
    let mut runner = SlotRunner::new(&game(), RolloutWorkerBuilder::new(Registry::builtin())).unwrap();
    let limits = FragmentLimits::new(&game(), runner.layout());
    runner.begin(lease()).unwrap();
    match runner.advance(u32::MAX) {
        Advance::Done { fragments, .. } => (fragments, limits),
        other => panic!("{other:?}"),
    }
}

pub(super) fn identity() -> Identity {
    let identity = Identity::new(Role::Worker, Token::new([7; 32]), "native", "worker", "cpu");
    Identity { resume: Some([8; 16]), core_fingerprint: [9; 16], ..identity }
}

/// Returns valid messages of every form, those with tables and byte strings first.
pub(super) fn messages() -> Vec<Message> {
    let fragments = fragments();
    let spaces = EnvRegistry::builtin().spec("CartPole-v1").unwrap().spaces().unwrap();
    let model = ModelConfig { fcnet_hiddens: vec![4], ..ModelConfig::default() };
    let weights = ModelSpec::for_spaces(&spaces, &model).unwrap().init_weights(1).unwrap();
    let mut moved = lease();
    moved.slots[0].source = SlotSource::State(fragments[0].state.clone());
    let mut restarting = moved.clone();
    restarting.slots[0].restarts = [(0, 3), (2, 0)].map(|(episode, t)| FailedStep { episode, t }).to_vec();
    vec![
        Message::FragmentUpload(convert::fragment_upload(RUN, LeaseId(2), &fragments).unwrap()),
        Message::WeightsUpdate(convert::weights_update(RUN, &weights)),
        Message::HalfWeightsUpdate(convert::half_weights_update(RUN, &weights.in_halves())),
        Message::WeightsNotice(WeightsNotice { run: RUN, version: 5, bytes: 300, hash: [7; 32] }),
        Message::WeightsRequest(WeightsRequest { run: RUN }),
        Message::CompressedUpload(CompressedUpload { bytes: 300, block: vec![7; 40] }),
        Message::Renew(Renew { token: Token::new([7; 32]) }),
        Message::LeaseGrant(convert::lease_grant(RUN, &moved)),
        Message::LeaseGrant(convert::lease_grant(RUN, &restarting)),
        Message::RunStart(RunStart { run: RUN, config: spec().to_wire() }),
        identity().hello(),
        Message::Welcome(Welcome { protocol: 1, peer: 1, resume_id: [0; 16], credit: 1 << 20, server: "hub".into() }),
        Message::FragmentUpload(convert::fragment_upload(RUN, LeaseId(2), &fragments_with_memory()).unwrap()),
        Message::AgentUpload(convert::agent_upload(RUN, LeaseId(2), &agent_fragments().0).unwrap()),
        Message::Chunk(Chunk { stream: 0, total: CHUNK_BYTES + 9, offset: 0, data: vec![1; 200] }),
        Message::SlotClip(EnvClip { film: vec![0; 64], steps: vec![0; 16], batch: vec![7; 40], ..EnvClip::default() }),
        Message::OtherPeers(OtherPeers { ids: vec![1], services: "viewer".into(), ..OtherPeers::default() }),
        Message::LauncherList(LauncherList {
            launchers: vec![LauncherRow { name: "l".into(), ..LauncherRow::default() }],
        }),
        Message::RecentFragmentRequest(RecentFragmentRequest { request: 300, slot: 1, back: 2 }),
        Message::Ask(Ask { ask: 300, name: "eval-1".into(), body: vec![35; 100] }),
        Message::AskCancel(AskCancel { ask: 300 }),
        Message::Asked(Asked { ask: 300, outcome: 1, body: vec![7; 100] }),
        Message::Infer(Infer {
            ask: 300,
            policy: "p".into(),
            version: 5,
            rows: 2,
            wants: 3,
            obs: vec![1; 32],
            state: vec![0; 8],
        }),
        Message::Inferred(Inferred { ask: 300, version: 5, error: "no".into(), outputs: vec![1; 24] }),
        Message::Evaluation(EvaluationPoint { run: 1, iteration: 300, ..EvaluationPoint::default() }),
        Message::EvaluationClip(EnvClip { reason: "none".into(), ..EnvClip::default() }),
        Message::BestEvaluationClip(EnvClip { run: 1, ..EnvClip::default() }),
        Message::RunStatus(RunStatus { env: "CartPole-v1".into(), error: "none".into(), ..RunStatus::default() }),
        Message::WorkerRow(WorkerRow { name: "worker".into(), ..WorkerRow::default() }),
        Message::WorkerLocation(WorkerLocation { worker: 1, host: "node-7".into(), launcher: "slurm".into() }),
        Message::LedgerReport(LedgerReport { num_worker_restarts: 300, ..LedgerReport::default() }),
        Message::Scale(Scale { request: 1, num_workers: 4 }),
        Message::Reply(Reply { request: 1, error: "no".into(), run: 0 }),
        Message::WeightsApplied(WeightsApplied { run: RUN, version: 3 }),
        Message::ManageTokens(ManageTokens { request: 1, action: 1, role: 3, token: 0, seconds: 3600 }),
        Message::TokenRows(TokenRows {
            request: 1,
            ids: vec![1, 2],
            roles: vec![2, 3],
            expires: vec![0, 9],
            connections: vec![1, 0],
        }),
        Message::NewToken(NewToken { request: 1, role: 3, expires: 0, token: Token::new([7; 32]) }),
    ]
    .into_iter()
    .chain(small_messages())
    .chain(messages_of_clients())
    .chain(messages_of_calls())
    .collect()
}

/// Returns the messages with few fields.
fn small_messages() -> Vec<Message> {
    let request = || Request { request: 7 };
    vec![
        Message::Refused(Refused { code: 3, reason: "no".into() }),
        Message::Goodbye(Goodbye { reason: "enough".into() }),
        Message::LauncherReady(LauncherReady { capacity: 4, token_seconds: 600, running: vec![1 << 40] }),
        Message::LaunchWorker(LaunchWorker {
            worker: 1 << 40,
            number: 1,
            token: Token::new([7; 32]),
            spec: "{}".into(),
        }),
        Message::EndWorker(EndWorker { worker: 1 << 40 }),
        Message::WorkerEnded(WorkerEnded { worker: 1 << 40, status: "exit status: 1".into(), is_crash: true }),
        Message::Credit(Credit { bytes: 1 << 20 }),
        Message::RunEnd(RunEnd { run: RUN }),
        Message::Revoke(Revoke { lease: 2 }),
        Message::LeaseRefused(LeaseRefused { lease: 2, reason: "no".into(), failed: None }),
        Message::RunAnswer(RunAnswer { run: RUN, code: 1, reason: "no".into() }),
        Message::Progress(Progress { lease: 2, env_steps: 300 }),
        Message::CallProgress(CallProgress { call: 300 }),
        Message::CallCancel(CallCancel { call: 300 }),
        Message::Iteration(Iteration { run: RUN, iteration: 300, ..Iteration::default() }),
        Message::WorkerGone(WorkerGone { worker: 300 }),
        Message::Notice(Notice { level: 1, text: "look".into() }),
        Message::Pause(request()),
        Message::Resume(request()),
        Message::Stop(request()),
        Message::AddWorker(request()),
        Message::WorkerTokenRequest(request()),
        Message::Drain(request()),
        Message::Checkpoint(request()),
        Message::RemoveWorker(WorkerRequest { request: 7, worker: 3 }),
        Message::RestartWorker(WorkerRequest { request: 7, worker: 3 }),
        Message::Watch(Watch { request: 7, slot: 3 }),
        Message::StartRun(StartRun { request: 7, settings: r#"{"mode": {"asynchronous": {}}}"#.into() }),
        Message::RunSchema(RunSchema { schema: "{}".into() }),
        Message::HubCertificate(HubCertificate { sha256: [7; 32] }),
        Message::RunList(RunList {
            may_wait: true,
            runs: vec![RunRow { run: RUN, place: 2, env: "e".into(), ..RunRow::default() }],
        }),
        Message::RemoveRun(RemoveRun { request: 7, run: RUN }),
        Message::RunHistoryRequest(RunHistoryRequest { request: 7, run: RUN }),
        Message::RunHistory(RunHistory {
            run: RUN,
            config: "{}".into(),
            iterations: vec![Iteration { run: RUN, iteration: 300, ..Iteration::default() }],
            evaluations: vec![EvaluationPoint { run: RUN, ..EvaluationPoint::default() }],
            ..RunHistory::default()
        }),
        Message::SavedRunsRequest(request()),
        Message::SavedRuns(SavedRuns {
            request: 7,
            left_out: 300,
            runs: vec![SavedRunRow { id: "a".into(), ..SavedRunRow::default() }],
        }),
        Message::SavedRunRequest(SavedRunRequest { request: 7, id: "a".into() }),
        Message::ResumeRun(SavedRunRequest { request: 7, id: "a".into() }),
        Message::DeleteRun(SavedRunRequest { request: 7, id: "a".into() }),
        Message::HostReport(HostReport {
            host: "h".into(),
            gpus: vec![GpuReport { name: "g".into(), ..GpuReport::default() }],
            ..HostReport::default()
        }),
        Message::WorkerLog(WorkerLog {
            worker: 3,
            first: 300,
            lines: vec![LogLine { text: "a".into(), ..LogLine::default() }],
        }),
        Message::FragmentRequest(request()),
        Message::FragmentReport(FragmentReport { batch: vec![7], cut_ends: vec![1], ..FragmentReport::default() }),
        Message::NamedMetrics(NamedMetrics::new(RUN, 300, [("lag_mean".into(), 0.5)])),
        Message::WorkerToken(WorkerToken { request: 7, token: Token::new([7; 32]) }),
        Message::StartEpisode(StartEpisode { episode: 300, training: true }),
        Message::AbandonEpisode(AbandonEpisode { episode: 300 }),
    ]
}

/// Returns the calls of a small worker: every kind of command, with every kind of answer.
fn messages_of_calls() -> Vec<Message> {
    let config = RolloutConfig { observation_filter: FilterKind::MeanStdFilter, ..RolloutConfig::new("CartPole-v1") }
        .num_envs(2)
        .rollout_fragment_length(12)
        .fcnet_hiddens(&[4]);
    let setup = WorkerSetup { config, place: WorkerPlace::remote(1, 2) };
    let mut called = CalledWorker::new(|| RolloutWorkerBuilder::new(Registry::builtin()));
    called.set_up(&setup).unwrap();
    let mut answer = |command: WorkerCommand| called.execute(command).unwrap();
    let questions = [
        WorkerCommand::Sample,
        WorkerCommand::Weights { policies: None },
        WorkerCommand::Filters { flush_after: true },
        WorkerCommand::Metrics,
        WorkerCommand::State,
        WorkerCommand::Spaces,
        WorkerCommand::CreationArgs,
    ];
    let answers: Vec<WorkerAnswer> = questions.iter().map(|question| answer(question.clone())).collect();
    let (id, function) = (PolicyId::new("q"), NamedFn::new("f").with(Config::new().with("a", 1).unwrap()));
    let policies_to_train = Some(TrainedPolicies::Ids([PolicyId::DEFAULT].into()));
    let roles = PolicyRoles { policy_mapping_fn: Some(function.clone()), policies_to_train };
    let mut commands = vec![
        WorkerCommand::AddPolicy { id, policy: PolicyConfig::new("random"), state: None, roles },
        WorkerCommand::Apply(function),
    ];
    for answer in &answers {
        match answer.clone() {
            WorkerAnswer::Sample(batch) => commands.push(WorkerCommand::LearnOnBatch(batch)),
            WorkerAnswer::Weights(all) => {
                let (weights, request) = (all.get(&PolicyId::DEFAULT).cloned(), EvaluationRequest::new(300));
                commands.push(WorkerCommand::Evaluate { weights, request });
                commands.push(WorkerCommand::SetWeights {
                    weights: all,
                    global_vars: Some(GlobalVars::default()),
                    weights_seq_no: Some(3),
                });
            }
            WorkerAnswer::Filters(filters) => commands.push(WorkerCommand::SyncFilters(filters)),
            WorkerAnswer::State(state) => commands.push(WorkerCommand::SetState(state)),
            _ => {}
        }
    }
    commands.extend(questions);
    let failed = Err(CommandError::new(CommandErrorKind::Sample, "no"));
    let evaluated = [Ok(evaluation()), Err(EvalWorkerError::setup("policy", "no device"))];
    let evaluated = evaluated.map(|outcome| WorkerAnswer::Evaluated(Box::new(outcome)));
    let results = answers
        .into_iter()
        .chain(evaluated)
        .map(Ok)
        .chain([failed])
        .map(|result| WorkerAnswer::message(CallId(1), &result));
    let calls = commands.iter().map(|command| command.message(CallId(1)).unwrap());
    [setup.message(CallId(0)).unwrap()].into_iter().chain(calls).chain(results).collect()
}

/// Returns an evaluation with all fields.
fn evaluation() -> Evaluation {
    let episode = EvaluatedEpisode { env: 1, episode: 300, episode_return: 0.1, len: 7, terminated: true };
    Evaluation {
        episodes: vec![episode; 3],
        episode_return_mean: Some(0.1),
        env_steps: 21,
        frames: Frames::of(4, 3, vec![7; 2 * 36], false),
        trace: Some(EpisodeTrace { episode: 2, obs_len: 2, obs: vec![1.5, f32::NAN], is_cut: false }),
        ..Evaluation::default()
    }
}

/// Returns a table of two agents with the same spaces.
pub(super) fn table() -> AgentTable {
    let spaces = EnvRegistry::builtin().spec("CartPole-v1").unwrap().spaces().unwrap();
    AgentTable::new([(AgentId::SINGLE, spaces.clone()), (AgentId::name("other"), spaces)]).unwrap()
}

fn messages_of_clients() -> Vec<Message> {
    let (table, mut observations, mut actions) = (table(), AgentRows::new(), AgentRows::new());
    for (agent, _) in table.agents() {
        observations.set(agent, RowsRef::F32(&[0.5, -1.0, 2.0, 0.0]));
        actions.set(agent, RowsRef::I64(&[1]));
    }
    let rows = |kind, rows: &AgentRows| {
        let mut bytes = Vec::new();
        table.write_rows(kind, rows, &mut bytes).unwrap();
        bytes
    };
    let (observations, actions) = (rows(RowKind::Observation, &observations), rows(RowKind::Action, &actions));
    let (mut returns, mut infos) = (Vec::new(), Vec::new());
    for (agent, _) in table.agents() {
        let outcome = Outcome { reward: 1.0, terminated: false, truncated: true };
        let of = AgentReturn { agent: agent.clone(), outcome };
        table.write_return(&of, &mut returns).unwrap();
        table.write_info(agent, b"{}", &mut infos).unwrap();
    }
    vec![
        Message::Spaces(table.spaces(3).unwrap()),
        Message::GetAction(GetAction { episode: 1, observations: observations.clone() }),
        Message::LogAction(LogAction { episode: 1, observations: observations.clone(), actions: actions.clone() }),
        Message::LogReturns(LogReturns { episode: 1, returns, infos }),
        Message::EndEpisode(EndEpisode { episode: 1, truncated: true, observations }),
        Message::Actions(Actions { episode: 1, actions }),
        Message::EpisodeReply(EpisodeReply { episode: 1, about: 0x41, code: 0, reason: "no".into() }),
    ]
}
