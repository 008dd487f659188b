//! Tests the invariants of all batches, and that every operation preserves them.

use proptest::{collection::vec, prelude::*};

use super::{test_support::*, *};
use crate::{
    column::{BytesColumn, Column, ColumnData, Granularity, RowShape},
    ids::SlotId,
    prelude::*,
    rng::{Purpose, Streams},
};

/// The layout of a random batch.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Rows,
    Sequences,
    Padded(usize),
    TimeMajor,
    TimeMajorSequences,
}

fn any_kind() -> impl Strategy<Value = Kind> {
    let padded = (0usize..4).prop_map(Kind::Padded);
    prop_oneof![
        3 => Just(Kind::Rows),
        2 => Just(Kind::Sequences),
        2 => padded,
        1 => Just(Kind::TimeMajor),
        1 => Just(Kind::TimeMajorSequences)
    ]
}

/// Returns a number that depends on its place.
fn number(seed: u32, place: usize) -> i64 {
    i64::from((seed.wrapping_add(place as u32)).wrapping_mul(2_654_435_761) >> 7) % 1000
}

/// Returns a batch of this kind with sequences of these lengths, or as many rows, and columns of all types.
fn batch(kind: Kind, lens: &[i32], seed: u32) -> SampleBatch {
    let steps = lens.iter().sum::<i32>() as usize;
    let longest = lens.iter().copied().max().unwrap_or(0) as usize;
    if lens.is_empty() && matches!(kind, Kind::TimeMajor | Kind::TimeMajorSequences) {
        return SampleBatch::new();
    }
    let (rows, lanes) = match kind {
        Kind::Rows | Kind::Sequences | Kind::Padded(_) => (steps, None),
        Kind::TimeMajor => (steps, Some(2)),
        Kind::TimeMajorSequences => (longest, Some(lens.len())),
    };
    let width = lanes.unwrap_or(1);
    let shape = |inner: &[u32]| {
        let dims: Vec<u32> = lanes.map(|lanes| lanes as u32).into_iter().chain(inner.iter().copied()).collect();
        RowShape::new(&dims).unwrap()
    };
    let numbers = |n: usize, salt: u32| (0..n).map(move |place| number(seed ^ salt, place));
    let mut columns: Vec<(_, Column)> = vec![
        ("a".into(), ColumnData::new(numbers(rows * width, 1).collect::<Vec<i64>>(), shape(&[])).unwrap().into()),
        (
            "obs.pos".into(),
            ColumnData::new(numbers(3 * rows * width, 2).map(|i| i as f32).collect::<Vec<f32>>(), shape(&[3]))
                .unwrap()
                .into(),
        ),
        (
            "terminateds".into(),
            ColumnData::new(numbers(rows * width, 3).map(|i| i % 4 == 0).collect::<Vec<bool>>(), shape(&[]))
                .unwrap()
                .into(),
        ),
        (
            "u8".into(),
            ColumnData::new(numbers(rows * width, 4).map(|i| i as u8).collect::<Vec<u8>>(), shape(&[])).unwrap().into(),
        ),
    ];
    if lanes.is_none() {
        let infos = BytesColumn::json(numbers(rows, 5).map(|i| format!("{{\"i\":{i}}}"))).unwrap();
        columns.push(("infos".into(), infos.into()));
        columns
            .push(("eps_id".into(), ColumnData::scalars(numbers(rows, 6).map(|i| i % 3).collect::<Vec<i64>>()).into()));
        columns.push(("t".into(), ColumnData::scalars((0..rows as i64).collect::<Vec<_>>()).into()));
        columns.push(("agent_index".into(), ColumnData::scalars(vec![0i64; rows]).into()));
    }
    let has_sequences = !matches!(kind, Kind::Rows | Kind::TimeMajor) && !lens.is_empty();
    if has_sequences {
        let states: Vec<f64> = numbers(lens.len(), 7).map(|i| i as f64).collect();
        columns.push((state_in(0), ColumnData::scalars(states).into()));
    }
    let parts = BatchParts {
        columns,
        seq_lens: has_sequences.then(|| ColumnData::scalars(lens.to_vec())),
        time_major: lanes.is_some(),
        num_grad_updates: (!seed.is_multiple_of(3)).then(|| f64::from(seed % 5)),
        is_training: seed.is_multiple_of(2),
        ..BatchParts::default()
    };
    let batch = SampleBatch::from_parts(parts).unwrap();
    match kind {
        Kind::Padded(more) if has_sequences => batch.right_zero_pad(longest + more).unwrap(),
        _ => batch,
    }
}

fn any_batch() -> impl Strategy<Value = SampleBatch> {
    (any_kind(), vec(1i32..6, 0..5), any::<u32>()).prop_map(|(kind, lens, seed)| batch(kind, &lens, seed))
}

/// Checks every batch's invariants: its parts fit together, and rebuilding the batch from them changes nothing.
fn check(batch: &SampleBatch) {
    let again = SampleBatch::from_parts(batch.clone().into_parts()).expect("its own parts fit");
    assert!(again.same_bits(batch), "{batch:#}\n{again:#}");
    let decoded = codec::decode(&codec::encode(batch)).expect("its own bytes decode");
    assert!(decoded.same_bits(batch), "{batch:#}\n{decoded:#}");
    assert!(batch.copy().same_bits(batch));
    if let Some(lens) = batch.seq_lens() {
        assert!(!lens.is_empty() && lens.iter().all(|len| *len > 0));
        assert_eq!(batch.len(), lens.iter().sum::<i32>() as usize);
        assert!(batch.max_seq_len().is_some_and(|max| lens.iter().all(|len| *len as usize <= max)));
    }
    let _ = format!("{batch} {batch:#} {batch:?}");
}

/// An operation on a batch, with arguments that may be invalid.
#[derive(Clone, Debug)]
enum Op {
    IndexSlice(usize, usize),
    SliceSequences(usize, usize),
    Slice(i64, usize),
    SliceWithStates(i64, usize, usize, usize),
    Timeslices(SliceBy),
    Pad(usize),
    Split(Option<EpisodeKey>),
    Shuffle(u64),
    Gather(Vec<u32>),
    Rows,
    Compress(Granularity, bool),
    Decompress,
    ConcatSelf,
    Concat(Kind, Vec<i32>, u32),
    Insert(usize),
    Remove(usize),
    Write,
    Flags,
    Multi(usize),
}

fn any_op() -> impl Strategy<Value = Op> {
    let n = || prop_oneof![8 => 0usize..12, 1 => Just(usize::MAX), 1 => Just(1 << 40)];
    let start = || prop_oneof![8 => -4i64..10, 1 => Just(i64::MIN), 1 => Just(i64::MAX)];
    let granularity = || prop_oneof![Just(Granularity::Bulk), Just(Granularity::Rows)];
    let by = prop_oneof![n().prop_map(SliceBy::Size), n().prop_map(SliceBy::NumSlices)];
    let key = prop_oneof![Just(None), Just(Some(EpisodeKey::EpsId)), Just(Some(EpisodeKey::Dones))];
    prop_oneof![
        (n(), n()).prop_map(|(a, b)| Op::IndexSlice(a, b)),
        (n(), n()).prop_map(|(a, b)| Op::SliceSequences(a, b)),
        (start(), n()).prop_map(|(a, b)| Op::Slice(a, b)),
        (start(), n(), n(), n()).prop_map(|(a, b, c, d)| Op::SliceWithStates(a, b, c, d)),
        by.prop_map(Op::Timeslices),
        n().prop_map(Op::Pad),
        key.prop_map(Op::Split),
        any::<u64>().prop_map(Op::Shuffle),
        vec(0u32..10, 0..10).prop_map(Op::Gather),
        Just(Op::Rows),
        (granularity(), any::<bool>()).prop_map(|(g, all)| Op::Compress(g, all)),
        Just(Op::Decompress),
        Just(Op::ConcatSelf),
        (any_kind(), vec(1i32..6, 0..5), any::<u32>()).prop_map(|(kind, lens, seed)| Op::Concat(kind, lens, seed)),
        n().prop_map(Op::Insert),
        (0usize..8).prop_map(Op::Remove),
        Just(Op::Write),
        Just(Op::Flags),
        n().prop_map(Op::Multi),
    ]
}

/// Applies an operation, and returns the result, or the unchanged batch if the operation fails.
fn apply(batch: &SampleBatch, op: &Op) -> SampleBatch {
    let mut changed = batch.clone();
    let result = match op {
        Op::IndexSlice(a, b) => Ok(batch.index_slice(*a..*b)),
        Op::SliceSequences(a, b) => Ok(batch.slice_sequences(*a..*b)),
        Op::Slice(a, b) => batch.slice(*a, *b),
        Op::SliceWithStates(a, b, c, d) => batch.slice_with_states(*a, *b, *c..*d),
        Op::Timeslices(by) => batch.timeslices(*by).map(|mut slices| slices.nth(1).unwrap_or_default()),
        Op::Pad(max_seq_len) => batch.right_zero_pad(*max_seq_len),
        Op::Split(key) => batch.split_by_episode(*key).map(|pieces| pieces.last().cloned().unwrap_or_default()),
        Op::Shuffle(seed) => {
            changed.shuffle(&mut Streams::new(*seed, Purpose::Shuffle).at(SlotId(0), 0, 0, 0)).map(|()| changed)
        }
        Op::Gather(rows) => batch.gather(rows),
        Op::Rows => batch.rows().map(|rows| {
            rows.for_each(|row| assert!(row.iter().count() <= batch.iter().len()));
            changed
        }),
        Op::Compress(granularity, all) => {
            let names: Vec<String> = batch.iter().map(|(name, _)| name.to_string()).collect();
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            let done =
                if *all { changed.compress_columns(*granularity, &names) } else { changed.compress(*granularity) };
            done.map(|()| changed)
        }
        Op::Decompress => changed.decompress_if_needed().map(|()| changed),
        Op::ConcatSelf => batch.concat_with(batch),
        Op::Concat(kind, lens, seed) => batch.concat_with(&super::laws::batch(*kind, lens, *seed)),
        Op::Insert(rows) => {
            let column: Column = ColumnData::scalars(vec![1.0f32; *rows % 40]).into();
            changed.insert("rewards", column).map(|()| changed)
        }
        Op::Remove(place) => {
            let name = batch.iter().nth(*place).map(|(name, _)| name.to_string());
            name.and_then(|name| changed.remove(&name));
            Ok(changed)
        }
        Op::Write => {
            if let Some(Column::I64(mut data)) = changed.column("a").cloned() {
                data.values_mut().fill(7);
                changed.insert("a", data).expect("as many rows as before");
            }
            Ok(changed)
        }
        Op::Flags => {
            let _ = (batch.dones(), batch.is_single_trajectory(), batch.is_terminated_or_truncated());
            let _ = (batch.columns(&["a", "t"]).is_ok(), batch.env_steps(), batch.agent_steps(), batch.size_bytes());
            Ok(changed)
        }
        Op::Multi(k) => batch.as_multi_agent().timeslices(*k).map(|slices| {
            assert_eq!(slices.iter().map(MultiAgentBatch::agent_steps).sum::<usize>(), batch.len());
            slices[0].single().expect("one policy").clone()
        }),
    };
    result.unwrap_or_else(|error| {
        assert!(!error.to_string().is_empty());
        batch.clone()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn any_operations_keep_a_batch_valid(start in any_batch(), ops in vec(any_op(), 1..12)) {
        let mut batch = start;
        check(&batch);
        for op in &ops {
            let before = codec::encode(&batch);
            let after = apply(&batch, op);
            // No operation writes to a buffer that another batch shares.
            prop_assert_eq!(codec::encode(&batch), before, "{:?}", op);
            if after.size_bytes() < 1 << 16 {
                batch = after;
            }
            check(&batch);
        }
    }

    #[test]
    fn concat_then_slice_gives_the_parts_back(
        (kind, parts) in (any_kind(), vec((vec(1i32..6, 1..4), any::<u32>()), 1..5))
    ) {
        if kind == Kind::TimeMajor {
            // Slices cut a time-major batch by time steps, but joining appends trajectories.
            return Ok(());
        }
        let fixed = matches!(kind, Kind::Padded(_) | Kind::TimeMajorSequences);
        let parts: Vec<SampleBatch> = parts
            .iter()
            .map(|(lens, seed)| {
                // Padded parts must have the same maximum length; the number of updates is a mean and cannot be recovered.
                let lens: Vec<i32> = if fixed { lens.iter().copied().chain([5]).collect() } else { lens.clone() };
                let mut part = batch(kind, &lens, seed | 1);
                part.set_num_grad_updates(None);
                part
            })
            .collect();
        let joined = SampleBatch::concat(&parts).unwrap();
        check(&joined);
        let mut start = 0;
        for part in &parts {
            let end = start + part.len();
            prop_assert_eq!(&joined.index_slice(start..end), part);
            if !joined.time_major() {
                prop_assert_eq!(&joined.slice(start as i64, end).unwrap(), part);
            }
            start = end;
        }
        prop_assert_eq!(start, joined.len());
    }

    #[test]
    fn split_then_concat_is_the_identity(
        start in any_batch(), size in 1usize..9, num_slices in 1usize..9, key in prop_oneof![
            Just(None), Just(Some(EpisodeKey::EpsId)), Just(Some(EpisodeKey::Dones))
        ]
    ) {
        for by in [SliceBy::Size(size), SliceBy::NumSlices(num_slices)] {
            let slices: Vec<SampleBatch> = start.timeslices(by).unwrap().collect();
            prop_assert_eq!(slices.iter().map(SampleBatch::len).sum::<usize>(), start.len());
            // Timeslices cut a time-major batch by time steps, but concat appends trajectories.
            if start.seq_lens().is_some() || !start.time_major() {
                same_but_for_emptiness(&SampleBatch::concat(&slices).unwrap(), &start);
            }
        }
        if let Ok(pieces) = start.split_by_episode(key) {
            prop_assert_eq!(pieces.iter().map(SampleBatch::len).sum::<usize>(), start.len());
            let joined = SampleBatch::concat(&pieces).unwrap();
            match start.seq_lens() {
                None => same_but_for_emptiness(&joined, &start),
                // Episode ends inside sequences add sequences.
                Some(lens) => prop_assert!(joined.seq_lens().unwrap().len() >= lens.len()),
            }
        }
    }

    #[test]
    fn compress_round_trips(start in any_batch(), bulk in any::<bool>(), from in 0usize..9, to in 0usize..9) {
        if start.time_major() {
            return Ok(());
        }
        let granularity = if bulk { Granularity::Bulk } else { Granularity::Rows };
        let names: Vec<String> = start.iter().map(|(name, _)| name.to_string()).collect();
        let mut compressed = start.clone();
        compressed.compress_columns(granularity, &names.iter().map(String::as_str).collect::<Vec<_>>()).unwrap();
        prop_assert_eq!(compressed.len(), start.len());
        for (name, column) in compressed.iter() {
            let plain = start.column(name).unwrap();
            prop_assert!(column.is_compressed());
            prop_assert_eq!((column.column_type(), column.shape()), (plain.column_type(), plain.shape()));
        }
        let mut part = compressed.index_slice(from..to);
        part.decompress_if_needed().unwrap();
        prop_assert_eq!(part, start.index_slice(from..to));
        compressed.decompress_if_needed().unwrap();
        prop_assert_eq!(compressed, start);
    }

    #[test]
    fn shuffle_is_a_permutation(n in 0usize..60, seed in any::<u64>()) {
        let mut batch = batch(Kind::Rows, &[n as i32], seed as u32);
        batch.insert("place", ColumnData::scalars((0..n as i64).collect::<Vec<_>>())).unwrap();
        let before = batch.clone();
        batch.shuffle(&mut Streams::new(seed, Purpose::Shuffle).at(SlotId(0), 0, 0, 0)).unwrap();
        let places = batch.column("place").unwrap().typed::<i64>().unwrap().values().to_vec();
        let mut back: Vec<u32> = (0..n as u32).collect();
        back.sort_by_key(|row| places[*row as usize]);
        prop_assert_eq!(batch.gather(&back).unwrap(), before);
    }

    #[test]
    fn right_zero_pad_keeps_steps(lens in vec(1i32..6, 1..5), seed in any::<u32>(), more in 0usize..4) {
        let plain = batch(Kind::Sequences, &lens, seed);
        let padded = batch(Kind::Padded(more), &lens, seed);
        prop_assert_eq!(padded.len(), plain.len());
        let rows = |batch: &SampleBatch| -> Vec<String> {
            batch.rows().unwrap().map(|row| format!("{:?}", row.iter().collect::<Vec<_>>())).collect()
        };
        prop_assert_eq!(rows(&padded), rows(&plain));
        let tail = |batch: &SampleBatch| rows(&batch.slice(1, plain.len()).unwrap());
        prop_assert_eq!(tail(&padded), tail(&plain));
    }
}

/// Asserts that the batches are equal, or both empty. Concat ignores empty batches, so joining only empty batches gives
/// no columns.
fn same_but_for_emptiness(joined: &SampleBatch, whole: &SampleBatch) {
    if whole.is_empty() {
        assert!(joined.is_empty());
    } else {
        assert_eq!(joined, whole);
    }
}

#[test]
fn copy() {
    let whole = rows(&[1, 2, 3]);
    let (mut shallow, mut deep, mut part) = (whole.clone(), whole.copy(), whole.index_slice(1..3));
    let buffer = |batch: &SampleBatch| batch.data(A).unwrap().shared().clone();
    assert!(Arc::ptr_eq(&buffer(&whole), &buffer(&shallow)) && Arc::ptr_eq(&buffer(&whole), &buffer(&part)));
    assert!(!Arc::ptr_eq(&buffer(&whole), &buffer(&deep)));
    // A write copies first: only the batch that was written to changes.
    for batch in [&mut shallow, &mut deep, &mut part] {
        let mut data = batch.data(A).unwrap().clone();
        data.values_mut()[0] = 9;
        batch.insert("a", data).unwrap();
    }
    assert_eq!((a(&shallow), a(&deep), a(&part), a(&whole)), (vec![9, 2, 3], vec![9, 2, 3], vec![9, 3], vec![1, 2, 3]));
}

#[test]
fn columns() {
    let batch = rows(&[1, 2]).with(B, ColumnData::scalars(vec![3, 4])).unwrap();
    assert_eq!(batch.columns(&["b", "a"]).unwrap(), [&ints(&[3, 4]), &ints(&[1, 2])]);
    assert_eq!(batch.columns(&["b", "c"]), Err(BatchError::MissingColumn("c".into())));
}

#[test]
fn get_with_default() {
    let batch = rows(&[1, 2]);
    assert_eq!(batch.get_or(A, &[7]), Ok(&[1, 2][..]));
    assert_eq!(batch.get_or(B, &[7]), Ok(&[7][..]));
    assert!(matches!(batch.get_or(crate::column::ColumnKey::<f32>::new("a"), &[]), Err(BatchError::Column { .. })));
}

#[test]
fn is_training() {
    let mut batch = rows(&[1, 2]);
    assert!(!batch.is_training());
    batch.set_training(true);
    assert!(batch.is_training() && batch.index_slice(1..).is_training() && batch.copy().is_training());
    assert!(SampleBatch::concat([&batch, &batch]).unwrap().is_training());
    assert!(!SampleBatch::concat([&batch, &rows(&[3])]).unwrap().is_training());
}
