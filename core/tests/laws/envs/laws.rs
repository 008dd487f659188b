//! Laws of every environment that comes with the crate.

use rollmesh_core::{
    column::Element,
    env::{AnyVectorEnv, EnvContext, EnvRegistry, EnvSpec, Moment, Moments, StepOut},
    ids::{HomeIndex, SlotId},
    kernels::Kernels,
    rng::{Purpose, Streams},
    space::Space,
};

const LANES: usize = 10;
const STEPS: usize = 10_000;

/// Takes random actions, 100,000 in all; a lane is reset when its episode ends, or reaches its time limit.
fn stays_in_its_spaces<O: Element, A: Element>(spec: &EnvSpec, mut env: Box<dyn AnyVectorEnv>) {
    let (obs_space, action_space) = (env.observation_space(), env.action_space());
    let (obs_width, action_width) = (obs_space.shape().elements(), action_space.shape().elements());
    let (mut obs, mut actions) = (vec![O::default(); LANES * obs_width], vec![A::default(); LANES * action_width]);
    let (mut rewards, mut terminateds, mut truncateds) = (vec![0.0; LANES], vec![false; LANES], vec![false; LANES]);
    let mut moments: Vec<_> =
        (0..LANES as u32).map(|lane| Moment { slot: SlotId(lane), ..Moment::default() }).collect();
    let [reset, act, step] =
        [Purpose::Reset, Purpose::Action, Purpose::EnvStep].map(|purpose| Streams::new(3, purpose));
    let check = |space: &Space, row: &[O], what: &str| {
        assert!(space.contains_row(row).unwrap(), "{}: {row:?} after {what} is not in {space}", spec.name);
    };
    for (lane, row) in obs.chunks_exact_mut(obs_width).enumerate() {
        env.reset_at(lane, &mut reset.at(SlotId(lane as u32), 0, 0, 0), O::erase_rows_mut(row)).unwrap();
        check(&obs_space, row, "a reset");
    }
    let mut ended = 0;
    for _ in 0..STEPS {
        for (moment, row) in moments.iter().zip(actions.chunks_exact_mut(action_width)) {
            action_space.sample_row(&mut act.at(moment.slot, moment.episode, moment.t, 0), row).unwrap();
        }
        let out = StepOut { rewards: &mut rewards, terminateds: &mut terminateds, truncateds: &mut truncateds };
        let at = Moments { streams: step, lanes: &moments, mark: None };
        env.step(A::erase_rows(&actions), at, O::erase_rows_mut(&mut obs), out).unwrap();
        assert!(rewards.iter().all(|reward| reward.is_finite()), "{}: {rewards:?}", spec.name);
        for (lane, row) in obs.chunks_exact_mut(obs_width).enumerate() {
            let moment = &mut moments[lane];
            // The last observation of an episode may be outside, as Gymnasium's CartPole shows.
            if !terminateds[lane] {
                check(&obs_space, row, "a step");
            }
            moment.t += 1;
            if terminateds[lane] || truncateds[lane] || Some(moment.t) == spec.max_episode_steps {
                *moment = Moment { episode: moment.episode + 1, t: 0, ..*moment };
                env.reset_at(lane, &mut reset.at(moment.slot, moment.episode, 0, 0), O::erase_rows_mut(row)).unwrap();
                check(&obs_space, row, "a reset");
                ended += 1;
            }
        }
    }
    assert!(ended > 0, "{}: no episode has ended", spec.name);
}

#[test]
fn every_environment_stays_in_its_spaces_for_100_000_random_steps() {
    use rollmesh_core::column::DType::{F32, I64, U8};
    for spec in EnvRegistry::builtin().iter() {
        let contexts: Vec<_> = (0..LANES as u32)
            .map(|vector_index| EnvContext::new(HomeIndex { worker_index: 1, vector_index }))
            .collect();
        let env = spec.make(&contexts, Kernels::PORTABLE).unwrap();
        match env.dtypes() {
            (F32, I64) => stays_in_its_spaces::<f32, i64>(spec, env),
            (F32, F32) => stays_in_its_spaces::<f32, f32>(spec, env),
            (I64, I64) => stays_in_its_spaces::<i64, i64>(spec, env),
            (U8, I64) => stays_in_its_spaces::<u8, i64>(spec, env),
            other => panic!("{}: no test for {other:?} yet", spec.name),
        }
    }
}
