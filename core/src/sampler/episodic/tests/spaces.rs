//! Processing of observations and actions.

use super::*;
use crate::{
    batch::ACTIONS,
    filter::{Filter, FilterKind},
    preprocess::Preprocessor,
    space::BoxSpace,
};

/// Moves by its action, and rejects actions beyond the bounds. It ends after 3 steps.
struct Mover {
    t: u32,
    at: f32,
}

impl MultiAgentEnv for Mover {
    fn agents(&self) -> Vec<AgentId> {
        vec![AgentId::SINGLE]
    }

    fn spaces(&self, _: &AgentId) -> Option<EnvSpaces> {
        let action = BoxSpace::uniform(DType::F64, RowShape::vector(1), -2.0, 6.0).unwrap();
        Some(EnvSpaces {
            observation: Space::vector(&[-100.0], &[100.0]),
            observation_type: DType::F32,
            action: action.into(),
            action_type: DType::F64,
        })
    }

    fn reset(&mut self, _: &mut Rng, turn: &mut Turn) -> Result<(), EnvError> {
        *self = Self { t: 0, at: 0.0 };
        turn.observe(&AgentId::SINGLE, RowsRef::F32(&[self.at]));
        Ok(())
    }

    fn step(&mut self, actions: &AgentRows, _: &mut Rng, turn: &mut Turn) -> Result<(), EnvError> {
        let action = actions.row_of::<f64>(&AgentId::SINGLE).and_then(|row| row.first()).copied().unwrap_or(f64::NAN);
        if !(-2.0..=6.0).contains(&action) {
            return Err(EnvError::Failed(format!("it was sent {action}")));
        }
        (self.t, self.at) = (self.t + 1, self.at + action as f32);
        turn.observe(&AgentId::SINGLE, RowsRef::F32(&[self.at]));
        if self.t == 3 {
            turn.terminate_all();
        }
        Ok(())
    }

    fn as_any(&mut self) -> &mut dyn core::any::Any {
        self
    }
}

/// Chooses -1, 0.5, 3, …
struct Mixed(Player);

impl Policy for Mixed {
    fn compute_actions(&mut self, input: ActionInput<'_>, out: ActionOutput<'_>) -> Result<(), PolicyError> {
        let RowsMut::F64(actions) = out.actions else { return Err(PolicyError::Failed("not float64".into())) };
        for (action, moment) in actions.iter_mut().zip(input.moments) {
            *action = [-1.0, 0.5, 3.0][moment.t as usize % 3];
        }
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

fn movers(num_envs: u32) -> InProcess {
    let spec = MultiAgentSpec::new("Mover", |_| Ok(Box::new(Mover { t: 0, at: 0.0 })));
    InProcess::new(EnvMaker::multi_agent(&spec), (0..num_envs).map(start).collect(), 1).unwrap()
}

#[test]
fn actions_are_sent_transformed_and_recorded_as_chosen() {
    for (normalize_actions, clip_actions, expected) in [
        // Scaled from [-1, 1] to [-2, 6] and clipped.
        (true, true, [-2.0, 2.0, 8.0]),
        (true, false, [-2.0, 2.0, 8.0]),
        (false, true, [-1.0, -0.5, 2.5]),
        (false, false, [-1.0, -0.5, 2.5]),
    ] {
        let options = SamplerOptions { normalize_actions, clip_actions, ..options(1, 3) };
        let batch = Bench::new(Mixed(Player::new())).single(&mut sampler(options, movers(1)));
        assert_eq!(batch.get(NEW_OBS).unwrap(), expected);
        assert_eq!(batch.get(ColumnKey::<f64>::new(ACTIONS.name())).unwrap(), [-1.0, 0.5, 3.0]);
    }
}

#[test]
fn integers_stay_integers_unless_they_are_preprocessed() {
    let space = Space::Discrete { n: 1_000 };
    let mut bench = Bench::new(Player::new());
    assert_eq!(ints(&bench.single(&mut sampler(options(1, 2), scripted(1, counter(9)))), "obs"), [0, 1]);
    let entry = bench.policies.get_mut(&PolicyId::DEFAULT).unwrap();
    entry.preprocessor = Some(Preprocessor::for_space(&space).unwrap());
    let batch = bench.single(&mut sampler(options(1, 2), scripted(1, counter(9))));
    let obs = batch.data(OBS).unwrap();
    assert_eq!(obs.shape(), RowShape::vector(1_000));
    assert_eq!((obs.row(1).unwrap()[1], obs.row(1).unwrap().iter().sum::<f32>()), (1.0, 1.0));
}

#[test]
fn error_names_the_agent_that_cannot_be_preprocessed() {
    let mut bench = Bench::new(Player::new());
    let entry = bench.policies.get_mut(&PolicyId::DEFAULT).unwrap();
    entry.preprocessor = Some(Preprocessor::for_space(&Space::Discrete { n: 3 }).unwrap());
    let error = bench.data(&mut sampler(options(1, 8), scripted(1, counter(9)))).unwrap_err();
    assert!(matches!(&error, SampleError::Preprocess { agent, .. } if *agent == AgentId::SINGLE), "{error}");
}

#[test]
fn filters_learn_every_observation_once() {
    let mut bench = Bench::new(Mixed(Player::new()));
    let entry = bench.policies.get_mut(&PolicyId::DEFAULT).unwrap();
    entry.filter = Filter::new(FilterKind::MeanStdFilter, RowShape::vector(1)).unwrap();
    let mut sampler = sampler(options(2, 7), movers(2));
    bench.single(&mut sampler);
    // Two whole episodes of four observations, and two of the third, for each of two environments.
    let n = |bench: &Bench| {
        let filter = bench.policies.peek(&PolicyId::DEFAULT).unwrap().filter.mean_std().unwrap();
        (filter.running().n(), filter.buffer().n())
    };
    assert_eq!(n(&bench), (20, 20));
    let entry = bench.policies.get_mut(&PolicyId::DEFAULT).unwrap();
    entry.filter.reset_buffer();
    entry.filter.in_eval();
    bench.single(&mut sampler);
    bench.single(&mut sampler);
    assert_eq!(n(&bench), (20, 0));
    // Rows contain the policy's view: the next row's observation is this row's `new_obs`.
    let batch = bench.single(&mut sampler);
    let (obs, new_obs, dones) = (batch.get(OBS).unwrap(), batch.get(NEW_OBS).unwrap(), batch.dones().unwrap());
    assert!((1..7).all(|row| dones[row - 1] || obs[row].to_bits() == new_obs[row - 1].to_bits()));
}
