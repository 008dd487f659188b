//! Rows depend on seed, slot and weights, and on nothing else.

use proptest::prelude::*;

use super::*;
use crate::{
    batch::{ACTION_DIST_INPUTS, ACTION_LOGP, ACTIONS, AGENT_INDEX, SlotFragment, VALUE_TARGETS, VF_PREDS},
    column::Element,
    env::EnvRegistry,
    ids::FragmentNo,
    kernels::Kernels,
    policy::{ModelConfig, ModelSpec, NetPolicy, Policy, PolicyEntry},
    postprocess::{AdvantageConfig, train_batch},
    sampler::{Collector as _, LaneStart, Lockstep, Need, drive},
};

const GAE: AdvantageConfig = AdvantageConfig { gamma: 0.97, lambda: 0.9, use_gae: true, use_critic: true };

fn model() -> ModelConfig {
    ModelConfig { fcnet_hiddens: vec![8], ..ModelConfig::default() }
}

/// Returns other weights for every fragment.
fn weights(spaces: &EnvSpaces, fragment: u64) -> Weights {
    ModelSpec::for_spaces(spaces, &model()).unwrap().init_weights(3 + fragment).unwrap()
}

fn policy(spaces: &EnvSpaces) -> NetPolicy {
    let policy = NetPolicy::new(spaces, &model(), weights(spaces, 0), 5, Kernels::PORTABLE).unwrap();
    policy.with_postprocessing(Postprocessing::Advantages(GAE))
}

/// Returns options for both samplers.
fn shared(limit: Option<u32>, options: SamplerOptions) -> SamplerOptions {
    let record = RecordColumns { action_dist_inputs: true, ..RecordColumns::default() };
    SamplerOptions { max_episode_steps: limit, normalize_actions: false, seed: 5, record, ..options }
}

fn lockstep<O: Element>(
    name: &str,
    limit: Option<u32>,
    num_envs: u32,
    steps: u32,
    fragments: u64,
) -> Vec<SlotFragment> {
    let registry = EnvRegistry::builtin();
    let spec = registry.spec(name).unwrap();
    let contexts: Vec<_> = (0..num_envs).map(|index| start(index).context).collect();
    let mut env = spec.make(&contexts, Kernels::PORTABLE).unwrap();
    let starts: Vec<_> = (0..num_envs).map(|slot| LaneStart { slot: SlotId(slot), state: None }).collect();
    let mut policy = PolicyEntry::<dyn Policy>::new("", Box::new(policy(&spec.spaces().unwrap())));
    let options = shared(limit, SamplerOptions::default());
    let mut collector = Lockstep::<O>::new(&starts, &options, &policy, env.as_mut()).unwrap();
    let mut all = Vec::new();
    for fragment in 0..fragments {
        policy.policy.set_weights(&weights(&spec.spaces().unwrap(), fragment)).unwrap();
        collector.begin(FragmentNo(fragment), WeightsVersion(0), steps);
        while collector.need() != Need::Nothing {
            drive(&mut collector, env.as_mut(), &mut policy, steps).unwrap();
        }
        all.extend(collector.take(env.as_ref()).unwrap());
    }
    all
}

fn episodic(name: &str, limit: Option<u32>, num_envs: u32, steps: u32) -> (Bench, Episodic) {
    let registry = EnvRegistry::builtin();
    let spec = registry.spec(name).unwrap();
    let starts = (0..num_envs).map(start).collect();
    let envs = InProcess::new(EnvMaker::single_agent(&spec, Kernels::PORTABLE), starts, 5).unwrap();
    let options = shared(limit, options(num_envs, steps));
    (Bench::new(policy(&spec.spaces().unwrap())), sampler(options, envs))
}

fn same_rows<O: Element>(name: &str, limit: Option<u32>, num_envs: u32, steps: u32, fragments: u64) {
    let (mut bench, mut sampler) = episodic(name, limit, num_envs, steps);
    let mut finished: Vec<(i64, u32, f64)> = Vec::new();
    let mut expected: Vec<(i64, u32, f64)> = Vec::new();
    for fragment in lockstep::<O>(name, limit, num_envs, steps, fragments) {
        let spaces = sampler.env.spaces(&AgentId::SINGLE).unwrap();
        let policy = bench.policies.policy_mut(&PolicyId::DEFAULT).unwrap();
        policy.set_weights(&weights(&spaces, fragment.fragment.0)).unwrap();
        let found = bench.single(&mut sampler);
        let wanted = fragment.with_derived().unwrap();
        assert!(wanted.column(ACTION_DIST_INPUTS.name()).is_some());
        for (column, rows) in wanted.iter().filter(|(column, _)| *column != UNROLL_ID.name()) {
            assert!(found.column(column).is_some_and(|found| found.same_bits(rows)), "{column} of {name}");
        }
        let mut first = 0;
        for cut in &fragment.cuts {
            let id = crate::ids::unroll_id(fragment.slot, fragment.fragment.0 * u64::from(steps) + u64::from(first), 0);
            let ids = &found.get(UNROLL_ID).unwrap()[first as usize..cut.end as usize];
            assert!(ids.iter().all(|found| *found == id), "unroll_id of {name}");
            first = cut.end;
        }
        let learned = train_batch(core::slice::from_ref(&fragment), &GAE).unwrap();
        for column in [ADVANTAGES.name(), VALUE_TARGETS.name()] {
            assert!(found.column(column).unwrap().same_bits(learned.column(column).unwrap()), "{column} of {name}");
        }
        let id = |episode: u32| crate::ids::eps_id(fragment.slot, episode);
        expected.extend(fragment.episodes.iter().map(|e| (id(e.episode), e.len, e.episode_return)));
        finished.extend(sampler.metrics().iter().map(|e| (e.episode_id, e.length, e.episode_return)));
    }
    for episodes in [&mut finished, &mut expected] {
        episodes.sort_by_key(|episode| episode.0);
    }
    assert_eq!(finished, expected);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    #[test]
    fn lockstep_and_episodic_make_identical_rows(
        num_envs in 1u32..5,
        steps in 1u32..40,
        fragments in 1u64..5,
        limit in prop_oneof![Just(None), (3u32..30).prop_map(Some)],
    ) {
        same_rows::<f32>("CartPole-v1", limit, num_envs, steps, fragments);
        same_rows::<f32>("Pendulum-v1", limit, num_envs, steps, fragments);
        same_rows::<i64>("FrozenLake-v1", limit, num_envs, steps, fragments);
    }

    #[test]
    fn slot_does_not_depend_on_other_slots_or_cuts(
        num_envs in 2u32..4,
        steps in 1u32..60,
    ) {
        let alone = rows_of_slot_0(1, 120);
        prop_assert_eq!(&rows_of_slot_0(num_envs, steps)[..], &alone[..]);
    }
}

/// Returns the first rows of slot 0, ordered by episode, step and agent, without what depends on cuts.
fn rows_of_slot_0(num_envs: u32, steps: u32) -> Vec<Vec<u64>> {
    let registry = EnvRegistry::builtin();
    let spec = registry.multi_agent("MultiAgentCartPole-v1").unwrap();
    let starts = (0..num_envs).map(start).collect();
    let envs = InProcess::new(EnvMaker::multi_agent(&spec), starts, 5).unwrap();
    let spaces = envs.spaces(&envs.agents()[0]).unwrap();
    let options = SamplerOptions { single_agent: false, seed: 5, ..options(num_envs, steps) };
    let (mut bench, mut sampler) = (Bench::new(policy(&spaces)), sampler(options, envs));
    let mut rows = Vec::new();
    let mut env_steps = 0;
    while env_steps < 240 {
        let batch = bench.data(&mut sampler).unwrap();
        for batch in batch.as_multi_agent().policy_batches.values() {
            let (ids, ts) = (batch.get(EPS_ID).unwrap(), batch.get(T).unwrap());
            if ids[0] >> 32 != 0 {
                continue;
            }
            let (agents, actions) = (batch.get(AGENT_INDEX).unwrap(), batch.get(ACTIONS).unwrap());
            let (obs, new_obs) = (batch.get(OBS).unwrap(), batch.get(NEW_OBS).unwrap());
            let scalars = [REWARDS, ACTION_LOGP, VF_PREDS].map(|key| batch.get(key).unwrap());
            let ends = [TERMINATEDS, TRUNCATEDS].map(|key| batch.get(key).unwrap());
            for row in 0..batch.len() {
                let mut values = vec![ids[row] as u64, ts[row] as u64, agents[row] as u64, actions[row] as u64];
                values.extend(scalars.iter().map(|column| u64::from(column[row].to_bits())));
                values.extend(ends.iter().map(|column| u64::from(column[row])));
                for obs in [obs, new_obs] {
                    values.extend(obs[4 * row..4 * row + 4].iter().map(|x| u64::from(x.to_bits())));
                }
                rows.push(values);
            }
            env_steps += batch.len();
        }
    }
    rows.sort();
    // Only whole episodes, which are complete with every cut.
    rows.retain(|row| row[0] < 3);
    rows
}
