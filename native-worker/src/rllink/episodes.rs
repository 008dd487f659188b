//! Rows of a worker as RLlib's episodes.

use rmpv::Value;
use rollmesh_core::{
    batch::{
        ACTION_DIST_INPUTS, ACTION_LOGP, ACTIONS, BatchError, EPS_ID, EpisodeKey, NEW_OBS, OBS, REWARDS, SampleBatch,
        T, TERMINATEDS, TRUNCATEDS,
    },
    column::{Column, ColumnData, DType, RowBuffer, RowShape, RowsRef, append_le},
    env::Moment,
    policy::{ActionInput, ActionOutput, Policy},
};

use super::RllinkError;

/// Pieces of episodes, as RLlib's `SingleAgentEpisode` writes its state.
#[derive(Default)]
pub(super) struct Episodes {
    states: Vec<Value>,
    pub(super) env_steps: u64,
}

impl Episodes {
    /// Returns them as a list.
    pub(super) fn value(&self) -> Value {
        Value::Array(self.states.clone())
    }

    /// Adds the rows of a batch that this policy has sampled.
    pub(super) fn add(&mut self, batch: &SampleBatch, policy: &mut dyn Policy, id: &str) -> Result<(), RllinkError> {
        let inputs = dist_inputs(batch, policy)?;
        let mut batch = batch.clone();
        batch.insert(ACTION_DIST_INPUTS.name(), inputs)?;
        for piece in batch.split_by_episode(Some(EpisodeKey::EpsId))? {
            self.states.push(state(&piece, id)?);
            self.env_steps += piece.len() as u64;
        }
        Ok(())
    }
}

/// Returns the inputs of the distributions that the actions were drawn from.
fn dist_inputs(batch: &SampleBatch, policy: &mut dyn Policy) -> Result<Column, RllinkError> {
    let (obs, actions) = (column(batch, OBS.name())?, column(batch, ACTIONS.name())?);
    let (rows, width) = (batch.len(), policy.dist_inputs_len());
    let moments = vec![Moment::default(); rows];
    let (mut logp, mut values, mut inputs) = (vec![0.0; rows], vec![0.0; rows], vec![0.0; rows * width]);
    let mut chosen = RowBuffer::zeros(actions.dtype().unwrap_or(DType::F32), rows * actions.shape().elements());
    let mut out = ActionOutput::new(chosen.all_mut(), &mut logp, &mut values);
    out.dist_inputs = &mut inputs;
    let obs = obs.array()?;
    policy.compute_actions(ActionInput { explore: false, ..ActionInput::new(obs, &moments) }, out)?;
    let shape = RowShape::vector(width as u32);
    let data = ColumnData::new(inputs, shape)?;
    Ok(Column::F32(data))
}

/// Returns the state of a `SingleAgentEpisode` with these rows of one episode.
fn state(rows: &SampleBatch, id: &str) -> Result<Value, RllinkError> {
    let (n, first) = (rows.len(), rows.get(T)?.first().copied().unwrap_or(0));
    let episode = rows.get(EPS_ID)?.first().copied().unwrap_or(0);
    let ends = |key| -> Result<bool, BatchError> { Ok(rows.get(key)?.last().copied().unwrap_or(false)) };
    let mut outputs = Vec::new();
    for name in [ACTION_DIST_INPUTS.name(), ACTION_LOGP.name()] {
        outputs.push((Value::from(name), buffer(array(column(rows, name)?, None)?)));
    }
    let last = column(rows, NEW_OBS.name())?.slice(n - 1..n);
    let observations = array(column(rows, OBS.name())?, Some(&last))?;
    let infos = Value::Array(vec![Value::Map(Vec::new()); n + 1]);
    let fields = [
        ("id_", format!("{id}-{episode}").into()),
        ("agent_id", Value::Nil),
        ("module_id", Value::Nil),
        ("multi_agent_episode_id", Value::Nil),
        ("observations", buffer(observations)),
        ("actions", buffer(array(column(rows, ACTIONS.name())?, None)?)),
        ("rewards", buffer(array(column(rows, REWARDS.name())?, None)?)),
        ("infos", buffer(infos)),
        ("extra_model_outputs", Value::Map(outputs)),
        ("is_terminated", ends(TERMINATEDS)?.into()),
        ("is_truncated", ends(TRUNCATEDS)?.into()),
        ("t_started", first.into()),
        ("t", (first + n as i64).into()),
        ("_observation_space", Value::Nil),
        ("_action_space", Value::Nil),
        // RLlib takes the difference for the duration.
        ("_start_time", 0.0.into()),
        ("_last_step_time", 0.0.into()),
        ("custom_data", Value::Map(Vec::new())),
    ];
    Ok(Value::Map(fields.into_iter().map(|(name, value)| (name.into(), value)).collect()))
}

fn column<'a>(rows: &'a SampleBatch, name: &str) -> Result<&'a Column, BatchError> {
    rows.column(name).ok_or_else(|| BatchError::MissingColumn(name.to_owned()))
}

/// Returns the state of an `InfiniteLookbackBuffer`: of an array, or of a list, which RLlib has not made an array yet.
fn buffer(data: Value) -> Value {
    let is_array = data.is_map();
    let fields = [("data", data), ("lookback", 0.into()), ("finalized", is_array.into()), ("space", Value::Nil)];
    Value::Map(fields.into_iter().map(|(name, value)| (name.into(), value)).collect())
}

/// Returns the rows, and those of `more`, as `msgpack_numpy` encodes an array.
fn array(rows: &Column, more: Option<&Column>) -> Result<Value, RllinkError> {
    let mut data = Vec::new();
    let mut count = 0;
    for column in [Some(rows), more].into_iter().flatten() {
        count += column.rows();
        match column.array()? {
            RowsRef::F32(values) => append_le(&mut data, values),
            RowsRef::F64(values) => append_le(&mut data, values),
            RowsRef::I32(values) => append_le(&mut data, values),
            RowsRef::I64(values) => append_le(&mut data, values),
            RowsRef::U8(values) => append_le(&mut data, values),
            RowsRef::Bool(values) => append_le(&mut data, values),
        }
    }
    let kind = match rows.dtype() {
        Some(DType::F64) => "<f8",
        Some(DType::I32) => "<i4",
        Some(DType::I64) => "<i8",
        Some(DType::U8) => "|u1",
        Some(DType::Bool) => "|b1",
        Some(DType::F32) | None => "<f4",
    };
    let dims = rows.shape();
    let shape = std::iter::once(count as u64).chain(dims.dims().iter().map(|dim| u64::from(*dim)));
    let bin = |bytes: &[u8]| Value::Binary(bytes.to_vec());
    Ok(Value::Map(vec![
        (bin(b"nd"), true.into()),
        (bin(b"type"), kind.into()),
        (bin(b"kind"), bin(b"")),
        (bin(b"shape"), Value::Array(shape.map(Value::from).collect())),
        (bin(b"data"), Value::Binary(data)),
    ]))
}
