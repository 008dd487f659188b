//! Content of batches, and when they are ready.

use super::*;

#[test]
fn fragments_continue_at_the_cut_of_the_last_one() {
    let mut bench = Bench::new(Player::new());
    let mut sampler = sampler(options(1, 6), scripted(1, counter(4)));
    let first = bench.single(&mut sampler);
    assert_eq!(ints(&first, OBS.name()), [0, 1, 2, 3, 0, 1]);
    assert_eq!(ints(&first, NEW_OBS.name()), [1, 2, 3, 4, 1, 2]);
    assert_eq!(first.get(T).unwrap(), [0, 1, 2, 3, 0, 1]);
    assert_eq!(first.get(TERMINATEDS).unwrap(), [false, false, false, true, false, false]);
    assert_eq!(first.get(TRUNCATEDS).unwrap(), first.get(TERMINATEDS).unwrap());
    assert_eq!(first.get(EPS_ID).unwrap(), [0, 0, 0, 0, 1, 1]);
    assert_eq!(first.get(UNROLL_ID).unwrap(), [0, 0, 0, 0, 4 << 32, 4 << 32]);
    for (advantage, expected) in first.get(ADVANTAGES).unwrap().iter().zip([409.51, 343.9, 271.0, 190.0, 271.0, 190.0])
    {
        assert!((advantage - expected).abs() < 1e-3, "{advantage}");
    }
    assert_eq!(lengths(&mut sampler), [(4, 400.0)]);
    let second = bench.single(&mut sampler);
    assert_eq!(second.get(T).unwrap(), [2, 3, 0, 1, 2, 3]);
    assert_eq!(second.get(EPS_ID).unwrap(), [1, 1, 2, 2, 2, 2]);
    assert_eq!(second.get(UNROLL_ID).unwrap(), [6, 6, 8, 8, 8, 8].map(|step| step << 32));
    assert_eq!(lengths(&mut sampler), [(4, 400.0); 2]);
}

#[test]
fn columns_stand_in_the_usual_order() {
    let mut bench = Bench::new(Player { postprocessing: Postprocessing::None, ..Player::new() });
    let batch = bench.single(&mut sampler(options(1, 3), scripted(1, counter(4))));
    let names: Vec<&str> = batch.iter().map(|(name, _)| name).collect();
    assert_eq!(names, wants::COLUMNS);
    let record = RecordColumns { infos: true, action_dist_inputs: true, env_id: true };
    let envs = scripted(2, || {
        let mut script = counter(9)();
        move |t: u32, actions: &AgentRows, turn: &mut Turn| {
            if t == 2 {
                turn.info(&AgentId::SINGLE, *b"{\"lives\":3}");
            }
            script(t, actions, turn)
        }
    });
    let mut sampler = sampler(SamplerOptions { record, ..options(2, 3) }, envs);
    bench.single(&mut sampler);
    let batch = bench.single(&mut sampler);
    let names: Vec<&str> = batch.iter().map(|(name, _)| name).skip(wants::COLUMNS.len()).collect();
    assert_eq!(names, ["action_dist_inputs", "env_id", "infos"]);
    assert_eq!(ints(&batch, "env_id"), [1; 3]);
    // The second row of two that were computed together.
    let dist_inputs = batch.get(ColumnKey::<f32>::new("action_dist_inputs")).unwrap();
    assert_eq!(dist_inputs, [1.0, 0.0, 1.0, 1.0, 1.0, 2.0]);
    assert!(batch.infos().unwrap().iter().eq([&b""[..], b"{\"lives\":3}", b""]));
}

#[test]
fn batches_of_several_environments_come_in_their_order() {
    let mut bench = Bench::new(Player::new());
    let mut sampler = sampler(options(4, 4), scripted(4, counter(8)));
    for sample in 0..2 {
        for env in 0..4 {
            let batch = bench.single(&mut sampler);
            let first = 4 * sample;
            assert_eq!(batch.get(T).unwrap(), [first, first + 1, first + 2, first + 3]);
            assert_eq!(batch.get(EPS_ID).unwrap(), [env << 32; 4]);
        }
        // All episodes ended before the first batch of the second sample.
        assert_eq!(lengths(&mut sampler), vec![(8, 800.0); 4 * sample as usize]);
    }
}

#[test]
fn metrics_wait_for_the_batch_behind_them() {
    let mut bench = Bench::new(Player::new());
    let mut sampler = sampler(complete(3), scripted(3, counter(5)));
    for _ in 0..7 {
        assert_eq!(bench.single(&mut sampler).get(T).unwrap(), [0, 1, 2, 3, 4]);
        assert_eq!(lengths(&mut sampler), [(5, 500.0)]);
    }
}

#[test]
fn a_round_at_a_time_comes_to_the_same() {
    let (mut bench, mut again) = (Bench::new(Player::new()), Bench::new(Player::new()));
    let (mut whole, mut slices) =
        (sampler(options(2, 7), scripted(2, counter(5))), sampler(options(2, 7), scripted(2, counter(5))));
    for _ in 0..6 {
        let expected = bench.data(&mut whole).unwrap();
        let mut rounds = 0;
        let found = loop {
            if let Some(batch) = slices.take() {
                break batch;
            }
            assert_eq!(again.with(|host| slices.step(host)), Ok(SampleProgress::Stepped(2)));
            rounds += 1;
        };
        assert_eq!(found, expected);
        assert!(rounds <= 8);
    }
    assert_eq!(whole.metrics(), slices.metrics());
}

#[test]
fn rewards_are_clipped_in_batches_only() {
    for (clipping, expected) in [
        (RewardClipping::Off, [0.3, -2.5, 0.0]),
        (RewardClipping::Sign, [1.0, -1.0, 0.0]),
        (RewardClipping::Limit(0.5), [0.3, -0.5, 0.0]),
    ] {
        let envs = scripted(1, || {
            |t: u32, _: &AgentRows, turn: &mut Turn| {
                see(turn, 0, 0);
                if t > 0 {
                    turn.reward(&AgentId::SINGLE, [0.3, -2.5, 0.0][t as usize - 1]);
                }
                if t == 3 {
                    turn.terminate_all();
                }
                Ok(())
            }
        });
        let mut sampler = sampler(SamplerOptions { clip_rewards: clipping, ..options(1, 3) }, envs);
        let batch = Bench::new(Player::new()).single(&mut sampler);
        assert_eq!(batch.get(REWARDS).unwrap(), expected);
        assert_eq!(lengths(&mut sampler), [(3, 0.3 - 2.5)]);
    }
}

#[test]
fn slots_and_environments_must_match() {
    let error = Episodic::new(options(2, 5), Box::new(scripted(3, counter(4)))).unwrap_err();
    assert_eq!(error.to_string(), "3 slots are needed for the environment's lanes, the buffer has 2");
    assert!(Episodic::new(options(0, 5), Box::new(scripted(0, counter(4)))).is_err());
}

#[test]
fn a_stopped_sampler_says_so() {
    let mut bench = Bench::new(Player::new());
    let mut sampler = sampler(options(1, 2), scripted(1, counter(4)));
    bench.single(&mut sampler);
    assert_eq!((sampler.stop(), sampler.stop()), (Ok(()), Ok(())));
    assert_eq!(bench.data(&mut sampler), Err(SampleError::Stopped));
    assert_eq!(bench.with(|host| sampler.step(host)), Err(SampleError::Stopped));
}

/// Every reading of the clock is a millisecond later.
#[test]
fn time_is_reported_by_phase() {
    let mut bench = Bench::new(Player::new());
    let mut sampler = sampler(options(1, 4), scripted(1, counter(4)));
    let now = core::cell::Cell::new(0);
    let clock = || {
        now.set(now.get() + 1_000);
        Micros(now.get())
    };
    bench.with(|host| {
        let SamplerHost { worker, policies, mapping, observation_fn, callbacks, .. } = host;
        let mut host = SamplerHost {
            worker,
            policies,
            mapping,
            observation_fn: *observation_fn,
            callbacks: &mut **callbacks,
            clock: &clock,
            interrupt: None,
        };
        sampler.next(&mut host).unwrap();
    });
    let perf = sampler.metrics()[0].perf;
    assert_eq!(perf.iterations, 5);
    // Waiting for environments has two parts, the poll and the answer.
    let phases = [perf.env_wait_ms, perf.obs_processing_ms, perf.inference_ms, perf.action_processing_ms];
    assert_eq!(phases, [2.0, 1.0, 1.0, 1.0]);
}

/// Returns the first observations of the episodes of slot 0, by the episode's number.
fn first_obs(batch: &SampleBatch) -> Vec<(i64, Vec<f32>)> {
    let (ids, t) = (batch.get(EPS_ID).unwrap(), batch.get(T).unwrap());
    let rows = batch.get(ColumnKey::<f32>::new("obs")).unwrap().chunks_exact(4);
    let firsts = rows.zip(ids.iter().zip(t)).filter(|(_, (id, t))| **t == 0 && **id < 1 << 32);
    firsts.map(|(row, (id, _))| (*id, row.to_vec())).collect()
}

fn cart_pole(first_episode: u32, options: SamplerOptions) -> Episodic {
    let registry = crate::env::EnvRegistry::builtin();
    let spec = registry.spec("CartPole-v1").unwrap();
    let start = EnvStart { episode: first_episode, ..start(0) };
    let maker = EnvMaker::single_agent(&spec, crate::kernels::Kernels::PORTABLE);
    let options = SamplerOptions { slots: vec![(SlotId(0), first_episode)], ..options };
    sampler(options, InProcess::new(maker, vec![start], 1).unwrap())
}

/// Rejects the second episode.
struct NoSecond;

impl crate::callbacks::Callbacks for NoSecond {
    fn on_episode_created(
        &mut self,
        hook: &mut crate::callbacks::EpisodeHook<'_>,
    ) -> Result<(), crate::callbacks::CallbackError> {
        match hook.episode.number() {
            1 => Err(crate::callbacks::CallbackError::new("on_episode_created", "not this one")),
            _ => Ok(()),
        }
    }
}

#[test]
fn an_episode_begins_with_the_random_numbers_of_its_number_whatever_came_before() {
    let wanted = first_obs(&Bench::new(Player::new()).single(&mut cart_pole(2, options(1, 4))));
    // After a failure between two episodes.
    let mut bench = Bench::new(Player::new());
    bench.callbacks.push(Box::new(NoSecond));
    let mut refused = cart_pole(0, SamplerOptions { max_episode_steps: Some(3), ..options(1, 4) });
    bench.data(&mut refused).unwrap_err();
    assert_eq!(first_obs(&bench.single(&mut refused)).last(), wanted.last());
    // After an episode that began without a reset.
    let soft = SamplerOptions { horizon: Some(3), horizon_means: Horizon::LegacySoft, ..complete(1) };
    let (mut bench, mut soft) = (Bench::new(Player::new()), cart_pole(0, soft));
    let batches: Vec<_> = (0..6).map(|_| bench.single(&mut soft)).collect();
    let reset = batches.windows(2).position(|pair| *pair[0].get(TERMINATEDS).unwrap().last().unwrap());
    let (number, obs) = first_obs(&batches[reset.expect("it falls") + 1]).remove(0);
    let fresh = first_obs(&Bench::new(Player::new()).single(&mut cart_pole(number as u32, options(1, 4))));
    assert_eq!((number, obs), fresh[0]);
}

#[test]
fn slots_absent_from_a_state_are_unchanged() {
    let (mut bench, mut two) = (Bench::new(Player::new()), sampler(options(2, 3), scripted(2, counter(100))));
    for env in 0..2i64 {
        assert_eq!(bench.single(&mut two).get(EPS_ID).unwrap(), [env << 32; 3]);
    }
    let next: Vec<SavedLane> = vec![(SlotId(0), 9, 50, None)];
    two.set_position(&Position::new(&next)).unwrap();
    let (mut begun, mut continued) = (Vec::new(), Vec::new());
    for _ in 0..4 {
        let batch = bench.single(&mut two);
        let rows = if batch.get(EPS_ID).unwrap()[0] == 9 { &mut begun } else { &mut continued };
        rows.extend(ints(&batch, "obs"));
    }
    assert_eq!((begun, continued), ((0..6).collect(), (3..9).collect()));
}

#[test]
fn the_last_numbers_that_a_state_can_have_do_no_harm() {
    let (mut bench, mut sampler) = (Bench::new(Player::new()), sampler(options(1, 3), scripted(1, counter(2))));
    let state = |steps: u64| Position::new(&vec![(SlotId(0), u32::MAX, steps, None::<Vec<u8>>)]);
    assert!(sampler.set_position(&state(u64::MAX)).is_err());
    sampler.set_position(&state(u64::MAX / 2)).unwrap();
    let batch = bench.single(&mut sampler);
    assert_eq!(batch.get(EPS_ID).unwrap(), [i64::from(u32::MAX), i64::from(u32::MAX), 0]);
}

/// Works only once.
struct Tired(Player, bool);

impl Policy for Tired {
    fn compute_actions(&mut self, input: ActionInput<'_>, mut out: ActionOutput<'_>) -> Result<(), PolicyError> {
        if !core::mem::replace(&mut self.1, true) {
            return self.0.compute_actions(input, out);
        }
        let RowsMut::I64(actions) = &mut out.actions else { return Err(PolicyError::Failed("not int64".into())) };
        actions.fill(1);
        Ok(())
    }
    fn compute_values(&mut self, obs: RowsRef<'_>, state: &[f32], values: &mut [f32]) -> Result<(), PolicyError> {
        self.0.compute_values(obs, state, values)
    }
    fn weights(&self) -> &Weights {
        self.0.weights()
    }
    fn set_weights(&mut self, weights: &Weights) -> Result<(), PolicyError> {
        self.0.set_weights(weights)
    }
}

#[test]
fn outputs_missing_from_a_policy_are_zero() {
    let mut bench = Bench::new(Tired(Player::new(), false));
    let batch = bench.single(&mut sampler(options(1, 3), scripted(1, counter(9))));
    assert_eq!(batch.get(crate::batch::VF_PREDS).unwrap(), [7.0, 0.0, 0.0]);
    assert_eq!(batch.get(crate::batch::ACTION_LOGP).unwrap(), [-0.5, 0.0, 0.0]);
}
