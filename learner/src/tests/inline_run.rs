//! Runs in one thread, apart from the synchronous ones that other builds repeat.

use rollmesh_core::{
    group::SamplingMode, kernels::Kernels, protocol::Phase, run::RunConfig, time::Micros, worker::Registry,
};

use super::super::{InlineRun, InlineWork};

fn run(config: RunConfig) -> InlineRun {
    let config = config.slots(4).num_envs(4).seed(5).rollout_fragment_length(16).fcnet_hiddens(&[8]);
    InlineRun::new(1, config, &Registry::builtin(), Kernels::PORTABLE, Micros(0)).expect("a run")
}

#[test]
fn run_in_free_mode_learns_until_its_steps_are_used_up() {
    let mode = SamplingMode::Asynchronous { batch_env_steps: 32, max_staleness: 2 };
    let mut run = run(RunConfig { mode, ..RunConfig::new("CartPole-v1").stop_after(600) });
    let mut updates = 0;
    loop {
        match run.work(5, Micros(0)).expect("work") {
            InlineWork::Learned(point) => {
                updates += 1;
                assert_eq!(point.iteration, updates);
            }
            InlineWork::Sampled | InlineWork::Paused => {}
            InlineWork::Over => break,
        }
    }
    assert!(updates >= 5 && run.state().env_steps() >= 600, "{updates} updates");
    assert_eq!(run.state().phase(), Phase::Finished);
}

#[test]
fn drained_run_ends_whether_it_was_paused_or_not() {
    for pause in [false, true] {
        let mut run = run(RunConfig::new("CartPole-v1").stop_after(1_000_000));
        while !matches!(run.work(5, Micros(0)).expect("work"), InlineWork::Learned(_)) {}
        if pause {
            run.state_mut().pause(Micros(0)).expect("it is running");
            while run.work(5, Micros(0)).expect("work") != InlineWork::Paused {}
        }
        run.state_mut().drain();
        let ended = (0..10_000).any(|_| run.work(5, Micros(0)).expect("work") == InlineWork::Over);
        assert!(ended && run.state().phase() == Phase::Drained, "{pause} {:?}", run.state().phase());
    }
}
