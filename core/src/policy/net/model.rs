//! The networks, packed for the kernels.

use super::{LayerKind, LayerSpec, ModelSpec};
use crate::{
    kernels::{
        Networks,
        nets::{Conv, Dense, Layer, Lstm},
    },
    prelude::*,
    weights::{Weights, WeightsError},
};

/// The networks with these weights. The spec has been checked.
///
/// # Errors
/// [`WeightsError::Missing`].
pub(super) fn pack(spec: &ModelSpec, weights: &Weights) -> Result<Networks, WeightsError> {
    let pack = |layers: &[LayerSpec]| -> Result<Vec<Layer>, WeightsError> {
        let layers = layers.iter().map(|layer| {
            let (matrices, bias) = find(layer, weights)?;
            let dense = Dense::pack(&matrices, bias);
            Ok(match layer.kind {
                LayerKind::Dense { activation, .. } => Layer::Dense(dense, activation),
                LayerKind::Conv { shape, activation } => Layer::Conv(Conv::new(shape, dense), activation),
                LayerKind::Lstm { .. } => Layer::Lstm(Lstm::new(dense)),
            })
        });
        layers.collect()
    };
    Ok(Networks { trunk: pack(&spec.trunk)?, policy: pack(&spec.policy)?, value: pack(&spec.value)? })
}

/// [`pack`] into the memory of networks of the same spec.
pub(super) fn repack(spec: &ModelSpec, nets: &mut Networks, weights: &Weights) -> Result<(), WeightsError> {
    let layers = nets.trunk.iter_mut().chain(&mut nets.policy).chain(&mut nets.value);
    spec.layers().zip(layers).try_for_each(|(spec, layer)| {
        let (matrices, bias) = find(spec, weights)?;
        layer.weights_mut().repack(&matrices, bias);
        Ok(())
    })
}

/// Checks that there is everything that a model wants, of the right shape.
pub(super) fn check(spec: &ModelSpec, weights: &Weights) -> Result<(), WeightsError> {
    spec.layers().try_for_each(|layer| find(layer, weights).map(drop))
}

/// What a layer is made of: matrices that stand one below the other, and biases.
fn find<'a>(layer: &LayerSpec, weights: &'a Weights) -> Result<(Vec<&'a [f32]>, &'a [f32]), WeightsError> {
    let values = |(name, shape): (String, Vec<usize>)| {
        let tensor = weights
            .tensor(&name)
            .filter(|tensor| tensor.shape.iter().map(|&dim| dim as usize).eq(shape.iter().copied()));
        let missing = || WeightsError::Missing { wanted: format!("{name} {shape:?}") };
        tensor.map(|tensor| tensor.values.as_slice()).ok_or_else(missing)
    };
    let mut tensors = layer.tensors().into_iter().map(values).collect::<Result<Vec<_>, _>>()?;
    let bias = tensors.pop().unwrap_or_default();
    Ok((tensors, bias))
}
