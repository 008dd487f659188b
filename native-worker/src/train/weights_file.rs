//! Weights as a safetensors file, which every framework reads.

use std::{collections::HashMap, io, path::Path};

use candle_core::{Device, Tensor, safetensors};
use rollmesh_core::weights::Weights;

/// Writes all tensors under their names; layers are input-major, `[inputs, outputs]`.
pub(super) fn write(path: &Path, weights: &Weights) -> io::Result<()> {
    let tensors: Result<HashMap<String, Tensor>, candle_core::Error> = weights
        .tensors()
        .iter()
        .map(|tensor| {
            let shape: Vec<usize> = tensor.shape.iter().map(|&dim| dim as usize).collect();
            Ok((tensor.name.clone(), Tensor::from_slice(&tensor.values, shape, &Device::Cpu)?))
        })
        .collect();
    tensors.and_then(|tensors| safetensors::save(&tensors, path)).map_err(io::Error::other)
}
