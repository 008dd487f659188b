//! Leases of environments with several agents, and of those whose steps involve user code: a slot that moves between workers
//! continues its episode with the same bits.

use std::collections::BTreeMap;

use rollmesh_core::{
    batch::{CutReason, EpisodeMetrics, OBS, SampleBatch, SlotFragment, TERMINATEDS, TRUNCATEDS},
    config::Config,
    filter::FilterKind,
    hash::RolloutHasher,
    ids::{FragmentNo, LeaseId, PolicyId, SlotId, WeightsVersion},
    lease::{Lease, LeasedSlot, SlotSource},
    protocol::{
        FailureKind, Message,
        convert::{self, EncodeError, FragmentLimits, UploadError},
        message::AgentUpload,
    },
    run::{RolloutConfig, RunConfig},
    sampler::{BatchMode, CountStepsBy, FragmentLayout, Horizon},
    worker::{Advance, PolicyConfig, Registry, RolloutWorkerBuilder, SetupError, SlotRunner},
};

use crate::kinds;

const SLOTS: u32 = 4;
const FRAGMENTS: u64 = 6;

fn registry() -> Registry {
    kinds::register(Registry::builtin())
}

fn config(env: &str) -> RunConfig {
    RunConfig::new(env).seed(5).slots(SLOTS).num_envs(2).rollout_fragment_length(13).fcnet_hiddens(&[8])
}

/// Returns a configuration for every reason why slots are not sampled in lockstep.
fn configs() -> Vec<RunConfig> {
    let mut counted = config("CartPole-v1");
    counted.rollout.callbacks = vec!["counting".into()];
    counted.rollout.observation_filter = FilterKind::MeanStdFilter;
    let mut mapped = config("MultiAgentTrafficGrid-v0").env_config(traffic());
    mapped.rollout.policy_mapping_fn = Some("cars_and_lights".into());
    for id in ["car", "light"] {
        mapped.rollout.policies.insert(PolicyId::new(id), PolicyConfig::default());
    }
    let mut with_memory = config("MultiAgentCartPole-v1");
    with_memory.rollout.model_config =
        r#"{"use_lstm": true, "lstm_cell_size": 4, "fcnet_hiddens": [4]}"#.parse().unwrap();
    let mut with_previous_step = with_memory.clone();
    with_previous_step.rollout.model_config =
        r#"{"use_gru": true, "gru_cell_size": 4, "fcnet_hiddens": [4], "lstm_use_prev_action": true, "lstm_use_prev_reward": true}"#
            .parse()
            .unwrap();
    let with = |mut run: RunConfig, settings: &str| {
        let settings: Config = settings.parse().unwrap();
        run = run.merged(&settings).unwrap_or_else(|error| panic!("{}: {error}", run.env()));
        run
    };
    let soft = r#"{"horizon": 5, "horizon_means": "legacy_soft"}"#;
    vec![
        counted,
        mapped,
        with(with_memory.clone(), r#"{"batch_mode": "complete_episodes", "count_steps_by": "agent_steps"}"#),
        with_memory,
        with_previous_step,
        with(config("CartPole-v1"), r#"{"batch_mode": "complete_episodes"}"#),
        with(config("RockPaperScissors-v0"), r#"{"batch_mode": "complete_episodes", "horizon": 3}"#),
        with(config("MultiAgentTrafficGrid-v0").env_config(traffic()), r#"{"count_steps_by": "agent_steps"}"#),
        with(config("CartPole-v1"), soft),
        with(config("FrozenLake-v1"), soft),
        with(
            config("CartPole-v1"),
            r#"{"batch_mode": "complete_episodes", "horizon": 4, "horizon_means": "legacy_soft"}"#,
        ),
        // Not a multiple of the slots of a home worker.
        with(
            config("RockPaperScissors-v0"),
            r#"{"rollout_fragment_length": "auto", "train_batch_size": 91, "num_slots": 7, "num_envs": 3}"#,
        ),
        config("MultiAgentTrafficGrid-v0").env_config(traffic()),
        config("MultiAgentCartPole-v1"),
        config("RockPaperScissors-v0"),
        config("TwoStepGame-v0"),
        // Observations of parts, in rows of floats.
        config("Sides-v0"),
        config("Strides-v0"),
        config("MaskedSides-v0"),
        with(config("MultiAgentCartPole-v1"), r#"{"observation_fn": "tilted"}"#),
        // A policy that sees earlier rows and postprocesses its trajectories.
        with(config("CartPole-v1"), r#"{"policies": {"default_policy": {"policy": "backward"}}}"#),
    ]
}

fn traffic() -> Config {
    r#"{"size": 2, "num_cars": 5}"#.parse().unwrap()
}

fn runner(run: &RunConfig) -> SlotRunner {
    SlotRunner::new(run, RolloutWorkerBuilder::new(registry())).unwrap()
}

fn lease(fragment: u64, slots: &[(u32, SlotSource)]) -> Lease {
    Lease {
        id: LeaseId(fragment),
        fragment: FragmentNo(fragment),
        weights_version: WeightsVersion(0),
        slots: slots.iter().map(|(slot, source)| LeasedSlot::new(SlotId(*slot), source.clone())).collect(),
    }
}

fn finish(runner: &mut SlotRunner) -> Vec<SlotFragment> {
    let mut done = Vec::new();
    loop {
        match runner.advance(5) {
            Advance::Working { .. } => {}
            Advance::Part { fragments, .. } => done.extend(fragments),
            Advance::Done { fragments, .. } => {
                done.extend(fragments);
                return done;
            }
            other => panic!("{other:?}"),
        }
    }
}

/// Returns whether a fragment has the steps that its run asks for, and no more than it needs.
fn has_the_length(fragment: &SlotFragment, run: &RunConfig) -> bool {
    let RolloutConfig { batch_mode, count_steps_by, .. } = run.rollout;
    let agents = fragment.agents.as_ref().unwrap();
    let counted = count_steps_by.of(agents.env_steps, agents.agent_steps());
    match (batch_mode, count_steps_by) {
        (BatchMode::TruncateEpisodes, CountStepsBy::EnvSteps) => counted == 13,
        (BatchMode::TruncateEpisodes, CountStepsBy::AgentSteps) => counted >= 13 && agents.env_steps < 13,
        (BatchMode::CompleteEpisodes, _) => {
            let lens: Vec<usize> = fragment.episodes.iter().map(|episode| episode.len as usize).collect();
            let (all, last) = (lens.iter().sum::<usize>(), lens.last().unwrap());
            counted >= 13 && agents.env_steps == all && all - last < 13
        }
    }
}

#[test]
fn slot_that_moves_in_mid_episode_resumes_bit_identically() {
    for run in configs() {
        let mut alone = runner(&run);
        let mut hasher = RolloutHasher::new();
        let mut calm = Vec::new();
        for fragment in 0..FRAGMENTS {
            let source = if fragment == 0 { SlotSource::New } else { SlotSource::Held };
            let slots: Vec<_> = (0..SLOTS).map(|slot| (slot, source.clone())).collect();
            alone.begin(lease(fragment, &slots)).unwrap();
            let fragments = finish(&mut alone);
            assert!(fragments.iter().all(|fragment| has_the_length(fragment, &run)), "{}", run.env());
            fragments.iter().for_each(|fragment| hasher.add(fragment).unwrap());
            calm.push(fragments);
        }
        let (mut a, mut b) = (runner(&run), runner(&run));
        let mut states: Vec<Option<Vec<u8>>> = vec![None; SLOTS as usize];
        for fragment in 0..FRAGMENTS {
            let source = |slot: u32| (slot, states[slot as usize].clone().map_or(SlotSource::New, SlotSource::State));
            let split = [2, 3, 1, 4, 2, 1][fragment as usize];
            let (left, right): (Vec<_>, Vec<_>) = (0..SLOTS).map(source).partition(|(slot, _)| *slot < split);
            // One gives up in the middle of the fragment.
            a.begin(lease(fragment, &left)).unwrap();
            a.advance(4);
            a.abandon();
            b.set_sequential(fragment % 2 == 1);
            b.begin(lease(fragment, &left)).unwrap();
            let mut fragments = finish(&mut b);
            if !right.is_empty() {
                a.begin(lease(fragment, &right)).unwrap();
                fragments.extend(finish(&mut a));
            }
            for done in &fragments {
                states[done.slot.0 as usize] = Some(done.state.clone());
            }
            assert_eq!(fragments, calm[fragment as usize], "{} at fragment {fragment}", run.env());
        }
        if !run.rollout.callbacks.is_empty() {
            let ended: Vec<&EpisodeMetrics> = calm.iter().flatten().flat_map(|fragment| &fragment.episodes).collect();
            assert!(ended.iter().any(|episode| episode.len > 13), "no episode has moved");
            let steps = |episode: &EpisodeMetrics| episode.custom_metrics.get("steps").copied();
            assert!(ended.iter().all(|episode| steps(episode) == Some(f64::from(episode.len))), "{ended:?}");
        }
    }
}

#[test]
fn upload_brings_the_fragments_and_damage_is_refused() {
    for run in configs() {
        let mut runner = runner(&run);
        assert!(matches!(runner.layout(), FragmentLayout::Agents(_)), "{}", run.env());
        let limits = FragmentLimits::new(&run, runner.layout());
        let slots: Vec<_> = (0..SLOTS).map(|slot| (slot, SlotSource::New)).collect();
        let lease = lease(0, &slots);
        runner.begin(lease.clone()).unwrap();
        let fragments = finish(&mut runner);
        let upload = convert::agent_upload(1, lease.id, &fragments).unwrap();
        assert_eq!(convert::agent_fragments(&upload, 1, &lease, &limits), Ok(fragments.clone()));
        if run.rollout.has_equal_fragments() {
            let (estimate, bytes) =
                (limits.upload_bytes(SLOTS as usize), Message::AgentUpload(upload.clone()).encode().len());
            assert!(
                (bytes as u64..4 * bytes as u64).contains(&estimate),
                "{}: {estimate} for {bytes} bytes",
                run.env()
            );
        }
        assert!(
            convert::agent_fragments(&upload, 2, &lease, &limits).unwrap_err().to_string().contains("run 1, not 2")
        );

        let mut short = upload.clone();
        short.batch_ends[0] -= 1;
        assert!(convert::agent_fragments(&short, 1, &lease, &limits).is_err());
        let mut forged = fragments.clone();
        // An env step in which no agent acts has no row.
        let counts_agents = run.rollout.count_steps_by == CountStepsBy::AgentSteps;
        forged[0].agents.as_mut().unwrap().env_steps += if counts_agents { 70_000 } else { 1 };
        let upload_of_forged = convert::agent_upload(1, lease.id, &forged).unwrap();
        let error = convert::agent_fragments(&upload_of_forged, 1, &lease, &limits).unwrap_err().to_string();
        let expected = match forged[0].env_steps() {
            14 => "slot 0 has 14 rows, not 13".into(),
            steps => format!(
                "the {steps} env steps of slot 0 are not the fragment that batch_mode and count_steps_by ask for"
            ),
        };
        assert_eq!(error, expected, "{}", run.env());
        let mut wide = fragments.clone();
        let agents = wide[1].agents.as_mut().unwrap();
        let batch = agents.policy_batches.values_mut().next().unwrap();
        batch.insert("more", batch.column("rewards").unwrap().clone()).unwrap();
        let upload_of_forged = convert::agent_upload(1, lease.id, &wide).unwrap();
        // Callbacks and policies that postprocess may add columns.
        let is_refused = convert::agent_fragments(&upload_of_forged, 1, &lease, &limits).is_err();
        let FragmentLayout::Agents(layouts) = runner.layout() else { panic!("{}", run.env()) };
        assert_eq!(is_refused, layouts.values().all(|layout| layout.is_exact), "{}", run.env());
        let mut forged = fragments.clone();
        forged[1].state = fragments[0].state.clone();
        let upload_of_forged = convert::agent_upload(1, lease.id, &forged).unwrap();
        let error = convert::agent_fragments(&upload_of_forged, 1, &lease, &limits).unwrap_err().to_string();
        assert!(error.starts_with("the state of slot 1 is missing"), "{error}");
        if run.rollout.has_equal_fragments() {
            check_episodes(&fragments, &lease, &limits);
        }
        let mut strange = fragments;
        let agents = strange[1].agents.as_mut().unwrap();
        let batch = agents.policy_batches.values().next().unwrap().clone();
        agents.policy_batches.insert(PolicyId::new("stranger"), batch);
        let upload_of_forged = convert::agent_upload(1, lease.id, &strange).unwrap();
        let error = convert::agent_fragments(&upload_of_forged, 1, &lease, &limits).unwrap_err().to_string();
        assert_eq!(error, "slot 1 has rows of policy \"stranger\", which the run does not have");
    }
}

/// Checks that episodes with custom metrics within an upload's limits arrive unchanged and others are refused.
fn check_episodes(fragments: &[SlotFragment], lease: &Lease, limits: &FragmentLimits) {
    let with = |custom_metrics: BTreeMap<String, f64>, episodes: usize| {
        let mut fragments = fragments.to_vec();
        fragments.iter_mut().for_each(|fragment| fragment.episodes.clear());
        fragments[2].episodes = vec![EpisodeMetrics { custom_metrics, ..EpisodeMetrics::default() }; episodes];
        fragments
    };
    let upload = |fragments: &[SlotFragment]| convert::agent_upload(1, lease.id, fragments);
    let read = |upload: &AgentUpload| convert::agent_fragments(upload, 1, lease, limits);
    let error = |upload: &AgentUpload| read(upload).unwrap_err().to_string();
    let numbered = |names: usize| (0..names).map(|name| (format!("n{name:02}"), 0.5)).collect::<BTreeMap<_, _>>();

    let most = with(numbered(63).into_iter().chain([("ä".repeat(64), -0.0)]).collect(), 13);
    assert_eq!(read(&upload(&most).unwrap()), Ok(most));
    for names in [numbered(65), [(String::new(), 0.5)].into(), [("n".repeat(129), 0.5)].into()] {
        assert_eq!(upload(&with(names, 1)), Err(EncodeError::CustomMetrics(SlotId(2))));
    }
    assert_eq!(
        error(&upload(&with(BTreeMap::new(), 14)).unwrap()),
        "the episodes of slot 2 are more than its env steps"
    );
    let odd = upload(&with([("n".into(), f64::NAN)].into(), 1)).unwrap();
    assert_eq!(error(&odd), "column 'custom_metrics' of slot 2 holds a value that is not finite");
    let two = upload(&with(numbered(2), 1)).unwrap();
    let damage = |change: fn(&mut AgentUpload)| {
        let mut damaged = two.clone();
        change(&mut damaged);
        error(&damaged)
    };
    let name =
        "the episodes of slot 2 have a custom metric whose name is missing, not in order, or not of 1 to 128 bytes";
    assert_eq!(damage(|upload| upload.metric_names = "n01n00".into()), name);
    assert_eq!(damage(|upload| upload.metric_names = "nnänn".into()), name, "cut within a character");
    assert_eq!(damage(|upload| upload.metric_ends[0] = 9), name);
    assert_eq!(damage(|upload| upload.metric_names.push('x')), "the table 'metric_names' has 7 entries, not 6");
    assert_eq!(damage(|upload| upload.metric_values.push(0)), "the table 'metric_values' has 17 entries, not 16");
    assert_eq!(damage(|upload| upload.metrics[0] = u32::MAX), "the table 'metric_ends' has 2 entries, not 4294967295");
    let mut uneven = upload(&with(numbered(64), 2)).unwrap();
    (uneven.metrics[0], uneven.metrics[1]) = (65, 63);
    assert_eq!(error(&uneven), "the episodes of slot 2 have 65 custom metrics each, at most 64 are allowed");
}

#[test]
fn settings_that_leases_do_not_support_are_refused_by_name() {
    let refused = |run: &RunConfig| {
        let made = SlotRunner::new(run, RolloutWorkerBuilder::new(registry()));
        made.err().map(|error| error.to_string()).unwrap_or_default()
    };
    let mut filtered = config("RockPaperScissors-v0");
    filtered.rollout.observation_filter = FilterKind::MeanStdFilter;
    let expected =
        "observation_filter: a filter takes float32 observations, which no policy of this run has: leave it out";
    assert_eq!(refused(&filtered), expected);
    let mut soft = config("RockPaperScissors-v0");
    soft.rollout.horizon = Some(3);
    soft.rollout.horizon_means = Horizon::LegacySoft;
    assert!(refused(&soft).starts_with("horizon_means: slots are brought back by the actions"), "{}", refused(&soft));
    let mut slashed = config("RockPaperScissors-v0");
    slashed.rollout.policies.insert(PolicyId::new("a/b"), PolicyConfig::default());
    assert_eq!(refused(&slashed), "policies is \"a/b\"; it must be a name without a slash");
}

/// The only episode has no end within the most env steps that a fragment may have.
#[test]
fn fragment_without_end_is_refused() {
    let settings = r#"{"batch_mode": "complete_episodes", "horizon": 100000, "model_config": {"fcnet_hiddens": [1]}}"#;
    let run = config("Pendulum-v1").merged(&settings.parse().unwrap()).unwrap();
    let mut runner = runner(&run);
    runner.begin(lease(0, &[(2, SlotSource::New)])).unwrap();
    let failure = loop {
        match runner.advance(1_000) {
            Advance::Working { env_steps, .. } => assert!(env_steps <= 65_536, "{env_steps} env steps"),
            Advance::Failed { failure, .. } => break failure,
            other => panic!("{other:?}"),
        }
    };
    let expected = "a fragment of slot 2 is not complete after 65537 env steps: set `horizon`, or a shorter \
                    rollout_fragment_length";
    assert_eq!((failure.kind, failure.slot, failure.message()), (FailureKind::Fragment, Some(SlotId(2)), expected));
    assert_eq!(runner.advance(1), Advance::Done { lease: LeaseId(0), fragments: Vec::new() });
}

/// Rows sampled in lockstep and by agent: without a flag, whatever ended the episode.
#[test]
fn no_done_at_end_brings_no_flags_and_others_are_refused() {
    for env in ["CartPole-v1", "MultiAgentCartPole-v1"] {
        let settings = r#"{"horizon": 9, "horizon_means": "legacy_hard"}"#;
        let flagged = config(env).merged(&settings.parse().unwrap()).unwrap();
        let plain = flagged.merged(&r#"{"no_done_at_end": true}"#.parse().unwrap()).unwrap();
        let lease = lease(0, &[(0, SlotSource::New), (3, SlotSource::New)]);
        let [with, without] = [&flagged, &plain].map(|run| {
            let mut runner = runner(run);
            runner.begin(lease.clone()).unwrap();
            (finish(&mut runner), FragmentLimits::new(run, runner.layout()))
        });
        let has_flags = |fragments: &[SlotFragment]| {
            let all = |fragment: &SlotFragment| match &fragment.agents {
                Some(agents) => agents.policy_batches.values().cloned().collect(),
                None => vec![fragment.rows.clone()],
            };
            let rows: Vec<SampleBatch> = fragments.iter().flat_map(all).collect();
            rows.iter().any(|rows| [TERMINATEDS, TRUNCATEDS].iter().any(|key| rows.get(*key).unwrap().contains(&true)))
        };
        assert_eq!((has_flags(&with.0), has_flags(&without.0)), (true, false), "{env}");
        assert!(
            with.0.iter().zip(&without.0).all(|(a, b)| !a.episodes.is_empty() && a.episodes == b.episodes),
            "{env}"
        );
        if with.0[0].agents.is_some() {
            let read = |fragments: &[SlotFragment]| {
                let upload = convert::agent_upload(1, lease.id, fragments).unwrap();
                convert::agent_fragments(&upload, 1, &lease, &without.1)
            };
            assert_eq!(read(&without.0), Ok(without.0.clone()));
            assert!(matches!(read(&with.0), Err(UploadError::Value { column: "terminateds" | "truncateds", .. })));
            continue;
        }
        let read = |fragments: &[SlotFragment], limits| {
            convert::slot_fragments(&convert::fragment_upload(1, lease.id, fragments).unwrap(), 1, &lease, limits)
        };
        assert_eq!(read(&with.0, &with.1), Ok(with.0.clone()));
        assert_eq!(read(&without.0, &without.1), Ok(without.0.clone()));
        assert!(without.0[0].cuts.iter().all(|cut| cut.reason != CutReason::Terminated));
        let swapped = [read(&with.0, &without.1), read(&without.0, &with.1)];
        assert!(swapped.iter().all(|read| matches!(read, Err(UploadError::Cuts { .. }))), "{swapped:?}");
    }
}

#[test]
fn policies_are_assigned_by_spaces_where_none_are_named() {
    let policies = |env: &str| match runner(&config(env)).layout() {
        FragmentLayout::Agents(policies) => {
            policies.iter().map(|(id, layout)| (id.to_string(), layout.agents)).collect::<Vec<_>>()
        }
        FragmentLayout::Lane { .. } => panic!("several agents"),
    };
    assert_eq!(policies("MultiAgentTrafficGrid-v0"), [("car".into(), 25), ("light".into(), 9)]);
    assert_eq!(policies("RockPaperScissors-v0"), [("default_policy".into(), 2)]);
}

#[test]
fn damaged_state_is_refused_without_panic() {
    let run = config("MultiAgentTrafficGrid-v0").env_config(traffic());
    let mut runner = runner(&run);
    runner.begin(lease(0, &[(1, SlotSource::New)])).unwrap();
    let state = finish(&mut runner)[0].state.clone();
    let mut begin = |state: Vec<u8>| {
        runner.begin(lease(1, &[(1, SlotSource::State(state))])).unwrap();
        let mut is_restored = true;
        loop {
            match runner.advance(5) {
                // Damage may leave a state: an observation, a reward.
                Advance::Done { .. } => return is_restored,
                Advance::Failed { .. } => is_restored = false,
                _ => {}
            }
        }
    };
    assert!(begin(state.clone()));
    for len in (0..state.len()).step_by(7) {
        assert!(!begin(state[..len].to_vec()), "{len} bytes of {}", state.len());
    }
    for at in 0..state.len() {
        let mut damaged = state.clone();
        damaged[at] ^= 1 << (at % 8);
        begin(damaged);
    }
}

#[test]
fn only_policies_that_follow_masks_refuse_to_filter_them() {
    let masked = |policy: &str| {
        let mut config = RolloutConfig::new("MaskedSides-v0").rollout_fragment_length(20).single_policy(policy);
        config.observation_filter = FilterKind::MeanStdFilter;
        config
    };
    let refused = |error: SetupError| {
        assert!(error.to_string().contains("set observation_filter to NoFilter"), "{error}");
    };
    let make = |config| RolloutWorkerBuilder::new(registry()).config(config).build();
    refused(make(masked("net")).err().unwrap());
    let run = RunConfig { rollout: masked("net"), ..config("MaskedSides-v0") };
    refused(SlotRunner::new(&run, RolloutWorkerBuilder::new(registry())).err().unwrap());

    // The side becomes one-hot for a policy that follows no masks, and the mask with it.
    let width = |config: RolloutConfig| {
        let batch = make(config).unwrap().sample().unwrap().as_multi_agent();
        batch.policy_batches[&PolicyId::DEFAULT].column(OBS.name()).unwrap().shape().elements()
    };
    let plain = |policy: &str| RolloutConfig { observation_filter: FilterKind::NoFilter, ..masked(policy) };
    assert_eq!([width(masked("random")), width(plain("random")), width(plain("net"))], [7, 7, 5]);
}
