//! Chooses the distribution of a space.

use super::{Bernoulli, Categorical, DiagGaussian, Distribution, DistributionError, MultiCategorical, check_inputs};
use crate::{
    column::{DType, Element, RowBuffer, by_type},
    prelude::*,
    rng::Rng,
    space::{BoxSpace, Point, Space},
};

/// The distribution over the points of a space, chosen as in RLlib's catalog.
///
/// | space | distribution |
/// |---|---|
/// | `Discrete` | [`Categorical`] |
/// | `MultiDiscrete` | [`MultiCategorical`] |
/// | `MultiBinary` | [`Bernoulli`] |
/// | `Box` of floats | [`DiagGaussian`], whatever the bounds |
/// | `Box` of integers between bounds | [`MultiCategorical`], counting from the lower bounds |
/// | `Tuple`, `Dict` | one per part |
///
/// The methods are those of [`Distribution`], with points instead of rows. The inputs of the parts are concatenated, those
/// of a dict sorted by name, and the parts draw in this order.
#[doc(alias("get_action_dist", "TorchMultiActionDistribution", "ModelCatalog"))]
#[derive(Clone, Debug, PartialEq)]
pub enum ActionDistribution {
    /// Over a discrete space; actions are [`Point::I64`].
    Categorical(Categorical),
    /// Over vectors of integers.
    MultiCategorical {
        /// Over rows.
        distribution: MultiCategorical,
        /// Element type of actions.
        dtype: DType,
    },
    /// Over vectors of floats.
    DiagGaussian {
        /// Over rows of 32-bit floats.
        distribution: DiagGaussian,
        /// Element type of actions.
        dtype: DType,
    },
    /// Over a multi-binary space; actions are [`Point::U8`].
    Bernoulli(Bernoulli),
    /// Over the parts of a tuple.
    Tuple(Vec<Self>),
    /// Over the parts of a dict.
    Dict(BTreeMap<String, Self>),
}

impl ActionDistribution {
    /// Creates the distribution of a space.
    ///
    /// # Errors
    /// [`DistributionError::Unsupported`] for boxes of integers without bounds or boxes of booleans, and for spaces that
    /// fail [`Space::validate`]; [`DistributionError::BadSize`].
    pub fn for_space(space: &Space) -> Result<Self, DistributionError> {
        match space.validate() {
            Ok(()) => Self::for_part(space),
            Err(_) => Err(DistributionError::Unsupported(space.to_string())),
        }
    }

    fn for_part(space: &Space) -> Result<Self, DistributionError> {
        Ok(match space {
            Space::Discrete { n } => Self::Categorical(Categorical::new(*n)?),
            Space::MultiDiscrete { nvec } => {
                Self::MultiCategorical { distribution: MultiCategorical::new(nvec.as_slice())?, dtype: DType::I64 }
            }
            Space::MultiBinary { n } => Self::Bernoulli(Bernoulli::new(*n as usize)?),
            Space::Box(box_space) => match box_space.dtype() {
                dtype @ (DType::F32 | DType::F64) => {
                    Self::DiagGaussian { distribution: DiagGaussian::new(box_space.elements())?, dtype }
                }
                dtype @ (DType::I32 | DType::I64 | DType::U8) if box_space.is_bounded() => {
                    let low: Vec<i64> = box_space.bounds().map(|(low, _)| low as i64).collect();
                    let distribution = MultiCategorical::new(values(box_space))?.with_low(&low);
                    Self::MultiCategorical { distribution, dtype }
                }
                _ => return Err(DistributionError::Unsupported(space.to_string())),
            },
            Space::Tuple(parts) => Self::Tuple(parts.iter().map(Self::for_part).collect::<Result<_, _>>()?),
            Space::Dict(parts) => {
                let parts = parts.iter().map(|(name, part)| Ok((name.clone(), Self::for_part(part)?)));
                Self::Dict(parts.try_collect_ordered()?)
            }
        })
    }

    /// Returns how many numbers a model must produce for each action.
    #[doc(alias = "required_model_output_shape")]
    #[must_use]
    pub fn input_len(&self) -> usize {
        match self {
            Self::Categorical(distribution) => distribution.input_len(),
            Self::MultiCategorical { distribution, .. } => distribution.input_len(),
            Self::DiagGaussian { distribution, .. } => distribution.input_len(),
            Self::Bernoulli(distribution) => distribution.input_len(),
            Self::Tuple(parts) => parts.iter().map(Self::input_len).sum(),
            Self::Dict(parts) => parts.values().map(Self::input_len).sum(),
        }
    }

    /// Returns the number of components of an action, those of all parts.
    #[must_use]
    pub fn action_len(&self) -> usize {
        match self {
            Self::Categorical(distribution) => distribution.action_len(),
            Self::MultiCategorical { distribution, .. } => distribution.action_len(),
            Self::DiagGaussian { distribution, .. } => distribution.action_len(),
            Self::Bernoulli(distribution) => distribution.action_len(),
            Self::Tuple(parts) => parts.iter().map(Self::action_len).sum(),
            Self::Dict(parts) => parts.values().map(Self::action_len).sum(),
        }
    }

    /// Draws an action and returns its log-probability.
    ///
    /// # Errors
    /// [`DistributionError::WrongInputs`].
    pub fn sample(&self, inputs: &[f32], rng: &mut Rng) -> Result<(Point, f32), DistributionError> {
        check_inputs(self.input_len(), inputs)?;
        self.draw(&mut { inputs }, &mut Some(rng))
    }

    /// Returns the most probable action or the mean, and its log-probability.
    ///
    /// # Errors
    /// [`DistributionError::WrongInputs`].
    #[doc(alias = "deterministic_sample")]
    pub fn deterministic(&self, inputs: &[f32]) -> Result<(Point, f32), DistributionError> {
        check_inputs(self.input_len(), inputs)?;
        self.draw(&mut { inputs }, &mut None)
    }

    /// Returns the log-probability of an action.
    ///
    /// # Errors
    /// [`DistributionError::WrongInputs`], [`DistributionError::WrongAction`], [`DistributionError::NoSuchAction`],
    /// [`DistributionError::WrongLength`].
    pub fn logp(&self, inputs: &[f32], action: &Point) -> Result<f32, DistributionError> {
        check_inputs(self.input_len(), inputs)?;
        self.logp_of(&mut { inputs }, action)
    }

    /// Returns the entropy in nats; over parts, their sum.
    ///
    /// # Errors
    /// [`DistributionError::WrongInputs`].
    pub fn entropy(&self, inputs: &[f32]) -> Result<f32, DistributionError> {
        check_inputs(self.input_len(), inputs)?;
        self.measure(&mut { inputs }, &mut None)
    }

    /// Returns the divergence of the distribution with the `other` inputs from this one, see [`Distribution::kl`]; over
    /// parts, their sum.
    ///
    /// # Errors
    /// [`DistributionError::WrongInputs`].
    pub fn kl(&self, inputs: &[f32], other: &[f32]) -> Result<f32, DistributionError> {
        check_inputs(self.input_len(), inputs)?;
        check_inputs(self.input_len(), other)?;
        self.measure(&mut { inputs }, &mut Some(other))
    }

    /// Draws the action of the first inputs, as a row of elements of any type, and removes both from the front.
    pub(crate) fn draw_row<T: Element>(
        &self,
        rest: &mut &[f32],
        rng: &mut Option<&mut Rng>,
        action: &mut &mut [T],
    ) -> Result<f32, DistributionError> {
        fn leaf<D: Distribution, T: Element>(
            distribution: &D,
            rest: &mut &[f32],
            rng: &mut Option<&mut Rng>,
            action: &mut &mut [T],
        ) -> Result<f32, DistributionError> {
            let own = action.split_off_mut(..distribution.action_len()).unwrap_or_default();
            distribution.draw(take(rest, distribution.input_len()), rng.as_deref_mut(), own)
        }
        let mut joined = 0.0;
        match self {
            Self::Categorical(distribution) => return leaf(distribution, rest, rng, action),
            Self::MultiCategorical { distribution, .. } => return leaf(distribution, rest, rng, action),
            Self::DiagGaussian { distribution, .. } => return leaf(distribution, rest, rng, action),
            Self::Bernoulli(distribution) => return leaf(distribution, rest, rng, action),
            Self::Tuple(parts) => {
                for part in parts {
                    joined += part.draw_row(rest, rng, action)?;
                }
            }
            Self::Dict(parts) => {
                for part in parts.values() {
                    joined += part.draw_row(rest, rng, action)?;
                }
            }
        }
        Ok(joined)
    }

    fn draw(&self, rest: &mut &[f32], rng: &mut Option<&mut Rng>) -> Result<(Point, f32), DistributionError> {
        let mut joined = 0.0;
        let mut part = |part: &Self| {
            let (action, logp) = part.draw(rest, rng)?;
            joined += logp;
            Ok(action)
        };
        let dtype = match self {
            Self::Categorical(_) => DType::I64,
            Self::MultiCategorical { dtype, .. } | Self::DiagGaussian { dtype, .. } => *dtype,
            Self::Bernoulli(_) => DType::U8,
            Self::Tuple(parts) => {
                let actions = parts.iter().map(part).collect::<Result<_, DistributionError>>()?;
                return Ok((Point::Tuple(actions), joined));
            }
            Self::Dict(parts) => {
                let actions = parts.iter().map(|(name, of)| Ok((name.clone(), part(of)?)));
                let actions = actions.try_collect_ordered()?;
                return Ok((Point::Dict(actions), joined));
            }
        };
        let mut action = RowBuffer::zeros(dtype, self.action_len());
        let logp = by_type!(RowBuffer, &mut action, action => self.draw_row(rest, rng, &mut &mut action[..]))?;
        Ok((action.into(), logp))
    }

    fn logp_of(&self, rest: &mut &[f32], action: &Point) -> Result<f32, DistributionError> {
        match (self, action) {
            (Self::Categorical(distribution), action) => {
                distribution.logp(take(rest, distribution.input_len()), &elements(action, DType::I64)?)
            }
            (Self::MultiCategorical { distribution, dtype }, action) => {
                distribution.logp(take(rest, distribution.input_len()), &elements(action, *dtype)?)
            }
            (Self::DiagGaussian { distribution, dtype }, action) => {
                distribution.logp(take(rest, distribution.input_len()), &elements(action, *dtype)?)
            }
            (Self::Bernoulli(distribution), action) => {
                distribution.logp(take(rest, distribution.input_len()), &elements(action, DType::U8)?)
            }
            (Self::Tuple(parts), Point::Tuple(actions)) if parts.len() == actions.len() => {
                parts.iter().zip(actions).map(|(part, action)| part.logp_of(rest, action)).sum()
            }
            (Self::Dict(parts), Point::Dict(actions)) if parts.keys().eq(actions.keys()) => {
                parts.values().zip(actions.values()).map(|(part, action)| part.logp_of(rest, action)).sum()
            }
            (Self::Tuple(_) | Self::Dict(_), action) => Err(DistributionError::WrongAction(action.describe())),
        }
    }

    /// Returns the divergence from the `other` inputs, or the entropy without them.
    fn measure(&self, rest: &mut &[f32], other: &mut Option<&[f32]>) -> Result<f32, DistributionError> {
        match self {
            Self::Categorical(distribution) => measure_row(distribution, rest, other),
            Self::MultiCategorical { distribution, .. } => measure_row(distribution, rest, other),
            Self::DiagGaussian { distribution, .. } => measure_row(distribution, rest, other),
            Self::Bernoulli(distribution) => measure_row(distribution, rest, other),
            Self::Tuple(parts) => parts.iter().map(|part| part.measure(rest, other)).sum(),
            Self::Dict(parts) => parts.values().map(|part| part.measure(rest, other)).sum(),
        }
    }
}

fn measure_row<D: Distribution>(
    distribution: &D,
    rest: &mut &[f32],
    other: &mut Option<&[f32]>,
) -> Result<f32, DistributionError> {
    let inputs = take(rest, distribution.input_len());
    match other {
        Some(other) => distribution.kl(inputs, take(other, distribution.input_len())),
        None => distribution.entropy(inputs),
    }
}

/// Takes the first `len` numbers, or all if there are fewer.
fn take<'a>(rest: &mut &'a [f32], len: usize) -> &'a [f32] {
    let (own, others) = rest.split_at(len.min(rest.len()));
    *rest = others;
    own
}

/// Returns how many values each component of a bounded box of integers has.
fn values(space: &BoxSpace) -> Vec<u32> {
    // The cast saturates; the caller rejects such a large number.
    space.bounds().map(|(low, high)| (high - low + 1.0) as u32).collect()
}

/// Returns the elements of an array of this type, converted to another type.
fn elements<T: Element>(action: &Point, dtype: DType) -> Result<Cow<'_, [T]>, DistributionError> {
    let found = action.array().filter(|elements| elements.dtype() == dtype);
    let found = found.ok_or_else(|| DistributionError::WrongAction(action.describe()))?;
    Ok(T::rows(found).map_or_else(|| Cow::Owned(found.cast()), Cow::Borrowed))
}
