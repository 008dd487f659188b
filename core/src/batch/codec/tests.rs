use proptest::prelude::*;

use super::{super::test_support::*, *};
use crate::{
    batch::{AnyBatch, BatchError, MultiAgentBatch, SampleBatch},
    column::{BytesColumn, Column, ColumnData, Granularity, RowShape},
    ids::PolicyId,
    prelude::*,
};

/// Returns a batch with one column of every type, plain and compressed, with values that `==` cannot distinguish.
fn everything() -> SampleBatch {
    let shape = RowShape::new(&[2, 1]).unwrap();
    let mut batch = rows(&[1, -2, i64::MAX]);
    let columns: [(&'static str, Column); 7] = [
        ("f32", ColumnData::new(vec![f32::NAN, -0.0, 1.5, 0.0, f32::MIN_POSITIVE, 7.0], shape).unwrap().into()),
        ("f64", ColumnData::scalars(vec![f64::NAN, f64::MIN, -0.0]).into()),
        ("i32", ColumnData::scalars(vec![i32::MIN, 0, 9]).into()),
        ("u8", ColumnData::new(vec![0u8, 1, 2, 253, 254, 255], shape).unwrap().into()),
        ("bool", ColumnData::scalars(vec![true, false, true]).into()),
        ("bytes", BytesColumn::bytes([&b"\xff"[..], b"", b"abc"]).unwrap().into()),
        ("infos", BytesColumn::json(["{}", "null", r#"{"a":"é"}"#]).unwrap().into()),
    ];
    for (name, column) in columns {
        batch.insert(format!("{name}.bulk"), column.compress(Granularity::Bulk).unwrap()).unwrap();
        batch.insert(format!("{name}.rows"), column.compress(Granularity::Rows).unwrap()).unwrap();
        batch.insert(name, column).unwrap();
    }
    batch.set_training(true);
    batch.set_num_grad_updates(Some(2.5));
    batch
}

fn multi() -> MultiAgentBatch {
    let batches = [(PolicyId::DEFAULT, rows(&[1])), (PolicyId::new("q"), sequences(&[2, 3, 1]))];
    MultiAgentBatch::new(batches.into_iter().collect(), 6)
}

#[test]
fn everything_round_trips_bit_identically() {
    let padded = sequences(&[2, 3, 1]).right_zero_pad(4).unwrap();
    let slices = [everything().slice_rows(1..3), sequences(&[2, 3, 1]).index_slice(2..), padded.clone()];
    for batch in [SampleBatch::new(), everything(), padded, time_major(2, &[1, 2, 3, 4])].iter().chain(&slices) {
        let decoded = decode(&encode(batch)).unwrap();
        assert!(decoded.same_bits(batch), "{batch:#}\n{decoded:#}");
    }
    assert_eq!(decode_multi_agent(&encode_multi_agent(&multi())).unwrap(), multi());
    for batch in [AnyBatch::Single(rows(&[1, 2])), AnyBatch::Multi(multi())] {
        assert_eq!(decode_any(&encode_any(&batch)).unwrap(), batch);
    }
}

/// Checks that the format does not change, so that later versions can read existing files.
#[test]
fn the_bytes_are_frozen() {
    let mut batch = sequences(&[1]);
    batch.set_num_grad_updates(Some(1.0));
    let mut expected = vec![];
    expected.extend(b"RMBT\x01\0\x01\0");
    expected.extend(24u32.to_le_bytes()); // has max_seq_len, has num_grad_updates
    expected.extend(2u32.to_le_bytes());
    expected.extend([1u64, 1].map(u64::to_le_bytes).concat());
    expected.extend(1f64.to_le_bytes());
    expected.extend(1i32.to_le_bytes());
    expected.extend(b"\x01\0\0\0a\x04\0\0\0");
    expected.extend([1u64, 8].map(u64::to_le_bytes).concat());
    expected.extend(1i64.to_le_bytes());
    expected.extend(b"\x0a\0\0\0state_in_0\x02\0\0\0");
    expected.extend([1u64, 8].map(u64::to_le_bytes).concat());
    expected.extend(1f64.to_le_bytes());
    assert_eq!(encode(&batch), expected);
}

#[test]
fn malformed_batch_is_refused_with_its_defect() {
    let bytes = encode(&rows(&[1]));
    let with = |place: usize, value: u8| {
        let mut bytes = bytes.clone();
        bytes[place] = value;
        decode(&bytes).unwrap_err()
    };
    assert_eq!(with(0, 0), CodecError::Magic);
    assert_eq!(with(4, 2), CodecError::Version { found: 2 });
    assert_eq!(with(6, 2), CodecError::Kind { wanted: 1, found: 2 });
    assert_eq!(with(8, 32), CodecError::Bad("flags"));
    assert_eq!(with(12, 2), CodecError::Short("name of a column"));
    assert_eq!(with(12, 0), CodecError::Long(33));
    assert_eq!(with(44, b'\xff'), CodecError::Bad("name of a column"));
    assert_eq!(with(45, 99), CodecError::Bad("type of a column"));
    assert_eq!(with(49, 2), CodecError::Bad("rows of a column"));
    let too_long = [&bytes[..], &[0]].concat();
    assert_eq!(decode(&too_long), Err(CodecError::Long(1)));
    let mut named_dones = bytes.clone();
    named_dones.splice(40..45, *b"\x05\0\0\0dones");
    assert_eq!(decode(&named_dones), Err(CodecError::Batch(BatchError::DonesIsDerived)));
    assert_eq!(decode_multi_agent(&bytes), Err(CodecError::Kind { wanted: 2, found: 1 }));
}

#[test]
fn a_flag_is_0_or_1() {
    let flags = Column::from(ColumnData::scalars(vec![true, false]));
    let mut batch = SampleBatch::new();
    batch.insert("f", flags).unwrap();
    let mut bytes = encode(&batch);
    let last = bytes.len() - 1;
    bytes[last] = 2;
    assert_eq!(decode(&bytes).unwrap_err().to_string(), "column 'f': a truth value 2");
}

/// Checks that a block cannot claim more than LZ4 can hold, so that a few bytes never cause a large allocation.
#[test]
fn blocks_that_claim_too_much_are_refused() {
    let mut batch = SampleBatch::new();
    let zeros = Column::from(ColumnData::scalars(vec![0u8; 1000]));
    batch.insert("z", zeros.compress(Granularity::Bulk).unwrap()).unwrap();
    let bytes = encode(&batch);
    let put = |place: usize, value: u64| {
        let mut bytes = bytes.clone();
        bytes[place..place + 8].copy_from_slice(&value.to_le_bytes());
        bytes
    };
    // After the head, a column's number of rows starts at 49, and its blocks' size, decompressed size and rows start at 73.
    assert_eq!(bytes[49..57], 1000u64.to_le_bytes());
    let block = 49 + 16 + 8;
    assert_eq!(bytes[block + 8..block + 16], 1000u64.to_le_bytes());
    for value in [1 << 40, u64::MAX] {
        let mut claims = put(block + 8, value);
        claims[block + 16..block + 24].copy_from_slice(&value.to_le_bytes());
        claims[block + 32..block + 40].copy_from_slice(&value.to_le_bytes());
        claims[49..57].copy_from_slice(&value.to_le_bytes());
        assert!(decode(&claims).is_err());
    }
    // Decompression finds the damage that only decompression can find.
    let mut damaged = bytes.clone();
    let last = damaged.len() - 1;
    damaged[last - 3] ^= 0xff;
    let mut damaged = decode(&damaged).unwrap();
    assert!(damaged.decompress_if_needed().is_err() || damaged != batch);
}

/// Uses a decoded batch, which must not panic.
fn use_it(mut batch: SampleBatch) {
    let _ = (batch.len(), batch.size_bytes(), format!("{batch:#}"));
    let _ = batch.decompress_if_needed();
    let _ = batch.index_slice(1..3).copy();
}

#[test]
fn no_part_of_a_batch_is_one() {
    for bytes in [encode(&everything()), encode(&sequences(&[2, 3, 1]).right_zero_pad(4).unwrap())] {
        for len in 0..bytes.len() {
            assert!(decode(&bytes[..len]).is_err(), "{len} of {} bytes", bytes.len());
        }
    }
    let bytes = encode_multi_agent(&multi());
    (0..bytes.len()).for_each(|len| assert!(decode_multi_agent(&bytes[..len]).is_err()));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn changed_bits_never_panic(flips in proptest::collection::vec((any::<prop::sample::Index>(), 0u8..8), 1..4)) {
        for (bytes, single) in [(encode(&everything()), true), (encode_multi_agent(&multi()), false)] {
            let mut bytes = bytes;
            for (place, bit) in &flips {
                let place = place.index(bytes.len());
                bytes[place] ^= 1 << bit;
            }
            if single {
                let _ = decode(&bytes).map(use_it);
            } else {
                let _ = decode_multi_agent(&bytes).map(|batch| batch.policy_batches.into_values().for_each(use_it));
            }
        }
    }

    #[test]
    fn random_bytes_never_panic(body in proptest::collection::vec(any::<u8>(), 0..200), kind in 1u8..3) {
        let bytes = [&b"RMBT\x01\0"[..], &[kind, 0], &body].concat();
        let _ = decode(&bytes).map(use_it);
        let _ = decode_multi_agent(&bytes);
        let _ = decode(&body);
    }
}
