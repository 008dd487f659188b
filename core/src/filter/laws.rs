//! Tests the laws of filters for any input.

use proptest::{collection::vec, prelude::*};

use super::{Filter, FilterDelta, FrozenStat, MeanStdConfig, MeanStdFilter, RunningStat, synchronize};
use crate::{
    column::RowShape,
    ids::{FragmentNo, SlotId, WeightsVersion},
    prelude::*,
    weights::{Tensor, Weights},
};

const SHAPE: RowShape = RowShape::vector(2);

fn stat(rows: &[[f64; 2]]) -> RunningStat {
    let mut stat = RunningStat::new(SHAPE).unwrap();
    rows.iter().for_each(|row| stat.push(row).unwrap());
    stat
}

fn close(a: &RunningStat, b: &RunningStat) -> bool {
    let near = |(a, b): (f64, f64)| (a - b).abs() <= 1e-9 * a.abs().max(b.abs()).max(1.0);
    let means = a.mean().iter().copied().zip(b.mean().iter().copied());
    a.n() == b.n() && means.chain(a.var().zip(b.var())).all(near)
}

fn rows(max: usize) -> impl Strategy<Value = Vec<[f64; 2]>> {
    vec([-1e3..1e3, -1.0..1e6], 0..max)
}

fn parts() -> impl Strategy<Value = Vec<Vec<[f64; 2]>>> {
    vec(rows(12), 1..8)
}

proptest! {
    #[test]
    fn merging_does_not_depend_on_the_order(parts in parts(), seed in any::<u64>()) {
        let merge = |parts: &[Vec<[f64; 2]>]| {
            let mut all = stat(&[]);
            parts.iter().for_each(|rows| all.merge(&stat(rows)).unwrap());
            all
        };
        let in_order = merge(&parts);
        let mut shuffled = parts.clone();
        shuffled.sort_by_key(|rows| (rows.len() as u64 ^ seed).wrapping_mul(0x9E37_79B9_7F4A_7C15));
        shuffled.rotate_left(seed as usize % parts.len());
        prop_assert!(close(&in_order, &merge(&shuffled)));
        // All of them equal the statistics of all rows together.
        prop_assert!(close(&in_order, &stat(&parts.concat())));
        // Merging two statistics gives the same bits in either order.
        let (mut left, mut right) = (stat(&parts[0]), in_order.clone());
        right.merge(&left).unwrap();
        left.merge(&in_order).unwrap();
        prop_assert_eq!(left, right);
    }

    #[test]
    fn rows_by_batch_are_rows_one_by_one(rows in rows(20)) {
        let mut whole = MeanStdFilter::new(SHAPE, MeanStdConfig::default()).unwrap();
        let mut single = whole.clone();
        whole.filter_rows(&mut rows.concat(), true).unwrap();
        rows.iter().for_each(|row| single.filter_rows(&mut row.to_vec(), true).unwrap());
        prop_assert_eq!(whole, single);
    }

    #[test]
    fn bytes_and_tensors_keep_every_bit(running in rows(20), buffer in rows(5), clip in proptest::option::of(0.0..9.0)) {
        let config = MeanStdConfig { demean: running.len() % 2 == 0, destd: buffer.len() % 2 == 0, clip };
        let filter = MeanStdFilter::from_parts(config, stat(&running), stat(&buffer)).unwrap();
        let mut filter = Filter::MeanStdFilter(filter);
        prop_assert_eq!(Filter::decode(&filter.encode()), Ok(filter.clone()));
        filter.in_eval();
        prop_assert_eq!(Filter::decode(&filter.encode()), Ok(filter.clone()));
        let layer = Tensor { name: "filter2.bias".into(), shape: vec![1], values: vec![0.5] };
        let plain = Weights::new(WeightsVersion(3), vec![layer]).unwrap();
        let weights = plain.with_filter("filter", &filter);
        prop_assert!(Weights::new(WeightsVersion(3), weights.tensors().to_vec()).is_ok());
        prop_assert_eq!(weights.split_filter("filter"), Ok((plain, filter)));
        let stat = stat(&running);
        prop_assert_eq!(RunningStat::decode(&stat.encode()), Ok(stat.clone()));
        let weights = Weights::new(WeightsVersion(0), stat.to_tensors("filter")).unwrap();
        prop_assert_eq!(RunningStat::from_tensors(&weights, "filter", SHAPE), Ok(stat));
    }

    #[test]
    fn no_bytes_panic(mut bytes in vec(any::<u8>(), 0..80), rows in rows(3), flip in any::<(usize, u8)>()) {
        let _ = (Filter::decode(&bytes), RunningStat::decode(&bytes));
        // Damages a valid encoding, which gets further than random bytes.
        bytes = stat(&rows).encode();
        let at = flip.0 % bytes.len();
        bytes[at] ^= flip.1;
        if let Ok(mut read) = RunningStat::decode(&bytes) {
            let same = read.clone();
            if read.merge(&same).is_ok() {
                prop_assert!(read.std().all(f64::is_finite));
            }
        }
    }

    #[test]
    fn results_are_finite_and_within_the_clip(rows in rows(20), scale in -80..80_i32) {
        let mut filter = MeanStdFilter::new(SHAPE, MeanStdConfig::default()).unwrap();
        for row in rows {
            let mut row = row.map(|x| x * 10_f64.powi(scale));
            filter.filter_rows(&mut row, true).unwrap();
            prop_assert!(row.iter().all(|x| x.abs() <= 10.0), "{row:?}");
        }
    }

    /// Checks that neither the assignment of slots to workers nor the arrival order of their deltas changes the result.
    #[test]
    fn merged_deltas_do_not_depend_on_their_order(parts in parts()) {
        let base = FrozenStat::new(stat(&[[1.0, 5.0], [2.0, 9.0]]), MeanStdConfig::default()).unwrap();
        let mut deltas: Vec<FilterDelta> = parts.iter().enumerate().map(|(slot, rows)| {
            FilterDelta { slot: SlotId(slot as u32), fragment: FragmentNo(0), stat: stat(rows) }
        }).collect();
        let merged = base.merged(&deltas).unwrap();
        deltas.rotate_right(1);
        prop_assert_eq!(&base.merged(&deltas).unwrap(), &merged);
        // The slots' rows in order give the same statistics as the merged deltas.
        let mut all = base.running().clone();
        parts.iter().flatten().for_each(|row| all.push(row).unwrap());
        prop_assert!(close(&all, merged.running()));
    }

    #[test]
    fn after_synchronizing_all_know_all(parts in parts()) {
        let new = || Filter::MeanStdFilter(MeanStdFilter::new(SHAPE, MeanStdConfig::UNCLIPPED).unwrap());
        let mut driver = new();
        let mut workers: Vec<Filter> = parts.iter().map(|rows| {
            let mut worker = new();
            worker.filter_rows(&mut rows.concat(), true).unwrap();
            worker
        }).collect();
        synchronize(&mut driver, &mut workers.iter_mut().collect::<Vec<_>>()).unwrap();
        prop_assert!(close(driver.mean_std().unwrap().running(), &stat(&parts.concat())));
        prop_assert!(workers.iter().all(|worker| *worker == driver));
    }

    #[test]
    fn a_driver_that_learns_counts_every_row_once(rounds in vec((rows(5), parts()), 1..4)) {
        let mut driver = Filter::MeanStdFilter(MeanStdFilter::new(SHAPE, MeanStdConfig::UNCLIPPED).unwrap());
        let mut workers = vec![driver.clone(); 8];
        let mut seen = Vec::new();
        for (own, parts) in rounds {
            driver.filter_rows(&mut own.concat(), true).unwrap();
            driver.reset_buffer();
            for (worker, rows) in workers.iter_mut().zip(&parts) {
                worker.filter_rows(&mut rows.concat(), true).unwrap();
            }
            synchronize(&mut driver, &mut workers.iter_mut().collect::<Vec<_>>()).unwrap();
            seen.extend(own.into_iter().chain(parts.concat()));
            prop_assert!(close(driver.mean_std().unwrap().running(), &stat(&seen)));
            prop_assert!(workers.iter().all(|worker| *worker == driver));
        }
    }
}
