//! What the pictures of all environments keep to.

use rollmesh_core::{
    env::{AnyVectorEnv, EnvContext, EnvRegistry, EnvSpec, Frame, Moment, Moments, RowElement, StepOut},
    hash::bytes_hash,
    ids::SlotId,
    kernels::Kernels,
    rng::{Purpose, Streams},
    run::HomeIndex,
    space::Scalar,
};

const LANES: usize = 3;
const STEPS: u32 = 15;
/// The lane that is drawn.
const DRAWN: usize = 1;

/// Of all pictures of an environment, and of their sizes.
const GOLDEN: [(&str, [u32; 2], &str); 15] = [
    ("Acrobot-v1", [200, 200], "6ec0776a3a84eee1700636544aa6511a"),
    ("CartPole-v0", [300, 200], "a06d6ac7c13c56ffd094a2aabe2acc1a"),
    ("CartPole-v1", [300, 200], "a06d6ac7c13c56ffd094a2aabe2acc1a"),
    ("CliffWalking-v1", [336, 112], "936c1047acc31055b781b292c8176c9f"),
    ("FrozenLake-v1", [192, 192], "df8e4bf7c7e50eadd76eddce29439907"),
    ("FrozenLake8x8-v1", [256, 256], "2371a641ce7b971a7a156b32e705c0b4"),
    ("MountainCar-v0", [300, 200], "c0381f1687e959b962dab7b9a58421cc"),
    ("MountainCarContinuous-v0", [300, 200], "0efe6e3934f845a7e5a54c264a15c9d0"),
    ("Pendulum-v1", [200, 200], "a2d0431a764040064cf8313b1a3790f0"),
    ("PixelAsterix-v0", [160, 160], "ef019fa61244d6fb070c3400b74d7b4a"),
    ("PixelBreakout-v0", [160, 160], "195c8b76407b7427ee266ccc707d33b9"),
    ("PixelFreeway-v0", [160, 160], "23956a160658fc482d51a5a240238226"),
    ("PixelInvaders-v0", [160, 160], "373bc10286050679afcf21d19d9a5a9a"),
    ("PixelSeaquest-v0", [160, 160], "e44d14758264247d892fc8b27350c16a"),
    ("Taxi-v4", [200, 200], "c170b7ed61cb99addf331fe13698fcb1"),
];

/// Random actions in all lanes, which begin anew when an episode ends; `look` comes after every reset and step.
fn play<O: RowElement + Scalar, A: RowElement + Scalar>(
    env: &mut dyn AnyVectorEnv,
    mut look: impl FnMut(&dyn AnyVectorEnv),
) -> Vec<u8> {
    let (obs_width, action_space) = (env.observation_space().shape().elements(), env.action_space());
    let action_width = action_space.shape().elements();
    let (mut obs, mut actions) = (vec![O::default(); LANES * obs_width], vec![A::default(); LANES * action_width]);
    let (mut rewards, mut terminateds, mut truncateds) = ([0.0; LANES], [true; LANES], [false; LANES]);
    let mut moments: Vec<_> =
        (0..LANES as u32).map(|lane| Moment { slot: SlotId(lane), ..Moment::default() }).collect();
    let [reset, act, step] =
        [Purpose::Reset, Purpose::Action, Purpose::EnvStep].map(|purpose| Streams::new(5, purpose));
    let mut trajectory = Vec::new();
    for _ in 0..STEPS {
        for (lane, row) in obs.chunks_exact_mut(obs_width).enumerate().filter(|(lane, _)| terminateds[*lane]) {
            let moment = &mut moments[lane];
            *moment = Moment { episode: moment.episode + 1, t: 0, ..*moment };
            env.reset_at(lane, &mut reset.at(moment.slot, moment.episode, 0, 0), O::erase_rows_mut(row)).unwrap();
        }
        look(env);
        for (moment, row) in moments.iter_mut().zip(actions.chunks_exact_mut(action_width)) {
            action_space.sample_row(&mut act.at(moment.slot, moment.episode, moment.t, 0), row).unwrap();
            moment.t += 1;
        }
        let out = StepOut { rewards: &mut rewards, terminateds: &mut terminateds, truncateds: &mut truncateds };
        let at = Moments { streams: step, lanes: &moments };
        env.step(A::erase_rows(&actions), at, O::erase_rows_mut(&mut obs), out).unwrap();
        look(env);
        (0..LANES).for_each(|lane| env.snapshot_at(lane, &mut trajectory));
        trajectory.extend(rewards.iter().flat_map(|reward| reward.to_le_bytes()));
    }
    trajectory
}

fn play_any(spec: &EnvSpec, look: impl FnMut(&dyn AnyVectorEnv)) -> Vec<u8> {
    use rollmesh_core::column::DType::{F32, I64, U8};
    let contexts: Vec<_> =
        (0..LANES as u32).map(|vector_index| EnvContext::new(HomeIndex { worker_index: 1, vector_index })).collect();
    let mut env = spec.make(&contexts, Kernels::PORTABLE).unwrap();
    match env.dtypes() {
        (F32, I64) => play::<f32, i64>(env.as_mut(), look),
        (F32, F32) => play::<f32, f32>(env.as_mut(), look),
        (I64, I64) => play::<i64, i64>(env.as_mut(), look),
        (U8, I64) => play::<u8, i64>(env.as_mut(), look),
        other => panic!("{}: no test for {other:?} yet", spec.name),
    }
}

/// Every environment has pictures of one size, the same whatever was in the frame before, with something in them that
/// moves; and those who look change nothing.
#[test]
fn every_environment_has_its_golden_pictures() {
    let registry = EnvRegistry::builtin();
    let names: Vec<_> = registry.iter().map(|spec| spec.name.as_str()).collect();
    assert_eq!(names, GOLDEN.map(|(name, ..)| name));
    let found = GOLDEN.map(|(name, _, _)| {
        let spec = registry.spec(name).unwrap();
        let (mut sizes, mut pixels) = (Vec::new(), Vec::new());
        let mut used = Frame::new();
        let seen = play_any(spec, |env| {
            let mut frame = Frame::new();
            assert!(env.render_at(DRAWN, &mut frame), "{name} has no picture");
            assert!(!env.render_at(LANES, &mut used), "{name} has a picture of a lane that is not there");
            if used == Frame::new() {
                used.fill(500, 7, [9; 3]);
                assert!(env.render_at(DRAWN, &mut used));
                assert_eq!(used, frame, "{name}: a frame that was used before differs");
            }
            sizes.push([frame.width(), frame.height()]);
            pixels.push(frame.rgb().to_vec());
        });
        assert_eq!(seen, play_any(spec, |_| {}), "{name}: looking has changed something");
        sizes.dedup();
        let hash = bytes_hash(&pixels.concat()).to_string();
        pixels.dedup();
        assert!(pixels.len() > 5, "{name}: nothing moves");
        (name, sizes, hash)
    });
    let golden = GOLDEN.map(|(name, size, hash)| (name, vec![size], hash.to_owned()));
    assert_eq!(found, golden);
}
