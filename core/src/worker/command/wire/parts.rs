//! Forms that commands and answers share.

use core::{fmt, marker::PhantomData};

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{DeserializeOwned, Error, SeqAccess, Visitor},
    ser,
};

use super::{MAX_JSON_BYTES, MAX_POLICIES};
use crate::{
    batch::{AnyBatch, codec},
    config::Config,
    episode::GlobalVars,
    filter::Filter,
    ids::PolicyId,
    prelude::*,
    protocol::{convert, message::WeightsUpdate},
    weights::Weights,
    worker::{CommandError, NamedFn, TrainedPolicies},
};

/// A byte string: borrowed from its source when it is encoded, and from the whole message when it is decoded.
pub(super) struct Bytes<'a>(pub(super) Cow<'a, [u8]>);

impl Serialize for Bytes<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.0)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Bytes<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        <&[u8]>::deserialize(deserializer).map(|bytes| Bytes(bytes.into()))
    }
}

/// A list with a maximum length, checked when it is decoded and also when it is encoded, so that no peer sends what the
/// other rejects.
pub(super) struct AtMost<T, const N: usize>(pub(super) Vec<T>);

impl<T: Serialize, const N: usize> Serialize for AtMost<T, N> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.0.len() > N {
            return Err(ser::Error::custom("a list is too long"));
        }
        self.0.serialize(serializer)
    }
}

impl<'de, T: Deserialize<'de>, const N: usize> Deserialize<'de> for AtMost<T, N> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct List<T, const N: usize>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>, const N: usize> Visitor<'de> for List<T, N> {
            type Value = Vec<T>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a list of at most {N}")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Vec<T>, A::Error> {
                let mut list = Vec::new();
                while let Some(item) = items.next_element()? {
                    if list.len() == N {
                        return Err(A::Error::custom("a list is too long"));
                    }
                    list.push(item);
                }
                Ok(list)
            }
        }
        deserializer.deserialize_seq(List::<T, N>(PhantomData)).map(Self)
    }
}

impl<T, const N: usize> FromIterator<T> for AtMost<T, N> {
    fn from_iter<I: IntoIterator<Item = T>>(items: I) -> Self {
        Self(items.into_iter().collect())
    }
}

/// A list with an entry per policy.
pub(super) type ByPolicy<T> = AtMost<(PolicyId, T), MAX_POLICIES>;

/// A list of policies.
pub(super) type Policies = AtMost<PolicyId, MAX_POLICIES>;

/// Converts a list with an entry per policy; each policy may occur once.
pub(super) fn by_policy<F, T>(
    list: ByPolicy<F>,
    read: impl Fn(F) -> Result<T, CommandError>,
) -> Result<BTreeMap<PolicyId, T>, CommandError> {
    let mut map = BTreeMap::new();
    for (id, form) in list.0 {
        if map.contains_key(&id) {
            return Err(CommandError::malformed("a list by policy", format_args!("'{id}' is there twice")));
        }
        map.insert(id, read(form)?);
    }
    Ok(map)
}

/// Decodes JSON values and counts their bytes against the limit.
pub(super) struct Json(usize);

impl Json {
    pub(super) fn new() -> Self {
        Self(MAX_JSON_BYTES)
    }

    pub(super) fn read<T: DeserializeOwned>(&mut self, what: &str, text: &str) -> Result<T, CommandError> {
        self.count(what, text)?;
        serde_json::from_str(text).map_err(|why| CommandError::malformed(what, why))
    }

    pub(super) fn config(&mut self, what: &str, text: &str) -> Result<Config, CommandError> {
        self.count(what, text)?;
        text.parse().map_err(|why| CommandError::malformed(what, why))
    }

    fn count(&mut self, what: &str, text: &str) -> Result<(), CommandError> {
        let rest = self.0.checked_sub(text.len());
        self.0 = rest.ok_or_else(|| {
            CommandError::malformed(what, format_args!("there are more than {MAX_JSON_BYTES} bytes of JSON"))
        })?;
        Ok(())
    }
}

pub(super) fn json(value: &impl Serialize) -> Result<String, CommandError> {
    let text = serde_json::to_string(value).map_err(|why| CommandError::malformed("it has no form as JSON", why))?;
    if text.len() > MAX_JSON_BYTES {
        return Err(super::too_large("JSON", text.len(), MAX_JSON_BYTES));
    }
    Ok(text)
}

pub(super) fn write_weights(weights: &Weights) -> WeightsUpdate {
    convert::weights_update(0, weights)
}

pub(super) fn read_weights(update: WeightsUpdate) -> Result<Weights, CommandError> {
    convert::weights(&update).map_err(|why| CommandError::malformed("weights", why))
}

pub(super) fn write_all_weights(weights: &BTreeMap<PolicyId, Weights>) -> ByPolicy<WeightsUpdate> {
    weights.iter().map(|(id, weights)| (id.clone(), write_weights(weights))).collect()
}

pub(super) fn write_filters(filters: &BTreeMap<PolicyId, Filter>) -> ByPolicy<Bytes<'static>> {
    filters.iter().map(|(id, filter)| (id.clone(), Bytes(filter.encode().into()))).collect()
}

pub(super) fn read_filters(filters: ByPolicy<Bytes<'_>>) -> Result<BTreeMap<PolicyId, Filter>, CommandError> {
    by_policy(filters, |bytes| Filter::decode(&bytes.0).map_err(|why| CommandError::malformed("a filter", why)))
}

/// A batch in its usual encoding.
#[derive(Serialize, Deserialize)]
pub(super) enum BatchForm<'a> {
    Single(#[serde(borrow)] Bytes<'a>),
    Multi(#[serde(borrow)] Bytes<'a>),
}

impl BatchForm<'_> {
    pub(super) fn of(batch: &AnyBatch) -> BatchForm<'static> {
        match batch {
            AnyBatch::Single(batch) => BatchForm::Single(Bytes(codec::encode(batch).into())),
            AnyBatch::Multi(batch) => BatchForm::Multi(Bytes(codec::encode_multi_agent(batch).into())),
        }
    }

    pub(super) fn read(self) -> Result<AnyBatch, CommandError> {
        let batch = match self {
            Self::Single(bytes) => codec::decode(&bytes.0).map(AnyBatch::Single),
            Self::Multi(bytes) => codec::decode_multi_agent(&bytes.0).map(AnyBatch::Multi),
        };
        batch.map_err(|why| CommandError::malformed("a batch", why))
    }
}

#[derive(Serialize, Deserialize)]
pub(super) struct VarsForm {
    timestep: u64,
    updates: ByPolicy<u64>,
}

impl VarsForm {
    pub(super) fn of(vars: &GlobalVars) -> Self {
        let updates = vars.num_grad_updates_per_policy.iter();
        Self { timestep: vars.timestep, updates: updates.map(|(id, updates)| (id.clone(), *updates)).collect() }
    }

    pub(super) fn read(self) -> Result<GlobalVars, CommandError> {
        let num_grad_updates_per_policy = by_policy(self.updates, Ok)?;
        Ok(GlobalVars { timestep: self.timestep, num_grad_updates_per_policy })
    }
}

#[derive(Serialize, Deserialize)]
pub(super) struct FnForm {
    name: String,
    arguments: String,
}

impl FnForm {
    pub(super) fn of(function: &NamedFn) -> Result<Self, CommandError> {
        Ok(Self { name: function.name.clone(), arguments: json(&function.arguments)? })
    }

    pub(super) fn read(self, json: &mut Json) -> Result<NamedFn, CommandError> {
        Ok(NamedFn { arguments: json.config("a function's arguments", &self.arguments)?, name: self.name })
    }
}

#[derive(Serialize, Deserialize)]
pub(super) enum TrainedForm {
    All,
    Ids(Policies),
}

impl TrainedForm {
    pub(super) fn of(trained: &TrainedPolicies) -> Self {
        match trained {
            TrainedPolicies::All => Self::All,
            TrainedPolicies::Ids(ids) => Self::Ids(ids.iter().cloned().collect()),
        }
    }

    pub(super) fn read(self) -> TrainedPolicies {
        match self {
            Self::All => TrainedPolicies::All,
            Self::Ids(ids) => TrainedPolicies::Ids(ids.0.into_iter().collect()),
        }
    }
}
