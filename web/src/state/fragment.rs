//! A fragment of a slot: its columns, their distributions, and its rows.

use std::sync::Arc;

use rollmesh_core::{
    batch::{AnyBatch, CutReason, SampleBatch, codec},
    column::Column,
    ids::PolicyId,
    protocol::message::FragmentReport,
};

/// Number of bins of a histogram.
const BINS: usize = 12;
/// Maximum number of rows that are shown.
const MAX_ROWS: usize = 20;
/// Maximum number of elements of a cell.
const MAX_ELEMENTS: usize = 4;

/// A fragment that the hub has sent.
#[derive(Clone, Debug)]
pub struct Fragment {
    /// The hub's report, with the fragment's origin.
    pub report: Arc<FragmentReport>,
    /// Its columns; with several policies, a column's name begins with the policy's id.
    pub columns: Arc<Vec<FragmentColumn>>,
}

/// A column of a fragment.
#[derive(Clone, Debug)]
pub struct FragmentColumn {
    /// Its name.
    pub name: String,
    /// Its type, like `float32 (4)`.
    pub kind: String,
    /// Its elements; empty for columns that are not numeric.
    pub numbers: Vec<f64>,
    /// Number of elements of a row.
    elements: usize,
}

// Each report is a distinct fragment.
impl PartialEq for Fragment {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.report, &other.report)
    }
}

/// A bar of a histogram.
#[derive(Clone, Debug, PartialEq)]
pub struct Bar {
    /// Its lower bound.
    pub from: f64,
    /// Its upper bound.
    pub to: f64,
    /// Number of elements in it.
    pub count: usize,
}

impl Fragment {
    /// Reads a report.
    ///
    /// # Errors
    /// The reason why the rows cannot be decoded.
    pub fn read(report: FragmentReport) -> Result<Self, String> {
        let mut columns = Vec::new();
        let (by_policy, policies) = policies_of(&report.batch)?;
        for policy in policies {
            let prefix = if by_policy { format!("{}/", policy.id) } else { String::new() };
            let named = |column: FragmentColumn| FragmentColumn { name: format!("{prefix}{}", column.name), ..column };
            columns.extend(policy.columns.into_iter().map(named));
        }
        Ok(Self { report: Arc::new(report), columns: Arc::new(columns) })
    }

    /// Returns a line for each cut of the fragment, with its reason.
    #[must_use]
    pub fn cuts(&self) -> Vec<String> {
        let why = |reason| match reason {
            Some(CutReason::Terminated) => "the episode terminated",
            Some(CutReason::Truncated) => "the episode was truncated",
            Some(CutReason::FragmentEnd) => "the fragment is full, the episode continues",
            None => "for a reason that this page does not know",
        };
        self.report.cuts().map(|(end, reason)| format!("after row {end}: {}", why(reason))).collect()
    }
}

/// The rows of a policy.
#[derive(Clone, Debug)]
pub(super) struct PolicyColumns {
    /// The policy's id.
    pub(super) id: String,
    columns: Vec<FragmentColumn>,
    rows: usize,
}

impl PolicyColumns {
    pub(super) fn column(&self, name: &str) -> Option<&FragmentColumn> {
        self.columns.iter().find(|column| column.name == name)
    }

    pub(super) fn rows(&self) -> usize {
        self.rows
    }
}

/// Decodes rows, and returns whether they are grouped by policy.
pub(super) fn policies_of(bytes: &[u8]) -> Result<(bool, Vec<PolicyColumns>), String> {
    let batch = codec::decode_any(bytes).map_err(|error| error.to_string())?;
    let columns = |(id, mut rows): (PolicyId, SampleBatch)| {
        rows.decompress_if_needed().map_err(|error| error.to_string())?;
        Ok(PolicyColumns { id: id.to_string(), columns: columns_of(&rows), rows: rows.len() })
    };
    let policies = batch.as_multi_agent().policy_batches.into_iter().map(columns).collect::<Result<_, String>>()?;
    Ok((matches!(batch, AnyBatch::Multi(_)), policies))
}

impl FragmentColumn {
    /// Returns the elements of a row; empty beyond the end and for columns that are not numeric.
    pub(super) fn row(&self, index: usize) -> &[f64] {
        self.numbers.chunks(self.elements.max(1)).nth(index).unwrap_or_default()
    }

    /// Returns the distribution of the finite elements; empty without any.
    #[must_use]
    pub fn histogram(&self) -> Vec<Bar> {
        let finite = || self.numbers.iter().copied().filter(|number| number.is_finite());
        let (Some(low), Some(high)) = (finite().reduce(f64::min), finite().reduce(f64::max)) else { return vec![] };
        if low == high {
            return vec![Bar { from: low, to: high, count: finite().count() }];
        }
        let width = (high - low) / BINS as f64;
        let edge = |bin: usize| low + width * bin as f64;
        let mut bars: Vec<Bar> = (0..BINS).map(|bin| Bar { from: edge(bin), to: edge(bin + 1), count: 0 }).collect();
        finite().for_each(|number| bars[(((number - low) / width) as usize).min(BINS - 1)].count += 1);
        bars
    }

    /// Returns the first rows as text.
    #[must_use]
    pub fn rows(&self) -> Vec<String> {
        let row = |elements: &[f64]| {
            let shown: Vec<String> = elements.iter().take(MAX_ELEMENTS).map(|n| crate::format::short(*n)).collect();
            shown.join(" ") + if elements.len() > MAX_ELEMENTS { " …" } else { "" }
        };
        self.numbers.chunks(self.elements.max(1)).take(MAX_ROWS).map(row).collect()
    }
}

fn columns_of(rows: &SampleBatch) -> Vec<FragmentColumn> {
    let column = |(name, column): (&str, &Column)| {
        let numbers = column.numbers().unwrap_or_default();
        let elements = column.shape().elements();
        let kind = match column.shape().dims() {
            [] => column.column_type().to_string(),
            _ => format!("{} {}", column.column_type(), column.shape()),
        };
        FragmentColumn { name: name.to_owned(), kind, numbers, elements }
    };
    rows.iter().map(column).collect()
}
