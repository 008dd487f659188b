//! Serialises spaces, for settings and view requirements.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

use super::{BoxSpace, Space, SpaceError};
use crate::{
    column::{DType, RowShape},
    prelude::*,
};

/// An unbounded component has no bound, since JSON cannot represent infinity. Where all components of a box have the same
/// bounds, they are written once.
#[derive(Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum SpaceForm {
    Box {
        dtype: DType,
        shape: Vec<u32>,
        #[serde(default = "unbounded", deserialize_with = "bounds")]
        low: Vec<Option<f64>>,
        #[serde(default = "unbounded", deserialize_with = "bounds")]
        high: Vec<Option<f64>>,
    },
    Discrete {
        n: u32,
    },
    MultiDiscrete {
        nvec: Vec<u32>,
    },
    MultiBinary {
        n: u32,
    },
    Tuple {
        spaces: Vec<Self>,
    },
    Dict {
        spaces: BTreeMap<String, Self>,
    },
}

/// A bound as settings write it; infinite ones of TOML arrive as texts.
#[derive(Deserialize)]
#[serde(untagged, expecting = "a bound is a number, \"inf\", \"-inf\" or null")]
enum Bound {
    Number(f64),
    Text(Infinity),
    None,
}

#[derive(Deserialize)]
enum Infinity {
    #[serde(rename = "inf", alias = "+inf")]
    Above,
    #[serde(rename = "-inf")]
    Below,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "a bound is a number, \"inf\", \"-inf\" or null; bounds are one or a list of them")]
enum BoundsForm {
    Each(Vec<Bound>),
    One(Bound),
}

fn unbounded() -> Vec<Option<f64>> {
    vec![None]
}

fn bounds<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Option<f64>>, D::Error> {
    let bounds = match BoundsForm::deserialize(deserializer)? {
        BoundsForm::Each(bounds) => bounds,
        BoundsForm::One(bound) => vec![bound],
    };
    let number = |bound| match bound {
        Bound::Number(number) => Some(number),
        Bound::Text(Infinity::Above) => Some(f64::INFINITY),
        Bound::Text(Infinity::Below) => Some(f64::NEG_INFINITY),
        Bound::None => None,
    };
    Ok(bounds.into_iter().map(number).collect())
}

impl From<&Space> for SpaceForm {
    fn from(space: &Space) -> Self {
        match space {
            Space::Box(space) => {
                let bounds: Vec<_> = match space.uniform_bounds() {
                    Some(bounds) => vec![bounds],
                    None => space.bounds().collect(),
                };
                let finite = |bound: f64| bound.is_finite().then_some(bound);
                Self::Box {
                    dtype: space.dtype(),
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
                Self::Dict { spaces: parts.iter().map(|(name, part)| (name.clone(), part.into())).collect_ordered() }
            }
        }
    }
}

impl SpaceForm {
    fn into_space(self) -> Result<Space, String> {
        Ok(match self {
            Self::Box { dtype, shape, low, high } => {
                let shape = RowShape::new(&shape).map_err(|error| error.to_string())?;
                let space = match (&low[..], &high[..]) {
                    (&[low], &[high]) => {
                        BoxSpace::uniform(dtype, shape, low.unwrap_or(f64::NEG_INFINITY), high.unwrap_or(f64::INFINITY))
                    }
                    _ => {
                        let len = shape.elements();
                        // Before a bound for each of them is stored.
                        if len as u64 > Space::MAX_ELEMENTS {
                            return Err(SpaceError::TooLarge { elements: len as u64 }.to_string());
                        }
                        BoxSpace::new(
                            dtype,
                            shape,
                            filled(low, len, f64::NEG_INFINITY),
                            filled(high, len, f64::INFINITY),
                        )
                    }
                };
                space.map_err(|error| error.to_string())?.into()
            }
            Self::Discrete { n } => Space::Discrete { n },
            Self::MultiDiscrete { nvec } => Space::MultiDiscrete { nvec },
            Self::MultiBinary { n } => Space::MultiBinary { n },
            Self::Tuple { spaces } => Space::Tuple(spaces.into_iter().map(Self::into_space).collect::<Result<_, _>>()?),
            Self::Dict { spaces } => {
                let named = |(name, form): (String, Self)| form.into_space().map(|space| (name, space));
                Space::Dict(spaces.into_iter().map(named).try_collect_ordered()?)
            }
        })
    }
}

/// Returns the bounds of all `len` components; a single bound counts for all of them.
fn filled(bounds: Vec<Option<f64>>, len: usize, open: f64) -> Vec<f64> {
    match bounds[..] {
        [bound] => vec![bound.unwrap_or(open); len],
        _ => bounds.into_iter().map(|bound| bound.unwrap_or(open)).collect(),
    }
}

/// Serialises the space in a JSON-like form: `{"type": "box", "dtype": "float32", "shape": [2], "low": [-1.0], "high":
/// [null]}`.
impl Serialize for Space {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        SpaceForm::from(self).serialize(serializer)
    }
}

/// Deserialises the same form, and [checks](Space::validate) the space. Bounds may also be absent, `"inf"` and
/// `"-inf"`, and one bound need not be in a list.
impl<'de> Deserialize<'de> for Space {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let space = SpaceForm::deserialize(deserializer)?.into_space().map_err(D::Error::custom)?;
        space.validate().map_err(D::Error::custom)?;
        Ok(space)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spaces_round_trip() {
        let parts = [
            ("a", Space::vector(&[-1.0, f32::NEG_INFINITY], &[f32::INFINITY, 1.0])),
            ("b", Space::Tuple(vec![Space::Discrete { n: 3 }, Space::MultiBinary { n: 2 }])),
            ("c", Space::uniform(DType::U8, RowShape::vector(4), 0.0, 255.0)),
        ];
        let space = Space::dict(parts).unwrap();
        let text = serde_json::to_string(&space).unwrap();
        assert_eq!(serde_json::from_str::<Space>(&text).unwrap(), space);
        assert!(text.contains(r#"{"type":"discrete","n":3}"#), "{text}");
    }

    #[test]
    fn infinite_bounds_are_omitted_or_written_as_text() {
        let space = |bounds: &str| {
            let text = format!(r#"{{"type":"box","dtype":"float32","shape":[2]{bounds}}}"#);
            serde_json::from_str::<Space>(&text).map_err(|error| error.to_string())
        };
        let open = Space::vector(&[f32::NEG_INFINITY; 2], &[f32::INFINITY; 2]);
        for bounds in ["", r#","low":"-inf","high":["inf"]"#, r#","low":null"#, r#","high":[null,"+inf"]"#] {
            assert_eq!(space(bounds), Ok(open.clone()), "{bounds}");
        }
        let mixed = Space::vector(&[-1.0, f32::NEG_INFINITY], &[3.0, 3.0]);
        assert_eq!(space(r#","low":[-1,"-inf"],"high":3"#), Ok(mixed));
        assert!(space(r#","low":"low""#).unwrap_err().contains(r#"a bound is a number, "inf", "-inf" or null"#));
    }

    #[test]
    fn box_with_too_many_elements_is_refused_before_its_bounds_are_stored() {
        for bounds in [r#","low":[0,0]"#, r#","high":[0,0]"#, ""] {
            let text = format!(r#"{{"type":"box","dtype":"float32","shape":[2147483648]{bounds}}}"#);
            let error = serde_json::from_str::<Space>(&text).unwrap_err().to_string();
            assert!(error.contains("points have 2147483648 elements, at most 16777216 are possible"), "{error}");
        }
    }

    #[test]
    fn nonsense_is_refused() {
        for text in [r#"{"type":"discrete","n":0}"#, r#"{"type":"multi_discrete","nvec":[]}"#, r#"{"type":"ball"}"#] {
            assert!(serde_json::from_str::<Space>(text).is_err(), "{text}");
        }
    }
}
