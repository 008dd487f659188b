//! The acting policy: two small networks with tanh, on the kernel table.

use super::{ActionInput, ActionOutput, Policy, PolicyError, normalizer::Normalizer};
use crate::{
    column::DType,
    env::{EnvSpaces, RowsMut, RowsRef},
    kernels::{
        ActOut, ActorCritic, Kernels,
        mlp::{Dense, MAX_WIDTH},
    },
    prelude::*,
    rng::{Purpose, Streams, unit_f32},
    space::Space,
    weights::{Tensor, Weights, WeightsError},
};

/// Shape of the policy and of the value network. Both have the same hidden layers, of their own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MlpPolicySpec {
    /// Elements of an observation.
    pub obs_len: usize,
    /// Number of actions.
    pub num_actions: usize,
    /// Widths of the hidden layers.
    pub hidden: Vec<u32>,
}

impl MlpPolicySpec {
    /// The policy for an environment.
    ///
    /// # Errors
    /// [`PolicyError::Unsupported`] for spaces or widths that this policy does not take.
    pub fn for_spaces(spaces: &EnvSpaces, hidden: &[u32]) -> Result<Self, PolicyError> {
        let unsupported = |wanted: String, found: String| Err(PolicyError::Unsupported { wanted, found });
        let Space::Discrete { n } = spaces.action else {
            return unsupported("discrete actions".into(), format!("actions of {}", spaces.action_type));
        };
        if spaces.observation_type != DType::F32 {
            return unsupported("float32 observations".into(), format!("observations of {}", spaces.observation_type));
        }
        let obs_len = spaces.observation.shape().elements();
        let spec = Self { obs_len, num_actions: n as usize, hidden: hidden.to_vec() };
        spec.check()?;
        Ok(spec)
    }

    /// Checks that the policy takes such layers.
    ///
    /// # Errors
    /// [`PolicyError::Unsupported`] for a layer without elements or with more than [`MAX_WIDTH`].
    pub fn check(&self) -> Result<(), PolicyError> {
        match self.widths(self.num_actions).into_iter().find(|width| !(1..=MAX_WIDTH).contains(width)) {
            Some(width) => Err(PolicyError::Unsupported {
                wanted: format!("layers of 1 to {MAX_WIDTH}"),
                found: format!("one of {width}"),
            }),
            None => Ok(()),
        }
    }

    /// Widths of all layers of a network with `last` outputs, the observation's first.
    pub(super) fn widths(&self, last: usize) -> Vec<usize> {
        let hidden = self.hidden.iter().map(|&width| width as usize);
        [self.obs_len].into_iter().chain(hidden).chain([last]).collect()
    }
}

/// Categorical policy and value estimate from two networks, on the kernel table: the fast part of
/// [`NetPolicy`](super::NetPolicy), with the same bits. It explores, and keeps the parameters of its distributions to
/// itself. Like that, it normalises observations where there are
/// [statistics among its weights](crate::filter::FILTER_PREFIX).
#[derive(Clone, Debug)]
pub struct MlpPolicy {
    spec: MlpPolicySpec,
    weights: Weights,
    nets: ActorCritic,
    /// The weights are newer than the networks.
    is_stale: bool,
    kernels: Kernels,
    streams: Streams,
    normalizer: Normalizer,
    uniforms: Vec<f32>,
}

impl MlpPolicy {
    /// A policy with the given weights; `seed` is the run's.
    ///
    /// # Errors
    /// [`PolicyError::Unsupported`] for a shape that this policy does not take, [`PolicyError::Weights`] when the weights
    /// do not fit it.
    pub fn new(spec: MlpPolicySpec, weights: Weights, seed: u64, kernels: Kernels) -> Result<Self, PolicyError> {
        spec.check()?;
        let nets = pack(&spec, &weights)?;
        let streams = Streams::new(seed, Purpose::Action);
        let normalizer = Normalizer::new(&weights, spec.obs_len)?;
        Ok(Self { spec, weights, nets, is_stale: false, kernels, streams, normalizer, uniforms: Vec::new() })
    }

    /// Packs the weights for the kernels, if that is still to be done.
    fn freshen(&mut self) -> Result<(), PolicyError> {
        if self.is_stale {
            repack(&mut self.nets, &self.weights)?;
            self.is_stale = false;
        }
        Ok(())
    }

    fn floats<'a>(&self, obs: RowsRef<'a>, rows: usize) -> Result<&'a [f32], PolicyError> {
        match obs {
            RowsRef::F32(values) if rows.checked_mul(self.spec.obs_len) == Some(values.len()) => Ok(values),
            other => Err(PolicyError::Unsupported {
                wanted: format!("{rows} float32 observations of {} elements", self.spec.obs_len),
                found: format!("{} values of {}", other.len(), other.dtype()),
            }),
        }
    }
}

impl Policy for MlpPolicy {
    fn compute_actions(&mut self, input: ActionInput<'_>, out: ActionOutput<'_>) -> Result<(), PolicyError> {
        let obs = self.floats(input.obs, input.moments.len())?;
        out.check(input.moments.len(), 1)?;
        out.check_optional(input.moments.len(), 0, 0)?;
        if !input.explore {
            let found = "explore = false, which takes a NetPolicy".into();
            return Err(PolicyError::Unsupported { wanted: "rows to explore from".into(), found });
        }
        let RowsMut::I64(actions) = out.actions else {
            return Err(PolicyError::Unsupported { wanted: "int64 actions".into(), found: "other actions".into() });
        };
        self.freshen()?;
        let obs = self.normalizer.apply(obs)?;
        let streams = self.streams;
        self.uniforms.clear();
        self.uniforms.extend(input.moments.iter().map(|m| unit_f32(streams.block(m.slot, m.episode, m.t, m.agent)[0])));
        (self.kernels.act)(&self.nets, obs, &self.uniforms, ActOut { actions, logp: out.logp, values: out.vf_preds });
        Ok(())
    }

    fn compute_values(&mut self, obs: RowsRef<'_>, _state: &[f32], values: &mut [f32]) -> Result<(), PolicyError> {
        let obs = self.floats(obs, values.len())?;
        self.freshen()?;
        let obs = self.normalizer.apply(obs)?;
        (self.kernels.values)(&self.nets, obs, values);
        Ok(())
    }

    fn weights(&self) -> &Weights {
        &self.weights
    }

    /// The kernels' copy is made for the first rows that act with them: weights that newer ones follow at once need none.
    fn set_weights(&mut self, weights: &Weights) -> Result<(), PolicyError> {
        for (net, layers) in [("policy", &self.nets.policy), ("value", &self.nets.value)] {
            for (i, layer) in layers.iter().enumerate() {
                find_layer(weights, net, i, layer.inputs(), layer.outputs())?;
            }
        }
        self.normalizer.set_weights(weights, self.spec.obs_len)?;
        self.weights = weights.clone();
        self.is_stale = true;
        Ok(())
    }
}

fn pack(spec: &MlpPolicySpec, weights: &Weights) -> Result<ActorCritic, WeightsError> {
    let layers = |net: &str, last: usize| {
        let widths = spec.widths(last);
        let layer = |(i, pair): (usize, &[usize])| {
            let (inputs, outputs) = (pair[0], pair[1]);
            let (weight, bias) = find_layer(weights, net, i, inputs, outputs)?;
            Ok(Dense::pack(inputs, outputs, weight, bias))
        };
        widths.windows(2).enumerate().map(layer).collect::<Result<Vec<_>, WeightsError>>()
    };
    Ok(ActorCritic { policy: layers("policy", spec.num_actions)?, value: layers("value", 1)? })
}

/// [`pack`] into the memory of networks of the same shape: fresh memory takes longer than all copying.
fn repack(nets: &mut ActorCritic, weights: &Weights) -> Result<(), WeightsError> {
    for (net, layers) in [("policy", &mut nets.policy), ("value", &mut nets.value)] {
        for (i, layer) in layers.iter_mut().enumerate() {
            let (weight, bias) = find_layer(weights, net, i, layer.inputs(), layer.outputs())?;
            layer.repack(weight, bias);
        }
    }
    Ok(())
}

/// Weights as `[inputs][outputs]`, and biases.
fn find_layer<'a>(
    weights: &'a Weights,
    net: &str,
    i: usize,
    inputs: usize,
    outputs: usize,
) -> Result<(&'a [f32], &'a [f32]), WeightsError> {
    let weight = find(weights, format!("{net}.{i}.weight"), &[inputs, outputs])?;
    let bias = find(weights, format!("{net}.{i}.bias"), &[outputs])?;
    Ok((&weight.values, &bias.values))
}

pub(super) fn find<'a>(weights: &'a Weights, name: String, shape: &[usize]) -> Result<&'a Tensor, WeightsError> {
    let fits = |tensor: &&Tensor| tensor.shape.iter().map(|&dim| dim as usize).eq(shape.iter().copied());
    weights.tensor(&name).filter(fits).ok_or_else(|| WeightsError::Missing { wanted: format!("{name} {shape:?}") })
}

#[cfg(test)]
mod tests {
    use super::{super::init_weights, *};
    use crate::{
        env::{EnvRegistry, Moment},
        ids::SlotId,
    };

    fn spec() -> MlpPolicySpec {
        MlpPolicySpec { obs_len: 4, num_actions: 3, hidden: vec![7, 5] }
    }

    fn policy() -> MlpPolicy {
        // Larger weights than the first ones, so that probabilities differ.
        let weights = init_weights(&spec(), 3).unwrap();
        let tensors = weights.tensors().iter().cloned().map(|mut tensor| {
            tensor.values.iter_mut().enumerate().for_each(|(i, w)| *w = *w * 3.0 + (i % 3) as f32 * 0.2);
            tensor
        });
        let weights = Weights::new(weights.version(), tensors.collect()).unwrap();
        MlpPolicy::new(spec(), weights, 1, Kernels::PORTABLE).unwrap()
    }

    #[test]
    fn layers_have_one_to_256_elements() {
        let specs = [
            MlpPolicySpec { obs_len: 0, ..spec() },
            MlpPolicySpec { obs_len: usize::MAX, ..spec() },
            MlpPolicySpec { num_actions: 0, ..spec() },
            MlpPolicySpec { hidden: vec![7, 257], ..spec() },
            MlpPolicySpec { hidden: vec![0], ..spec() },
        ];
        let weights = init_weights(&spec(), 3).unwrap();
        for spec in specs {
            assert!(matches!(init_weights(&spec, 3), Err(PolicyError::Unsupported { .. })), "{spec:?}");
            let error = MlpPolicy::new(spec, weights.clone(), 1, Kernels::PORTABLE).unwrap_err().to_string();
            assert!(error.starts_with("the policy takes layers of 1 to 256, not one of "), "{error}");
        }
        assert!(init_weights(&MlpPolicySpec { hidden: vec![256], ..spec() }, 3).is_ok());
    }

    #[test]
    fn buffers_have_an_entry_per_row() {
        let act = |actions: &mut [i64], logp: &mut [f32], vf_preds: &mut [f32]| {
            policy().compute_actions(
                ActionInput::new(RowsRef::F32(&[0.5; 12]), &moments(3)),
                ActionOutput::new(RowsMut::I64(actions), logp, vf_preds),
            )
        };
        let length = |buffer, found| Err(PolicyError::BufferLength { buffer, wanted: 3, found });
        assert_eq!(act(&mut [7; 2], &mut [0.0; 3], &mut [0.0; 3]), length("actions", 2));
        assert_eq!(act(&mut [7; 3], &mut [], &mut [0.0; 3]), length("logp", 0));
        assert_eq!(act(&mut [7; 3], &mut [0.0; 3], &mut [0.0; 4]), length("vf_preds", 4));
        assert_eq!(act(&mut [7; 3], &mut [0.0; 3], &mut [0.0; 3]), Ok(()));
    }

    #[test]
    fn what_takes_a_net_policy_is_refused() {
        let moments = moments(1);
        let input = ActionInput::new(RowsRef::F32(&[0.5; 4]), &moments);
        let act = |input, dist_inputs: &mut [f32]| {
            let (mut action, mut logp, mut vf_preds) = ([0], [0.0], [0.0]);
            let out = ActionOutput::new(RowsMut::I64(&mut action), &mut logp, &mut vf_preds);
            policy().compute_actions(input, ActionOutput { dist_inputs, ..out })
        };
        let error = act(ActionInput { explore: false, ..input }, &mut []).unwrap_err().to_string();
        assert_eq!(error, "the policy takes rows to explore from, not explore = false, which takes a NetPolicy");
        let length = PolicyError::BufferLength { buffer: "dist_inputs", wanted: 0, found: 3 };
        assert_eq!(act(input, &mut [0.0; 3]), Err(length));
    }

    fn moments(n: usize) -> Vec<Moment> {
        (0..n as u32).map(|i| Moment { slot: SlotId(i), episode: 0, t: 0, agent: 0 }).collect()
    }

    fn act(policy: &mut MlpPolicy, obs: &[f32], moments: &[Moment]) -> (Vec<i64>, Vec<f32>, Vec<f32>) {
        let n = moments.len();
        let (mut actions, mut logp, mut values) = (vec![0; n], vec![0.0; n], vec![0.0; n]);
        policy
            .compute_actions(
                ActionInput::new(RowsRef::F32(obs), moments),
                ActionOutput::new(RowsMut::I64(&mut actions), &mut logp, &mut values),
            )
            .unwrap();
        (actions, logp, values)
    }

    /// The same networks in 64-bit floats, straight from the definition.
    fn reference(weights: &Weights, net: &str, obs: &[f32]) -> Vec<f64> {
        let mut x: Vec<f64> = obs.iter().map(|&x| f64::from(x)).collect();
        for i in 0..3 {
            let weight = &weights.tensor(&format!("{net}.{i}.weight")).unwrap().values;
            let bias = &weights.tensor(&format!("{net}.{i}.bias")).unwrap().values;
            let n = bias.len();
            let sums = (0..n).map(|o| {
                f64::from(bias[o]) + x.iter().enumerate().map(|(j, x)| x * f64::from(weight[j * n + o])).sum::<f64>()
            });
            x = sums.map(|y| if i < 2 { libm::tanh(y) } else { y }).collect();
        }
        x
    }

    #[test]
    fn agrees_with_the_definition() {
        let mut policy = policy();
        let obs: Vec<f32> = (0..4 * 37).map(|i| ((i * 37 % 101) as f32 - 50.0) / 25.0).collect();
        let (actions, logp, values) = act(&mut policy, &obs, &moments(37));
        for (row, obs) in obs.chunks(4).enumerate() {
            let logits = reference(policy.weights(), "policy", obs);
            let total: f64 = logits.iter().map(|&l| libm::exp(l)).sum();
            let want = logits[actions[row] as usize] - libm::log(total);
            assert!((f64::from(logp[row]) - want).abs() < 1e-5, "row {row}: {} {want}", logp[row]);
            let value = reference(policy.weights(), "value", obs)[0];
            assert!((f64::from(values[row]) - value).abs() < 1e-5);
        }
    }

    #[test]
    fn a_row_does_not_depend_on_its_batch() {
        let mut policy = policy();
        let obs: Vec<f32> = (0..4 * 37).map(|i| (i as f32 * 0.7) % 3.0 - 1.5).collect();
        let whole = act(&mut policy, &obs, &moments(37));
        for row in [0, 15, 16, 36] {
            let alone = act(&mut policy, &obs[4 * row..][..4], &moments(37)[row..=row]);
            assert_eq!((alone.0[0], alone.1[0], alone.2[0]), (whole.0[row], whole.1[row], whole.2[row]));
        }
        let mut values = vec![0.0; 37];
        policy.compute_values(RowsRef::F32(&obs), &[], &mut values).unwrap();
        assert_eq!(values, whole.2);
    }

    #[test]
    fn actions_follow_their_probabilities() {
        let mut policy = policy();
        let n = 20_000;
        let obs: Vec<f32> = [0.3, -0.2, 0.9, 0.1].repeat(n);
        let (actions, ..) = act(&mut policy, &obs, &moments(n));
        let logits = reference(policy.weights(), "policy", &obs[..4]);
        let total: f64 = logits.iter().map(|&l| libm::exp(l)).sum();
        for (a, logit) in logits.iter().enumerate() {
            let share = actions.iter().filter(|&&x| x == a as i64).count() as f64 / n as f64;
            assert!((share - libm::exp(*logit) / total).abs() < 0.012, "action {a}: {share}");
        }
    }

    #[test]
    fn only_float_observations_and_discrete_actions_are_taken() {
        let envs = EnvRegistry::builtin();
        let shape = |name: &str| MlpPolicySpec::for_spaces(&envs.spec(name).unwrap().spaces().unwrap(), &[7, 5]);
        assert_eq!(shape("Acrobot-v1").unwrap(), MlpPolicySpec { obs_len: 6, ..spec() });
        let errors =
            ["FrozenLake-v1", "PixelBreakout-v0", "Pendulum-v1"].map(|name| shape(name).unwrap_err().to_string());
        assert_eq!(
            errors,
            [
                "the policy takes float32 observations, not observations of int64",
                "the policy takes float32 observations, not observations of uint8",
                "the policy takes discrete actions, not actions of float32",
            ]
        );
    }

    #[test]
    fn wrong_weights_leave_the_old_ones() {
        let mut policy = policy();
        let before = policy.weights().clone();
        let other = init_weights(&MlpPolicySpec { hidden: vec![8, 5], ..spec() }, 0).unwrap();
        let error = policy.set_weights(&other).unwrap_err();
        assert_eq!(error.to_string(), "the policy wants tensor 'policy.0.weight [4, 7]'");
        assert_eq!(policy.weights(), &before);
    }

    #[test]
    fn wrong_rows_are_an_error() {
        let mut values = [0.0; 2];
        let error = policy().compute_values(RowsRef::F32(&[0.0; 7]), &[], &mut values).unwrap_err();
        assert_eq!(error.to_string(), "the policy takes 2 float32 observations of 4 elements, not 7 values of float32");
    }
}
