//! A policy with a learner of its own.

use rollmesh_core::{
    batch::{ACTIONS, REWARDS, SampleBatch},
    env::{Rng, RowsMut, RowsRef},
    ids::WeightsVersion,
    policy::{ActionInput, ActionOutput, LearnInfo, Policy, PolicyContext, PolicyError},
    rng::{Purpose, Streams},
    space::Space,
    weights::{Tensor, Weights, WeightsError},
};

/// A policy that records each action's mean reward, independently of observations, and takes the best one; every fourth
/// action on average is drawn uniformly instead.
#[derive(Clone, Debug)]
pub struct Tally {
    actions: u32,
    streams: Streams,
    weights: Weights,
}

const COUNTS: &str = "tally.counts";
const MEANS: &str = "tally.means";

impl Tally {
    /// Creates the policy for discrete actions.
    ///
    /// # Errors
    /// [`PolicyError::Unsupported`] for other spaces.
    pub fn new(context: &PolicyContext) -> Result<Self, PolicyError> {
        let Space::Discrete { n } = context.spaces.action else {
            let found = context.spaces.action.to_string();
            return Err(PolicyError::Unsupported { wanted: "discrete actions".into(), found });
        };
        let zeros = vec![0.0; n as usize];
        let weights = tallies(WeightsVersion(0), zeros.clone(), zeros)?;
        Ok(Self { actions: n, streams: Streams::new(context.seed, Purpose::Action), weights })
    }

    fn tensor(&self, name: &str) -> &[f32] {
        self.weights.tensor(name).map_or(&[], |tensor| &tensor.values)
    }

    fn best(&self) -> i64 {
        let means = self.tensor(MEANS);
        (0..means.len()).rev().max_by(|a, b| means[*a].total_cmp(&means[*b])).unwrap_or(0) as i64
    }

    fn choose(&self, best: i64, rng: &mut Rng) -> i64 {
        if rng.below(4) > 0 { best } else { i64::from(rng.below(self.actions)) }
    }
}

fn tallies(version: WeightsVersion, counts: Vec<f32>, means: Vec<f32>) -> Result<Weights, WeightsError> {
    let tensor = |name: &str, values: Vec<f32>| Tensor { name: name.into(), shape: vec![values.len() as u32], values };
    Weights::new(version, vec![tensor(COUNTS, counts), tensor(MEANS, means)])
}

impl Policy for Tally {
    fn compute_actions(&mut self, input: ActionInput<'_>, mut out: ActionOutput<'_>) -> Result<(), PolicyError> {
        out.check(input.moments.len(), 1)?;
        let (best, explore) = (self.best(), input.explore);
        match &mut out.actions {
            RowsMut::I64(actions) => {
                for (action, m) in actions.iter_mut().zip(input.moments) {
                    let mut rng = self.streams.at(m.slot, m.episode, m.t, m.agent);
                    *action = if explore { self.choose(best, &mut rng) } else { best };
                }
            }
            other => {
                let found = other.dtype().to_string();
                return Err(PolicyError::Unsupported { wanted: "int64 actions".into(), found });
            }
        }
        out.logp.fill(0.0);
        out.vf_preds.fill(0.0);
        Ok(())
    }

    fn compute_values(&mut self, _obs: RowsRef<'_>, _state: &[f32], values: &mut [f32]) -> Result<(), PolicyError> {
        values.fill(0.0);
        Ok(())
    }

    fn learn_on_batch(&mut self, batch: &SampleBatch) -> Result<LearnInfo, PolicyError> {
        let (mut counts, mut means) = (self.tensor(COUNTS).to_vec(), self.tensor(MEANS).to_vec());
        for (action, reward) in batch.get(ACTIONS)?.iter().zip(batch.get(REWARDS)?) {
            let at = *action as usize;
            if let (Some(count), Some(mean)) = (counts.get_mut(at), means.get_mut(at)) {
                *count += 1.0;
                *mean += (reward - *mean) / *count;
            }
        }
        let version = WeightsVersion(self.weights.version().0 + 1);
        self.weights = tallies(version, counts, means)?;
        Ok([("best_action".to_owned(), self.best() as f64)].into())
    }

    fn weights(&self) -> &Weights {
        &self.weights
    }

    fn set_weights(&mut self, weights: &Weights) -> Result<(), PolicyError> {
        let shapes = |weights: &Weights| -> Vec<(String, Vec<u32>)> {
            weights.tensors().iter().map(|tensor| (tensor.name.clone(), tensor.shape.clone())).collect()
        };
        if shapes(weights) != shapes(&self.weights) {
            let wanted = format!("{COUNTS} and {MEANS} of {} actions", self.actions);
            return Err(WeightsError::Missing { wanted }.into());
        }
        self.weights = weights.clone();
        Ok(())
    }
}
