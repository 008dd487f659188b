//! Serde helpers for byte strings: otherwise serde would pass a `Vec<u8>` to postcard element by element.

use core::fmt;

use serde::{
    Deserializer, Serializer,
    de::{Error, Visitor},
};

use crate::prelude::*;

pub(super) fn serialize<S: Serializer>(value: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_bytes(value)
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
    struct Bytes;
    impl Visitor<'_> for Bytes {
        type Value = Vec<u8>;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a byte string")
        }
        fn visit_bytes<E: Error>(self, value: &[u8]) -> Result<Self::Value, E> {
            Ok(value.to_vec())
        }
    }
    deserializer.deserialize_bytes(Bytes)
}
