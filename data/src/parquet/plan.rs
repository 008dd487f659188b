//! Plans the columns of a file.

use std::collections::{BTreeMap, HashMap};

use arrow_schema::{DataType, Field, Schema};
use rollmesh_core::{
    batch::{AnyBatch, MultiAgentBatch, SampleBatch},
    column::{Column, ColumnType, RowShape},
    ids::PolicyId,
};

use super::{super::arrow, BATCH, ENCODED, FORMAT, INFO, POLICY};

/// Keys of a column's name in its batch and of its policy, where its name in the file differs.
pub(super) const NAME_IN_BATCH: &str = "rollmesh.column";
pub(super) const OWNER: &str = "rollmesh.policy";

/// A column of a file.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct PlanColumn {
    /// Its name in batches.
    pub(super) column: String,
    /// Its policy, if other policies have a different column with this name.
    pub(super) owner: Option<PolicyId>,
    pub(super) column_type: ColumnType,
    pub(super) shape: RowShape,
    pub(super) nullable: bool,
}

/// The columns of a file.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Plan {
    /// True if there are rows of several policies.
    pub(super) multi: bool,
    /// True if some batches do not fit into a table.
    pub(super) encoded: bool,
    pub(super) columns: Vec<PlanColumn>,
}

/// Returns the batches of the policies; none stands for a single-agent batch.
pub(super) fn pieces(batch: &AnyBatch) -> Vec<(Option<&PolicyId>, &SampleBatch)> {
    match batch {
        AnyBatch::Single(batch) => vec![(None, batch)],
        AnyBatch::Multi(MultiAgentBatch { policy_batches, .. }) => {
            policy_batches.iter().map(|(policy, batch)| (Some(policy), batch)).collect()
        }
    }
}

/// Returns whether a column has one row per sequence instead of per step.
pub(super) fn by_sequence(batch: &SampleBatch, name: &str) -> bool {
    batch.seq_lens().is_some() && name.starts_with("state_in_")
}

/// Returns the number of rows of the table; none if the batch has none, or does not fit into a table.
pub(super) fn table_rows(batch: &SampleBatch) -> Option<usize> {
    let (_, column) = batch.iter().find(|(name, _)| !by_sequence(batch, name))?;
    let sane = !batch.time_major() && column.rows() > 0 && batch.iter().all(|(name, _)| !name.starts_with("rollmesh."));
    sane.then(|| column.rows())
}

impl Plan {
    /// Returns the columns that a batch needs. Its columns must be uncompressed.
    pub(super) fn of(batch: &AnyBatch) -> Self {
        let (multi, pieces) = (matches!(batch, AnyBatch::Multi(_)), pieces(batch));
        if pieces.is_empty() || pieces.iter().any(|(_, batch)| table_rows(batch).is_none()) {
            return Self { multi: false, encoded: true, columns: Vec::new() };
        }
        let mut kinds: BTreeMap<&str, Vec<(ColumnType, RowShape)>> = BTreeMap::new();
        for (name, column) in pieces.iter().flat_map(|(_, batch)| batch.iter()) {
            let kinds = kinds.entry(name).or_default();
            let kind = (column.column_type(), column.shape());
            if !kinds.contains(&kind) {
                kinds.push(kind);
            }
        }
        let mut columns: Vec<PlanColumn> = Vec::new();
        for (policy, batch) in pieces {
            for (name, column) in batch.iter() {
                let several = kinds.get(name).is_some_and(|kinds| kinds.len() > 1);
                let owner = if several { policy.cloned() } else { None };
                if columns.iter().any(|known| known.column == name && known.owner == owner) {
                    continue;
                }
                columns.push(PlanColumn {
                    column: name.to_string(),
                    owner,
                    column_type: column.column_type(),
                    shape: column.shape(),
                    nullable: multi || by_sequence(batch, name),
                });
            }
        }
        Self { multi, encoded: false, columns }
    }

    /// Returns a plan for both; none if they have different columns of one name.
    pub(super) fn merge(&self, other: &Self) -> Option<Self> {
        let same = |a: &PlanColumn, b: &PlanColumn| a.column == b.column && a.owner == b.owner;
        let mut columns = self.columns.clone();
        for column in &mut columns {
            match other.columns.iter().find(|other| same(column, other)) {
                Some(other) if (other.column_type, other.shape) != (column.column_type, column.shape) => return None,
                Some(other) => column.nullable |= other.nullable,
                None => column.nullable = true,
            }
        }
        for column in &other.columns {
            // The same name with and without an owner is a conflict, too.
            if self
                .columns
                .iter()
                .any(|known| known.column == column.column && known.owner.is_some() != column.owner.is_some())
            {
                return None;
            }
            if !self.columns.iter().any(|known| same(known, column)) {
                columns.push(PlanColumn { nullable: true, ..column.clone() });
            }
        }
        Some(Self { multi: self.multi || other.multi, encoded: self.encoded || other.encoded, columns })
    }

    /// Returns the batch's column for this column of the file.
    pub(super) fn source<'a>(
        column: &PlanColumn,
        policy: Option<&PolicyId>,
        batch: &'a SampleBatch,
    ) -> Option<&'a Column> {
        let mine = column.owner.is_none() || column.owner.as_ref() == policy;
        batch.column(&column.column).filter(|_| mine)
    }

    pub(super) fn schema(&self) -> Schema {
        let mut fields = vec![Field::new(BATCH, DataType::Int64, false)];
        if self.multi {
            fields.push(Field::new(POLICY, DataType::Utf8, true));
        }
        fields.push(Field::new(INFO, DataType::Utf8, true));
        if self.encoded {
            fields.push(Field::new(ENCODED, DataType::Binary, true));
        }
        for column in &self.columns {
            let name = match &column.owner {
                Some(owner) => format!("{}@{owner}", column.column),
                None => column.column.clone(),
            };
            let mut field = arrow::field(&name, column.column_type, column.shape, column.nullable);
            if let Some(owner) = &column.owner {
                let mut metadata = field.metadata().clone();
                metadata.insert(NAME_IN_BATCH.to_string(), column.column.clone());
                metadata.insert(OWNER.to_string(), owner.to_string());
                field = field.with_metadata(metadata);
            }
            fields.push(field);
        }
        Schema::new_with_metadata(fields, HashMap::from([(FORMAT.to_string(), "1".to_string())]))
    }
}
