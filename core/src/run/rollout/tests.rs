use super::*;
use crate::space::Space;

#[test]
fn a_file_holds_only_what_differs() {
    let text = r#"{
        "env": "CartPole-v1", "num_envs": 4, "rollout_fragment_length": "auto", "clip_rewards": true, "seed": 7,
        "policies": {"p": {"policy": "net", "config": {"gamma": 0.9}, "action_space": {"type": "discrete", "n": 2}}},
        "observation_filter": "MeanStdFilter", "compress_observations": "bulk", "input_evaluation": ["is", "wis"]
    }"#;
    let config: RolloutConfig = serde_json::from_str(text).unwrap();
    assert_eq!((config.num_envs, config.rollout_fragment_length), (4, FragmentLength::Auto));
    assert_eq!((config.clip_rewards, config.compress_observations), (RewardClipping::Sign, Compression::Bulk));
    assert_eq!(config.policies[&PolicyId::new("p")].action_space, Some(Space::Discrete { n: 2 }));
    assert_eq!(config.batch_mode, BatchMode::TruncateEpisodes);
    let again: RolloutConfig = serde_json::from_str(&serde_json::to_string(&config).unwrap()).unwrap();
    assert_eq!(again, config);
}

#[test]
fn unknown_settings_are_refused() {
    let refused = |text: &str| serde_json::from_str::<RolloutConfig>(text).unwrap_err().to_string();
    assert!(refused(r#"{"num_env": 4}"#).contains("unknown field `num_env`"));
    assert!(refused(r#"{"rollout_fragment_length": "many"}"#).contains("a number of steps or \"auto\""));
    assert!(refused(r#"{"clip_rewards": -1.0}"#).contains("clipped to a positive number, not -1"));
    assert!(refused(r#"{"observation_filter": "Mean"}"#).contains("there is no filter 'Mean'"));
    assert!(refused(r#"{"input_evaluation": ["oracle"]}"#).contains("unknown variant `oracle`"));
}

/// RLlib 2.9.3 computes the same lengths.
#[test]
fn auto_divides_the_train_batch() {
    let lengths = |size, workers, envs| -> Vec<u32> {
        (0..=workers).map(|worker| FragmentLength::Auto.resolve(size, workers, envs, worker)).collect()
    };
    assert_eq!(lengths(2500, 4, 3), [209, 209, 208, 208, 208]);
    assert_eq!(lengths(2000, 2, 2), [500; 3]);
    assert_eq!(lengths(2821, 2, 4), [353, 353, 352]);
    assert_eq!(lengths(3504, 0, 4), [876]);
    assert_eq!(FragmentLength::Steps(7).resolve(2500, 4, 3, 1), 7);
    // A length below one step becomes one, and nothing overflows.
    assert_eq!(FragmentLength::Auto.resolve(1, u32::MAX, u32::MAX, u32::MAX), 1);
}

#[test]
fn every_form_of_a_setting_round_trips() {
    for clipping in [RewardClipping::Auto, RewardClipping::Off, RewardClipping::Sign, RewardClipping::Limit(2.5)] {
        let text = serde_json::to_string(&clipping).unwrap();
        assert_eq!(serde_json::from_str::<RewardClipping>(&text).unwrap(), clipping, "{text}");
    }
    for compression in [Compression::None, Compression::Rows, Compression::Bulk] {
        let text = serde_json::to_string(&compression).unwrap();
        assert_eq!(serde_json::from_str::<Compression>(&text).unwrap(), compression, "{text}");
    }
}
