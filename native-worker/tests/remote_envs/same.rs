//! The rows of environments in processes, which equal those in this process.

use std::collections::BTreeMap;

use rollmesh::envs::RemoteBaseEnv;
use rollmesh_core::{
    batch::{EPS_ID, OBS, REWARDS, SampleBatch, T},
    env::{BaseEnv, EnvActions, EnvUpdates, Reset, RowsRef, SubEnv, multi_agent::Turn},
    episode::{RolloutMetrics, SamplerPerf},
    ids::{AgentId, PolicyId},
    worker::{PolicyConfig, RolloutConfig, RolloutWorker, config::PreprocessorPref},
};

use super::rig::{FULL_WAIT, animals, builder, pair, start};

fn cartpoles() -> RolloutConfig {
    RolloutConfig::new("CartPole-v1").num_envs(3).rollout_fragment_length(40).fcnet_hiddens(&[8]).seed(5)
}

fn episodes(worker: &mut RolloutWorker) -> Vec<RolloutMetrics> {
    // Only the times differ.
    let ended = worker.metrics().episodes.into_iter();
    ended.map(|episode| RolloutMetrics { perf: SamplerPerf::default(), ..episode }).collect()
}

pub(crate) fn full_waits_make_the_batches_of_one_process() {
    let pixels = RolloutConfig::new("PixelBreakout-v0").num_envs(2).rollout_fragment_length(60).fcnet_hiddens(&[8]);
    let mut traffic = RolloutConfig::new("MultiAgentTrafficGrid-v0").num_envs(3).rollout_fragment_length(70).seed(2);
    traffic.policy_mapping_fn = Some("traffic".into());
    for id in ["car_policy1", "car_policy2", "traffic_light_policy"] {
        traffic = traffic.policy(PolicyId::new(id), PolicyConfig::new("net"));
    }
    let traffic = traffic.fcnet_hiddens(&[8]);
    // Cut by a horizon, in which agents without an observation are paid.
    let horizon = RolloutConfig { horizon: Some(30), ..traffic.clone() };
    for config in [cartpoles(), pixels, traffic, horizon] {
        let [mut here, mut there] = pair(config.clone());
        let mut ended = 0;
        for sample in 0..3 {
            assert_eq!(there.sample().unwrap(), here.sample().unwrap(), "{sample} {config:?}");
            let [here, there] = [&mut here, &mut there].map(episodes);
            assert_eq!(there, here);
            ended += here.len();
        }
        assert!(ended > 0, "{config:?}");
        there.stop().unwrap();
    }
}

pub(crate) fn games_run_in_their_wrappers() {
    let config = RolloutConfig::new("Screen-v0").num_envs(2).rollout_fragment_length(15).single_policy("random");
    let [mut here, mut there] = pair(RolloutConfig { preprocessor_pref: PreprocessorPref::DeepMind, ..config });
    for _ in 0..3 {
        let batch = there.sample().unwrap();
        assert_eq!(batch, here.sample().unwrap());
        let batch: &SampleBatch = batch.single().unwrap();
        assert_eq!(batch.column(OBS.name()).unwrap().shape().dims(), [84, 84, 4]);
        // Rewards are clipped to their sign.
        assert!(batch.get(REWARDS).unwrap().iter().all(|reward| *reward == 1.0));
    }
}

/// Ends an episode, and returns the rewards and ends that agents are owed.
fn paid(envs: &mut RemoteBaseEnv, steps: u32) -> (f64, Option<Vec<u8>>) {
    let zero = AgentId::Index(0);
    let (mut updates, mut turn) = (EnvUpdates::new(), Turn::new());
    let mut answer = EnvActions::default();
    assert_eq!(envs.try_reset(0, &mut turn), Ok(Reset::Later));
    for _ in 0..=steps {
        updates.clear();
        envs.poll(&mut updates).unwrap();
        answer.actions.clear();
        for (agent, _) in updates.entries()[0].turn.obs().iter() {
            assert!(envs.spaces(agent).is_some());
            answer.actions.set(agent, RowsRef::I64(&[0]));
        }
        if updates.entries()[0].turn.outcomes().len() > 0 {
            assert_eq!(updates.entries()[0].turn.info_of_all(), Some(&b"all"[..]));
        }
        envs.send_actions(std::slice::from_ref(&answer)).unwrap();
    }
    updates.clear();
    envs.poll(&mut updates).unwrap();
    let turn = &mut updates.entries_mut()[0].turn;
    envs.pay_out(0, turn);
    (turn.outcome(&zero).reward, turn.info_of(&zero).map(<[u8]>::to_vec))
}

pub(crate) fn agents_that_come_up_later_are_paid_and_known() {
    let config = RolloutConfig { env: Some("Shy-v0".into()), num_envs: 1, ..animals(&[]) };
    let mut envs = start(&config).unwrap();
    assert_eq!(envs.agents(), [AgentId::Index(0)]);
    assert_eq!(envs.spaces(&AgentId::name("visitor_0")), None);
    // A visitor may appear in a step whose result is discarded, since the next episode begins before the result
    // arrives.
    envs.poll(&mut EnvUpdates::new()).unwrap();
    let mut answer = EnvActions::default();
    answer.actions.set(&AgentId::Index(0), RowsRef::I64(&[0]));
    envs.send_actions(&[answer]).unwrap();
    assert_eq!(paid(&mut envs, 9), (55.0, Some(b"10".to_vec())));
    // Of each step as many points as its number: 1 + 2 + 3.
    assert_eq!(paid(&mut envs, 2), (6.0, Some(b"3".to_vec())));
    assert_eq!(paid(&mut envs, 0), (1.0, Some(b"1".to_vec())));
}

/// Rows of a slot, one after the other: episode, step, observation.
type Rows = Vec<(i64, i64, Vec<f32>)>;

/// Adds a batch's rows to those of their slots.
fn by_slot(batch: &SampleBatch, slots: &mut BTreeMap<i64, Rows>) {
    let (ids, steps, obs) = (batch.get(EPS_ID).unwrap(), batch.get(T).unwrap(), batch.get(OBS).unwrap());
    for ((id, step), obs) in ids.iter().zip(steps).zip(obs.chunks(4)) {
        slots.entry(id >> 32).or_default().push((*id, *step, obs.to_vec()));
    }
}

pub(crate) fn asynchronous_mode_gives_every_slot_its_rows() {
    let mut here = builder(cartpoles()).build().unwrap();
    let mut there = builder(RolloutConfig { remote_worker_envs: true, ..cartpoles() }).build().unwrap();
    let (mut wanted, mut found) = (BTreeMap::new(), BTreeMap::new());
    let mut samples = 0;
    // A busy machine may let one process begin later than the others have made their rows.
    while samples < 4 || found.len() < 3 {
        by_slot(here.sample().unwrap().single().unwrap(), &mut wanted);
        by_slot(there.sample().unwrap().single().unwrap(), &mut found);
        samples += 1;
        assert!(samples < 10_000, "rows of {} slots", found.len());
    }
    let mut compared = 0;
    for (slot, rows) in &found {
        // Some may have been faster than others.
        let both = rows.len().min(wanted[slot].len());
        assert_eq!(rows[..both], wanted[slot][..both], "{slot}");
        compared += both;
    }
    assert!(compared > 100, "{compared}");
}

pub(crate) fn four_remote_environments_of_five_agents() {
    let mut config = RolloutConfig::new("Basic-v0").num_envs(4).rollout_fragment_length(50);
    config.policy_mapping_fn = Some("odd_and_even".into());
    for id in ["even", "odd"] {
        config = config.policy(PolicyId::new(id), PolicyConfig::new("random"));
    }
    for wait in [0, FULL_WAIT] {
        let config = RolloutConfig { remote_worker_envs: true, remote_env_batch_wait_ms: wait, ..config.clone() };
        let mut worker = builder(config).build().unwrap();
        let batch = worker.sample().unwrap();
        assert_eq!((batch.env_steps(), batch.agent_steps()), (200, 1_000));
        let rows = batch.as_multi_agent();
        let lens: Vec<usize> = rows.policy_batches.values().map(SampleBatch::len).collect();
        assert_eq!(lens, [600, 400]);
    }
}

pub(crate) fn a_thread_samples_from_processes() {
    let mut here = builder(cartpoles()).build().unwrap();
    let remote = RolloutConfig { remote_worker_envs: true, remote_env_batch_wait_ms: FULL_WAIT, ..cartpoles() };
    let mut there = builder(RolloutConfig { sample_async: true, ..remote }).build().unwrap();
    for _ in 0..4 {
        assert_eq!(there.sample().unwrap(), here.sample().unwrap());
    }
    there.stop().unwrap();
}

pub(crate) fn pictures_come_through_processes() {
    let dir = tempfile::tempdir().unwrap();
    let monitor_path = Some(dir.path().display().to_string());
    let config = RolloutConfig { monitor_path, ..animals(&["", ""]) };
    let mut worker = builder(config.rollout_fragment_length(30)).build().unwrap();
    worker.sample().unwrap();
    assert_eq!(worker.foreach_env(|env| matches!(env, SubEnv::Base(_))), [true]);
    worker.stop().unwrap();
    let names: Vec<String> =
        std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    assert!(names.iter().any(|name| name.ends_with(".gif")), "{names:?}");
}
