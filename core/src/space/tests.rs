//! Tests construction, and laws over any space.

use proptest::prelude::*;

use super::*;
use crate::{
    ids::SlotId,
    rng::{Purpose, Streams},
};

#[test]
fn spaces_that_make_no_sense_are_refused() {
    let pair = RowShape::vector(2);
    let error = BoxSpace::new(DType::F32, pair, vec![0.0], vec![1.0; 2]).unwrap_err();
    assert_eq!(error.to_string(), "a box of shape (2) has 1 lower and 2 upper bounds, not one for each component");
    let error = BoxSpace::new(DType::F32, pair, vec![0.0, 2.0], vec![1.0; 2]).unwrap_err();
    assert_eq!(error.to_string(), "component 1: no number lies between the bounds 2 and 1");
    for (low, high) in [(f64::NAN, 1.0), (0.0, f64::NAN), (f64::INFINITY, f64::INFINITY)] {
        assert!(matches!(BoxSpace::uniform(DType::F64, pair, low, high), Err(SpaceError::Unordered { .. })));
    }
    let inexact = [
        (DType::F32, 0.1),
        (DType::F32, 1e300),
        (DType::I32, 0.5),
        (DType::I64, 9_007_199_254_740_994.0),
        (DType::U8, 256.0),
        (DType::U8, f64::INFINITY),
        (DType::Bool, 2.0),
    ];
    for (dtype, high) in inexact {
        let error = BoxSpace::uniform(dtype, pair, 0.0, high).unwrap_err();
        assert_eq!(error, SpaceError::Inexact { component: 0, bound: high, dtype });
    }
    let empty = [
        Space::discrete(0),
        Space::multi_binary(0),
        Space::multi_discrete([]),
        Space::multi_discrete([2, 0]),
        Space::tuple([]),
        Space::dict::<String>([]),
        BoxSpace::uniform(DType::F32, RowShape::vector(0), 0.0, 1.0).map(Space::from),
        Space::tuple([Space::Discrete { n: 0 }]),
    ];
    for space in empty {
        assert!(matches!(space, Err(SpaceError::Empty(_))), "{space:?}");
    }
}

#[test]
fn spaces_have_limits() {
    let large = RowShape::vector(1 << 23);
    let half = Space::from(BoxSpace::uniform(DType::U8, large, 0.0, 1.0).unwrap());
    assert!(Space::tuple([half.clone(), half.clone()]).is_ok());
    assert_eq!(
        Space::tuple([half.clone(), half, Space::Discrete { n: 2 }]),
        Err(SpaceError::TooLarge { elements: (1 << 24) + 1 })
    );
    assert_eq!(Space::multi_binary(u32::MAX), Err(SpaceError::TooLarge { elements: u64::from(u32::MAX) }));
    let mut space = Space::Discrete { n: 2 };
    for _ in 0..Space::MAX_DEPTH {
        space = Space::tuple([space]).unwrap();
    }
    assert_eq!(Space::tuple([space]), Err(SpaceError::TooDeep));
}

#[test]
fn names_are_unique_and_usable() {
    let part = Space::Discrete { n: 2 };
    let error = Space::dict([("a", part.clone()), ("a", part.clone())]).unwrap_err();
    assert_eq!(error.to_string(), "two parts of the dict are called 'a'");
    for name in ["", "a.b"] {
        assert_eq!(Space::dict([(name, part.clone())]), Err(SpaceError::BadName(name.into())));
    }
}

/// Generates any space, including invalid ones.
fn any_space() -> impl Strategy<Value = Space> {
    let dtype =
        prop::sample::select([DType::F32, DType::F64, DType::I32, DType::I64, DType::U8, DType::Bool].as_slice());
    let bound = || prop_oneof![prop::sample::select([-9.0, 0.0, 1.0, 200.0].as_slice()), any::<f64>()];
    let uniform = (dtype.clone(), 0u32..4, bound(), bound())
        .prop_map(|(dtype, n, low, high)| Space::uniform(dtype, RowShape::vector(n), low, high));
    let each = (dtype, prop::collection::vec((bound(), bound()), 0..4)).prop_map(|(dtype, bounds)| {
        let (low, high): (Vec<_>, Vec<_>) = bounds.into_iter().unzip();
        Space::Box(BoxSpace::unchecked(dtype, RowShape::vector(low.len() as u32), low, high))
    });
    let leaf = prop_oneof![
        uniform,
        each,
        (0u32..5).prop_map(|n| Space::Discrete { n }),
        prop::collection::vec(0u32..4, 0..4).prop_map(|nvec| Space::MultiDiscrete { nvec }),
        (0u32..5).prop_map(|n| Space::MultiBinary { n }),
    ];
    leaf.prop_recursive(3, 12, 3, |part| {
        prop_oneof![
            prop::collection::vec(part.clone(), 0..3).prop_map(Space::Tuple),
            prop::collection::btree_map("[a-c]", part, 0..3).prop_map(Space::Dict),
        ]
    })
}

proptest! {
    #[test]
    fn samples_are_inside_and_survive_flattening(space in any_space(), seed: u64) {
        let mut rng = Streams::new(seed, Purpose::Reset).at(SlotId(0), 0, 0, 0);
        // No operation panics, whatever the space is.
        let point = space.sample(&mut rng);
        let mut flat = vec![0.0f64; space.flat_dim() as usize];
        let flattened = space.flatten(&point, &mut flat);
        if space.validate().is_ok() {
            prop_assert!(space.contains(&point), "{point:?}");
            prop_assert_eq!(flattened, Ok(()));
            prop_assert_eq!(space.unflatten(&flat), Ok(point.clone()));
            let mut again = Streams::new(seed, Purpose::Reset).at(SlotId(0), 0, 0, 0);
            prop_assert_eq!(space.sample(&mut again), point);
        }
        prop_assert!(!space.to_string().is_empty());
    }
}
