use super::*;
use crate::{
    batch::SlotFragment,
    group::{GroupCommand, WorkerProfile},
    hub::{BatchWork, RunEnd, RunLoopConfig},
    kernels::Kernels,
    policy::{ForwardFactory, PolicyError, Postprocessing},
    protocol::{Message, convert, message::WeightsApplied},
    worker::{Advance, Registry, RolloutWorkerBuilder, SlotRunner},
};

const WORKER: WorkerId = WorkerId(1);

fn builder() -> RolloutWorkerBuilder {
    RolloutWorkerBuilder::new(Registry::builtin()).kernels(Kernels::PORTABLE)
}

/// Creates a run of two slots with fragments of 8 steps, and a worker that is able.
fn run(consumer: BatchConsumer) -> (RunLoop, SlotRunner) {
    run_of(RunConfig::sampling("CartPole-v1", 2), consumer)
}

fn run_of(config: RunConfig, consumer: BatchConsumer) -> (RunLoop, SlotRunner) {
    let config = config.rollout_fragment_length(8).fcnet_hiddens(&[4]).stop_after(48);
    let parts = builder().learning_parts(&config).unwrap();
    let runner = SlotRunner::new(&config, builder()).unwrap();
    let parts = RunLoopConfig { consumer, ..RunLoopConfig::sampling(1, config, &parts).unwrap() };
    let mut run = RunLoop::new(parts, Micros(0)).unwrap();
    run.group.handle_joined(WORKER, WorkerProfile::NATIVE, Micros(0));
    run.group.handle_answer(WORKER, Ok(()), Micros(0));
    (run, runner)
}

/// Executes all leases that are granted.
fn work(run: &mut RunLoop, runner: &mut SlotRunner, now: Micros) {
    while let Some(command) = run.group.poll_command() {
        let GroupCommand::Grant { lease, .. } = command else { continue };
        execute(run, runner, lease, now);
    }
}

fn execute(run: &mut RunLoop, runner: &mut SlotRunner, lease: Lease, now: Micros) {
    let id = lease.id;
    if let Some(weights) = run.weights_of(lease.weights_version) {
        runner.set_weights(&weights).unwrap();
    }
    runner.begin(lease).unwrap();
    let Advance::Done { fragments, .. } = runner.advance(8) else { panic!("8 steps are a fragment") };
    run.group.handle_fragments(WORKER, id, fragments, now);
}

/// Between the first batch and its update there is neither a fragment in progress nor a counted iteration; a run that
/// appeared not to have begun then would begin a second time, with the first weights.
#[test]
fn run_has_begun_while_its_first_batch_is_consumed() {
    let (mut run, mut runner) = run(BatchConsumer::Learner(Postprocessing::None));
    assert!(!run.has_begun());
    run.begin_iteration(Micros(0)).unwrap();
    work(&mut run, &mut runner, Micros(0));
    assert!(matches!(run.poll_batch(), Some(Ok(BatchWork::Learn(_)))));
    assert!(run.has_begun() && run.is_consuming() && run.group.fragment().is_none());
}

#[test]
fn learning_run_ends_after_its_env_steps_and_counts_time_of_the_caller() {
    let (mut run, mut runner) = run(BatchConsumer::Learner(Postprocessing::None));
    let mut now = Micros(0);
    for iteration in 1..=3 {
        assert_eq!(run.end_reached(now), None);
        run.begin_iteration(now).unwrap();
        now = now + Micros::from_millis(500);
        work(&mut run, &mut runner, now);
        let Some(Ok(BatchWork::Learn(rows))) = run.poll_batch() else { panic!("no batch") };
        assert_eq!(rows.fragments().iter().map(SlotFragment::env_steps).sum::<u64>(), 16);
        let (batch, observed) = rows.join().unwrap();
        assert_eq!(batch.env_steps, 16);
        let weights = run.weights().with_version(WeightsVersion(iteration));
        run.handle_learned(weights, observed, now);
        assert_eq!((run.iteration(), run.env_steps(), run.steps_per_s()), (iteration, 16 * iteration, 32.0));
        assert!(run.poll_weights().unwrap().is_some(), "new weights are published once");
        assert!(run.poll_weights().unwrap().is_none());
    }
    assert_eq!(run.end_reached(now), Some(RunEnd::Finished));
    run.end(&RunEnd::Finished, now);
    assert_eq!((run.phase(), run.elapsed(now + Micros::from_secs(9))), (Phase::Finished, Micros::from_millis(1_500)));
    assert!(run.check_ledger().is_ok() && run.not_reproducible().is_empty());
}

/// Uploads may be decoded on other threads than that of the loop.
#[test]
fn decoded_upload_commits_what_the_loop_itself_would_decode() {
    let commit = |decodes_elsewhere: bool| {
        let (mut run, mut runner) = run(BatchConsumer::Caller);
        run.begin_iteration(Micros(0)).unwrap();
        let Some(GroupCommand::Grant { worker, lease }) = run.group.poll_command() else { panic!("no lease") };
        let (id, message) = (lease.id, run.grant(worker, lease.clone()));
        assert!(matches!(message, Message::LeaseGrant(_)));
        runner.begin(lease).unwrap();
        let Advance::Done { fragments, .. } = runner.advance(8) else { panic!("8 steps are a fragment") };
        let upload = || WorkerUpload::Lanes(convert::fragment_upload(1, id, &fragments).unwrap());
        assert!(!upload().has_deltas(), "a state of CartPole is small");
        let decode = |run: &RunLoop| run.decoder(id).unwrap().decode(&upload());
        let of_another = run.handle_decoded(WorkerId(2), decode(&run), Micros(0));
        assert!(matches!(of_another, Err(UploadFault::Unknown)), "the lease is not that worker's");
        match decodes_elsewhere {
            true => run.handle_decoded(worker, decode(&run), Micros(0)).unwrap(),
            false => run.handle_upload(worker, upload(), Micros(0)).unwrap(),
        }
        let Some(Ok(BatchWork::HandOver(batch))) = run.poll_batch() else { panic!("the batch is complete") };
        assert_eq!(batch, fragments);
        let of_another_run = WorkerUpload::Lanes(convert::fragment_upload(7, id, &fragments).unwrap());
        let wrong = run.decoder(id).unwrap().decode(&of_another_run);
        assert!(matches!(run.handle_decoded(worker, wrong, Micros(0)), Err(UploadFault::Invalid(_))));
        *run.group.ledger()
    };
    assert_eq!(commit(true), commit(false));
}

#[test]
fn paused_and_draining_runs_grant_nothing() {
    let (mut run, mut runner) = run(BatchConsumer::Caller);
    run.pause(Micros(0)).unwrap();
    run.begin_iteration(Micros(0)).unwrap();
    assert!(run.group.poll_command().is_none());
    run.resume(Micros(5)).unwrap();
    assert_eq!(run.elapsed(Micros(7)), Micros(2));
    run.drain();
    assert!(run.pause(Micros(7)).is_err() && run.resume(Micros(7)).is_err());
    work(&mut run, &mut runner, Micros(7));
    assert!(run.is_drained());
}

#[test]
fn weights_that_were_never_sent_do_not_count_as_applied() {
    let (mut run, _) = run(BatchConsumer::Caller);
    let weights = run.weights().clone();
    let version = run.set_weights(&weights).unwrap();
    let say = |run: &mut RunLoop, number: u32, version: u64| {
        run.handle_weights_applied(WORKER, &WeightsApplied { run: number, version });
    };
    say(&mut run, 1, u64::MAX);
    say(&mut run, 1, version.0);
    assert!(run.poll_weights().unwrap().is_some());
    assert!(!run.have_applied(version, Micros(0)), "the worker said so before they were sent");
    say(&mut run, 2, version.0);
    assert!(!run.have_applied(version, Micros(0)), "of another run");
    say(&mut run, 1, version.0);
    assert!(run.have_applied(version, Micros(0)));
}

/// A lease that was granted before an update continues with the weights of before.
#[test]
fn replaced_weights_are_kept_only_while_a_dashboard_is_shown_a_slot_that_acts_with_them() {
    for is_watched in [false, true] {
        let mode = crate::run::SamplingMode::Asynchronous { batch_env_steps: 8, max_staleness: 9 };
        let config = RunConfig { mode, ..RunConfig::sampling("CartPole-v1", 1) };
        let (mut run, mut runner) = run_of(config, BatchConsumer::Learner(Postprocessing::None));
        run.is_watched = is_watched;
        run.begin_iteration(Micros(0)).unwrap();
        let Some(GroupCommand::Grant { lease, .. }) = run.group.poll_command() else { panic!("a lease") };
        execute(&mut run, &mut runner, lease, Micros(0));
        let Some(Ok(BatchWork::Learn(rows))) = run.poll_batch() else { panic!("a batch") };
        let Some(GroupCommand::Grant { lease, .. }) = run.group.poll_command() else { panic!("the next lease") };
        let (_, observed) = rows.join().unwrap();
        run.handle_learned(run.weights().with_version(WeightsVersion(1)), observed, Micros(0));
        assert_eq!(run.weights_of(lease.weights_version).is_some(), is_watched, "version {}", lease.weights_version.0);
        assert_eq!(run.recent_weights.len(), usize::from(is_watched));
    }
}

#[test]
fn worker_on_a_device_is_able_for_runs_with_device_rows_alone() {
    let mut registry = Registry::builtin();
    let fails = |_: &_, _: &_, _: &_| Err(PolicyError::Failed("the device was asked for".into()));
    registry.policies.act_with(ForwardFactory::new(fails));
    let mut config = RunConfig::sampling("CartPole-v1", 2);
    let setup = |config: &RunConfig| {
        let runner = SlotRunner::new(config, RolloutWorkerBuilder::new(registry.clone()));
        runner.err().map(|error| error.to_string()).unwrap_or_default()
    };
    let unable = setup(&config);
    assert!(unable.starts_with("this worker's policies act on a device") && unable.contains("device_rows"), "{unable}");
    config.device_rows = true;
    assert!(setup(&config).ends_with("the device was asked for"));
    let parts = builder().learning_parts(&config).unwrap();
    let run = RunLoop::new(RunLoopConfig::sampling(1, config, &parts).unwrap(), Micros(0)).unwrap();
    assert!(run.not_reproducible()[0].starts_with("device_rows is set"), "{:?}", run.not_reproducible());
}

#[test]
fn run_whose_fragments_fit_into_no_upload_is_refused_with_the_longest_that_do() {
    const AGENTS: &str = "MultiAgentTrafficGrid-v0";
    let with = |env, steps, settings: &str| {
        let config = RunConfig::sampling(env, 2).rollout_fragment_length(steps).fcnet_hiddens(&[4]);
        let config = config.merged(&settings.parse().unwrap()).unwrap();
        let parts = builder().learning_parts(&config).unwrap();
        RunLoopConfig::sampling(1, config, &parts).unwrap()
    };
    let new = |parts| RunLoop::new(parts, Micros(0));
    let by_agents = r#"{"count_steps_by": "agent_steps"}"#;
    assert!(
        new(with(AGENTS, RunConfig::MAX_FRAGMENT_LENGTH, by_agents)).is_ok(),
        "34 agents take as many steps at a time"
    );
    let settings = "{}";
    for (env, kind) in [("PixelSeaquest-v0", "FragmentUpload"), (AGENTS, "AgentUpload")] {
        let longest = match new(with(env, RunConfig::MAX_FRAGMENT_LENGTH, settings)) {
            Err(RunLoopError::LongFragment { longest, .. }) => longest,
            other => panic!("{env}: {other:?}"),
        };
        assert!(new(with(env, longest, settings)).is_ok(), "{env}");
        let error = new(with(env, longest + 1, settings)).unwrap_err().to_string();
        assert!(error.starts_with(&format!("the fragments of this run cannot be uploaded: {kind} of 335")), "{error}");
        assert!(error.ends_with(&format!("set `rollout_fragment_length` to at most {longest}")), "{error}");
        // A run without leases uploads nothing.
        let own = with(env, longest + 1, settings);
        assert!(new(RunLoopConfig { consumer: BatchConsumer::OwnWorker, ..own }).is_ok(), "{env}");
    }
}
