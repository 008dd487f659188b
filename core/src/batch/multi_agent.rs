//! Defines batches of several policies.

use core::{fmt, iter, ops::Range};

use super::{AGENT_INDEX, AnyBatch, BatchError, EPS_ID, SampleBatch, T};
use crate::{
    column::{ColumnError, ColumnKey, Granularity, RowShape},
    ids::PolicyId,
    prelude::*,
};

/// Rows of several agents, one batch per policy, and the number of env steps that produced them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MultiAgentBatch {
    /// The batch of each policy.
    pub policy_batches: BTreeMap<PolicyId, SampleBatch>,
    /// Steps of the environment, each with at most one row per agent. The creator of the batch sets it, since it cannot be
    /// derived.
    pub env_steps: usize,
}

impl MultiAgentBatch {
    /// Creates a batch from the policies' batches and the number of env steps.
    #[must_use]
    pub fn new(policy_batches: BTreeMap<PolicyId, SampleBatch>, env_steps: usize) -> Self {
        Self { policy_batches, env_steps }
    }

    /// Returns the batch of a policy.
    #[must_use]
    #[doc(alias = "__getitem__")]
    pub fn policy_batch(&self, policy: &PolicyId) -> Option<&SampleBatch> {
        self.policy_batches.get(policy)
    }

    /// Returns the number of steps of the environment.
    #[must_use]
    pub fn env_steps(&self) -> usize {
        self.env_steps
    }

    /// Returns the number of steps of agents: the sum over all policies' batches.
    #[must_use]
    pub fn agent_steps(&self) -> usize {
        self.policy_batches.values().fold(0usize, |sum, batch| sum.saturating_add(batch.len()))
    }

    /// Returns the same as [`env_steps`](Self::env_steps).
    #[must_use]
    #[doc(alias = "count")]
    pub fn len(&self) -> usize {
        self.env_steps
    }

    /// Returns true without env steps.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.env_steps == 0
    }

    /// Returns the bytes of all policies' batches.
    #[must_use]
    pub fn size_bytes(&self) -> usize {
        self.policy_batches.values().map(SampleBatch::size_bytes).sum()
    }

    /// Makes a deep copy: all rows in new buffers. A clone is a shallow copy.
    #[must_use]
    pub fn copy(&self) -> Self {
        let copy = |(policy, batch): (&PolicyId, &SampleBatch)| (policy.clone(), batch.copy());
        Self { policy_batches: self.policy_batches.iter().map(copy).collect_ordered(), env_steps: self.env_steps }
    }

    /// Compresses `obs` and `new_obs` of all policies, see [`SampleBatch::compress`].
    ///
    /// # Errors
    /// The errors of [`SampleBatch::compress`]. On an error, all columns stay as they are.
    pub fn compress(&mut self, granularity: Granularity) -> Result<(), BatchError> {
        self.change(|batch| batch.compress(granularity))
    }

    /// Compresses these columns of all policies, see [`SampleBatch::compress_columns`].
    ///
    /// # Errors
    /// The errors of [`SampleBatch::compress_columns`]. On an error, all columns stay as they are.
    pub fn compress_columns(&mut self, granularity: Granularity, names: &[&str]) -> Result<(), BatchError> {
        self.change(|batch| batch.compress_columns(granularity, names))
    }

    /// Decompresses all compressed columns.
    ///
    /// # Errors
    /// The errors of [`SampleBatch::decompress_if_needed`]. On an error, all columns stay as they are.
    pub fn decompress_if_needed(&mut self) -> Result<(), BatchError> {
        self.change(SampleBatch::decompress_if_needed)
    }

    fn change(&mut self, change: impl Fn(&mut SampleBatch) -> Result<(), BatchError>) -> Result<(), BatchError> {
        let mut changed = self.policy_batches.clone();
        changed.values_mut().try_for_each(change)?;
        self.policy_batches = changed;
        Ok(())
    }

    /// Returns the batch of the default policy if that is the only one, otherwise all of them.
    #[must_use]
    pub fn wrap_as_needed(policy_batches: BTreeMap<PolicyId, SampleBatch>, env_steps: usize) -> AnyBatch {
        let multi = Self::new(policy_batches, env_steps);
        match multi.single() {
            Ok(batch) => AnyBatch::Single(batch.clone()),
            Err(_) => AnyBatch::Multi(multi),
        }
    }

    /// Returns the batch of the default policy, if that is the only one.
    ///
    /// # Errors
    /// [`BatchError::NotSingle`] for another policy, [`BatchError::NoDefaultPolicy`] without the default one.
    #[doc(alias = "convert_ma_batch_to_sample_batch")]
    pub fn single(&self) -> Result<&SampleBatch, BatchError> {
        if let Some(other) = self.policy_batches.keys().find(|policy| **policy != PolicyId::DEFAULT) {
            return Err(BatchError::NotSingle(other.clone()));
        }
        self.policy_batches.get(&PolicyId::DEFAULT).ok_or(BatchError::NoDefaultPolicy)
    }

    /// Joins multi-agent batches policy by policy, and adds up their env steps.
    ///
    /// # Errors
    /// As [`SampleBatch::concat`].
    pub fn concat<'a>(batches: impl IntoIterator<Item = &'a Self>) -> Result<Self, BatchError> {
        let mut parts: BTreeMap<&PolicyId, Vec<&SampleBatch>> = BTreeMap::new();
        let mut env_steps = 0usize;
        for batch in batches {
            env_steps = env_steps.saturating_add(batch.env_steps);
            for (policy, batch) in &batch.policy_batches {
                parts.entry(policy).or_default().push(batch);
            }
        }
        let joined = parts.into_iter().map(|(policy, parts)| Ok((policy.clone(), SampleBatch::concat(parts)?)));
        Ok(Self { policy_batches: joined.try_collect_ordered()?, env_steps })
    }

    /// Splits the batch into consecutive slices of `k` env steps each; the last one may be shorter.
    ///
    /// The rows of all policies are ordered by (`eps_id`, `t`, `agent_index`, policy id); rows with the same `eps_id` and
    /// `t` are one env step. A slice has only the policies that have rows in it, and shares buffers where these rows are
    /// contiguous.
    ///
    /// # Errors
    /// [`BatchError::NoRows`]; [`BatchError::ZeroSlices`] for `k` = 0; [`BatchError::MissingColumn`] or
    /// [`BatchError::Column`] if a policy lacks one of these columns; [`BatchError::HasSequences`],
    /// [`BatchError::TimeMajor`], [`BatchError::TooManyRows`].
    pub fn timeslices(&self, k: usize) -> Result<Vec<Self>, BatchError> {
        if k == 0 {
            return Err(BatchError::ZeroSlices);
        }
        let batches: Vec<(&PolicyId, &SampleBatch)> =
            self.policy_batches.iter().filter(|(_, b)| !b.is_empty()).collect();
        let mut order: Vec<RowKey> = Vec::new();
        for (policy, (_, batch)) in batches.iter().enumerate() {
            batch.check_rows_are_single("timeslices")?;
            let rows = u32::try_from(batch.len()).map_err(|_| BatchError::TooManyRows(batch.len()))?;
            let (eps_ids, ts, agents) = (scalars(batch, EPS_ID)?, scalars(batch, T)?, scalars(batch, AGENT_INDEX)?);
            order.reserve(eps_ids.len());
            let keys = eps_ids.iter().zip(ts).zip(agents).zip(0..rows);
            order.extend(keys.map(|(((&eps_id, &t), &agent), row)| RowKey { eps_id, t, agent, policy, row }));
        }
        if order.is_empty() {
            return Err(BatchError::NoRows);
        }
        order.sort_unstable();
        let mut slices = Vec::new();
        let mut rows: Vec<Vec<u32>> = vec![Vec::new(); batches.len()];
        let mut env_steps = 0;
        let mut steps = order.chunk_by(|a, b| (a.eps_id, a.t) == (b.eps_id, b.t)).peekable();
        while let Some(step) = steps.next() {
            env_steps += 1;
            for place in step {
                if let Some(rows) = rows.get_mut(place.policy) {
                    rows.push(place.row);
                }
            }
            if env_steps == k || steps.peek().is_none() {
                let mut policy_batches = BTreeMap::new();
                for ((policy, batch), rows) in batches.iter().zip(&mut rows) {
                    if !rows.is_empty() {
                        policy_batches.insert((*policy).clone(), picked(batch, rows)?);
                        rows.clear();
                    }
                }
                slices.push(Self { policy_batches, env_steps });
                env_steps = 0;
            }
        }
        Ok(slices)
    }
}

/// The sort key of a row of a policy's batch.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct RowKey {
    eps_id: i64,
    t: i64,
    agent: i64,
    /// Index of the policy among the sorted ids.
    policy: usize,
    row: u32,
}

/// Returns a column with one number per row.
fn scalars(batch: &SampleBatch, key: ColumnKey<i64>) -> Result<&[i64], BatchError> {
    let data = batch.data(key)?;
    if data.shape() != RowShape::SCALAR {
        let source = ColumnError::NotScalar(data.shape());
        return Err(BatchError::Column { name: key.name().to_string(), source });
    }
    Ok(data.values())
}

/// Returns these rows: a slice if they are contiguous.
fn picked(batch: &SampleBatch, rows: &[u32]) -> Result<SampleBatch, BatchError> {
    let range = rows.first().map_or(0..0, |first| *first..first.saturating_add(rows.len() as u32));
    if rows.iter().copied().eq(range.clone()) {
        let Range { start, end } = range;
        return Ok(batch.slice_rows(start as usize..end as usize));
    }
    batch.in_order(rows)
}

impl SampleBatch {
    /// Returns the batch as the default policy's batch in a multi-agent batch, with as many env steps as it has steps.
    /// Shares all buffers.
    #[must_use]
    pub fn as_multi_agent(&self) -> MultiAgentBatch {
        MultiAgentBatch::new(iter::once((PolicyId::DEFAULT, self.clone())).collect_ordered(), self.len())
    }
}

/// Formats `MultiAgentBatch({p: SampleBatch(3: ['a'])}, env_steps=3)`, and adds a line per column in the alternate form
/// `{:#}`.
impl fmt::Display for MultiAgentBatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MultiAgentBatch({")?;
        for (i, (policy, batch)) in self.policy_batches.iter().enumerate() {
            if f.alternate() {
                write!(f, "\n{policy}: {batch:#}")?;
            } else {
                write!(f, "{}{policy}: {batch}", if i > 0 { ", " } else { "" })?;
            }
        }
        f.write_str(if f.alternate() && !self.policy_batches.is_empty() { "\n" } else { "" })?;
        write!(f, "}}, env_steps={})", self.env_steps)
    }
}

#[cfg(test)]
mod tests {
    use super::{super::test_support::*, *};
    use crate::column::ColumnData;

    /// Returns rows at these times of one agent in one episode.
    fn agent(eps_id: i64, agent_index: i64, ts: &[i64]) -> SampleBatch {
        let constant = |value: i64| ColumnData::scalars(vec![value; ts.len()]);
        let batch = SampleBatch::new().with(T, ColumnData::scalars(ts.to_vec())).unwrap();
        batch.with(EPS_ID, constant(eps_id)).unwrap().with(AGENT_INDEX, constant(agent_index)).unwrap()
    }

    fn multi<const N: usize>(batches: [(&'static str, SampleBatch); N], env_steps: usize) -> MultiAgentBatch {
        let batches = batches.into_iter().map(|(policy, batch)| (PolicyId::new(policy), batch));
        MultiAgentBatch::new(batches.collect(), env_steps)
    }

    /// Policies and `t` of their rows.
    type Ts = Vec<(String, Vec<i64>)>;

    /// Returns the content of each slice, and its env steps.
    fn slices(batch: &MultiAgentBatch, k: usize) -> Vec<(Ts, usize)> {
        let ts = |(policy, batch): (&PolicyId, &SampleBatch)| (policy.to_string(), batch.get(T).unwrap().to_vec());
        let slice = |slice: &MultiAgentBatch| (slice.policy_batches.iter().map(ts).collect(), slice.env_steps());
        batch.timeslices(k).unwrap().iter().map(slice).collect()
    }

    fn all(parts: &[(&str, &[i64])]) -> Ts {
        parts.iter().map(|(policy, ts)| (policy.to_string(), ts.to_vec())).collect()
    }

    #[test]
    fn slices_are_groups_of_env_steps() {
        let batches = [("p1", agent(0, 1, &[0, 1, 2])), ("p2", agent(0, 2, &[0, 2])), ("p3", agent(0, 3, &[2]))];
        let batch = multi(batches, 3);
        assert_eq!((batch.agent_steps(), batch.env_steps(), batch.len()), (6, 3, 3));
        let expected = [
            (all(&[("p1", &[0]), ("p2", &[0])]), 1),
            (all(&[("p1", &[1])]), 1),
            (all(&[("p1", &[2]), ("p2", &[2]), ("p3", &[2])]), 1),
        ];
        assert_eq!(slices(&batch, 1), expected);
        let whole = [(all(&[("p1", &[0, 1, 2]), ("p2", &[0, 2]), ("p3", &[2])]), 3)];
        assert_eq!(slices(&batch, 5), whole);
        assert_eq!(MultiAgentBatch::concat(&batch.timeslices(1).unwrap()).unwrap(), batch);
    }

    #[test]
    fn steps_of_two_episodes_are_never_one() {
        let two = |a, b| multi([("p", a), ("q", b)], 2);
        assert_eq!(slices(&two(agent(0, 0, &[0, 1]), agent(1, 1, &[0, 1])), 1).len(), 4);
        let overlap = slices(&two(agent(0, 0, &[0, 1]), agent(0, 1, &[1, 2])), 1);
        assert_eq!((overlap.len(), &overlap[1].0), (3, &all(&[("p", &[1]), ("q", &[1])])));
        assert_eq!(slices(&two(agent(0, 0, &[0, 1]), agent(0, 1, &[0, 1])), 1).len(), 2);
        // Rows that are not in time order are sorted.
        assert_eq!(slices(&multi([("p", agent(0, 0, &[2, 0, 1]))], 3), 3), [(all(&[("p", &[0, 1, 2])]), 3)]);
    }

    #[test]
    fn slices_need_rows_and_columns() {
        assert_eq!(multi([], 0).timeslices(1), Err(BatchError::NoRows));
        assert_eq!(multi([("p", agent(0, 0, &[0]))], 1).timeslices(0), Err(BatchError::ZeroSlices));
        assert_eq!(multi([("p", rows(&[1]))], 1).timeslices(1), Err(BatchError::MissingColumn("eps_id".into())));
    }

    #[test]
    fn only_the_default_policy_alone_is_unwrapped() {
        let default = multi([("default_policy", rows(&[1]))], 5);
        assert_eq!(default.single().unwrap(), &rows(&[1]));
        assert_eq!(MultiAgentBatch::wrap_as_needed(default.policy_batches, 5), AnyBatch::Single(rows(&[1])));
        for (batch, error) in [
            (multi([("p", rows(&[1]))], 1), BatchError::NotSingle(PolicyId::new("p"))),
            (multi([], 5), BatchError::NoDefaultPolicy),
        ] {
            assert_eq!(MultiAgentBatch::wrap_as_needed(batch.policy_batches.clone(), 1).env_steps(), 1);
            assert_eq!(batch.single().unwrap_err(), error);
        }
    }

    #[test]
    fn as_multi_agent() {
        let multi = rows(&[1, 2]).as_multi_agent();
        assert_eq!((multi.env_steps(), multi.agent_steps()), (2, 2));
        assert_eq!(multi.policy_batch(&PolicyId::DEFAULT), Some(&rows(&[1, 2])));
        assert_eq!(multi.to_string(), "MultiAgentBatch({default_policy: SampleBatch(2: ['a'])}, env_steps=2)");
        assert_eq!(
            format!("{multi:#}"),
            "MultiAgentBatch({\ndefault_policy: SampleBatch(2)\n  a  int64 (2)  [1, 2]\n}, env_steps=2)"
        );
    }

    #[test]
    fn all_policies_are_compressed_and_copied() {
        let mut batch = multi([("p", rows(&[1; 100])), ("q", rows(&[2; 100]))], 100);
        let plain = batch.copy();
        batch.compress_columns(Granularity::Bulk, &["a"]).unwrap();
        assert!(batch.size_bytes() < plain.size_bytes() / 4);
        batch.decompress_if_needed().unwrap();
        assert_eq!(batch, plain);
    }

    #[test]
    fn false_lengths_allocate_nothing() {
        let seq_lens = Some(ColumnData::scalars(vec![i32::MAX; 4]));
        let recurrent = SampleBatch::from_parts(BatchParts { seq_lens, ..BatchParts::default() }).unwrap();
        assert_eq!(recurrent.as_multi_agent().timeslices(1).unwrap_err(), BatchError::HasSequences("timeslices"));
        assert_eq!(recurrent.rows().unwrap().len(), 0);
    }
}
