//! Encodes weights in the safetensors format, which common frameworks support, without file access.

use core::fmt::Display;

use safetensors::{Dtype, SafeTensors, tensor::TensorView};
use serde_json::{Map, Value};

use super::{Tensor, Weights, WeightsError};
use crate::{ids::WeightsVersion, prelude::*};

/// The reason why bytes are not valid weights.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WeightsFileError {
    /// They are not a safetensors file.
    #[error("no safetensors file: {0}")]
    Format(String),
    /// The file's list of tensors does not fit its bytes.
    #[error("no safetensors file: its header does not fit its {0} bytes")]
    Header(usize),
    /// A tensor has another type than 32-bit floats.
    #[error("tensor '{name}' is of type {found}, weights are of F32")]
    Type {
        /// The tensor.
        name: String,
        /// Its type.
        found: String,
    },
    /// A dimension is too large.
    #[error("tensor '{0}' has a dimension of more than 32 bits")]
    TooLarge(String),
    /// The tensors are not valid weights.
    #[error(transparent)]
    Weights(#[from] WeightsError),
}

impl Weights {
    /// Encodes the weights as a safetensors file: all tensors under their names; layers are input-major, `[inputs,
    /// outputs]`. Equal weights have equal bytes. The version is not included.
    ///
    /// # Errors
    /// [`WeightsFileError::Format`] for too many tensors for a header.
    pub fn to_safetensors(&self) -> Result<Vec<u8>, WeightsFileError> {
        let bytes_of =
            |tensor: &Tensor| -> Vec<u8> { tensor.values.iter().flat_map(|value| value.to_le_bytes()).collect() };
        let contents: Vec<Vec<u8>> = self.tensors().iter().map(bytes_of).collect();
        let views = self.tensors().iter().zip(&contents).map(|(tensor, bytes)| {
            let shape = tensor.shape.iter().map(|&dim| dim as usize).collect();
            TensorView::new(Dtype::F32, shape, bytes).map(|view| (tensor.name.as_str(), view))
        });
        let views = views.collect::<Result<Vec<_>, _>>().map_err(unreadable)?;
        safetensors::serialize(views, None).map_err(unreadable)
    }

    /// Decodes a file of [`to_safetensors`](Self::to_safetensors) or of any other framework.
    ///
    /// # Errors
    /// [`WeightsFileError`] for bytes that are not valid weights.
    pub fn from_safetensors(bytes: &[u8], version: WeightsVersion) -> Result<Self, WeightsFileError> {
        check_offsets(bytes)?;
        let file = SafeTensors::deserialize(bytes).map_err(unreadable)?;
        let tensors = file.iter().map(|(name, view)| {
            if view.dtype() != Dtype::F32 {
                return Err(WeightsFileError::Type { name: name.into(), found: view.dtype().to_string() });
            }
            let shape: Result<Vec<u32>, _> = view.shape().iter().map(|&dim| u32::try_from(dim)).collect();
            let values = view.data().as_chunks().0.iter().map(|value| f32::from_le_bytes(*value)).collect();
            Ok(Tensor { name: name.into(), shape: shape.map_err(|_| WeightsFileError::TooLarge(name.into()))?, values })
        });
        Ok(Self::new(version, tensors.collect::<Result<_, _>>()?)?)
    }
}

fn unreadable(error: impl Display) -> WeightsFileError {
    WeightsFileError::Format(error.to_string())
}

/// Checks that no tensor ends after the end of the file: safetensors 0.8 adds the last end to the header's length before it
/// compares them, and that sum may overflow.
fn check_offsets(bytes: &[u8]) -> Result<(), WeightsFileError> {
    let bad = || WeightsFileError::Header(bytes.len());
    let (len, rest) = bytes.split_first_chunk().ok_or_else(bad)?;
    let header = usize::try_from(u64::from_le_bytes(*len)).ok().and_then(|len| rest.get(..len)).ok_or_else(bad)?;
    let entries: Map<String, Value> = serde_json::from_slice(header).map_err(|_| bad())?;
    let mut ends = entries.values().filter_map(|entry| entry.get("data_offsets")?.get(1)?.as_u64());
    if ends.any(|end| end > bytes.len() as u64) { Err(bad()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn weights() -> Weights {
        let tensor = |name: &str, shape: &[u32], values: &[f32]| Tensor {
            name: name.into(),
            shape: shape.to_vec(),
            values: values.to_vec(),
        };
        let (bias, weight) =
            (tensor("a.bias", &[2], &[0.5, -0.0]), tensor("a.weight", &[2, 2], &[1.0, f32::MIN_POSITIVE, 3.5, -4.0]));
        Weights::new(WeightsVersion(3), vec![weight, bias]).unwrap()
    }

    #[test]
    fn weights_round_trip_bit_identically_and_have_one_encoding() {
        let bytes = weights().to_safetensors().unwrap();
        assert_eq!(Weights::from_safetensors(&bytes, WeightsVersion(3)).unwrap(), weights());
        assert_eq!(weights().to_safetensors().unwrap(), bytes);
    }

    /// Returns a file with this header and this number of zeros after it.
    fn file(header: &str, zeros: usize) -> Vec<u8> {
        [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &vec![0; zeros]].concat()
    }

    #[test]
    fn unsuitable_safetensors_are_refused_by_name() {
        let entry = |dtype: &str, shape: &str, end: u64| {
            format!(r#"{{"w":{{"dtype":"{dtype}","shape":[{shape}],"data_offsets":[0,{end}]}}}}"#)
        };
        let error = |bytes: Vec<u8>| Weights::from_safetensors(&bytes, WeightsVersion(0)).unwrap_err().to_string();
        assert_eq!(error(file(&entry("F64", "1", 8), 8)), "tensor 'w' is of type F64, weights are of F32");
        assert_eq!(error(file(&entry("F32", "0,4294967296", 0), 0)), "tensor 'w' has a dimension of more than 32 bits");
        let nan = [file(&entry("F32", "1", 4), 0), f32::NAN.to_le_bytes().to_vec()].concat();
        assert_eq!(error(nan), "tensor 'w' holds a value that is not finite");
        let beyond = file(&entry("U8", "18446744073709551615", u64::MAX), 0);
        assert!(error(beyond).starts_with("no safetensors file: its header does not fit its"));
        for bytes in [Vec::new(), vec![255; 8], file("{}", 1), file("[]", 0), file(&entry("F32", "2", 4), 4)] {
            assert!(error(bytes).starts_with("no safetensors file"));
        }
    }

    proptest::proptest! {
        #[test]
        fn no_damage_panics(place in 0usize..200, flip in 1u8..=255, cut in 0usize..300) {
            let mut bytes = weights().to_safetensors().unwrap();
            bytes.truncate(cut.max(1));
            let place = place % bytes.len();
            bytes[place] ^= flip;
            // The numbers may differ, since no checksum protects them; decoding must not panic.
            let _ = Weights::from_safetensors(&bytes, WeightsVersion(0));
        }
    }
}
