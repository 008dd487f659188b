//! The networks, packed for the kernels.

use super::ModelSpec;
use crate::{
    kernels::{Networks, nets::Dense},
    prelude::*,
    weights::{Tensor, Weights, WeightsError},
};

/// The networks with these weights. The spec has been checked.
///
/// # Errors
/// [`WeightsError::Missing`].
pub(super) fn pack(spec: &ModelSpec, weights: &Weights) -> Result<Networks, WeightsError> {
    let layers = |(name, _, widths): (&str, u32, Vec<usize>)| {
        let pairs = widths.windows(2).enumerate();
        pairs
            .map(|(i, pair)| find_layer(weights, name, i, pair[0], pair[1]).map(Tensors::pack))
            .collect::<Result<_, _>>()
    };
    let [policy, value, encoder] = spec.networks().map(layers);
    let gates = spec.lstm().map(|(inputs, cells)| find_gates(weights, inputs, cells).map(Tensors::pack));
    Ok(Networks { encoder: encoder?, gates: gates.transpose()?, policy: policy?, value: value? })
}

/// [`pack`] into the memory of networks of the same shape.
pub(super) fn repack(nets: &mut Networks, weights: &Weights) -> Result<(), WeightsError> {
    for (name, layers) in [("policy", &mut nets.policy), ("value", &mut nets.value), ("encoder", &mut nets.encoder)] {
        for (i, layer) in layers.iter_mut().enumerate() {
            find_layer(weights, name, i, layer.inputs(), layer.outputs())?.repack(layer);
        }
    }
    let cells = nets.cells();
    nets.gates.iter_mut().try_for_each(|gates| {
        find_gates(weights, gates.inputs() - cells, cells)?.repack(gates);
        Ok(())
    })
}

/// Checks that there is everything that a model wants, of the right shape.
pub(super) fn check(spec: &ModelSpec, weights: &Weights) -> Result<(), WeightsError> {
    let [policy, value, encoder] = spec.networks();
    let check = |(name, _, widths): (&str, u32, Vec<usize>)| {
        let mut pairs = widths.windows(2).enumerate();
        pairs.try_for_each(|(i, pair)| find_layer(weights, name, i, pair[0], pair[1]).map(|_| ()))
    };
    check(encoder)?;
    spec.lstm().map_or(Ok(()), |(inputs, cells)| find_gates(weights, inputs, cells).map(|_| ()))?;
    check(policy)?;
    check(value)
}

/// What a layer is made of: matrices that stand one below the other, and biases.
struct Tensors<'a> {
    matrices: [&'a [f32]; 2],
    bias: &'a [f32],
}

impl Tensors<'_> {
    fn pack(self) -> Dense {
        Dense::pack(&self.matrices, self.bias)
    }

    fn repack(self, layer: &mut Dense) {
        layer.repack(&self.matrices, self.bias);
    }
}

fn find_layer<'a>(
    weights: &'a Weights,
    net: &str,
    i: usize,
    inputs: usize,
    outputs: usize,
) -> Result<Tensors<'a>, WeightsError> {
    let weight = find(weights, format!("{net}.{i}.weight"), &[inputs, outputs])?;
    let bias = find(weights, format!("{net}.{i}.bias"), &[outputs])?;
    Ok(Tensors { matrices: [&weight.values, &[]], bias: &bias.values })
}

fn find_gates(weights: &Weights, inputs: usize, cells: usize) -> Result<Tensors<'_>, WeightsError> {
    let input = find(weights, "lstm.weight_ih".into(), &[inputs, 4 * cells])?;
    let hidden = find(weights, "lstm.weight_hh".into(), &[cells, 4 * cells])?;
    let bias = find(weights, "lstm.bias".into(), &[4 * cells])?;
    Ok(Tensors { matrices: [&input.values, &hidden.values], bias: &bias.values })
}

fn find<'a>(weights: &'a Weights, name: String, shape: &[usize]) -> Result<&'a Tensor, WeightsError> {
    let fits = |tensor: &&Tensor| tensor.shape.iter().map(|&dim| dim as usize).eq(shape.iter().copied());
    weights.tensor(&name).filter(fits).ok_or_else(|| WeightsError::Missing { wanted: format!("{name} {shape:?}") })
}
