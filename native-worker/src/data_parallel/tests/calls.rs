//! Tests of the collective calls.

use proptest::prelude::*;
use rollmesh_core::policy::{AllReduce as _, AllReduceError};

use super::{super::TcpAllReduce, MANY, each, ranks, request, values};

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn means_are_weighted_and_the_same_everywhere() {
    for n in [0, 1, 7, MANY] {
        let weights = [3.0, 0.0, 5.0];
        let all = each(ranks(3), move |rank, mut group| {
            let mut own = values(rank, n);
            if rank == 1 {
                own.fill(f32::NAN);
            }
            group.all_reduce("values", &mut own, weights[rank as usize]).unwrap();
            own
        });
        let want: Vec<f32> = (0..n)
            .map(|i| {
                let sum = 3.0 * f64::from(values(0, n)[i]) + 5.0 * f64::from(values(2, n)[i]);
                (sum / 8.0) as f32
            })
            .take(50)
            .collect();
        assert_eq!(all[0][..want.len()], want);
        assert!(all.iter().all(|other| bits(other) == bits(&all[0])), "{n}");
    }
}

#[test]
fn values_of_no_weight_become_0() {
    let all = each(ranks(2), |_, mut group| {
        let mut own = [f32::INFINITY, 1.0];
        group.all_reduce("values", &mut own, 0.0).map(|()| own)
    });
    assert_eq!(all, [Ok([0.0; 2]), Ok([0.0; 2])]);
}

#[test]
fn bytes_of_all_ranks_come_in_their_order() {
    let all = each(ranks(3), |rank, mut group| {
        let own = vec![rank as u8; [0, 5, 600_000][rank as usize]];
        let first = group.all_gather("bytes", &own, 1_000_000).unwrap();
        (first, group.all_gather("none", &[], 0).unwrap())
    });
    let want: Vec<Vec<u8>> = vec![vec![], vec![1; 5], vec![2; 600_000]];
    assert!(all.iter().all(|(first, none)| *first == want && *none == [[0u8; 0]; 3]));
}

#[test]
fn one_rank_needs_no_other() {
    let mut alone = TcpAllReduce::join(&request("this token is not checked", 0, 1)).unwrap();
    let mut own = [1.5, -2.0];
    alone.all_reduce("values", &mut own, 2.0).unwrap();
    assert_eq!(own, [1.5, -2.0]);
    assert_eq!(alone.all_gather("bytes", &[1, 2], 2), Ok(vec![vec![1, 2]]));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]
    /// Checks that the sum equals that of one loop over the ranks in their order, regardless of the order of arrival.
    #[test]
    fn sums_are_made_in_the_order_of_ranks(
        scales in proptest::collection::vec((-1e6f32..1e6, 0.0f64..1e3), 2..5),
    ) {
        let world_size = scales.len() as u32;
        let mine = scales.clone();
        let all = each(ranks(world_size), move |rank, mut group| {
            let (scale, weight) = mine[rank as usize];
            let mut own: Vec<f32> = values(rank, 33).iter().map(|value| value * scale).collect();
            group.all_reduce("values", &mut own, weight).map(|()| own)
        });
        let total = scales.iter().fold(0.0, |total, (_, weight)| total + weight);
        let want: Vec<f32> = (0..33).map(|i| {
            let mut sum = 0.0f64;
            for (rank, (scale, weight)) in (0..).zip(&scales) {
                if *weight > 0.0 {
                    sum += weight * f64::from(values(rank, 33)[i] * scale);
                }
            }
            if total > 0.0 { (sum / total) as f32 } else { 0.0 }
        }).collect();
        for own in all {
            prop_assert_eq!(bits(&own.unwrap()), bits(&want));
        }
    }
}

#[test]
fn other_calls_are_named_to_all() {
    let errors = each(ranks(3), |rank, mut group| {
        let step = if rank == 2 { "other step" } else { "step" };
        group.all_reduce(step, &mut [1.0; 3], 1.0).unwrap_err()
    });
    for error in &errors {
        assert!(matches!(error, AllReduceError::OutOfStep { rank: 2, .. }), "{error}");
    }
    let wanted = "rank 2 is out of step: it is at 'other step' with 12 bytes, call 0, rank 0 at 'step' with 12 bytes, \
                  call 0; let all ranks call the same methods in the same order";
    assert_eq!(errors[1].to_string(), wanted);

    let errors =
        each(ranks(2), |rank, mut group| group.all_reduce("step", &mut vec![1.0; 3 + rank as usize], 1.0).unwrap_err());
    assert!(errors.iter().all(|error| matches!(error, AllReduceError::OutOfStep { rank: 1, .. })), "{errors:?}");

    let errors = each(ranks(2), |rank, mut group| match rank {
        0 => group.all_reduce("step", &mut [1.0], 1.0).unwrap_err(),
        _ => group.all_gather("step", &[0; 4], 4).unwrap_err(),
    });
    assert!(errors.iter().all(|error| matches!(error, AllReduceError::OutOfStep { rank: 1, .. })), "{errors:?}");
}

#[test]
fn messages_that_are_too_large_are_refused_before_they_are_sent() {
    let errors = each(ranks(2), |rank, mut group| {
        group.all_gather("bytes", &vec![0; if rank == 1 { 11 } else { 10 }], 10).unwrap_err()
    });
    assert_eq!(errors[1], AllReduceError::TooLarge { step: "bytes".into(), bytes: 11, limit: 10 });
    assert!(matches!(&errors[0], AllReduceError::GaveUp { rank: 1, .. }), "{errors:?}");
    let errors = each(ranks(2), |_, mut group| group.all_reduce("values", &mut vec![0.0; 5 << 20], 1.0).unwrap_err());
    // Both ranks detect it, and one may be notified before that.
    let is_said = |error: &AllReduceError| match error {
        AllReduceError::TooLarge { limit, .. } => *limit == 16 << 20,
        other => other.to_string().contains("'values' has 20971520 bytes, and a message takes 16777216"),
    };
    assert!(errors.iter().all(is_said), "{errors:?}");
}
