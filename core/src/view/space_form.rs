//! Spaces in the serialised form of view requirements.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

use crate::{
    column::{DType, RowShape},
    prelude::*,
    space::{BoxSpace, Space},
};

/// An unbounded component has no bound, since JSON knows no infinity. Where all components of a box have the same
/// bounds, they stand there once.
#[derive(Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Form {
    Box { dtype: String, shape: Vec<u32>, low: Vec<Option<f64>>, high: Vec<Option<f64>> },
    Discrete { n: u32 },
    MultiDiscrete { nvec: Vec<u32> },
    MultiBinary { n: u32 },
    Tuple { spaces: Vec<Self> },
    Dict { spaces: BTreeMap<String, Self> },
}

const DTYPES: [DType; 6] = [DType::F32, DType::F64, DType::I32, DType::I64, DType::U8, DType::Bool];

impl From<&Space> for Form {
    fn from(space: &Space) -> Self {
        match space {
            Space::Box(space) => {
                let bounds: Vec<_> = match space.uniform_bounds() {
                    Some(bounds) => vec![bounds],
                    None => space.bounds().collect(),
                };
                let finite = |bound: f64| bound.is_finite().then_some(bound);
                Self::Box {
                    dtype: space.dtype().name().to_string(),
                    shape: space.shape().dims().to_vec(),
                    low: bounds.iter().map(|bounds| finite(bounds.0)).collect(),
                    high: bounds.iter().map(|bounds| finite(bounds.1)).collect(),
                }
            }
            Space::Discrete { n } => Self::Discrete { n: *n },
            Space::MultiDiscrete { nvec } => Self::MultiDiscrete { nvec: nvec.clone() },
            Space::MultiBinary { n } => Self::MultiBinary { n: *n },
            Space::Tuple(parts) => Self::Tuple { spaces: parts.iter().map(Self::from).collect() },
            Space::Dict(parts) => {
                Self::Dict { spaces: parts.iter().map(|(name, part)| (name.clone(), part.into())).collect() }
            }
        }
    }
}

impl Form {
    fn into_space(self) -> Result<Space, String> {
        Ok(match self {
            Self::Box { dtype, shape, low, high } => {
                let known = DTYPES.into_iter().find(|known| known.name() == dtype);
                let dtype = known.ok_or_else(|| format!("'{dtype}' is no element type of a box"))?;
                let shape = RowShape::new(&shape).map_err(|error| error.to_string())?;
                let space = match (&low[..], &high[..]) {
                    (&[low], &[high]) => {
                        BoxSpace::uniform(dtype, shape, low.unwrap_or(f64::NEG_INFINITY), high.unwrap_or(f64::INFINITY))
                    }
                    _ => BoxSpace::new(dtype, shape, filled(low, f64::NEG_INFINITY), filled(high, f64::INFINITY)),
                };
                space.map_err(|error| error.to_string())?.into()
            }
            Self::Discrete { n } => Space::Discrete { n },
            Self::MultiDiscrete { nvec } => Space::MultiDiscrete { nvec },
            Self::MultiBinary { n } => Space::MultiBinary { n },
            Self::Tuple { spaces } => Space::Tuple(spaces.into_iter().map(Self::into_space).collect::<Result<_, _>>()?),
            Self::Dict { spaces } => {
                let named = |(name, form): (String, Self)| form.into_space().map(|space| (name, space));
                Space::Dict(spaces.into_iter().map(named).collect::<Result<_, _>>()?)
            }
        })
    }
}

fn filled(bounds: Vec<Option<f64>>, open: f64) -> Vec<f64> {
    bounds.into_iter().map(|bound| bound.unwrap_or(open)).collect()
}

pub(super) fn serialize<S: Serializer>(space: &Option<Space>, serializer: S) -> Result<S::Ok, S::Error> {
    space.as_ref().map(Form::from).serialize(serializer)
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Space>, D::Error> {
    let Some(form) = Option::<Form>::deserialize(deserializer)? else { return Ok(None) };
    let space = form.into_space().map_err(D::Error::custom)?;
    space.validate().map_err(D::Error::custom)?;
    Ok(Some(space))
}
