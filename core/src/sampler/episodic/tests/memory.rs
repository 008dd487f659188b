//! Recurrent policies, and policies that view more than one step.

use super::*;
use crate::view::Shift;

const STATE: ColumnKey<f32> = ColumnKey::new("state_in_0");

/// Starts at 10, adds 1 with every step, and learns from sequences of at most 3 steps.
fn counting() -> Player {
    let state = ViewRequirement::state_in(0, NonZeroU32::new(3).unwrap());
    Player { states: vec![1], views: [("state_in_0".to_string(), state)].into(), ..Player::new() }
}

#[test]
fn states_pass_from_step_to_step_and_are_recorded_per_sequence() {
    let (mut bench, mut sampler) = (Bench::new(counting()), sampler(options(1, 5), scripted(1, counter(7))));
    let first = bench.single(&mut sampler);
    assert_eq!((first.len(), first.seq_lens().unwrap()), (5, &[3, 2][..]));
    assert_eq!(first.get(STATE).unwrap(), [10.0, 13.0]);
    assert!(first.column("state_out_0").is_none());
    // Across the cut, and from the start in the next episode.
    let second = bench.single(&mut sampler);
    assert_eq!((second.get(T).unwrap(), second.seq_lens().unwrap()), (&[5, 6, 0, 1, 2][..], &[2, 3][..]));
    assert_eq!(second.get(STATE).unwrap(), [15.0, 10.0]);
}

#[test]
fn the_value_of_what_follows_is_seen_with_the_state_of_then() {
    let config = crate::postprocess::AdvantageConfig { gamma: 1.0, lambda: 1.0, use_gae: false, use_critic: false };
    let policy = Player { postprocessing: Postprocessing::Advantages(config), ..counting() };
    let (mut bench, mut sampler) = (Bench::new(policy), sampler(options(1, 2), scripted(1, counter(9))));
    for value in [12.0, 14.0, 16.0] {
        assert_eq!(bench.single(&mut sampler).get(ADVANTAGES).unwrap(), [200.0 + value, 100.0 + value]);
    }
    // An agent that does not act has an action for its next observation already; the recurrent state before that action is
    // the one that counts.
    let envs = scripted(1, || {
        |t: u32, _: &AgentRows, turn: &mut Turn| {
            see(turn, t % 2, 0);
            Ok(())
        }
    });
    let mut sampler = super::sampler(SamplerOptions { single_agent: false, ..options(1, 5) }, envs);
    let batch = bench.data(&mut sampler).unwrap().as_multi_agent();
    let batch = batch.policy_batch(&PolicyId::DEFAULT).unwrap();
    assert_eq!(batch.get(T).unwrap(), [1, 3, 2, 4]);
    assert_eq!(batch.get(ADVANTAGES).unwrap(), [12.0; 4]);
}

#[test]
fn a_soft_horizon_keeps_the_state() {
    let options = SamplerOptions { horizon: Some(4), horizon_means: Horizon::LegacySoft, ..complete(1) };
    let (mut bench, mut sampler) = (Bench::new(counting()), sampler(options, scripted(1, counter(6))));
    let states: Vec<Vec<f32>> = (0..3).map(|_| bench.single(&mut sampler).get(STATE).unwrap().to_vec()).collect();
    assert_eq!(states, [vec![10.0, 13.0], vec![14.0], vec![10.0, 13.0]]);
}

#[test]
fn policies_learn_from_the_views_they_ask_for() {
    let window = ViewRequirement::shifted("obs", "-2:0".parse().unwrap());
    let before = ViewRequirement::shifted("actions", Shift::single(-1).unwrap());
    let hidden = ViewRequirement { used_for_training: false, ..ViewRequirement::default() };
    let views = [("stack", window), ("prev_actions", before), ("t", hidden)];
    let views = views.into_iter().map(|(name, view)| (name.to_string(), view.only_for_training())).collect();
    let mut bench = Bench::new(Player { views, ..Player::new() });
    let mut sampler = sampler(options(1, 3), scripted(1, counter(9)));
    assert_eq!(ints(&bench.single(&mut sampler), "prev_actions"), [0, 1, 1]);
    let second = bench.single(&mut sampler);
    assert_eq!(ints(&second, "stack"), [1, 2, 3, 2, 3, 4, 3, 4, 5]);
    assert_eq!(ints(&second, "prev_actions"), [1, 1, 1]);
    assert!(second.column("t").is_none());
}

/// Chooses whether the sum of its observations is odd.
struct Odd(Player);

impl Policy for Odd {
    fn compute_actions(&mut self, input: ActionInput<'_>, mut out: ActionOutput<'_>) -> Result<(), PolicyError> {
        let (RowsRef::I64(obs), RowsMut::I64(actions)) = (input.obs, &mut out.actions) else {
            return Err(PolicyError::Failed("not int64".into()));
        };
        for (action, obs) in actions.iter_mut().zip(obs.chunks_exact(2)) {
            *action = (obs[0] + obs[1]) % 2;
        }
        Ok(())
    }
    fn compute_values(&mut self, obs: RowsRef<'_>, state: &[f32], values: &mut [f32]) -> Result<(), PolicyError> {
        self.0.compute_values(obs, state, values)
    }
    fn view_requirements(&self) -> ViewRequirements {
        [("obs".to_string(), ViewRequirement::shifted("obs", "-1:0".parse().unwrap()))].into()
    }
    fn weights(&self) -> &Weights {
        self.0.weights()
    }
    fn set_weights(&mut self, weights: &Weights) -> Result<(), PolicyError> {
        self.0.set_weights(weights)
    }
}

#[test]
fn a_policy_that_sees_a_window_acts_on_it() {
    let mut bench = Bench::new(Odd(Player::new()));
    let batch = bench.single(&mut sampler(options(2, 4), scripted(2, counter(9))));
    assert_eq!(ints(&batch, "obs"), [0, 0, 0, 1, 1, 2, 2, 3]);
    // The first observation fills the view before the first step.
    assert_eq!(ints(&batch, "actions"), [0, 1, 1, 1]);
}
