//! The networks, packed for the kernels.

use alloc::borrow::Cow;

use super::{LayerKind, LayerSpec, ModelSpec};
use crate::{
    kernels::{
        Networks,
        nets::{Conv, Dense, Layer, LayerNorm, Memory, MemoryKind},
    },
    prelude::*,
    weights::{Tensor, Weights, WeightsError},
};

/// Packs these weights for the kernels. The spec has been checked.
///
/// # Errors
/// [`WeightsError::Missing`].
pub(super) fn pack(spec: &ModelSpec, weights: &Weights) -> Result<Networks, WeightsError> {
    let pack = |layers: &[LayerSpec]| -> Result<Vec<Layer>, WeightsError> {
        let layers = layers.iter().map(|layer| {
            let Tensors { matrices, bias } = Tensors::find(layer, weights)?;
            match layer.kind {
                LayerKind::FreeLogStd => return Ok(Layer::Append(layer.inputs, bias.into_owned())),
                LayerKind::LayerNorm { activation } => {
                    return Ok(Layer::Norm(LayerNorm::new(&matrices.concat(), &bias), activation));
                }
                _ => {}
            }
            let dense = Dense::pack(&slices(&matrices), &bias);
            Ok(match layer.kind {
                LayerKind::Conv { shape, activation } => Layer::Conv(Conv::new(shape, dense), activation),
                LayerKind::Lstm { .. } => Layer::Memory(Memory::new(MemoryKind::Lstm, dense, layer.previous().len())),
                LayerKind::Gru { .. } => Layer::Memory(Memory::new(MemoryKind::Gru, dense, layer.previous().len())),
                _ => Layer::Dense(dense, layer.activation()),
            })
        });
        layers.collect()
    };
    Ok(Networks { trunk: pack(&spec.trunk)?, policy: pack(&spec.policy)?, value: pack(&spec.value)? })
}

/// Does the same as [`pack`] in the memory of networks of the same spec.
pub(super) fn repack(spec: &ModelSpec, nets: &mut Networks, weights: &Weights) -> Result<(), WeightsError> {
    let layers = nets.trunk.iter_mut().chain(&mut nets.policy).chain(&mut nets.value);
    spec.layers().zip(layers).try_for_each(|(spec, layer)| {
        let Tensors { matrices, bias } = Tensors::find(spec, weights)?;
        layer.repack(&slices(&matrices), &bias);
        Ok(())
    })
}

/// Checks that the weights have all tensors of a model, of the right shapes.
pub(super) fn check(spec: &ModelSpec, weights: &Weights) -> Result<(), WeightsError> {
    spec.layers().try_for_each(|layer| find(layer, weights).map(drop))
}

/// The tensors of a layer of the kernels: matrices that stand one below the other, and biases.
struct Tensors<'a> {
    matrices: Vec<Cow<'a, [f32]>>,
    bias: Cow<'a, [f32]>,
}

impl<'a> Tensors<'a> {
    fn find(layer: &LayerSpec, weights: &'a Weights) -> Result<Self, WeightsError> {
        let mut tensors = find(layer, weights)?;
        if let (LayerKind::Gru { cells, .. }, &[input, hidden, input_bias, hidden_bias]) = (layer.kind, &tensors[..]) {
            return Ok(Self::gru(cells, [input, hidden], [input_bias, hidden_bias]));
        }
        let bias = tensors.pop().unwrap_or_default();
        Ok(Self { matrices: tensors.into_iter().map(Cow::Borrowed).collect(), bias: Cow::Borrowed(bias) })
    }

    /// Converts three gates to four: inputs and hidden states have parts of their own in the candidates.
    fn gru(cells: usize, [input, hidden]: [&[f32]; 2], [input_bias, hidden_bias]: [&[f32]; 2]) -> Self {
        let zeros = vec![0.0; cells];
        let input = input.chunks_exact(3 * cells).flat_map(|row| row.iter().chain(&zeros));
        let hidden = hidden.chunks_exact(3 * cells).flat_map(|row| {
            let (both, own) = row.split_at(2 * cells);
            both.iter().chain(&zeros).chain(own)
        });
        let matrices = vec![Cow::Owned(input.copied().collect()), Cow::Owned(hidden.copied().collect())];
        let mut bias: Vec<f32> = input_bias[..2 * cells].iter().zip(hidden_bias).map(|(x, h)| x + h).collect();
        bias.extend(input_bias[2 * cells..].iter().chain(&hidden_bias[2 * cells..]));
        Self { matrices, bias: Cow::Owned(bias) }
    }
}

fn slices<'a>(matrices: &'a [Cow<'_, [f32]>]) -> Vec<&'a [f32]> {
    matrices.iter().map(|matrix| &**matrix).collect()
}

/// Returns the tensors of a layer, in the order of [`LayerSpec::tensors`].
fn find<'a>(layer: &LayerSpec, weights: &'a Weights) -> Result<Vec<&'a [f32]>, WeightsError> {
    let values = |(name, shape): (String, Vec<usize>)| {
        let fits = |tensor: &&Tensor| tensor.shape.iter().map(|&dim| dim as usize).eq(shape.iter().copied());
        let missing = || WeightsError::Missing { wanted: format!("{name} {shape:?}") };
        weights.tensor(&name).filter(fits).map(|tensor| tensor.values.as_slice()).ok_or_else(missing)
    };
    layer.tensors().into_iter().map(values).collect()
}
