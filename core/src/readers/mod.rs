//! Readers made of other readers: several as one, and one in another order. Formats of files are not here but in
//! `rollmesh-data`.
//!
//! ```
//! use rollmesh_core::readers::{Choice, Draws};
//!
//! // What is chosen by chance is a function of seed and worker.
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
