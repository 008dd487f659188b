//! For any settings a worker either applies them, or returns an error about them.

use proptest::{prelude::*, sample::select};

use super::RolloutWorker;
use crate::{
    filter::FilterKind,
    ids::PolicyId,
    sampler::{BatchMode, CountStepsBy, Horizon, RewardClipping},
    worker::{
        Registry, RolloutConfig, RolloutWorkerBuilder, SamplerChoice,
        config::{Compression, FragmentLength, PreprocessorPref},
    },
};

const ENVS: [&str; 7] = [
    "CartPole-v1",
    "FrozenLake-v1",
    "Pendulum-v1",
    "MultiAgentCartPole-v1",
    "RockPaperScissors-v0",
    "TwoStepGame-v0",
    "MultiAgentTrafficGrid-v0",
];

/// Generates numbers, rarely 0, which is never valid.
fn often(numbers: core::ops::Range<u32>) -> impl Strategy<Value = u32> {
    prop_oneof![19 => numbers, 1 => Just(0)]
}

fn numbers() -> impl Strategy<Value = RolloutConfig> {
    let fragment = prop_oneof![4 => often(1..30u32).prop_map(FragmentLength::Steps), 1 => Just(FragmentLength::Auto)];
    let horizon = prop_oneof![Just(None), often(1..20u32).prop_map(Some)];
    (select(&ENVS[..]), often(1..4u32), fragment, often(1..60u32), horizon, often(1..3u32), any::<u64>()).prop_map(
        |(env, num_envs, rollout_fragment_length, train_batch_size, horizon, policy_map_capacity, seed)| {
            RolloutConfig {
                num_envs,
                rollout_fragment_length,
                train_batch_size,
                horizon,
                policy_map_capacity: policy_map_capacity as usize,
                seed,
                ..RolloutConfig::new(env)
            }
        },
    )
}

fn modes() -> impl Strategy<Value = RolloutConfig> {
    let modes = (
        select(&[BatchMode::TruncateEpisodes, BatchMode::CompleteEpisodes][..]),
        select(&[CountStepsBy::EnvSteps, CountStepsBy::AgentSteps][..]),
        select(&[Horizon::Truncated, Horizon::LegacyHard, Horizon::LegacySoft][..]),
        select(
            &[PreprocessorPref::Auto, PreprocessorPref::DeepMind, PreprocessorPref::RlLib, PreprocessorPref::None][..],
        ),
        select(&[FilterKind::NoFilter, FilterKind::MeanStdFilter, FilterKind::ConcurrentMeanStdFilter][..]),
        select(&[RewardClipping::Auto, RewardClipping::Sign, RewardClipping::Limit(0.5), RewardClipping::Off][..]),
        select(&[Compression::None, Compression::Rows, Compression::Bulk][..]),
    );
    (numbers(), modes).prop_map(|(config, (mode, by, means, pref, filter, clip, compression))| RolloutConfig {
        batch_mode: mode,
        count_steps_by: by,
        horizon_means: means,
        preprocessor_pref: pref,
        observation_filter: filter,
        clip_rewards: clip,
        compress_observations: compression,
        ..config
    })
}

fn settings() -> impl Strategy<Value = RolloutConfig> {
    let one_in = |n: u32| prop::bool::weighted(1.0 / f64::from(n));
    let flags = (one_in(8), one_in(2), one_in(2), one_in(2), one_in(4), one_in(4));
    let policies =
        (select(&["net", "random"][..]), prop_oneof![7 => Just("default_policy"), 1 => Just("other")], one_in(8));
    (modes(), flags, policies).prop_map(|(config, flags, (kind, id, trained))| {
        let (no_done_at_end, clip, normalize, explore, restart, fake_sampler) = flags;
        let config = RolloutConfig {
            no_done_at_end,
            clip_actions: clip,
            normalize_actions: normalize,
            explore,
            restart_failed_sub_environments: restart,
            fake_sampler,
            policies_to_train: trained.then(|| [PolicyId::new("other")].into()),
            ..config.fcnet_hiddens(&[4])
        };
        config.policy(PolicyId::new(id), crate::worker::PolicyConfig::new(kind))
    })
}

fn build(config: &RolloutConfig, sampler: SamplerChoice) -> Result<RolloutWorker, crate::worker::SetupError> {
    RolloutWorkerBuilder::new(Registry::builtin()).config(config.clone()).sampler(sampler).build()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    #[test]
    fn every_combination_of_settings_works_or_is_refused(
        config in settings(),
        sampler in select(&[SamplerChoice::Auto, SamplerChoice::Episodic, SamplerChoice::Lockstep][..]),
    ) {
        let Ok(mut worker) = build(&config, sampler) else { return Ok(()) };
        let wanted = worker.steps_per_sample();
        for _ in 0..2 {
            let Ok(batch) = worker.sample() else {
                // The agents have no policy.
                prop_assert!(!config.policies.contains_key(&PolicyId::DEFAULT));
                return Ok(());
            };
            let steps = match config.count_steps_by {
                CountStepsBy::EnvSteps => batch.env_steps(),
                CountStepsBy::AgentSteps => batch.agent_steps(),
            };
            prop_assert!(steps >= wanted, "{steps} of {wanted}");
            if (config.batch_mode, config.count_steps_by) == (BatchMode::TruncateEpisodes, CountStepsBy::EnvSteps) {
                prop_assert_eq!(steps, wanted);
            }
        }
        let state = worker.save().unwrap();
        let mut again = build(&config, sampler).unwrap();
        again.restore(&state).unwrap();
        prop_assert_eq!(again.save().unwrap(), state);
        prop_assert!(again.sample().is_ok());
    }
}
