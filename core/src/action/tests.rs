//! Tests RLlib's values, and which actions stay unchanged.

use proptest::prelude::*;

use super::*;
use crate::column::{DType, RowShape};

type RowMap = fn(&Space, &mut [f32]) -> Result<(), PointError>;
/// Low and high, an action, and the expected result.
type Case<'a> = (RowMap, &'a [f32], &'a [f32], &'a [f32], &'a [f32]);

fn close(got: &[f32], want: &[f32]) {
    let near = got.iter().zip(want).all(|(g, w)| (g - w).abs() <= 1e-5 * w.abs().max(1.0));
    assert!(got.len() == want.len() && near, "{got:?} {want:?}");
}

#[test]
fn boxes_of_floats_give_rllibs_values() {
    let cases: [Case<'_>; 7] = [
        (clip_rows, &[-2.0; 3], &[1.0; 3], &[-5.0, 0.0, 5.0], &[-2.0, 0.0, 1.0]),
        (clip_rows, &[-3.6, -2.64], &[-3.01, 0.45], &[-0.757, 3.091], &[-3.01, 0.45]),
        (unsquash_rows, &[-2.0; 3], &[1.0; 3], &[-1.0, 0.0, 3.0], &[-2.0, -0.5, 1.0]),
        (
            unsquash_rows,
            &[-2.68, -1.7, -2.57, -1.71],
            &[2.75, 0.98, 1.8, 0.36],
            &[0.645, -1.259, 0.519, -0.285],
            &[1.786_175, -1.7, 0.749_015_1, -0.969_974_94],
        ),
        (unsquash_rows, &[-0.43, -4.53], &[5.3, -0.78], &[-1.035, -1.105], &[-0.43, -4.53]),
        (normalize_rows, &[-2.0; 3], &[1.0; 3], &[-2.0, -0.5, 1.0], &[-1.0, 0.0, 1.0]),
        (
            normalize_rows,
            &[-0.49, -3.59, -4.53, -0.14],
            &[2.13, -1.51, -3.51, 0.39],
            &[1.943, -2.446, -4.022, 0.136],
            &[0.857_251_9, 0.099_999_905, -0.003_921_032, 0.041_509_63],
        ),
    ];
    for (map, low, high, action, want) in cases {
        let space = Space::vector(low, high);
        // Two rows in one call.
        let mut rows = action.repeat(2);
        map(&space, &mut rows).unwrap();
        close(&rows, &want.repeat(2));
    }
}

#[test]
fn boxes_of_integers_are_counted_from_their_lower_bound() {
    let space = BoxSpace::new(DType::I32, RowShape::vector(2), vec![2.0, -3.0], vec![6.0, 0.0]).unwrap().into();
    let mut rows = [3i32, 2, 2, 2];
    unsquash_rows(&space, &mut rows).unwrap();
    assert_eq!(rows, [5, -1, 4, -1]);
    normalize_rows(&space, &mut rows).unwrap();
    assert_eq!(rows, [5, -1, 4, -1]);
    let mut rows = [i32::MIN, i32::MAX];
    clip_rows(&space, &mut rows).unwrap();
    assert_eq!(rows, [2, 0]);
    let limit = (1i64 << 53) as f64;
    let mut row = [(1i64 << 53) + 1];
    clip_rows(&Space::uniform(DType::I64, RowShape::SCALAR, -limit, limit), &mut row).unwrap();
    assert_eq!(row, [1 << 53]);
}

#[test]
fn actions_of_the_environment_are_turned_back_into_those_of_the_policy() {
    let space = Space::Tuple(vec![
        BoxSpace::uniform(DType::I32, RowShape::SCALAR, -3.0, 3.0).unwrap().into(),
        Space::vector(&[-2.0], &[6.0]),
        Space::Discrete { n: 3 },
    ]);
    let mut rows = [2.0f32, 0.5, 1.0, 6.0, -1.0, 2.0];
    for transform in [ActionTransform::None, ActionTransform::Clip, ActionTransform::Unsquash] {
        let mut taken = rows;
        transform.apply_rows(&space, &mut taken).unwrap();
        let given = taken;
        transform.undo_rows(&space, &mut taken).unwrap();
        assert_eq!(taken, if transform == ActionTransform::Clip { given } else { rows }, "{transform:?}");
    }
    rows[0] = 0.0;
    ActionTransform::Unsquash.undo_rows(&space, &mut rows).unwrap();
    assert_eq!(rows[0], 3.0);
}

#[test]
fn unbounded_elements_pass_unchanged() {
    let open = Space::vector(&[0.0, f32::NEG_INFINITY], &[1.0; 2]);
    for (map, want) in [(clip_rows as RowMap, [1.0, -5.0]), (unsquash_rows, [5.0, -5.0]), (normalize_rows, [5.0, -5.0])]
    {
        let mut row = [5.0, -5.0];
        map(&open, &mut row).unwrap();
        assert_eq!(row, want);
    }
    let mut row = [f32::NAN, 0.0];
    clip_rows(&open, &mut row).unwrap();
    assert!(row[0].is_nan());
    let mut row = [7i64];
    unsquash_rows(&Space::Discrete { n: 3 }, &mut row).unwrap();
    assert_eq!(row, [7]);
    let point = Space::uniform(DType::F32, RowShape::SCALAR, 2.0, 2.0);
    let mut row = [9.0f32];
    normalize_rows(&point, &mut row).unwrap();
    assert_eq!(row, [0.0]);
}

#[test]
fn parts_are_transformed_each_by_itself() {
    let space = Space::dict([
        ("a", Space::Discrete { n: 3 }),
        ("b", Space::tuple([Space::vector(&[0.0], &[4.0]), Space::vector(&[-1.0], &[f32::INFINITY])]).unwrap()),
    ])
    .unwrap();
    let action =
        |x: f32, y: f32| Point::dict([("a", 2.into()), ("b", Point::Tuple(vec![vec![x].into(), vec![y].into()]))]);
    let transformed = |transform: ActionTransform| {
        let mut point = action(0.5, -2.0);
        transform.apply(&space, &mut point).unwrap();
        point
    };
    assert_eq!(transformed(ActionTransform::for_space(&space, true, true)), action(3.0, -2.0));
    assert_eq!(transformed(ActionTransform::for_space(&space, false, true)), action(0.5, -1.0));
    assert_eq!(transformed(ActionTransform::for_space(&space, false, false)), action(0.5, -2.0));
    let mut wrong = Point::dict([("a", Point::from(2))]);
    let error = clip(&space, &mut wrong).unwrap_err();
    assert!(error.to_string().starts_with("a dict of 1 is no point of Dict('a': Discrete(3), 'b': "), "{error}");
}

#[test]
fn the_transform_is_resolved_once() {
    use ActionTransform::{Clip, None, Unsquash};
    let bounded = Space::vector(&[0.0], &[1.0]);
    let open = Space::vector(&[0.0], &[f32::INFINITY]);
    let resolve = |space, normalize, clip| ActionTransform::for_space(space, normalize, clip);
    assert_eq!(
        [(true, true), (true, false), (false, true)].map(|(n, c)| resolve(&bounded, n, c)),
        [Unsquash, Unsquash, Clip]
    );
    // As in RLlib, clipping is off where normalising is on, even if normalising has no effect.
    assert_eq!([(true, true), (false, true)].map(|(n, c)| resolve(&open, n, c)), [None, Clip]);
    assert_eq!(resolve(&Space::Discrete { n: 2 }, true, true), None);
}

#[test]
fn wrong_rows_are_errors() {
    let space = Space::vector(&[0.0; 2], &[1.0; 2]);
    let error = clip_rows(&space, &mut [0.0f32; 3]).unwrap_err();
    assert_eq!(error.to_string(), "Box(0.0, 1.0, (2,), float32) needs 2 elements, here are 3");
    assert!(matches!(clip_rows(&space, &mut [0.0f64; 2]), Err(PointError::WrongType { .. })));
    assert!(matches!(clip(&space, &mut vec![0.0f32; 4].into()), Err(PointError::WrongLength { .. })));
    assert!(matches!(clip(&space, &mut Point::Tuple(vec![])), Err(PointError::Outside { .. })));
}

#[test]
fn joined_rows_are_mapped_part_by_part() {
    let whole = BoxSpace::uniform(DType::I32, RowShape::SCALAR, -3.0, 3.0).unwrap();
    let inner = Space::dict([("n", Space::Discrete { n: 4 }), ("i", Space::Box(whole))]).unwrap();
    let space = Space::tuple([Space::vector(&[0.0], &[10.0]), inner]).unwrap();
    let mut rows = [11.0f32, 5.0, 9.0, -1.0, -4.0, 2.0];
    clip_rows(&space, &mut rows).unwrap();
    assert_eq!(rows, [10.0, 3.0, 9.0, 0.0, -3.0, 2.0], "clipping leaves discrete parts as they are");
    let mut rows = [0.0f32, 6.0, 2.0];
    unsquash_rows(&space, &mut rows).unwrap();
    assert_eq!(rows, [5.0, 3.0, 2.0]);
    assert!(matches!(clip_rows(&space, &mut [0.0f32; 4]), Err(PointError::WrongLength { .. })));
    assert!(matches!(clip_rows(&space, &mut [0i64; 3]), Err(PointError::WrongType { .. })));
}

proptest! {
    #[test]
    fn unsquashing_undoes_normalising(low in -1e3f64..1e3, span in 1e-3f64..1e3, share in 0.0f64..1.0, x: f64) {
        let space = BoxSpace::uniform(DType::F64, RowShape::SCALAR, low, low + span).unwrap().into();
        let action = low + span * share;
        let mut row = [action];
        normalize_rows(&space, &mut row).unwrap();
        prop_assert!(row[0].abs() <= 1.0 + 1e-9);
        unsquash_rows(&space, &mut row).unwrap();
        prop_assert!((row[0] - action).abs() <= 1e-9 * (low.abs() + span), "{row:?} {action}");
        for map in [clip_rows, unsquash_rows] {
            let mut row = [x];
            map(&space, &mut row).unwrap();
            prop_assert!(space.contains_row(&row).unwrap());
        }
    }
}

#[test]
fn an_interval_of_one_point_holds_every_number() {
    let space = Space::uniform(DType::F32, RowShape::SCALAR, 2.0, 2.0);
    let mut rows = [f32::INFINITY, f32::NEG_INFINITY, 0.5, f32::NAN];
    unsquash_rows(&space, &mut rows).unwrap();
    assert_eq!(rows[..3], [2.0; 3]);
    assert!(rows[3].is_nan());
}
