//! Spaces in the serialised form of view requirements.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

use crate::{
    column::{DType, RowShape},
    prelude::*,
    space::{BoxSpace, Space},
};

/// An unbounded component has no bound: JSON knows no infinity.
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
        let finite = |bounds: &[f64]| bounds.iter().map(|&bound| bound.is_finite().then_some(bound)).collect();
        match space {
            Space::Box(space) => Self::Box {
                dtype: space.dtype.name().to_string(),
                shape: space.shape.dims().to_vec(),
                low: finite(&space.low),
                high: finite(&space.high),
            },
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

impl TryFrom<Form> for Space {
    type Error = &'static str;

    fn try_from(form: Form) -> Result<Self, Self::Error> {
        Ok(match form {
            Form::Box { dtype, shape, low, high } => {
                let dtype = DTYPES.into_iter().find(|known| known.name() == dtype).ok_or("unknown dtype of a box")?;
                let shape = RowShape::new(&shape).map_err(|_| "a box has too many dimensions or elements")?;
                if low.len() != shape.elements() || high.len() != shape.elements() {
                    return Err("a box needs a lower and an upper bound for each element of its shape");
                }
                let filled = |bounds: Vec<Option<f64>>, open: f64| {
                    bounds.into_iter().map(|bound| bound.unwrap_or(open)).collect()
                };
                let (low, high) = (filled(low, f64::NEG_INFINITY), filled(high, f64::INFINITY));
                Self::Box(BoxSpace { dtype, shape, low, high })
            }
            Form::Discrete { n } => Self::Discrete { n },
            Form::MultiDiscrete { nvec } => Self::MultiDiscrete { nvec },
            Form::MultiBinary { n } => Self::MultiBinary { n },
            Form::Tuple { spaces } => Self::Tuple(spaces.into_iter().map(Self::try_from).collect::<Result<_, _>>()?),
            Form::Dict { spaces } => {
                let named = |(name, form)| Self::try_from(form).map(|space| (name, space));
                Self::Dict(spaces.into_iter().map(named).collect::<Result<_, _>>()?)
            }
        })
    }
}

pub(super) fn serialize<S: Serializer>(space: &Option<Space>, serializer: S) -> Result<S::Ok, S::Error> {
    space.as_ref().map(Form::from).serialize(serializer)
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Space>, D::Error> {
    let form = Option::<Form>::deserialize(deserializer)?;
    form.map(Space::try_from).transpose().map_err(D::Error::custom)
}
