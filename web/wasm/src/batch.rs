//! Handles of the core's batches, which share their columns until they are written.

use js_sys::{Int32Array, Object};
use rollmesh_core::{
    batch::{AnyBatch, BatchError, BatchParts, EpisodeKey, MultiAgentBatch, SampleBatch, SliceBy, codec},
    column::{ColumnData, ColumnName},
    hash::BatchHasher,
    ids::{PolicyId, SlotId},
    rng::{Purpose, Streams},
};
use wasm_bindgen::prelude::*;

use crate::{
    Failure,
    columns::{self, set},
};

/// The rows of one policy or of several. Methods for a single policy fail for several.
#[wasm_bindgen]
#[derive(Clone)]
pub struct BatchHandle {
    batch: AnyBatch,
}

impl BatchHandle {
    /// Decompresses a batch.
    ///
    /// # Errors
    /// [`BatchError`] for blocks that are damaged.
    pub(crate) fn of(batch: impl Into<AnyBatch>) -> Result<Self, BatchError> {
        let mut batch = batch.into();
        match &mut batch {
            AnyBatch::Single(batch) => batch.decompress_if_needed()?,
            AnyBatch::Multi(batch) => batch.decompress_if_needed()?,
        }
        Ok(Self { batch })
    }

    fn single(&self) -> Result<&SampleBatch, BatchError> {
        self.batch.single()
    }

    fn all(batches: impl IntoIterator<Item = impl Into<AnyBatch>>) -> Vec<Self> {
        batches.into_iter().map(|batch| Self { batch: batch.into() }).collect()
    }
}

#[wasm_bindgen]
impl BatchHandle {
    /// Decodes a batch in the core's encoding.
    pub fn decode(bytes: &[u8]) -> Result<Self, Failure> {
        Ok(Self::of(codec::decode_any(bytes)?)?)
    }

    /// Creates a batch of columns by name, all with equally many rows, and the lengths of sequences.
    #[wasm_bindgen(js_name = ofColumns)]
    pub fn of_columns(names: Vec<String>, columns: Vec<JsValue>, seq_lens: Option<Vec<i32>>) -> Result<Self, Failure> {
        let named = names.into_iter().zip(columns);
        let columns =
            named.map(|(name, column)| columns::of_js(&name, &column).map(|column| (ColumnName::from(name), column)));
        let columns = columns.collect::<Result<_, _>>()?;
        let parts = BatchParts { columns, seq_lens: seq_lens.map(ColumnData::scalars), ..BatchParts::default() };
        Ok(Self::of(SampleBatch::from_parts(parts)?)?)
    }

    /// Creates a batch of several policies from their batches.
    #[wasm_bindgen(js_name = ofPolicies)]
    pub fn of_policies(ids: Vec<String>, batches: Vec<Self>, env_steps: u32) -> Result<Self, Failure> {
        let single = |batch: Self| batch.single().cloned();
        let batches = batches.into_iter().map(single).collect::<Result<Vec<_>, _>>()?;
        let batches = ids.into_iter().map(PolicyId::new).zip(batches).collect();
        Ok(Self { batch: MultiAgentBatch::new(batches, env_steps as usize).into() })
    }

    /// Returns whether the batch is of the type for several policies, even if it has only one.
    #[wasm_bindgen(getter, js_name = isMulti)]
    pub fn is_multi(&self) -> bool {
        matches!(self.batch, AnyBatch::Multi(_))
    }

    #[wasm_bindgen(getter, js_name = envSteps)]
    pub fn env_steps(&self) -> usize {
        self.batch.env_steps()
    }

    #[wasm_bindgen(getter, js_name = agentSteps)]
    pub fn agent_steps(&self) -> usize {
        self.batch.agent_steps()
    }

    #[wasm_bindgen(getter, js_name = sizeBytes)]
    pub fn size_bytes(&self) -> usize {
        self.batch.size_bytes()
    }

    #[wasm_bindgen(js_name = policyIds)]
    pub fn policy_ids(&self) -> Vec<String> {
        self.batch.as_multi_agent().policy_batches.keys().map(ToString::to_string).collect()
    }

    /// Returns the rows of a policy, if there are any.
    pub fn policy(&self, id: &str) -> Option<Self> {
        let found = self.batch.as_multi_agent().policy_batch(&PolicyId::new(id.to_owned()))?.clone();
        Some(Self { batch: found.into() })
    }

    #[wasm_bindgen(js_name = asSingle)]
    pub fn as_single(&self) -> Result<Self, Failure> {
        Ok(Self { batch: self.single()?.clone().into() })
    }

    #[wasm_bindgen(js_name = asMultiAgent)]
    pub fn as_multi_agent(&self) -> Self {
        Self { batch: self.batch.as_multi_agent().into() }
    }

    /// Returns another handle, which shares the columns.
    pub fn share(&self) -> Self {
        self.clone()
    }

    pub fn names(&self) -> Result<Vec<String>, Failure> {
        Ok(self.single()?.iter().map(|(name, _)| name.to_owned()).collect())
    }

    /// Returns a column as an object with typed arrays; `undefined` if there is none of that name.
    pub fn column(&self, name: &str) -> Result<JsValue, Failure> {
        self.single()?.column(name).map_or(Ok(JsValue::UNDEFINED), columns::to_js)
    }

    /// Returns `terminateds` or `truncateds` per row.
    pub fn dones(&self) -> Result<Vec<u8>, Failure> {
        Ok(self.single()?.dones()?.into_iter().map(u8::from).collect())
    }

    #[wasm_bindgen(js_name = seqLens)]
    pub fn seq_lens(&self) -> Result<Option<Int32Array>, Failure> {
        Ok(self.single()?.seq_lens().map(Int32Array::from))
    }

    pub fn slice(&self, start: f64, end: f64) -> Result<Self, Failure> {
        Ok(Self { batch: self.single()?.slice(start as i64, end as usize)?.into() })
    }

    #[wasm_bindgen(js_name = splitByEpisode)]
    pub fn split_by_episode(&self, key: Option<String>) -> Result<Vec<Self>, Failure> {
        let key = key.map(|key| key.parse::<EpisodeKey>()).transpose()?;
        Ok(Self::all(self.single()?.split_by_episode(key)?))
    }

    /// Returns slices of `size` steps, of one policy or of several; or the given number of slices, of one policy.
    pub fn timeslices(&self, size: Option<u32>, slices: Option<u32>) -> Result<Vec<Self>, Failure> {
        let size = size.map(|size| size as usize);
        if let (AnyBatch::Multi(batch), Some(size)) = (&self.batch, size) {
            return Ok(Self::all(batch.timeslices(size)?));
        }
        let by = size.map_or_else(|| SliceBy::NumSlices(slices.unwrap_or(0) as usize), SliceBy::Size);
        Ok(Self::all(self.single()?.timeslices(by)?))
    }

    /// Returns the same rows, or sequences, in an order that follows from the seed.
    pub fn shuffled(&self, seed: u64) -> Result<Self, Failure> {
        let mut batch = self.single()?.clone();
        batch.shuffle(&mut Streams::new(seed, Purpose::Shuffle).at(SlotId(0), 0, 0, 0))?;
        Ok(Self { batch: batch.into() })
    }

    pub fn concat(batches: Vec<Self>) -> Result<Self, Failure> {
        Ok(Self { batch: AnyBatch::concat(batches.iter().map(|handle| &handle.batch))? })
    }

    /// Returns plain objects with typed arrays: `envSteps`, `agentSteps` and, by policy, `rows`, `columns` and
    /// `seqLens`.
    #[wasm_bindgen(js_name = toObject)]
    pub fn to_object(&self) -> Result<JsValue, Failure> {
        let policies = Object::new();
        for (id, rows) in &self.batch.as_multi_agent().policy_batches {
            set(&policies, id.as_str(), &object_of(rows)?);
        }
        let object = Object::new();
        // A count of rows in memory is below 2^53, so its f64 is exact.
        set(&object, "envSteps", &(self.batch.env_steps() as f64).into());
        set(&object, "agentSteps", &(self.batch.agent_steps() as f64).into());
        set(&object, "policies", &policies);
        Ok(object.into())
    }

    /// Describes the batch by its number of rows and the names of its columns.
    #[wasm_bindgen(js_name = describe)]
    pub fn describe(&self) -> String {
        match &self.batch {
            AnyBatch::Single(batch) => batch.to_string(),
            AnyBatch::Multi(batch) => batch.to_string(),
        }
    }
}

/// Returns the hash of a sequence of batches as 32 hexadecimal digits, which `rollmesh sample --config FILE` prints as
/// `batch_hash`.
#[wasm_bindgen(js_name = batchHash)]
pub fn batch_hash(batches: Vec<BatchHandle>) -> Result<String, Failure> {
    let mut hasher = BatchHasher::new();
    batches.iter().try_for_each(|handle| hasher.add(&handle.batch))?;
    Ok(hasher.finish().to_string())
}

fn object_of(batch: &SampleBatch) -> Result<JsValue, Failure> {
    let columns = Object::new();
    for (name, values) in batch.iter() {
        set(&columns, name, &columns::to_js(values)?);
    }
    let object = Object::new();
    set(&object, "rows", &(batch.len() as f64).into());
    set(&object, "columns", &columns);
    if let Some(lengths) = batch.seq_lens() {
        set(&object, "seqLens", &Int32Array::from(lengths));
    }
    Ok(object.into())
}
