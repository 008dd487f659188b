//! Lists with a maximum length and byte strings, for postcard.
//!
//! ```
//! use rollmesh_core::worker::WorkerCommand;
//!
//! // A request for the weights of 60,000 policies, all without a name; a command names at most 4,096.
//! let mut bytes = vec![6, 1, 0xe0, 0xd4, 0x03];
//! bytes.resize(bytes.len() + 60_000, 0);
//! assert!(WorkerCommand::decode(&bytes).is_err());
//! ```

use core::{fmt, marker::PhantomData};

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{Error as _, SeqAccess, Visitor},
    ser::Error as _,
};

use crate::prelude::*;

/// A byte string: borrowed from its source when it is encoded, and from the whole message when it is decoded.
#[derive(Serialize, Deserialize)]
pub(crate) struct Bytes<'a>(#[serde(borrow, serialize_with = "bytes::serialize")] pub(crate) Cow<'a, [u8]>);

/// Serde's functions for a field that is a byte string: otherwise serde would pass a `Vec<u8>` to postcard element by
/// element.
pub(crate) mod bytes {
    use serde::{Deserialize as _, Deserializer, Serializer};

    use crate::prelude::*;

    pub(crate) fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(bytes)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
        <&[u8]>::deserialize(deserializer).map(Vec::from)
    }
}

/// A list of at most `N` items, see [`AtMost`].
#[derive(Serialize, Deserialize)]
#[serde(bound(serialize = "T: Serialize", deserialize = "T: Deserialize<'de>"))]
pub(crate) struct List<T, const N: usize>(#[serde(with = "AtMost::<N>")] pub(crate) Vec<T>);

impl<T, const N: usize> FromIterator<T> for List<T, N> {
    fn from_iter<I: IntoIterator<Item = T>>(items: I) -> Self {
        Self(items.into_iter().collect())
    }
}

/// Serde's functions for a field that is a list of at most `N` items, checked when it is decoded and also when it is encoded,
/// so that no peer sends what the other rejects.
pub(crate) struct AtMost<const N: usize>;

impl<const N: usize> AtMost<N> {
    pub(crate) fn serialize<T: Serialize, S: Serializer>(list: &[T], serializer: S) -> Result<S::Ok, S::Error> {
        if list.len() > N { Err(S::Error::custom("a list is too long")) } else { list.serialize(serializer) }
    }

    pub(crate) fn deserialize<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<T>, D::Error> {
        struct Items<T, const N: usize>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>, const N: usize> Visitor<'de> for Items<T, N> {
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
        deserializer.deserialize_seq(Items::<T, N>(PhantomData))
    }
}
