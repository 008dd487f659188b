//! Messages of RLlink: eight decimal digits, the length of the body, and a body of MessagePack with NumPy's arrays.

use std::io::{Read, Write};

use rmpv::Value;

use super::episodes::Episodes;

/// Maximum length of a message in bytes.
const MAX_MESSAGE: usize = 64 << 20;
/// Bytes of a message's length.
const HEADER: usize = 8;
/// Maximum depth of a message.
const MAX_DEPTH: usize = 16;

/// Maximum number of values in a message, which has few besides its arrays' bytes. One takes a byte, and 40 when decoded.
const MAX_VALUES: usize = 1 << 18;

/// The reason that a connection to RLlib is unusable.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LinkError {
    /// It cannot be opened, or has broken; another one may work.
    #[error("{0}")]
    Lost(String),
    /// A message of RLlib is too large.
    #[error("RLlib announced a message of {0} bytes; the largest that this worker takes has {MAX_MESSAGE}")]
    TooLarge(usize),
    /// The episodes do not fit into a message.
    #[error("the episodes of a message have {0} bytes, more than {MAX_MESSAGE}: lower --env-steps")]
    TooMany(usize),
    /// The peer does not use RLlink.
    #[error("the peer does not speak RLlink: {0}")]
    Malformed(String),
    /// RLlib sent another message than the answer.
    #[error("RLlib answered {found} where {wanted} was expected")]
    Unexpected {
        /// The expected type of message.
        wanted: &'static str,
        /// The type that came.
        found: String,
    },
    /// A message has pickled objects.
    #[error("'{0}' in a message of RLlib is pickled: pickled objects are never read")]
    Pickled(String),
}

/// An array of numbers as `f32`.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Array {
    pub(super) shape: Vec<u32>,
    pub(super) values: Vec<f32>,
}

/// A connection to an env runner of RLlib.
pub(super) struct RunnerLink<S> {
    stream: S,
}

impl<S: Read + Write> RunnerLink<S> {
    pub(super) fn new(stream: S) -> Self {
        Self { stream }
    }

    /// Checks that the peer uses RLlink.
    pub(super) fn ping(&mut self) -> Result<(), LinkError> {
        self.send(&message("PING", vec![]))?;
        self.receive("PONG").map(drop)
    }

    /// Requests the module's tensors by name.
    pub(super) fn state(&mut self) -> Result<Vec<(String, Array)>, LinkError> {
        self.send(&message("GET_STATE", vec![]))?;
        self.read_state()
    }

    /// Sends episodes and waits for the weights that were learned from them.
    pub(super) fn exchange(&mut self, episodes: &Episodes) -> Result<Vec<(String, Array)>, LinkError> {
        let fields = vec![("episodes", episodes.value()), ("timesteps", episodes.env_steps.into())];
        self.send(&message("EPISODES_AND_GET_STATE", fields))?;
        self.read_state()
    }

    fn read_state(&mut self) -> Result<Vec<(String, Array)>, LinkError> {
        let body = self.receive("SET_STATE")?;
        let module = field(&body, "state").and_then(|state| field(state, "rl_module"));
        let module = module.and_then(Value::as_map).ok_or_else(|| malformed("SET_STATE has no rl_module"))?;
        module
            .iter()
            .map(|(name, tensor)| {
                let name = name.as_str().ok_or_else(|| malformed("a tensor has no name"))?;
                Ok((name.to_owned(), array(name, tensor)?))
            })
            .collect()
    }

    fn send(&mut self, body: &Value) -> Result<(), LinkError> {
        let mut bytes = vec![0; HEADER];
        rmpv::encode::write_value(&mut bytes, body).map_err(lost)?;
        let length = bytes.len() - HEADER;
        if length > MAX_MESSAGE {
            return Err(LinkError::TooMany(length));
        }
        bytes[..HEADER].copy_from_slice(format!("{length:08}").as_bytes());
        self.stream.write_all(&bytes).map_err(lost)
    }

    /// Waits for a message of this type.
    fn receive(&mut self, wanted: &'static str) -> Result<Value, LinkError> {
        let mut header = [0; HEADER];
        self.stream.read_exact(&mut header).map_err(lost)?;
        let digits = std::str::from_utf8(&header).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
        let length = digits.and_then(|digits| digits.parse::<usize>().ok());
        let length = length.ok_or_else(|| malformed("a message does not begin with its length"))?;
        if length > MAX_MESSAGE {
            return Err(LinkError::TooLarge(length));
        }
        // Memory grows with what arrives.
        let mut body = Vec::new();
        let read = (&mut self.stream).take(length as u64).read_to_end(&mut body).map_err(lost)?;
        if read < length {
            return Err(lost("it was closed within a message"));
        }
        if num_values(&body).is_some_and(|count| count > MAX_VALUES) {
            return Err(malformed(&format!("a body has more than {MAX_VALUES} values")));
        }
        let decoded = rmpv::decode::read_value_with_max_depth(&mut &body[..], MAX_DEPTH);
        let body = decoded.map_err(|error| malformed(&format!("a body is no MessagePack: {error}")))?;
        let found = field(&body, "type").and_then(Value::as_str).ok_or_else(|| malformed("a message has no type"))?;
        if found != wanted {
            return Err(LinkError::Unexpected { wanted, found: found.to_owned() });
        }
        Ok(body)
    }
}

/// Counts the values of MessagePack without decoding them, those within others included; `None` if the last one is not whole.
/// Format: <https://github.com/msgpack/msgpack/blob/master/spec.md>.
fn num_values(mut body: &[u8]) -> Option<usize> {
    let mut count = 0;
    while let [marker, rest @ ..] = body {
        let length = |bytes: usize| {
            let bytes = rest.get(..bytes)?;
            Some(bytes.len() + bytes.iter().fold(0, |all, byte| all << 8 | usize::from(*byte)))
        };
        // Elements follow the head of an array or a map.
        let skipped = match marker {
            0xa0..=0xbf => usize::from(marker & 0x1f),
            0xc4 | 0xd9 => length(1)?,
            0xc5 | 0xda => length(2)?,
            0xc6 | 0xdb => length(4)?,
            0xc7 => 1 + length(1)?,
            0xc8 => 1 + length(2)?,
            0xc9 => 1 + length(4)?,
            0xcc | 0xd0 => 1,
            0xcd | 0xd1 | 0xd4 | 0xdc | 0xde => 2,
            0xd5 => 3,
            0xca | 0xce | 0xd2 | 0xdd | 0xdf => 4,
            0xd6 => 5,
            0xcb | 0xcf | 0xd3 => 8,
            0xd7 => 9,
            0xd8 => 17,
            _ => 0,
        };
        body = rest.get(skipped..)?;
        count += 1;
    }
    Some(count)
}

fn message(kind: &str, fields: Vec<(&str, Value)>) -> Value {
    let fields = fields.into_iter().map(|(name, value)| (name.into(), value));
    Value::Map(std::iter::once(("type".into(), kind.into())).chain(fields).collect())
}

fn lost(error: impl std::fmt::Display) -> LinkError {
    LinkError::Lost(format!("the connection to RLlib broke: {error}"))
}

fn malformed(what: &str) -> LinkError {
    LinkError::Malformed(what.to_owned())
}

/// Returns the field of a map whose keys are texts or, in arrays, bytes.
fn field<'a>(map: &'a Value, name: &str) -> Option<&'a Value> {
    let is_it = |key: &Value| key.as_str() == Some(name) || key.as_slice() == Some(name.as_bytes());
    map.as_map()?.iter().find(|(key, _)| is_it(key)).map(|(_, value)| value)
}

/// Reads an array as `msgpack_numpy` encodes it. Arrays of objects are pickled.
fn array(name: &str, value: &Value) -> Result<Array, LinkError> {
    let broken = || LinkError::Malformed(format!("'{name}' is no array of 32- or 64-bit floats"));
    if field(value, "kind").and_then(Value::as_slice) == Some(b"O") {
        return Err(LinkError::Pickled(name.to_owned()));
    }
    let part = |part: &str| field(value, part).ok_or_else(broken);
    let dims = part("shape")?.as_array().ok_or_else(broken)?;
    let shape: Option<Vec<u32>> = dims.iter().map(|dim| dim.as_u64().and_then(|dim| dim.try_into().ok())).collect();
    let shape = shape.ok_or_else(broken)?;
    let data = part("data")?.as_slice().ok_or_else(broken)?;
    let values: Vec<f32> = match (part("type")?.as_str(), data.as_chunks(), data.as_chunks()) {
        (Some("<f4"), (values, []), _) => values.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect(),
        (Some("<f8"), _, (values, [])) => values.iter().map(|bytes| f64::from_le_bytes(*bytes) as f32).collect(),
        _ => return Err(broken()),
    };
    let wanted = shape.iter().try_fold(1usize, |n, dim| n.checked_mul(*dim as usize));
    if wanted == Some(values.len()) { Ok(Array { shape, values }) } else { Err(broken()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_counted_whatever_their_form() {
        let long = "x".repeat(40);
        let number = |number: i64| Value::from(number);
        let numbers = [1, -1, 200, -100, 60_000, -30_000, 1 << 30, -(1 << 30), 1 << 40, -(1 << 40)].map(number);
        let mut values = vec![Value::Nil, true.into(), 1.5f32.into(), 1.5f64.into(), "ab".into(), long.as_str().into()];
        values.extend(numbers);
        values.extend([300, 70_000].map(|length| Value::from("y".repeat(length))));
        values.extend([3, 300, 70_000].map(|length| Value::Binary(vec![0xdf; length])));
        values.extend([1, 2, 4, 8, 16, 3, 300, 70_000].map(|length| Value::Ext(1, vec![0xc9; length])));
        values.extend([3, 20].map(|length| Value::Array(vec![Value::Nil; length])));
        let nested = values.len() + 23;
        let map = Value::Map(vec![("key".into(), Value::Array(values))]);
        let mut bytes = Vec::new();
        rmpv::encode::write_value(&mut bytes, &map).unwrap();
        assert_eq!(num_values(&bytes), Some(nested + 3));
        assert_eq!(num_values(&[0xa3, b'k']), None);
    }

    #[test]
    fn message_of_too_many_values_is_refused_before_it_is_decoded() {
        let body = [&[0xdd, 0x00, 0x10, 0x00, 0x00][..], &vec![0xc0; 1 << 20]].concat();
        let bytes = [format!("{:08}", body.len()).as_bytes(), &body].concat();
        let error = RunnerLink::new(std::io::Cursor::new(bytes)).receive("any").unwrap_err();
        assert!(error.to_string().contains("more than 262144 values"), "{error}");
    }
}
