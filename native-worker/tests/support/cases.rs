//! Runs of every kind, by their environments and settings.

/// Settings of a small town, whose two policies have a filter each.
const TOWN: &str = r#"{"env_config": {"size": 2, "num_cars": 5}, "observation_filter": "MeanStdFilter"}"#;
/// Its agents under the three policies of the example.
const TOWN_WITH_POLICIES: &str = r#"{
    "env_config": {"size": 2, "num_cars": 5},
    "policy_mapping_fn": "traffic",
    "policies": {
        "car_policy1": {"config": {"gamma": 0.85}},
        "car_policy2": {"config": {"gamma": 0.99}},
        "traffic_light_policy": {"policy": "a2c"}
    }
}"#;

/// Continuous actions, table and pixel observations, recurrent policies, and several agents, with the settings that make
/// them.
pub(crate) const CASES: [(&str, &str); 14] = [
    ("Pendulum-v1", r#"{"observation_filter": "MeanStdFilter"}"#),
    ("MountainCarContinuous-v0", r#"{"clip_rewards": true, "horizon": 50}"#),
    ("FrozenLake-v1", r#"{"env_config": {"is_slippery": false}}"#),
    ("Taxi-v4", "{}"),
    ("PixelBreakout-v0", r#"{"model_config": {"fcnet_hiddens": [16]}}"#),
    ("StatelessCartPole-v1", r#"{"model_config": {"use_lstm": true, "lstm_cell_size": 8, "max_seq_len": 10}}"#),
    ("RockPaperScissors-v0", "{}"),
    ("MultiAgentTrafficGrid-v0", TOWN),
    ("MultiAgentTrafficGrid-v0", TOWN_WITH_POLICIES),
    ("FrozenLake-v1", r#"{"remote_worker_envs": true}"#),
    ("MultiAgentCartPole-v1", r#"{"remote_worker_envs": true, "observation_filter": "MeanStdFilter"}"#),
    ("CartPole-v1", r#"{"batch_mode": "complete_episodes", "horizon": 50}"#),
    ("RockPaperScissors-v0", r#"{"count_steps_by": "agent_steps"}"#),
    ("CartPole-v1", r#"{"horizon": 20, "horizon_means": "legacy_soft", "no_done_at_end": true}"#),
];
