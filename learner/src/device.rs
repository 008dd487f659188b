//! The devices on which learners and policies compute: `--device cpu|cuda:N|metal`.

use std::{fmt, str::FromStr};

use candle_core::Device;

/// A device as the command line names it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceSpec {
    /// The processor: bit-identical results for any number of cores. Policies act there with the kernels.
    #[default]
    Cpu,
    /// An NVIDIA GPU by its number.
    Cuda(usize),
    /// An Apple GPU.
    Metal,
}

/// An error of opening a device.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The text names no device.
    #[error("'{0}' is no device; use cpu, cuda:N or metal")]
    Unknown(String),
    /// The program was built without support for it.
    #[error("{spec} needs a program built with `--features {feature}`; use --device cpu otherwise")]
    NotCompiledIn {
        /// The requested device.
        spec: DeviceSpec,
        /// The cargo feature that enables it.
        feature: &'static str,
    },
    /// The machine has none, or its driver does not work.
    #[error("cannot use {spec}: {source}; is the driver installed and the device there? --device cpu works anywhere")]
    Absent {
        /// The requested device.
        spec: DeviceSpec,
        /// The driver's error.
        source: Box<candle_core::Error>,
    },
}

impl DeviceSpec {
    /// Opens the device.
    ///
    /// # Errors
    /// [`DeviceError`] when it is absent or support for it is not compiled in.
    pub fn open(self) -> Result<Device, DeviceError> {
        let device = match self {
            Self::Cpu => return Ok(Device::Cpu),
            Self::Cuda(_) if !cfg!(feature = "cuda") => {
                return Err(DeviceError::NotCompiledIn { spec: self, feature: "cuda" });
            }
            Self::Metal if !cfg!(feature = "metal") => {
                return Err(DeviceError::NotCompiledIn { spec: self, feature: "metal" });
            }
            // A separate stream keeps its order when another thread continues the work of this one.
            Self::Cuda(ordinal) => Device::new_cuda_with_stream(ordinal),
            Self::Metal => Device::new_metal(0),
        };
        device.map_err(|source| DeviceError::Absent { spec: self, source: Box::new(source) })
    }
}

impl FromStr for DeviceSpec {
    type Err = DeviceError;

    fn from_str(text: &str) -> Result<Self, DeviceError> {
        let unknown = || DeviceError::Unknown(text.to_owned());
        match text.split_once(':') {
            None if text == "cpu" => Ok(Self::Cpu),
            None if text == "metal" => Ok(Self::Metal),
            None if text == "cuda" => Ok(Self::Cuda(0)),
            Some(("cuda", ordinal)) => ordinal.parse().map(Self::Cuda).map_err(|_| unknown()),
            _ => Err(unknown()),
        }
    }
}

impl fmt::Display for DeviceSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(ordinal) => write!(f, "cuda:{ordinal}"),
            Self::Metal => f.write_str("metal"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_survive_a_round_trip() {
        for text in ["cpu", "cuda:0", "cuda:3", "metal"] {
            assert_eq!(text.parse::<DeviceSpec>().unwrap().to_string(), text);
        }
        for text in ["gpu", "cuda:", "cuda:x", "cpu:0", ""] {
            assert!(matches!(text.parse::<DeviceSpec>(), Err(DeviceError::Unknown(_))), "{text}");
        }
    }

    #[test]
    #[cfg(not(feature = "cuda"))]
    fn a_missing_feature_is_named() {
        let error = DeviceSpec::Cuda(1).open().unwrap_err();
        assert_eq!(
            error.to_string(),
            "cuda:1 needs a program built with `--features cuda`; use --device cpu otherwise"
        );
    }
}
