//! A batch of one or of several policies.

use core::fmt;

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{Error, SeqAccess, Visitor},
};

use super::{BatchError, MultiAgentBatch, SampleBatch, codec};
use crate::{ids::PolicyId, prelude::*};

/// The sample of a worker: a batch of the default policy alone, or of several policies.
#[derive(Clone, Debug, PartialEq)]
pub enum AnyBatch {
    /// Rows of the default policy.
    Single(SampleBatch),
    /// Rows of several policies.
    Multi(MultiAgentBatch),
}

impl AnyBatch {
    /// Returns the number of steps of the environment.
    #[must_use]
    pub fn env_steps(&self) -> usize {
        match self {
            Self::Single(batch) => batch.env_steps(),
            Self::Multi(batch) => batch.env_steps(),
        }
    }

    /// Returns the number of steps of agents.
    #[must_use]
    pub fn agent_steps(&self) -> usize {
        match self {
            Self::Single(batch) => batch.agent_steps(),
            Self::Multi(batch) => batch.agent_steps(),
        }
    }

    /// Returns the bytes of all columns and of `seq_lens`.
    #[must_use]
    pub fn size_bytes(&self) -> usize {
        match self {
            Self::Single(batch) => batch.size_bytes(),
            Self::Multi(batch) => batch.size_bytes(),
        }
    }

    /// Makes a deep copy: all rows in new buffers. A clone is a shallow copy.
    #[must_use]
    pub fn copy(&self) -> Self {
        match self {
            Self::Single(batch) => Self::Single(batch.copy()),
            Self::Multi(batch) => Self::Multi(batch.copy()),
        }
    }

    /// Returns the batches by policy; a single batch belongs to the default policy.
    #[must_use]
    pub fn as_multi_agent(&self) -> MultiAgentBatch {
        match self {
            Self::Single(batch) => batch.as_multi_agent(),
            Self::Multi(batch) => batch.clone(),
        }
    }

    /// Returns the rows of the default policy, if there are no other policies.
    ///
    /// # Errors
    /// As [`MultiAgentBatch::single`].
    pub fn single(&self) -> Result<&SampleBatch, BatchError> {
        match self {
            Self::Single(batch) => Ok(batch),
            Self::Multi(batch) => batch.single(),
        }
    }

    /// Joins batches. If any of them is a multi-agent batch, the result is one too; single batches then count as batches of
    /// the default policy, and empty single batches are ignored.
    ///
    /// # Errors
    /// As [`SampleBatch::concat`].
    #[doc(alias = "concat_samples")]
    pub fn concat<'a>(batches: impl IntoIterator<Item = &'a Self>) -> Result<Self, BatchError> {
        let batches: Vec<&Self> = batches.into_iter().collect();
        if batches.iter().any(|batch| matches!(batch, Self::Multi(_))) {
            let empty = |batch: &Self| matches!(batch, Self::Single(batch) if batch.is_empty());
            let lifted: Vec<_> = batches.into_iter().filter(|b| !empty(b)).map(Self::as_multi_agent).collect();
            return MultiAgentBatch::concat(&lifted).map(Self::Multi);
        }
        let single = batches.into_iter().filter_map(|batch| match batch {
            Self::Single(batch) => Some(batch),
            Self::Multi(_) => None,
        });
        SampleBatch::concat(single).map(Self::Single)
    }

    /// Joins batches as [`concat`](Self::concat) does. If their columns differ, the result has those that all of a policy's
    /// batches with rows have: files may have columns that sampled rows, or other files, lack.
    ///
    /// # Errors
    /// As [`SampleBatch::concat`]; [`BatchError::MissingColumn`] only if a policy's batches have no column in common.
    pub fn concat_common(batches: &[Self]) -> Result<Self, BatchError> {
        let joined = Self::concat(batches);
        if !matches!(joined, Err(BatchError::MissingColumn(_))) {
            return joined;
        }
        let mut common: BTreeMap<PolicyId, BTreeSet<String>> = BTreeMap::new();
        for (id, rows) in batches.iter().flat_map(|batch| batch.as_multi_agent().policy_batches) {
            if rows.is_empty() {
                continue;
            }
            let has = |name: &String| rows.column(name).is_some();
            match common.get_mut(&id) {
                Some(common) => common.retain(has),
                None => _ = common.insert(id, rows.iter().map(|(name, _)| name.to_owned()).collect_ordered()),
            }
        }
        if common.values().any(BTreeSet::is_empty) {
            return joined;
        }
        let mut batches = batches.to_vec();
        let keep = |id: &PolicyId, rows: &mut SampleBatch| {
            // A policy without rows has no columns in common.
            let Some(common) = common.get(id) else { return };
            let all: Vec<String> = rows.iter().map(|(name, _)| name.to_owned()).collect();
            all.iter().filter(|name| !common.contains(*name)).for_each(|name| _ = rows.remove(name));
        };
        for batch in &mut batches {
            match batch {
                Self::Single(rows) => keep(&PolicyId::DEFAULT, rows),
                Self::Multi(multi) => multi.policy_batches.iter_mut().for_each(|(id, rows)| keep(id, rows)),
            }
        }
        Self::concat(&batches)
    }
}

impl From<SampleBatch> for AnyBatch {
    fn from(batch: SampleBatch) -> Self {
        Self::Single(batch)
    }
}

impl From<MultiAgentBatch> for AnyBatch {
    fn from(batch: MultiAgentBatch) -> Self {
        Self::Multi(batch)
    }
}

/// The bytes of [`codec::encode_any`].
impl Serialize for AnyBatch {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&codec::encode_any(self))
    }
}

impl<'de> Deserialize<'de> for AnyBatch {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_bytes(AnyBatchVisitor)
    }
}

/// Reads the bytes from formats that lend them, that copy them, and that write them as lists of numbers.
struct AnyBatchVisitor;

impl<'de> Visitor<'de> for AnyBatchVisitor {
    type Value = AnyBatch;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the bytes of a batch")
    }

    // Also for `visit_borrowed_bytes` and `visit_byte_buf`, whose defaults call it.
    fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<AnyBatch, E> {
        codec::decode_any(bytes).map_err(E::custom)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut numbers: A) -> Result<AnyBatch, A::Error> {
        let mut bytes = Vec::new();
        while let Some(byte) = numbers.next_element::<u8>()? {
            bytes.push(byte);
        }
        self.visit_bytes(&bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::{super::test_support::*, *};
    use crate::{column::ColumnData, encoding};

    #[test]
    fn mixtures_are_joined_by_policy() {
        let batches = [(PolicyId::DEFAULT, rows(&[0])), (PolicyId::new("q"), rows(&[0, 1]))];
        let multi = MultiAgentBatch::new(batches.into_iter().collect(), 2);
        let parts: [AnyBatch; 3] = [rows(&[0, 1]).into(), multi.into(), SampleBatch::new().into()];
        let joined = AnyBatch::concat(&parts).unwrap();
        assert_eq!((joined.env_steps(), joined.agent_steps()), (4, 5));
        let joined = joined.as_multi_agent();
        assert_eq!(joined.policy_batch(&PolicyId::DEFAULT), Some(&rows(&[0, 1, 0])));
        assert_eq!(joined.policy_batch(&PolicyId::new("q")), Some(&rows(&[0, 1])));
        assert_eq!(AnyBatch::concat(&parts[..1]), Ok(rows(&[0, 1]).into()));
        assert_eq!(AnyBatch::concat([]), Ok(SampleBatch::new().into()));
    }

    #[test]
    fn common_columns_are_joined_by_policy() {
        let wide = rows(&[2]).with(B, ColumnData::scalars(vec![3])).unwrap();
        assert_eq!(
            AnyBatch::concat(&[rows(&[1]).into(), wide.clone().into()]),
            Err(BatchError::MissingColumn("b".into()))
        );
        let common = |batches: &[AnyBatch]| AnyBatch::concat_common(batches).unwrap();
        assert_eq!(common(&[rows(&[1]).into(), SampleBatch::new().into(), wide.clone().into()]), rows(&[1, 2]).into());
        assert_eq!(
            common(&[wide.clone().into(), wide.clone().into()]),
            AnyBatch::concat(&[wide.clone().into(), wide.clone().into()]).unwrap()
        );
        let batches = [(PolicyId::DEFAULT, rows(&[0])), (PolicyId::new("q"), wide.clone())].into_iter().collect();
        let joined = common(&[wide.clone().into(), MultiAgentBatch::new(batches, 1).into()]).as_multi_agent();
        assert_eq!(joined.policy_batch(&PolicyId::DEFAULT), Some(&rows(&[2, 0])));
        assert_eq!(joined.policy_batch(&PolicyId::new("q")), Some(&wide));
        let other = SampleBatch::new().with(B, ColumnData::scalars(vec![3])).unwrap();
        let error = AnyBatch::concat_common(&[rows(&[1]).into(), other.into()]).unwrap_err();
        assert_eq!(error, BatchError::MissingColumn("a".into()), "rows are not lost with all their columns");
    }

    #[test]
    fn batches_of_either_kind_survive_binary_formats_and_json() {
        let single = AnyBatch::from(rows(&[0, 1]));
        let multi = MultiAgentBatch::new([(PolicyId::new("q"), rows(&[0, 1]))].into_iter().collect(), 2);
        for batch in [single, multi.into()] {
            assert_eq!(encoding::decode::<AnyBatch>(&encoding::encode(&batch)), Some(batch.clone()));
            let text = serde_json::to_string(&batch).unwrap();
            assert_eq!(serde_json::from_str::<AnyBatch>(&text).unwrap(), batch);
            let value = serde_json::to_value(&batch).unwrap();
            assert_eq!(serde_json::from_value::<AnyBatch>(value).unwrap(), batch);
        }
        assert!(serde_json::from_str::<AnyBatch>("[1, 2]").is_err());
        assert!(serde_json::from_str::<AnyBatch>("[256]").is_err());
    }
}
