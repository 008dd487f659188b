//! Sampling steps allocate nothing: memory is for episodes, cuts and batches.

use std::sync::Arc;

use rollmesh_core::{
    callbacks::{CallbackList, PolicyMappingFn, WorkerInfo},
    env::{BaseEnv as _, EnvContext, EnvMaker, EnvRegistry, EnvStart, InProcess},
    ids::{PolicyId, SlotId},
    kernels::Kernels,
    policy::{PolicyMap, RandomPolicy},
    run::HomeIndex,
    sampler::{Episodic, EpisodicOptions, SamplerHost, SamplerInput as _},
    time::Micros,
};

#[test]
fn steps_within_an_episode_allocate_nothing() {
    let registry = EnvRegistry::builtin();
    let spec = registry.spec("Pendulum-v1").expect("a built-in environment");
    let start = |vector_index| EnvStart {
        slot: SlotId(vector_index),
        episode: 0,
        context: EnvContext::new(HomeIndex { worker_index: 0, vector_index }),
    };
    let maker = EnvMaker::single_agent(spec, Kernels::PORTABLE);
    let envs = InProcess::new(maker, (0..4).map(start).collect(), 7).expect("environments");
    let spaces = envs.spaces(&envs.agents()[0]).expect("its spaces");
    let slots = (0..4).map(|slot| (SlotId(slot), 0)).collect();
    let options = EpisodicOptions { fragment_length: 256, ..EpisodicOptions::new(slots) };
    let mut sampler = Episodic::new(options, Box::new(envs)).expect("a sampler");
    let policy = RandomPolicy::for_space(&spaces.action, 7).expect("a policy");
    let mapping: PolicyMappingFn = Arc::new(|_, _, _, _| PolicyId::DEFAULT);
    let mut host = SamplerHost {
        worker: &WorkerInfo::default(),
        policies: &mut PolicyMap::single(Box::new(policy)),
        mapping: &mapping,
        observation_fn: None,
        callbacks: &mut CallbackList::new(),
        clock: &|| Micros(0),
        interrupt: None,
    };
    for _ in 0..4 {
        sampler.data(&mut host).expect("a batch");
    }
    let memory = allocation_counter::measure(|| {
        for _ in 0..255 {
            sampler.step(&mut host).expect("a step");
        }
    });
    assert_eq!(memory.count_total, 0);
}
