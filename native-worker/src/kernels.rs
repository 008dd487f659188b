//! The kernel tables for the hot loops. All give the same bits, which `tests/kernels.rs` checks.

use std::fmt;

use rollmesh_core::kernels::{Kernels, wide};

pub use rollmesh_core::kernels::wide::AUTO;

/// Instantiations by the name that the command line gives them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KernelChoice {
    /// Instructions that every machine of this kind supports: SSE2 on x86-64.
    Portable,
    /// Vectors of eight numbers.
    Avx2,
    /// Vectors of sixteen numbers.
    Avx512,
    /// The widest vectors that this machine has.
    #[default]
    Auto,
}

/// The processor lacks the instructions of the chosen kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this processor cannot run the {0} kernels; use --kernels auto, which gives the same bits")]
pub struct NoKernels(pub KernelChoice);

impl KernelChoice {
    /// All choices: the widest come last, except for [`Auto`](Self::Auto).
    pub const ALL: [Self; 4] = [Self::Portable, Self::Avx2, Self::Avx512, Self::Auto];

    /// Returns the kernel table of this choice.
    ///
    /// # Errors
    /// [`NoKernels`].
    pub fn table(self) -> Result<Kernels, NoKernels> {
        match self {
            Self::Portable => Ok(Kernels::PORTABLE),
            Self::Auto => Ok(AUTO),
            Self::Avx2 => wide::avx2().ok_or(NoKernels(self)),
            Self::Avx512 => wide::avx512().ok_or(NoKernels(self)),
        }
    }
}

impl fmt::Display for KernelChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Portable => "portable",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
            Self::Auto => "auto",
        })
    }
}
