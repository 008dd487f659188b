//! Preprocessors that convert points of any space to flat rows of floats.
//!
//! [`Preprocessor::for_space`] chooses as RLlib's catalog does: one-hot vectors for discrete spaces, smaller images for an
//! Atari console's screens, concatenated parts for tuples and dicts, and unchanged numbers for everything else. Transforming
//! a row allocates nothing, and first checks the observation against its space. [`image`] also offers the image operations
//! separately.
//!
//! ```
//! use rollmesh_core::{
//!     preprocess::Preprocessor,
//!     space::{Point, Space},
//! };
//!
//! let space = Space::dict([("speed", Space::vector(&[0.0], &[9.0])), ("gear", Space::discrete(3)?)])?;
//! let preprocessor = Preprocessor::for_space(&space)?;
//! assert_eq!(preprocessor.output_space().to_string(), "Box(0.0, [1.0 1.0 1.0 9.0], (4,), float32)");
//!
//! let observation = Point::dict([("speed", vec![4.5f32].into()), ("gear", Point::from(2))]);
//! let mut row = [0.0; 4];
//! preprocessor.transform(&observation, &mut row)?;
//! assert_eq!(row, [0.0, 0.0, 1.0, 4.5]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod atari;
pub mod image;

pub use atari::AtariOptions;

use self::image::ImageError;
use crate::{
    column::{DType, Element, RowShape, RowsRef, by_type},
    prelude::*,
    space::{BoxSpace, Point, PointError, Space, SpaceError},
};

/// Converts observations of one space to rows of 32-bit floats.
#[doc(alias("get_preprocessor", "OneHotPreprocessor", "DictFlatteningPreprocessor", "NoPreprocessor"))]
#[derive(Clone, Debug, PartialEq)]
pub struct Preprocessor {
    space: Space,
    output_shape: RowShape,
    stages: Stages,
}

/// The processing of a space, part by part.
#[derive(Clone, Debug, PartialEq)]
enum Stages {
    /// As by [`Space::flatten`]: one-hot or unchanged.
    Flat,
    Screen(AtariOptions),
    Ram,
    /// The parts of a tuple, or of a dict in the order of names.
    Parts(Vec<Preprocessor>),
}

/// The reason why an observation could not be preprocessed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PreprocessError {
    /// The observation is not in the space.
    #[error("bad observation: {found} outside of {space}")]
    BadObs {
        /// The observation space.
        space: String,
        /// The observation given.
        found: String,
    },
    /// The buffer's length differs from the output's.
    #[error("preprocessed observations of {space} have {wanted} elements, the buffer {found}")]
    WrongOutput {
        /// The observation space.
        space: String,
        /// Required number of elements.
        wanted: usize,
        /// Elements of the buffer.
        found: usize,
    },
    /// The rows have a type that the space does not have.
    #[error(transparent)]
    Rows(#[from] PointError),
    /// An image could not be processed.
    #[error(transparent)]
    Image(#[from] ImageError),
}

impl Preprocessor {
    /// Creates the preprocessor of a space.
    ///
    /// | space | preprocessed |
    /// |---|---|
    /// | `Discrete`, `MultiDiscrete` | concatenated one-hot vectors |
    /// | `Box` of bytes, 210 x 160 x 3 | an Atari screen, as by [`atari`](Self::atari) with the default options |
    /// | `Box` of bytes, 128 | an Atari console's memory: (x - 128) / 128 |
    /// | other `Box`, `MultiBinary` | the same numbers, in the same shape |
    /// | `Tuple`, `Dict` | the concatenated preprocessed parts, those of a dict sorted by name |
    ///
    /// # Errors
    /// [`SpaceError`] when the space fails [`Space::validate`] or its preprocessed points would have more than
    /// [`Space::MAX_ELEMENTS`] elements.
    pub fn for_space(space: &Space) -> Result<Self, SpaceError> {
        space.validate()?;
        Self::for_part(space)
    }

    /// Creates the preprocessor of an Atari console's screen; see [`AtariOptions`].
    ///
    /// # Errors
    /// [`SpaceError::Empty`] for an output without pixels.
    #[doc(alias = "GenericPixelPreprocessor")]
    pub fn atari(options: AtariOptions) -> Result<Self, SpaceError> {
        let output_shape = options.shape();
        if output_shape.elements() == 0 {
            return Err(SpaceError::Empty(format!("an image of shape {output_shape}")));
        }
        let space = atari::screen();
        Self { space, output_shape, stages: Stages::Screen(options) }.checked()
    }

    fn for_part(space: &Space) -> Result<Self, SpaceError> {
        let (stages, output_shape) = match space {
            Space::Box(of) if atari::is_screen(of) => {
                return Ok(Self { space: space.clone(), ..Self::atari(AtariOptions::default())? });
            }
            Space::Box(of) if atari::is_ram(of) => (Stages::Ram, of.shape()),
            Space::Box(of) => (Stages::Flat, of.shape()),
            Space::Discrete { .. } | Space::MultiDiscrete { .. } | Space::MultiBinary { .. } => {
                (Stages::Flat, vector(space.flat_dim())?)
            }
            Space::Tuple(parts) => Self::join(parts.iter())?,
            Space::Dict(parts) => Self::join(parts.values())?,
        };
        Self { space: space.clone(), output_shape, stages }.checked()
    }

    fn join<'a>(parts: impl Iterator<Item = &'a Space>) -> Result<(Stages, RowShape), SpaceError> {
        let parts = parts.map(Self::for_part).collect::<Result<Vec<_>, _>>()?;
        // A part has at most 2^24 elements.
        let elements = parts.iter().map(|part| part.output_len() as u64).sum();
        Ok((Stages::Parts(parts), vector(elements)?))
    }

    fn checked(self) -> Result<Self, SpaceError> {
        let elements = self.output_len() as u64;
        if elements > Space::MAX_ELEMENTS { Err(SpaceError::TooLarge { elements }) } else { Ok(self) }
    }

    /// Returns the space of observations.
    #[must_use]
    pub const fn space(&self) -> &Space {
        &self.space
    }

    /// Returns the number of elements of a preprocessed observation.
    #[must_use]
    pub fn output_len(&self) -> usize {
        self.output_shape.elements()
    }

    /// Returns true where numbers and shape stay the same: callers may skip the transform.
    #[must_use]
    pub fn is_identity(&self) -> bool {
        matches!((&self.stages, &self.space), (Stages::Flat, Space::Box(_) | Space::MultiBinary { .. }))
    }

    /// Returns true where the numbers are those of [`Space::flatten`], as networks encode observations themselves: false with
    /// images or a console's memory in it.
    #[must_use]
    pub fn is_flat(&self) -> bool {
        match &self.stages {
            Stages::Flat => true,
            Stages::Parts(parts) => parts.iter().all(Self::is_flat),
            Stages::Screen(_) | Stages::Ram => false,
        }
    }

    /// Returns the shape of a preprocessed observation.
    #[must_use]
    pub fn output_shape(&self) -> RowShape {
        self.output_shape
    }

    /// Returns the space of preprocessed observations: a box of 32-bit floats.
    #[doc(alias = "observation_space")]
    #[must_use]
    pub fn output_space(&self) -> Space {
        let (mut low, mut high) = (Vec::new(), Vec::new());
        self.extend_bounds(&mut low, &mut high);
        Space::Box(BoxSpace::unchecked(DType::F32, self.output_shape, low, high))
    }

    fn extend_bounds(&self, low: &mut Vec<f64>, high: &mut Vec<f64>) {
        let mut uniform = |bounds: (f64, f64)| {
            low.resize(low.len() + self.output_len(), bounds.0);
            high.resize(high.len() + self.output_len(), bounds.1);
        };
        match (&self.stages, &self.space) {
            (Stages::Parts(parts), _) => parts.iter().for_each(|part| part.extend_bounds(low, high)),
            (Stages::Screen(options), _) => uniform(options.bounds()),
            (Stages::Ram, _) => uniform(atari::RAM_BOUNDS),
            (Stages::Flat, Space::Box(space)) => {
                // Where 32 bits are not enough, uses the rounded bound, since the values are rounded too.
                low.extend(space.bounds().map(|(low, _)| f64::from(low as f32)));
                high.extend(space.bounds().map(|(_, high)| f64::from(high as f32)));
            }
            (Stages::Flat, _) => uniform((0.0, 1.0)),
        }
    }

    /// Preprocesses a row, of a tuple or dict the joined rows of its parts: `out` receives [`output_len`](Self::output_len) numbers.
    ///
    /// # Errors
    /// [`PreprocessError::BadObs`] for an observation that is not in the space, [`PreprocessError::WrongOutput`],
    /// [`PreprocessError::Rows`] for a row that cannot be an observation of the space.
    pub fn transform_row<T: Element>(&self, row: &[T], out: &mut [f32]) -> Result<(), PreprocessError> {
        self.check_output(out.len())?;
        // The last observation of an episode may be out of the bounds of its boxes.
        let is_joined = matches!(self.stages, Stages::Parts(_));
        if !(self.space.contains_row(row)? || is_joined && self.space.contains_beyond_bounds(row)) {
            return Err(self.bad_obs(format!("{} values of {}", row.len(), T::DTYPE)));
        }
        self.write_row(row, out)
    }

    /// Preprocesses rows of any element type, one after the other, into rows of `out`.
    ///
    /// # Errors
    /// As [`transform_row`](Self::transform_row).
    pub fn transform_rows(&self, rows: RowsRef<'_>, out: &mut [f32]) -> Result<(), PreprocessError> {
        let (from, to) = (self.space.shape().elements().max(1), self.output_len().max(1));
        by_type!(RowsRef, rows, rows => rows
            .chunks_exact(from)
            .zip(out.chunks_exact_mut(to))
            .try_for_each(|(row, out)| self.transform_row(row, out)))
    }

    /// Preprocesses an observation of any space: `out` receives [`output_len`](Self::output_len) numbers.
    ///
    /// # Errors
    /// [`PreprocessError::BadObs`] for an observation that is not in the space, [`PreprocessError::WrongOutput`].
    pub fn transform(&self, observation: &Point, out: &mut [f32]) -> Result<(), PreprocessError> {
        self.check_output(out.len())?;
        if !self.space.contains(observation) {
            return Err(self.bad_obs(observation.describe()));
        }
        self.write(observation, out)
    }

    fn check_output(&self, found: usize) -> Result<(), PreprocessError> {
        let wanted = self.output_len();
        if wanted == found {
            return Ok(());
        }
        Err(PreprocessError::WrongOutput { space: self.space.to_string(), wanted, found })
    }

    fn bad_obs(&self, found: String) -> PreprocessError {
        PreprocessError::BadObs { space: self.space.to_string(), found }
    }

    /// Writes the processed observation. The caller has checked it, here and below.
    fn write(&self, observation: &Point, out: &mut [f32]) -> Result<(), PreprocessError> {
        match (&self.stages, observation) {
            (Stages::Parts(stages), Point::Tuple(parts)) => write_parts(stages, parts.iter(), out),
            (Stages::Parts(stages), Point::Dict(parts)) => write_parts(stages, parts.values(), out),
            _ => by_type!(Point, observation, values => self.write_row(values, out), _ => Ok(())),
        }
    }

    fn write_row<T: Element>(&self, row: &[T], out: &mut [f32]) -> Result<(), PreprocessError> {
        match &self.stages {
            Stages::Screen(options) => options.write(row, out)?,
            Stages::Ram => out.iter_mut().zip(row).for_each(|(out, x)| *out = atari::zero_mean(*x)),
            Stages::Flat => self.space.flatten_row(row, out),
            Stages::Parts(stages) => {
                let (mut row, mut out) = (row, out);
                for stage in stages {
                    let own = row.split_off(..stage.space.shape().elements());
                    let Some((own, place)) = own.zip(out.split_off_mut(..stage.output_len())) else { break };
                    stage.write_row(own, place)?;
                }
            }
        }
        Ok(())
    }
}

fn write_parts<'a>(
    stages: &[Preprocessor],
    parts: impl Iterator<Item = &'a Point>,
    mut out: &mut [f32],
) -> Result<(), PreprocessError> {
    for (stage, part) in stages.iter().zip(parts) {
        let Some((own, rest)) = out.split_at_mut_checked(stage.output_len()) else { break };
        stage.write(part, own)?;
        out = rest;
    }
    Ok(())
}

fn vector(elements: u64) -> Result<RowShape, SpaceError> {
    match u32::try_from(elements) {
        Ok(n) if elements <= Space::MAX_ELEMENTS => Ok(RowShape::vector(n)),
        _ => Err(SpaceError::TooLarge { elements }),
    }
}

#[cfg(test)]
mod tests;
