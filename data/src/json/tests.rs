use proptest::prelude::*;
use rollmesh_core::{
    batch::{AnyBatch, BatchParts, MultiAgentBatch, SampleBatch},
    column::{BytesColumn, Column, ColumnData, RowShape},
    ids::PolicyId,
};

use super::*;
use crate::limits::JsonLimits;

fn decode(line: &str) -> Result<AnyBatch, RecordError> {
    decode_record(line.as_bytes(), &JsonLimits::default())
}

fn single(columns: &str) -> Result<SampleBatch, RecordError> {
    match decode(&format!(r#"{{"type": "SampleBatch", {columns}}}"#))? {
        AnyBatch::Single(batch) => Ok(batch),
        AnyBatch::Multi(_) => panic!("a single batch"),
    }
}

fn encode(batch: &AnyBatch, compress: &[&str]) -> String {
    let mut line = Vec::new();
    encode_record(batch, compress, &mut line).unwrap();
    String::from_utf8(line).unwrap()
}

#[test]
fn numbers_have_the_type_of_all_of_them() {
    let batch = single(r#""a": [1, -2], "b": [1, 2.0], "c": [true, false], "d": [[1e3], [NaN]], "e": [3, -Infinity]"#);
    let batch = batch.unwrap();
    assert_eq!(batch.column("a"), Some(&ColumnData::scalars(vec![1i64, -2]).into()));
    assert_eq!(batch.column("b"), Some(&ColumnData::scalars(vec![1.0, 2.0]).into()));
    assert_eq!(batch.column("c"), Some(&ColumnData::scalars(vec![true, false]).into()));
    assert_eq!(batch.column("d").unwrap().shape(), RowShape::vector(1));
    assert_eq!(batch.column("e"), Some(&ColumnData::scalars(vec![3.0, f64::NEG_INFINITY]).into()));
    // A number with more than 64 bits.
    let large = single(r#""a": [1, 18446744073709551616]"#).unwrap();
    assert_eq!(large.column("a"), Some(&ColumnData::scalars(vec![1.0, 18_446_744_073_709_551_616.0]).into()));
    assert_eq!(single(r#""a": []"#).unwrap().column("a"), Some(&ColumnData::<f64>::scalars(vec![]).into()));
}

#[test]
fn other_rows_stay_json() {
    let batch =
        single(r#""infos": [{"a": [1, NaN]}, {}, null, {"b": "\u00e9"}], "agent_id": ["x", "y\n"], "t": [0, 1]"#);
    // Infos do not count as steps, but they are rows.
    assert!(matches!(batch, Err(RecordError::Batch(_))));
    let batch =
        single(r#""infos": [{"a": [1, NaN]}, {"b": "\u00e9"}], "agent_id": ["x", "y\n"], "t": [0, 1]"#).unwrap();
    assert_eq!(batch.infos().unwrap(), &BytesColumn::json(["null", r#"{"b": "\u00e9"}"#]).unwrap());
    assert_eq!(batch.column("agent_id").unwrap().rows(), 2);
    assert_eq!(batch.len(), 2);
}

#[test]
fn old_and_nested_columns_are_understood() {
    let batch =
        single(r#""obs": {"pos": [1.5, 2], "in": {"x": [[1], [2]]}}, "dones": [false, true], "seq_lens": [1, 1]"#);
    let batch = batch.unwrap();
    let names: Vec<&str> = batch.iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["obs.pos", "obs.in.x", "terminateds"]);
    assert_eq!(batch.seq_lens(), Some(&[1, 1][..]));
    let both = single(r#""dones": [true, true], "terminateds": [false, true], "truncateds": [true, false]"#).unwrap();
    assert_eq!(both.column("terminateds"), Some(&ColumnData::scalars(vec![false, true]).into()));
}

#[test]
fn the_type_may_stand_anywhere() {
    let late =
        r#"{"policy_batches": {"a.b": {"t": [0, 1]}}, "other": {"type": 3}, "count": 7, "type": "MultiAgentBatch"}"#;
    let AnyBatch::Multi(batch) = decode(late).unwrap() else { panic!("several policies") };
    assert_eq!(batch.env_steps(), 7);
    assert_eq!(batch.policy_batch(&PolicyId::new("a.b")).unwrap().len(), 2);
    for unknown in [r#"{"t": [0]}"#, r#"{"type": "Other"}"#, r#"{"type": 3}"#, r#"{"type": null, "t": [0]}"#, "{}"] {
        assert!(matches!(decode(unknown), Err(RecordError::UnknownType(_))), "{unknown}");
    }
}

#[test]
fn damaged_lines_say_where() {
    let place = |line: &str| match decode(line) {
        Err(RecordError::NotJson { at, .. }) => at,
        other => panic!("{line}: {other:?}"),
    };
    assert_eq!(place("[1]"), 0);
    assert_eq!(place(r#"{"type": "SampleBatch", "a": [1, 2"#), 34);
    assert_eq!(place(r#"{"type": "SampleBatch", "a": [1, 2]} x"#), 37);
    assert_eq!(place(r#"{"type": "SampleBatch", "a": [01]}"#), 30);
    for number in ["+1", "1.", ".5", "1e", "-", "--1", "1 2", "nan", "True", "0x1"] {
        place(&format!(r#"{{"type": "SampleBatch", "a": [{number}]}}"#));
    }
    for string in ["\"\\q\"", "\"\t\"", "\"\\ud800\""] {
        place(&format!(r#"{{"type": "SampleBatch", "infos": [{string}]}}"#));
    }
    let deep = format!(r#"{{"type": "SampleBatch", "infos": [{}]}}"#, "[".repeat(100_000));
    place(&deep);
}

#[test]
fn columns_may_have_other_lengths_than_the_first_one() {
    let batch = single(r#""t": [0, 1, 2], "state_in_0": [[1.5, 2], [3, 4]], "seq_lens": [2, 1]"#).unwrap();
    assert_eq!((batch.len(), batch.column("state_in_0").unwrap().rows()), (3, 2));
    let states = r#""state_in_0": [[1.5, 2], [3, 4]], "t": [0, 1, 2], "f": [true, false, true], "seq_lens": [2, 1]"#;
    assert_eq!(single(states).unwrap().column("f").unwrap().rows(), 3);
    assert!(matches!(single(r#""t": [0, 1, 2], "a": [1, 2]"#), Err(RecordError::Batch(_))));
    assert!(matches!(single(r#""t": [0, 1], "a": [1, 2, 3]"#), Err(RecordError::Batch(_))));
}

#[test]
fn ragged_columns_are_refused() {
    let refused = [
        "[[1], [1, 2]]",
        "[1, [2]]",
        "[[1], 2]",
        "[[], 1]",
        "[[1], []]",
        "[[]]",
        "[1, null]",
        "[1, \"a\"]",
        "[{}, 1]",
        "[[[[[[[[1]]]]]]]]",
        "[[\"a\"]]",
    ];
    for rows in refused {
        let found = single(&format!(r#""a": {rows}"#));
        assert!(matches!(found, Err(RecordError::Ragged { .. })), "{rows}: {found:?}");
    }
    assert!(matches!(single(r#""a": 3"#), Err(RecordError::NoColumn { .. })));
    assert!(matches!(single(r#""a": "abc""#), Err(RecordError::Base64(_))));
    assert!(matches!(single(r#""a": "abcd""#), Err(RecordError::Lz4 { .. })));
}

#[test]
fn decompression_has_a_limit() {
    let zeros = SampleBatch::new().with(rollmesh_core::batch::OBS, ColumnData::scalars(vec![0.0; 100_000])).unwrap();
    let line = encode(&zeros.into(), &COMPRESS_COLUMNS);
    assert!(line.len() < 4_000);
    assert!(decode(&line).is_ok());
    let small = decode_record(line.as_bytes(), &JsonLimits { decompressed: 400_000 });
    assert!(matches!(small, Err(RecordError::Lz4 { source: crate::lz4::Lz4Error::TooLarge { .. }, .. })));
}

#[test]
fn lines_are_counted_and_bad_ones_passed_over() {
    let good = r#"{"type": "SampleBatch", "t": [0]}"#;
    let mut lines = JsonLines::lenient(JsonLimits::default());
    for line in ["", "  ", good, "bad", "worse"] {
        assert_eq!(lines.read(line.as_bytes()).unwrap().is_some(), line == good);
    }
    assert_eq!((lines.batches(), lines.corrupt_lines()), (1, 2));
    assert!(lines.last_error().unwrap().to_string().starts_with("line 5: no JSON: '{' was expected at byte 0"));
    assert!(lines.finish().is_ok());
    for _ in 2..100 {
        assert_eq!(lines.read(b"bad"), Ok(None));
    }
    let error = lines.read(b"bad").unwrap_err();
    assert!(matches!(&error, JsonError::TooMany { lines: 101, .. }), "{error}");
    let mut strict = JsonLines::strict(JsonLimits::default());
    assert!(matches!(strict.read(b"bad"), Err(JsonError::Line { line: 1, .. })));
    assert!(matches!(strict.finish(), Err(JsonError::NoData(None))));
}

#[test]
fn columns_without_json_form_are_refused() {
    let bytes = Column::from(BytesColumn::bytes(["a"]).unwrap());
    let batch = |parts| AnyBatch::from(SampleBatch::from_parts(parts).unwrap());
    let with = |column| BatchParts { columns: vec![("a".into(), column)], ..BatchParts::default() };
    let mut out = Vec::new();
    assert_eq!(encode_record(&batch(with(bytes)), &[], &mut out), Err(EncodeError::Bytes("a".into())));
    let rows = Column::from(ColumnData::new(vec![0.0f32; 6], RowShape::vector(3)).unwrap());
    let parts = BatchParts { time_major: true, ..with(rows) };
    assert_eq!(encode_record(&batch(parts), &[], &mut out), Err(EncodeError::Layout("time-major")));
}

#[test]
fn written_line_equals_rllibs() {
    let obs = ColumnData::new(vec![0.985f32, -1.0, f32::NAN, 1e20], RowShape::vector(2)).unwrap();
    let parts = BatchParts {
        columns: vec![
            ("obs.pos".into(), obs.into()),
            ("actions".into(), ColumnData::scalars(vec![0i64, 1]).into()),
            ("obs.on".into(), ColumnData::scalars(vec![true, false]).into()),
            // A line must not contain line breaks.
            ("infos".into(), BytesColumn::json(["{}", "{\"a\":\n1}"]).unwrap().into()),
        ],
        seq_lens: Some(ColumnData::scalars(vec![2])),
        ..BatchParts::default()
    };
    let batch = SampleBatch::from_parts(parts).unwrap();
    let line = encode(&batch.clone().into(), &[]);
    let expected = concat!(
        r#"{"type": "SampleBatch", "obs": {"pos": [[0.9850000143051147, -1.0], [NaN, 1.0000000200408773e+20]], "#,
        r#""on": [true, false]}, "actions": [0, 1], "infos": [{}, {"a": 1}], "seq_lens": [2]}"#
    );
    assert_eq!(line, expected);
    let batches = [(PolicyId::new("a\"b"), batch)].into();
    let multi = AnyBatch::from(MultiAgentBatch::new(batches, 3));
    let line = encode(&multi, &["obs"]);
    assert!(
        line.starts_with(r#"{"type": "MultiAgentBatch", "count": 3, "policy_batches": {"a\"b": {"obs": "BCJNGG"#),
        "{line}"
    );
    let AnyBatch::Multi(read) = decode(&line).unwrap() else { panic!("several policies") };
    let read = read.policy_batch(&PolicyId::new("a\"b")).unwrap();
    let names: Vec<&str> = read.iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["obs.pos", "obs.on", "actions", "infos"]);
}

fn column() -> impl Strategy<Value = (u32, Vec<u8>)> {
    (1u32..4, prop::collection::vec(any::<u8>(), 12 * 8))
}

/// Returns a column of some type, with rows built from these bytes.
fn of_bytes(kind: usize, width: u32, bytes: &[u8], rows: usize) -> Column {
    fn array<T: rollmesh_core::column::Element>(width: u32, values: impl Iterator<Item = T>, rows: usize) -> Column {
        let shape = if width == 1 { RowShape::SCALAR } else { RowShape::vector(width) };
        let values: Vec<T> = values.take(rows * width as usize).collect();
        Column::from_typed(ColumnData::new(values, shape).unwrap())
    }
    let eights = || bytes.chunks_exact(8).cycle().map(|chunk| u64::from_le_bytes(chunk.try_into().unwrap()));
    match kind % 6 {
        0 => array(width, eights().map(|bits| f32::from_bits(bits as u32)), rows),
        1 => array(width, eights().map(f64::from_bits), rows),
        2 => array(width, eights().map(|bits| bits as i32), rows),
        3 => array(width, eights().map(|bits| bits as i64), rows),
        4 => array(width, eights().map(|bits| bits as u8), rows),
        _ => array(width, eights().map(|bits| bits % 2 == 0), rows),
    }
}

fn batch() -> impl Strategy<Value = SampleBatch> {
    (prop::collection::vec(column(), 1..7), 1usize..5).prop_map(|(columns, rows)| {
        let mut batch = SampleBatch::new();
        for (kind, (width, bytes)) in columns.iter().enumerate() {
            batch.insert(format!("c{kind}"), of_bytes(kind, *width, bytes, rows)).unwrap();
        }
        batch
    })
}

proptest! {
    #[test]
    fn compressed_columns_round_trip_bit_identically(batch in batch()) {
        let names: Vec<String> = batch.iter().map(|(name, _)| name.to_string()).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let AnyBatch::Single(read) = decode(&encode(&batch.clone().into(), &names)).unwrap() else { panic!() };
        prop_assert!(read.same_bits(&batch));
    }

    #[test]
    fn columns_that_are_written_out_are_the_same_numbers(batch in batch()) {
        let AnyBatch::Single(read) = decode(&encode(&batch.clone().into(), &[])).unwrap() else { panic!() };
        for (name, column) in batch.iter() {
            let found = read.column(name).unwrap();
            prop_assert_eq!(found.shape(), column.shape());
            match (column, found) {
                (Column::F32(a), Column::F64(b)) => {
                    let same = |(a, b): (&f32, &f64)| a.is_nan() && b.is_nan() || f64::from(*a).to_bits() == b.to_bits();
                    prop_assert!(a.values().iter().zip(b.values()).all(same));
                }
                (Column::F64(a), Column::F64(b)) => {
                    let same = |(a, b): (&f64, &f64)| a.is_nan() && b.is_nan() || a.to_bits() == b.to_bits();
                    prop_assert!(a.values().iter().zip(b.values()).all(same));
                }
                (Column::I32(a), Column::I64(b)) => prop_assert!(a.values().iter().map(|x| i64::from(*x)).eq(b.values().iter().copied())),
                (Column::U8(a), Column::I64(b)) => prop_assert!(a.values().iter().map(|x| i64::from(*x)).eq(b.values().iter().copied())),
                (a, b) => prop_assert_eq!(a, b),
            }
        }
    }

    #[test]
    fn numbers_are_those_that_are_written(number in "-?(0|[1-9][0-9]{0,18})(\\.[0-9]{1,22})?([eE][+-]?[0-9]{1,2})?") {
        let expected: f64 = number.parse().unwrap();
        // Some are read differently near the end of a line.
        let rest = "0.5, 1, 1, 1, 1, 1, 1, 1, 1";
        let batch = single(&format!("\"a\": [{number}, {rest}]")).unwrap();
        let Some(Column::F64(read)) = batch.column("a") else { panic!("floats") };
        prop_assert!(read.values()[0].to_bits() == expected.to_bits() || expected == 0.0 && read.values()[0] == 0.0);
        if let Ok(whole) = number.parse::<i64>() {
            let batch = single(&format!("\"a\": [{number}]")).unwrap();
            prop_assert_eq!(batch.column("a"), Some(&ColumnData::scalars(vec![whole]).into()));
        }
    }

    /// Repeated values are read and written as a block.
    #[test]
    fn repeated_values_keep_their_number_of_rows(
        runs in prop::collection::vec((0usize..6, 1usize..30), 1..8), kind in 0usize..3, width in 1usize..4,
    ) {
        const TEXTS: [[&str; 6]; 3] = [
            ["0", "7", "12", "-5", "100000000000000000", "1"],
            ["1.0", "-0.0", "0.0", "0.9850000143051147", "-1.4518241882324219", "12.5"],
            ["true", "false", "true", "false", "false", "true"],
        ];
        let texts: Vec<&str> =
            runs.iter().flat_map(|(which, n)| std::iter::repeat_n(TEXTS[kind][*which], n * width)).collect();
        let row = |row: &[&str]| if width == 1 { row[0].into() } else { format!("[{}]", row.join(", ")) };
        let rows: Vec<String> = texts.chunks(width).map(row).collect();
        let columns = format!("\"a\": [{}]", rows.join(", "));
        // Tests with a preceding column, which gives the number of rows, and without one.
        let t = format!("\"t\": [{}], {columns}", vec!["0"; rows.len()].join(", "));
        for columns in [columns, t] {
            let batch = single(&columns).unwrap();
            prop_assert_eq!(batch.column("a").unwrap().rows(), rows.len());
            prop_assert_eq!(encode(&batch.into(), &[]), format!("{{\"type\": \"SampleBatch\", {columns}}}"));
        }
    }

    #[test]
    fn damaged_lines_do_no_harm(batch in batch(), at: prop::sample::Index, byte: u8, compressed: bool) {
        let mut line = encode(&batch.into(), if compressed { &["c0", "c2"] } else { &[] }).into_bytes();
        let at = at.index(line.len());
        line[at] = byte;
        let _ = decode_record(&line, &JsonLimits { decompressed: 1 << 20 });
    }

    #[test]
    fn any_text_is_a_batch_or_an_error(text in r#"(\{"type": "SampleBatch", )?["\[\]{},:0-9.eE+\-a-zNI ]{0,60}\}?"#) {
        let _ = decode(&text);
    }
}
