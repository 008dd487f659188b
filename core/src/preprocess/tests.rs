//! Tests the transformed observations, and that they are in the output space.

use proptest::prelude::*;

use super::{image::*, *};
use crate::{
    ids::SlotId,
    rng::{Purpose, Streams},
};

fn transformed(space: &Space, observation: &Point) -> Vec<f32> {
    let preprocessor = Preprocessor::for_space(space).unwrap();
    let mut out = vec![f32::NAN; preprocessor.output_len()];
    preprocessor.transform(observation, &mut out).unwrap();
    assert!(preprocessor.output_space().contains(&out.clone().into()), "{out:?}");
    out
}

#[test]
fn discrete_observations_become_one_hot() {
    assert_eq!(transformed(&Space::Discrete { n: 4 }, &2.into()), [0.0, 0.0, 1.0, 0.0]);
    let space = Space::multi_discrete([2, 3]).unwrap();
    assert_eq!(transformed(&space, &vec![1i64, 0].into()), [0.0, 1.0, 1.0, 0.0, 0.0]);
    assert_eq!(transformed(&Space::multi_binary(2).unwrap(), &vec![1u8, 0].into()), [1.0, 0.0]);
    assert_eq!(Preprocessor::for_space(&space).unwrap().output_space(), Space::vector(&[0.0; 5], &[1.0; 5]));
}

#[test]
fn boxes_stay_as_they_are() {
    let space = Space::from(
        BoxSpace::new(DType::F32, RowShape::new(&[1, 2]).unwrap(), vec![-1.0, f64::NEG_INFINITY], vec![1.0, 7.0])
            .unwrap(),
    );
    assert_eq!(Preprocessor::for_space(&space).unwrap().output_space(), space);
    assert_eq!(transformed(&space, &vec![0.25f32, -9.0].into()), [0.25, -9.0]);
    let bytes = Space::uniform(DType::U8, RowShape::vector(2), 0.0, 255.0);
    assert_eq!(transformed(&bytes, &vec![7u8, 255].into()), [7.0, 255.0]);
    let ram = Space::uniform(DType::U8, RowShape::vector(128), 0.0, 255.0);
    assert_eq!(transformed(&ram, &vec![64u8; 128].into()), [-0.5; 128]);
}

#[test]
fn parts_are_joined_in_the_order_of_names() {
    let inner = Space::tuple([Space::vector(&[0.0], &[9.0]), Space::Discrete { n: 2 }]).unwrap();
    let space = Space::dict([("b", inner), ("a", Space::Discrete { n: 3 })]).unwrap();
    let observation =
        Point::dict([("b", Point::Tuple(vec![vec![4.0f32].into(), Point::from(0)])), ("a", Point::from(1))]);
    assert_eq!(transformed(&space, &observation), [0.0, 1.0, 0.0, 4.0, 1.0, 0.0]);
}

#[test]
fn screens_are_cropped_resized_and_scaled() {
    // Rows 25 to 184 brighten downwards; any cropped row would change the result.
    let screen: Vec<u8> = (0..210 * 160 * 3)
        .map(|i| {
            let (y, colour) = (i / 480, i % 3);
            if (25..185).contains(&y) { (y - 25 + 20 * colour) as u8 } else { 255 }
        })
        .collect();
    let space = Space::uniform(DType::U8, RowShape::new(&[210, 160, 3]).unwrap(), 0.0, 255.0);
    let cropped = &screen[25 * 480..185 * 480];
    let mut small = vec![0; 84 * 84 * 3];
    resize(cropped, Size::new(160, 160), &mut small, Size::new(84, 84), Interpolation::Area).unwrap();
    let mut want = vec![0.0; small.len()];
    to_zero_mean(&small, &mut want).unwrap();
    assert_eq!(transformed(&space, &screen.clone().into()), want);

    let options = AtariOptions { dim: 42, grayscale: true, zero_mean: false };
    let preprocessor = Preprocessor::atari(options).unwrap();
    assert_eq!(preprocessor.output_space().to_string(), "Box(0.0, 1.0, (42, 42, 1), float32)");
    let mut small = vec![0; 42 * 42 * 3];
    resize(cropped, Size::new(160, 160), &mut small, Size::new(42, 42), Interpolation::Area).unwrap();
    let (mut greys, mut want, mut got) = (vec![0; 42 * 42], vec![0.0; 42 * 42], vec![0.0; 42 * 42]);
    grey(&small, &mut greys).unwrap();
    to_unit(&greys, &mut want).unwrap();
    preprocessor.transform_row(&screen, &mut got).unwrap();
    assert_eq!(got, want);
    assert!(Preprocessor::atari(AtariOptions { dim: 0, ..options }).is_err());
    assert!(Preprocessor::atari(AtariOptions { dim: u16::MAX, ..options }).is_err());
}

#[test]
fn bad_observations_are_errors() {
    let preprocessor = Preprocessor::for_space(&Space::Discrete { n: 3 }).unwrap();
    let mut out = [0.0; 3];
    let error = preprocessor.transform_row(&[3i64], &mut out).unwrap_err();
    assert_eq!(error.to_string(), "bad observation: 1 values of int64 outside of Discrete(3)");
    let error = preprocessor.transform(&Point::Tuple(vec![]), &mut out).unwrap_err();
    assert_eq!(error.to_string(), "bad observation: a tuple of 0 outside of Discrete(3)");
    let error = preprocessor.transform_row(&[1i64], &mut [0.0; 2]).unwrap_err();
    assert_eq!(error.to_string(), "preprocessed observations of Discrete(3) have 3 elements, the buffer 2");
    assert!(matches!(preprocessor.transform_row(&[0.5f32], &mut out), Err(PreprocessError::Rows(_))));
    assert!(preprocessor.transform_row(&[1i64, 0], &mut out).is_err());
    let tuple = Preprocessor::for_space(&Space::tuple([Space::Discrete { n: 3 }]).unwrap()).unwrap();
    assert!(matches!(tuple.transform_row(&[0i64], &mut out), Err(PreprocessError::Rows(_))));
    tuple.transform_row(&[2.0f32], &mut out).unwrap();
    assert_eq!(out, [0.0, 0.0, 1.0]);
    assert!(matches!(tuple.transform_row(&[0.5f32], &mut out), Err(PreprocessError::BadObs { .. })));
    let error = Preprocessor::for_space(&Space::Discrete { n: u32::MAX }).unwrap_err();
    assert_eq!(error, SpaceError::TooLarge { elements: u64::from(u32::MAX) });
    assert!(Preprocessor::for_space(&Space::Discrete { n: 0 }).is_err());
}

fn spaces() -> impl Strategy<Value = Space> {
    let leaf = prop_oneof![
        (1u32..5).prop_map(|n| Space::Discrete { n }),
        prop::collection::vec(1u32..4, 1..3).prop_map(|nvec| Space::MultiDiscrete { nvec }),
        (1u32..4).prop_map(|n| Space::MultiBinary { n }),
        (1u32..4, -5.0f64..0.0, 0.0f64..5.0).prop_map(|(n, low, high)| Space::uniform(
            DType::F64,
            RowShape::vector(n),
            low,
            high
        )),
        Just(Space::uniform(DType::U8, RowShape::vector(128), 0.0, 255.0)),
        Just(Space::vector(&[f32::NEG_INFINITY, 0.0], &[f32::INFINITY; 2])),
    ];
    leaf.prop_recursive(2, 8, 3, |part| {
        prop_oneof![
            prop::collection::vec(part.clone(), 1..3).prop_map(Space::Tuple),
            prop::collection::btree_map("[a-c]", part, 1..3).prop_map(Space::Dict),
        ]
    })
}

proptest! {
    #[test]
    fn every_observation_ends_up_in_the_output_space(space in spaces(), seed: u64) {
        let mut rng = Streams::new(seed, Purpose::Reset).at(SlotId(0), 0, 0, 0);
        transformed(&space, &space.sample(&mut rng));
    }
}

#[test]
fn a_screen_keeps_its_bounds() {
    let space = Space::uniform(DType::U8, RowShape::new(&[210, 160, 3]).unwrap(), 3.0, 250.0);
    let preprocessor = Preprocessor::for_space(&space).unwrap();
    assert_eq!(preprocessor.space(), &space);
    let mut out = vec![0.0; preprocessor.output_len()];
    let mut screen = vec![3u8; 210 * 160 * 3];
    assert_eq!(preprocessor.transform_row(&screen, &mut out), Ok(()));
    screen[7] = 251;
    assert!(matches!(preprocessor.transform_row(&screen, &mut out), Err(PreprocessError::BadObs { .. })));
}
