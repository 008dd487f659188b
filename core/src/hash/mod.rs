//! Hashes that show whether two rollouts or two sets of weights are equal, bit for bit.
//!
//! All are XXH3 with 128 bits, written as 32 hexadecimal digits, most significant first. They detect accidental damage; they
//! do not protect against deliberate forgery.
//!
//! ```
//! use rollmesh_core::{
//!     hash::RolloutHasher,
//!     kernels::Kernels,
//!     worker::{Registry, RolloutConfig, RolloutWorker},
//! };
//!
//! // 40 steps of 4 environments have one hash, however they are split into fragments.
//! let hash = |fragments: &[u32]| {
//!     let config = RolloutConfig::new("CartPole-v1").num_envs(4).seed(7);
//!     let mut worker = RolloutWorker::new(config, &Registry::builtin(), Kernels::PORTABLE)?;
//!     let mut hasher = RolloutHasher::new();
//!     for steps in fragments {
//!         for fragment in worker.sample_fragments(*steps)? {
//!             hasher.add(&fragment)?;
//!         }
//!     }
//!     Ok::<_, rollmesh_core::worker::RolloutError>(hasher.finish())
//! };
//! assert_eq!(hash(&[40])?, hash(&[15, 25])?);
//! # Ok::<(), rollmesh_core::worker::RolloutError>(())
//! ```

mod batch;
mod stream;

pub use batch::BatchHasher;

use core::fmt;

use serde::{Deserialize, Serialize};
use twox_hash::XxHash3_128;

use self::stream::StreamHasher;

use crate::{
    batch::{
        ACTION_LOGP, ACTIONS, AGENT_INDEX, BatchError, EPS_ID, MultiAgentBatch, OBS, REWARDS, SampleBatch,
        SlotFragment, T, TERMINATEDS, TRUNCATEDS, VF_PREDS,
    },
    column::{Column, ColumnData, ColumnError, Element},
    encoding,
    ids::{PolicyId, SlotId},
    prelude::*,
    weights::{Weights, WeightsError},
};

/// Element type of tensors of 32-bit floats, in hashes of weights.
const FLOATS: u32 = 1;

/// A 128-bit hash.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Hash128(pub [u8; 16]);

impl fmt::Display for Hash128 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Hash128 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

fn finish(hasher: &XxHash3_128) -> Hash128 {
    Hash128(hasher.finish_128().to_be_bytes())
}

/// Hashes bytes, to detect damage.
#[must_use]
pub fn bytes_hash(bytes: &[u8]) -> Hash128 {
    let mut hasher = XxHash3_128::new();
    hasher.write(bytes);
    finish(&hasher)
}

/// Encodes `form` behind `head`, and appends the [hash](bytes_hash) of both.
pub(crate) fn seal(head: Vec<u8>, form: &impl Serialize) -> Vec<u8> {
    let mut bytes = encoding::encode_after(head, form);
    let hash = bytes_hash(&bytes);
    bytes.extend_from_slice(&hash.0);
    bytes
}

/// Decodes what was [sealed](seal) behind a head of this length; `None` for damaged bytes.
pub(crate) fn unseal<'a, T: Deserialize<'a>>(bytes: &'a [u8], head: usize) -> Option<T> {
    let (content, hash) = bytes.split_last_chunk()?;
    if bytes_hash(content).0 != *hash {
        return None;
    }
    encoding::decode(content.get(head..)?)
}

/// Hashes weights: the tensors in order of their names, for each the length of its name, its element type (1: 32-bit floats,
/// the only one so far) and its rank as 32-bit numbers, the name, the dimensions, and the values; everything little-endian.
/// The hash does not include the version.
#[must_use]
pub fn weights_hash(weights: &Weights) -> Hash128 {
    let mut hasher = XxHash3_128::new();
    let mut bytes = Vec::new();
    for tensor in weights.tensors() {
        bytes.clear();
        bytes.extend_from_slice(&(tensor.name.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&FLOATS.to_le_bytes());
        bytes.extend_from_slice(&(tensor.shape.len() as u32).to_le_bytes());
        bytes.extend_from_slice(tensor.name.as_bytes());
        tensor.shape.iter().for_each(|dim| bytes.extend_from_slice(&dim.to_le_bytes()));
        tensor.values.iter().for_each(|value| bytes.extend_from_slice(&canonical(*value)));
        hasher.write(&bytes);
    }
    finish(&hasher)
}

/// Hashes the weights of a run's policies. For the default policy alone, this is its [`weights_hash`]; otherwise it is the
/// hash of each policy's name (its length in 4 bytes, and UTF-8) and weights hash (16 bytes), in order of the names.
///
/// # Errors
/// [`WeightsError::NoPolicy`].
pub fn run_weights_hash(weights: &Weights, policies: &[PolicyId]) -> Result<Hash128, WeightsError> {
    if policies == [PolicyId::DEFAULT] {
        return Ok(weights_hash(weights));
    }
    let mut hasher = XxHash3_128::new();
    for (id, weights) in weights.of_policies(policies)? {
        hasher.write(&(id.as_str().len() as u32).to_le_bytes());
        hasher.write(id.as_str().as_bytes());
        hasher.write(&weights_hash(&weights).0);
    }
    Ok(finish(&hasher))
}

/// Hash of a rollout, independent of its division into fragments.
///
/// Each slot has its own hash over its rows in order: observation and action, each in its own type, reward, flags (one byte:
/// 1 terminated, 2 truncated), log-probability, value; all NaNs of 32-bit floats hash alike, and everything is
/// little-endian. Rows of several agents are in order of (`eps_id`, `t`, `agent_index`), and `agent_index` (8 bytes) and the
/// policy's name (its length in 4 bytes, and UTF-8) follow each row. The result is the hash of the slots' hashes (16 bytes,
/// most significant first) in order of the slots. It can be serialised, and continues from there.
#[derive(Clone, Serialize, Deserialize)]
pub struct RolloutHasher {
    slots: BTreeMap<SlotId, StreamHasher>,
    #[serde(skip)]
    bytes: Vec<u8>,
}

impl RolloutHasher {
    /// Creates an empty hash.
    #[must_use]
    pub fn new() -> Self {
        Self { slots: BTreeMap::new(), bytes: Vec::new() }
    }

    /// Adds a fragment. Fragments of one slot must be added in order.
    ///
    /// # Errors
    /// [`BatchError`] when a column is missing or of another type.
    pub fn add(&mut self, fragment: &SlotFragment) -> Result<(), BatchError> {
        self.bytes.clear();
        match &fragment.agents {
            None => {
                let rows = HashedRows::of(&fragment.rows)?;
                (0..fragment.rows.len()).for_each(|row| rows.put(&mut self.bytes, row));
            }
            Some(agents) => put_agents(&mut self.bytes, agents)?,
        }
        self.slots.entry(fragment.slot).or_default().write(&self.bytes);
        Ok(())
    }

    /// Returns the hash so far.
    #[must_use]
    pub fn finish(&self) -> Hash128 {
        let mut all = XxHash3_128::new();
        self.slots.values().for_each(|slot| all.write(&slot.finish().0));
        finish(&all)
    }
}

impl Default for RolloutHasher {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for RolloutHasher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RolloutHasher").field(&self.finish()).finish()
    }
}

/// The hashed columns of a rollout.
struct HashedRows<'a> {
    obs: &'a Column,
    actions: &'a Column,
    rewards: &'a [f32],
    terminateds: &'a [bool],
    truncateds: &'a [bool],
    logp: &'a [f32],
    vf_preds: &'a [f32],
}

impl<'a> HashedRows<'a> {
    fn of(rows: &'a SampleBatch) -> Result<Self, BatchError> {
        let column = |name: &str| {
            let column = rows.column(name).ok_or_else(|| BatchError::MissingColumn(name.to_string()))?;
            let wrong = match (column.is_compressed(), column.dtype()) {
                (true, _) => Some(ColumnError::Compressed),
                (false, None) => Some(ColumnError::NoArray(column.column_type())),
                (false, Some(_)) => None,
            };
            wrong.map_or(Ok(column), |source| Err(BatchError::Column { name: name.to_string(), source }))
        };
        Ok(Self {
            obs: column(OBS.name())?,
            actions: column(ACTIONS.name())?,
            rewards: rows.get(REWARDS)?,
            terminateds: rows.get(TERMINATEDS)?,
            truncateds: rows.get(TRUNCATEDS)?,
            logp: rows.get(ACTION_LOGP)?,
            vf_preds: rows.get(VF_PREDS)?,
        })
    }

    fn put(&self, bytes: &mut Vec<u8>, row: usize) {
        put_row(bytes, self.obs, row);
        put_row(bytes, self.actions, row);
        bytes.extend_from_slice(&canonical(self.rewards[row]));
        bytes.push(u8::from(self.terminateds[row]) | u8::from(self.truncateds[row]) << 1);
        bytes.extend_from_slice(&canonical(self.logp[row]));
        bytes.extend_from_slice(&canonical(self.vf_preds[row]));
    }
}

/// Appends the rows of all agents, in order of their steps.
fn put_agents(bytes: &mut Vec<u8>, agents: &MultiAgentBatch) -> Result<(), BatchError> {
    let mut order = Vec::new();
    let mut columns = Vec::with_capacity(agents.policy_batches.len());
    for (id, batch) in &agents.policy_batches {
        let (episodes, steps, numbers) = (batch.get(EPS_ID)?, batch.get(T)?, batch.get(AGENT_INDEX)?);
        order.extend((0..batch.len()).map(|row| (episodes[row], steps[row], numbers[row], columns.len(), row)));
        columns.push((id, HashedRows::of(batch)?));
    }
    order.sort_unstable();
    for (_, _, number, place, row) in order {
        let (id, rows) = &columns[place];
        rows.put(bytes, row);
        bytes.extend_from_slice(&number.to_le_bytes());
        bytes.extend_from_slice(&(id.as_str().len() as u32).to_le_bytes());
        bytes.extend_from_slice(id.as_str().as_bytes());
    }
    Ok(())
}

/// Appends the elements of a row of an array.
fn put_row(bytes: &mut Vec<u8>, column: &Column, row: usize) {
    fn put<T: Element, const N: usize>(bytes: &mut Vec<u8>, data: &ColumnData<T>, row: usize, form: fn(T) -> [u8; N]) {
        data.row(row).unwrap_or_default().iter().for_each(|value| bytes.extend_from_slice(&form(*value)));
    }
    match column {
        Column::F32(data) => put(bytes, data, row, canonical),
        Column::F64(data) => {
            put(bytes, data, row, |x| if x.is_nan() { 0x7FF8_0000_0000_0000u64.to_le_bytes() } else { x.to_le_bytes() })
        }
        Column::I32(data) => put(bytes, data, row, i32::to_le_bytes),
        Column::I64(data) => put(bytes, data, row, i64::to_le_bytes),
        Column::U8(data) => put(bytes, data, row, u8::to_le_bytes),
        Column::Bool(data) => put(bytes, data, row, |x| [u8::from(x)]),
        Column::Bytes(_) | Column::Compressed(_) => {}
    }
}

fn canonical(value: f32) -> [u8; 4] {
    if value.is_nan() { 0x7FC0_0000u32.to_le_bytes() } else { value.to_le_bytes() }
}
