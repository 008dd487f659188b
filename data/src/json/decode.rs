//! Decodes a line to a batch.

use std::collections::BTreeMap;

use rollmesh_core::{
    batch::{AnyBatch, BatchParts, INFOS, MultiAgentBatch, SampleBatch, TERMINATEDS},
    column::{Column, ColumnData, ColumnName},
    ids::PolicyId,
};

use super::{RecordError, rows, scan::Scanner, unpack::unpack};
use crate::limits::{JsonLimits, MAX_NESTING};

/// Decodes one record: `{"type": "SampleBatch", …}` with columns, or `{"type": "MultiAgentBatch", "count": …,
/// "policy_batches": {…}}`.
///
/// Uncompressed columns become `i64` if all numbers are whole, `bool`, or `f64`; compressed ones keep their type. `seq_lens`
/// become the batch's, an old `dones` becomes `terminateds`, and parts of nested observations become columns with dotted
/// names.
///
/// # Errors
/// [`RecordError`].
#[doc(alias = "from_json_data")]
pub fn decode_record(line: &[u8], limits: &JsonLimits) -> Result<AnyBatch, RecordError> {
    let multi = is_multi_agent(line)?;
    let mut scanner = Scanner::new(line);
    let mut room = limits.decompressed;
    scanner.expect(b'{', "'{'")?;
    let batch = if multi {
        AnyBatch::Multi(multi_agent(&mut scanner, &mut room)?)
    } else {
        AnyBatch::Single(sample_batch(&mut scanner, &mut room)?)
    };
    if scanner.peek().is_some() { Err(scanner.error("the end of the line")) } else { Ok(batch) }
}

/// Returns the declared kind of the record, which most records state first.
fn is_multi_agent(line: &[u8]) -> Result<bool, RecordError> {
    let mut scanner = Scanner::new(line);
    scanner.expect(b'{', "'{'")?;
    let (mut first, mut found) = (true, None);
    while let Some(name) = scanner.member(&mut first)? {
        if name == "type" && scanner.peek() == Some(b'"') {
            found = Some(scanner.string()?);
            break;
        }
        scanner.skip()?;
    }
    match found.as_deref() {
        Some("SampleBatch") => Ok(false),
        Some("MultiAgentBatch") => Ok(true),
        found => Err(RecordError::UnknownType(found.map(|found| found.chars().take(64).collect()))),
    }
}

fn multi_agent(scanner: &mut Scanner<'_>, room: &mut usize) -> Result<MultiAgentBatch, RecordError> {
    let (mut policies, mut count) = (BTreeMap::new(), None);
    let mut first = true;
    while let Some(name) = scanner.member(&mut first)? {
        match &*name {
            "policy_batches" => {
                scanner.expect(b'{', "'{'")?;
                let mut first = true;
                while let Some(id) = scanner.member(&mut first)? {
                    scanner.expect(b'{', "'{'")?;
                    policies.insert(PolicyId::new(id.into_owned()), sample_batch(scanner, room)?);
                }
            }
            "count" => {
                let found = scanner.whole().and_then(|count| usize::try_from(count).ok());
                count = Some(found.ok_or_else(|| scanner.error("a count of steps"))?);
            }
            _ => _ = scanner.skip()?,
        }
    }
    let count = count.ok_or_else(|| scanner.error("the count of a MultiAgentBatch"))?;
    Ok(MultiAgentBatch::new(policies, count))
}

/// Decodes the columns of an object after its opening brace.
fn sample_batch(scanner: &mut Scanner<'_>, room: &mut usize) -> Result<SampleBatch, RecordError> {
    let mut columns = Vec::new();
    let mut first = true;
    while let Some(name) = scanner.member(&mut first)? {
        match (&*name, scanner.peek()) {
            ("type", Some(b'"')) => _ = scanner.skip()?,
            _ => read(scanner, &name, room, 0, &mut columns)?,
        }
    }
    let mut parts = BatchParts::default();
    let has_flags = columns.iter().any(|(name, _)| name == TERMINATEDS.name());
    for (name, column) in columns {
        match name.as_str() {
            "seq_lens" => parts.seq_lens = Some(lengths(&column)?),
            // Both have the same meaning, so one is enough.
            "dones" if has_flags => {}
            "dones" => parts.columns.push((TERMINATEDS.name().into(), column)),
            _ => parts.columns.push((name, column)),
        }
    }
    Ok(SampleBatch::from_parts(parts)?)
}

fn read(
    scanner: &mut Scanner<'_>,
    name: &str,
    room: &mut usize,
    depth: usize,
    out: &mut Vec<(ColumnName, Column)>,
) -> Result<(), RecordError> {
    let no_column = |found| RecordError::NoColumn { column: name.chars().take(64).collect(), found };
    let column = match scanner.peek() {
        Some(b'[') if name == INFOS => rows::texts(scanner, name)?,
        Some(b'[') => rows::column(scanner, name, out.first().map(|(_, first)| first.rows()))?,
        Some(b'"') => return unpack(&scanner.string_bytes()?, name, room, out),
        Some(b'{') if depth < MAX_NESTING => {
            scanner.at += 1;
            let mut first = true;
            while let Some(part) = scanner.member(&mut first)? {
                read(scanner, &format!("{name}.{part}"), room, depth + 1, out)?;
            }
            return Ok(());
        }
        Some(b'{') => return Err(no_column("nested too deeply")),
        _ => {
            scanner.skip()?;
            return Err(no_column("a single value"));
        }
    };
    out.push((name.to_string().into(), column));
    Ok(())
}

/// Converts lengths of sequences, which are 32-bit numbers.
fn lengths(column: &Column) -> Result<ColumnData<i32>, RecordError> {
    let wrong = || RecordError::NoColumn { column: "seq_lens".into(), found: "no list of whole numbers" };
    match column {
        Column::I32(lens) => Ok(lens.clone()),
        Column::I64(lens) => {
            let narrow: Result<Vec<i32>, _> = lens.values().iter().map(|len| i32::try_from(*len)).collect();
            ColumnData::new(narrow.map_err(|_| wrong())?, lens.shape()).map_err(|_| wrong())
        }
        _ if column.rows() == 0 => Ok(ColumnData::scalars(Vec::new())),
        _ => Err(wrong()),
    }
}
