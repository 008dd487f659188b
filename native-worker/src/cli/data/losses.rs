//! Descriptions of the losses of a conversion.

use std::collections::BTreeSet;

use rollmesh_core::{
    batch::{AnyBatch, SampleBatch},
    column::DType,
};
use rollmesh_data::dataset::beyond_32_bits;

use crate::cli::exit::Failure;

/// Descriptions of the data that the target format cannot hold.
pub(super) type Losses = BTreeSet<String>;

/// Adds columns that are read back differently, whatever their values.
pub(super) fn columns(written: &SampleBatch, found: &SampleBatch, losses: &mut Losses) {
    for (name, column) in written.iter() {
        let Some(other) = found.column(name) else {
            losses.insert(format!("column '{name}'"));
            continue;
        };
        let (was, is) = (column.column_type(), other.column_type());
        if was != is {
            losses.insert(format!("the type of column '{name}': {was} comes back as {is}"));
        }
        let (was, is) = (column.shape(), other.shape());
        if was != is {
            losses.insert(format!("the shape of column '{name}': {was} comes back as {is}"));
        }
    }
}

/// Adds differences in attributes of all rows together.
pub(super) fn of_all_rows(written: &SampleBatch, found: &SampleBatch, losses: &mut Losses) {
    if written.num_grad_updates().map(f64::to_bits) != found.num_grad_updates().map(f64::to_bits) {
        losses.insert("num_grad_updates, the updates behind the weights that acted".into());
    }
    if written.seq_lens() != found.seq_lens() {
        losses.insert("lengths of sequences".into());
    } else if written.max_seq_len() != found.max_seq_len() {
        losses.insert("max_seq_len, the rows that sequences are padded to".into());
    }
    if written.is_training() != found.is_training() {
        losses.insert("that rows are for learning".into());
    }
}

/// Adds columns whose numbers change with their type.
pub(super) fn digits(before: &AnyBatch, after: &AnyBatch, losses: &mut Losses) -> Result<(), Failure> {
    let after = after.as_multi_agent();
    for (id, rows) in before.as_multi_agent().policy_batches {
        for (name, column) in rows.iter() {
            let now = after.policy_batch(&id).and_then(|rows| rows.column(name));
            let Some(now) = now.filter(|now| now.column_type() != column.column_type()) else { continue };
            let plain = column.decompress().map_err(Failure::other)?;
            let (Some(was), Some(is)) = (plain.numbers(), now.numbers()) else { continue };
            if was.iter().zip(&is).any(|(was, is)| was.is_finite() && was != is) {
                losses.insert(match now.dtype() {
                    Some(DType::F32) => beyond_32_bits(name),
                    _ => format!("numbers of column '{name}'"),
                });
            }
        }
    }
    Ok(())
}
