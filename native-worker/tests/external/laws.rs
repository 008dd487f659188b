//! The rows do not depend on the driver.

use super::*;

const SEED: u64 = 5;

fn cart_poles(lanes: u32) -> RolloutConfig {
    RolloutConfig::new("CartPole-v1").num_envs(lanes).rollout_fragment_length(60).fcnet_hiddens(&[8]).seed(SEED)
}

/// Returns two workers: in the second one's environment another client plays.
fn pair(config: RolloutConfig) -> [RolloutWorker; 2] {
    let env = ExternalMultiAgentEnv::new(config.num_envs as usize, [(AgentId::SINGLE, cart_pole::spaces())]).unwrap();
    let registry = rollmesh::native(Registry::builtin().with_base_env("elsewhere", env.creator()));
    env.run(|env| cart_pole::play(env, SEED)).unwrap();
    let elsewhere = RolloutConfig { env: Some("elsewhere".into()), ..config.clone() };
    let here = RolloutConfig { sample_async: false, ..config };
    [here, elsewhere].map(|config| {
        // Threads come from the shell, which a registry does not bring along.
        if config.sample_async {
            let builder = RolloutWorker::builder().config(RolloutConfig { env: None, ..config }).native();
            return builder.base_env_creator(env.creator()).build().unwrap();
        }
        RolloutWorker::from_config(config, &registry, WorkerPlace::default()).unwrap()
    })
}

#[test]
fn driver_leaves_no_trace_in_rows() {
    let complete = |lanes| RolloutConfig { batch_mode: BatchMode::CompleteEpisodes, ..cart_poles(lanes) };
    let filtered = RolloutConfig { observation_filter: FilterKind::ConcurrentMeanStdFilter, ..cart_poles(1) };
    let on_a_thread = |config| RolloutConfig { sample_async: true, ..config };
    let configs = [
        cart_poles(1),
        cart_poles(3),
        complete(1),
        complete(3),
        filtered.clone(),
        on_a_thread(cart_poles(1)),
        on_a_thread(filtered),
    ];
    for config in configs {
        let [mut here, mut there] = pair(config.clone());
        let mut ended = Vec::new();
        for sample in 0..5 {
            assert_eq!(there.sample().unwrap(), here.sample().unwrap(), "{sample} {config:?}");
            assert_eq!(episodes(&mut there), {
                let here = episodes(&mut here);
                ended.extend(here.clone());
                here
            });
        }
        assert!(ended.len() > 2);
        there.stop().unwrap();
    }
}

#[test]
fn external_environment_learns_the_same_weights() {
    let [mut here, mut there] = pair(cart_poles(1).single_policy("ppo"));
    for sample in 0..4 {
        let (batch, same) = (here.sample().unwrap(), there.sample().unwrap());
        assert_eq!(batch, same, "{sample}");
        here.learn_on_batch(&batch).unwrap();
        there.learn_on_batch(&same).unwrap();
    }
    assert_eq!(here.weights(None).unwrap(), there.weights(None).unwrap());
}
