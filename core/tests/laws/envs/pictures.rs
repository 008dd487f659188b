//! Laws of the pictures of all environments.

use rollmesh_core::{
    column::{DType, Element},
    env::{
        AnyVectorEnv, BaseEnv as _, EnvActions, EnvContext, EnvMaker, EnvRegistry, EnvSpaces, EnvSpec, EnvStart,
        EnvUpdates, Frame, InProcess, Moment, Moments, Reset, RowsMut, StepOut,
        multi_agent::{AgentRows, Turn},
    },
    hash::bytes_hash,
    ids::{HomeIndex, SlotId},
    kernels::Kernels,
    rng::{Purpose, Streams},
};

const LANES: usize = 3;
const STEPS: u32 = 15;
/// The lane that is drawn.
const DRAWN: usize = 1;

/// Of all pictures of an environment, and of their sizes.
const GOLDEN: [(&str, [u32; 2], &str); 16] = [
    ("Acrobot-v1", [200, 200], "6ec0776a3a84eee1700636544aa6511a"),
    ("CartPole-v0", [300, 200], "a06d6ac7c13c56ffd094a2aabe2acc1a"),
    ("CartPole-v1", [300, 200], "a06d6ac7c13c56ffd094a2aabe2acc1a"),
    ("CliffWalking-v1", [336, 112], "936c1047acc31055b781b292c8176c9f"),
    ("FrozenLake-v1", [192, 192], "2cff6b7514d5b99ef3268b12cd59d329"),
    ("FrozenLake8x8-v1", [256, 256], "e0febf5f08ec24249b3a30a79a3a2018"),
    ("MountainCar-v0", [300, 200], "c0381f1687e959b962dab7b9a58421cc"),
    ("MountainCarContinuous-v0", [300, 200], "0efe6e3934f845a7e5a54c264a15c9d0"),
    ("Pendulum-v1", [200, 200], "a2d0431a764040064cf8313b1a3790f0"),
    ("PixelAsterix-v0", [160, 160], "f0d6053d5664014bd8847a39ea094718"),
    ("PixelBreakout-v0", [160, 160], "a72d5e71e3cea3359d8d209847f0c715"),
    ("PixelFreeway-v0", [160, 160], "e75008afef547a6089e3a1aef029e16b"),
    ("PixelInvaders-v0", [160, 160], "d7cd004202eb1963f9b3d160d332a7da"),
    ("PixelSeaquest-v0", [160, 160], "b4d030c25f2607432ec7a275654ad853"),
    ("StatelessCartPole-v1", [300, 200], "a06d6ac7c13c56ffd094a2aabe2acc1a"),
    ("Taxi-v4", [200, 200], "c170b7ed61cb99addf331fe13698fcb1"),
];

/// Of environments with several agents.
const GOLDEN_MULTI_AGENT: [(&str, [u32; 2], &str); 4] = [
    ("MultiAgentCartPole-v1", [480, 240], "1dee63ea0373326296cfd8b4a0add32b"),
    ("MultiAgentTrafficGrid-v0", [420, 420], "5b92e1bca7ca04bacdf05800f06b83d1"),
    ("RockPaperScissors-v0", [300, 200], "80407345607d4ca53ca3552d9b5776fa"),
    ("TwoStepGame-v0", [300, 200], "39c75f4d0cb3ad0b46a1c3a349fcc999"),
];

/// Takes random actions in all lanes, which are reset when an episode ends; `look` is called after every reset and
/// step.
fn play<O: Element, A: Element>(env: &mut dyn AnyVectorEnv, mut look: impl FnMut(&dyn AnyVectorEnv)) -> Vec<u8> {
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
        }
        let out = StepOut { rewards: &mut rewards, terminateds: &mut terminateds, truncateds: &mut truncateds };
        let at = Moments { streams: step, lanes: &moments, mark: None };
        env.step(A::erase_rows(&actions), at, O::erase_rows_mut(&mut obs), out).unwrap();
        moments.iter_mut().for_each(|moment| moment.t += 1);
        look(env);
        (0..LANES).for_each(|lane| {
            env.snapshot_at(lane, &mut trajectory).unwrap();
        });
        trajectory.extend(rewards.iter().flat_map(|reward| reward.to_le_bytes()));
    }
    trajectory
}

fn context(vector_index: u32) -> EnvContext {
    EnvContext::new(HomeIndex { worker_index: 1, vector_index })
}

fn play_any(spec: &EnvSpec, look: impl FnMut(&dyn AnyVectorEnv)) -> Vec<u8> {
    use DType::{F32, I64, U8};
    let contexts: Vec<_> = (0..LANES as u32).map(context).collect();
    let mut env = spec.make(&contexts, Kernels::PORTABLE).unwrap();
    match env.dtypes() {
        (F32, I64) => play::<f32, i64>(env.as_mut(), look),
        (F32, F32) => play::<f32, f32>(env.as_mut(), look),
        (I64, I64) => play::<i64, i64>(env.as_mut(), look),
        (U8, I64) => play::<u8, i64>(env.as_mut(), look),
        other => panic!("{}: no test for {other:?} yet", spec.name),
    }
}

/// Does the same as [`play`] with polls and answers, as a sampler does. Returns all observations and rewards of the
/// agents.
fn play_in_process(maker: EnvMaker, mut look: impl FnMut(&mut InProcess)) -> Vec<String> {
    let start = |slot| EnvStart { slot: SlotId(slot), episode: 1, context: context(slot) };
    let mut envs = InProcess::new(maker, (0..LANES as u32).map(start).collect(), 5).unwrap();
    let act = Streams::new(5, Purpose::Action);
    let mut updates = EnvUpdates::new();
    envs.poll(&mut updates).unwrap();
    let mut turns: Vec<Turn> = updates.entries().iter().map(|update| update.turn.clone()).collect();
    let mut moments = [(1, 0); LANES];
    let mut seen = Vec::new();
    for _ in 0..STEPS {
        for (env, turn) in turns.iter_mut().enumerate().filter(|(_, turn)| turn.is_over()) {
            turn.clear();
            moments[env] = (moments[env].0 + 1, 0);
            assert_eq!(envs.try_reset(env, turn), Ok(Reset::Done));
        }
        look(&mut envs);
        let mut answer = Vec::new();
        for (env, (turn, (episode, t))) in turns.iter().zip(&mut moments).enumerate() {
            let mut actions = AgentRows::new();
            let acting = turn.obs().iter().filter(|(agent, _)| !turn.outcome(agent).is_done());
            for (index, (agent, _)) in (0..).zip(acting) {
                let mut rng = act.at(SlotId(env as u32), *episode, *t, index);
                let EnvSpaces { action, action_type, .. } = envs.spaces(agent).unwrap();
                let sampled = match actions.row_mut(agent, action_type, action.shape().elements()) {
                    RowsMut::I64(row) => action.sample_row(&mut rng, row),
                    RowsMut::F32(row) => action.sample_row(&mut rng, row),
                    _ => panic!("no test for {action_type:?} yet"),
                };
                sampled.unwrap();
            }
            *t += 1;
            answer.push(EnvActions { env, actions });
        }
        envs.send_actions(&answer).unwrap();
        updates.clear();
        envs.poll(&mut updates).unwrap();
        turns.iter_mut().zip(updates.entries()).for_each(|(turn, update)| turn.clone_from(&update.turn));
        seen.push(format!("{turns:?}"));
        look(&mut envs);
    }
    seen
}

/// Returns a frame that was used before.
fn used_frame() -> Frame {
    let mut frame = Frame::new();
    frame.fill(500, 7, [9; 3]);
    frame
}

/// Every environment has pictures of one size, the same whatever was in the frame before, with something in them that
/// moves; viewers change nothing; and a sampler, by `try_render`, gets the very same.
#[test]
fn every_environment_has_its_golden_pictures() {
    let registry = EnvRegistry::builtin();
    let names: Vec<_> = registry.iter().map(|spec| spec.name.as_str()).collect();
    assert_eq!(names, GOLDEN.map(|(name, ..)| name));
    let found = GOLDEN.map(|(name, _, _)| {
        let spec = registry.spec(name).unwrap();
        let (mut sizes, mut pixels) = (Vec::new(), Vec::new());
        let mut used = Frame::new();
        let seen = play_any(&spec, |env| {
            let mut frame = Frame::new();
            assert!(env.render_at(DRAWN, &mut frame), "{name} has no picture");
            assert!(!env.render_at(LANES, &mut used), "{name} has a picture of a lane that is not there");
            if used == Frame::new() {
                used = used_frame();
                assert!(env.render_at(DRAWN, &mut used));
                assert_eq!(used, frame, "{name}: a frame that was used before differs");
            }
            sizes.push([frame.width(), frame.height()]);
            pixels.push(frame.rgb().to_vec());
        });
        assert_eq!(seen, play_any(&spec, |_| {}), "{name}: looking has changed something");
        let (mut looks, mut frame) = (pixels.iter(), used_frame());
        play_in_process(EnvMaker::single_agent(&spec, Kernels::PORTABLE), |envs| {
            assert!(envs.try_render(DRAWN, &mut frame), "{name} has no picture");
            assert!(looks.next().is_some_and(|pixels| frame.rgb() == pixels), "{name}: the sampler's picture differs");
        });
        sizes.dedup();
        let hash = bytes_hash(&pixels.concat()).to_string();
        pixels.dedup();
        assert!(pixels.len() > 5, "{name}: nothing moves");
        (name, sizes, hash)
    });
    let golden = GOLDEN.map(|(name, size, hash)| (name, vec![size], hash.to_owned()));
    assert_eq!(found, golden);
}

#[test]
fn every_multi_agent_environment_has_its_golden_pictures() {
    let registry = EnvRegistry::builtin();
    let names: Vec<_> = registry.iter_multi_agent().map(|spec| spec.name.as_str()).collect();
    assert_eq!(names, GOLDEN_MULTI_AGENT.map(|(name, ..)| name));
    let found = GOLDEN_MULTI_AGENT.map(|(name, ..)| {
        let maker = || EnvMaker::multi_agent(&registry.multi_agent(name).unwrap());
        let mut pictures = Vec::new();
        let seen = play_in_process(maker(), |envs| {
            let mut frame = if pictures.is_empty() { used_frame() } else { Frame::new() };
            assert!(envs.try_render(DRAWN, &mut frame), "{name} has no picture");
            assert!(!envs.try_render(LANES, &mut frame), "{name} has a picture of what is not there");
            pictures.push(frame);
        });
        assert_eq!(seen, play_in_process(maker(), |_| {}), "{name}: looking has changed something");
        let mut sizes: Vec<_> = pictures.iter().map(|frame| [frame.width(), frame.height()]).collect();
        sizes.dedup();
        let hash = bytes_hash(&pictures.iter().flat_map(Frame::rgb).copied().collect::<Vec<_>>()).to_string();
        pictures.dedup();
        assert!(pictures.len() > 5, "{name}: nothing moves");
        (name, sizes, hash)
    });
    assert_eq!(found, GOLDEN_MULTI_AGENT.map(|(name, size, hash)| (name, vec![size], hash.to_owned())));
}
