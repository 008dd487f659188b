//! Readers that wrap other readers: several combined, or one in another order. The file formats are in `rollmesh-data`.
//!
//! ```
//! use rollmesh_core::readers::{Choice, Draws};
//!
//! // Random choices are a function of seed and worker.
//! let files = |seed| {
//!     let mut draws = Draws::new(seed, 1, Choice::File);
//!     (0..8).map(|_| draws.below(100)).collect::<Vec<_>>()
//! };
//! assert!(files(7) == files(7) && files(7) != files(8));
//! ```

mod draws;
mod mixed;
mod shuffled;
#[cfg(test)]
mod tests;

pub use draws::{Choice, Draws};
pub use mixed::MixedInput;
pub(crate) use mixed::check_probabilities;
pub use shuffled::ShuffledInput;
