//! Saved states as bytes, in postcard's encoding. Not here: messages, whose codec is in `protocol`.
//!
//! ```
//! use rollmesh_core::encoding::{decode, encode};
//!
//! let bytes = encode(&(3_u8, "text"));
//! assert_eq!(decode(&bytes), Some((3_u8, "text")));
//! assert_eq!(decode::<(u8, &str)>(&bytes[1..]), None);
//! ```

use serde::{Deserialize, Serialize};

use crate::prelude::*;

/// Encodes a form.
///
/// # Panics
/// If it has a sequence whose length is unknown before it is iterated over, or a variant that is not serialised.
#[must_use]
pub fn encode(form: &impl Serialize) -> Vec<u8> {
    encode_after(Vec::new(), form)
}

/// Encodes a form behind a head, for example the version of the form.
///
/// # Panics
/// As [`encode`].
#[must_use]
pub fn encode_after(head: Vec<u8>, form: &impl Serialize) -> Vec<u8> {
    // Memory grows as needed.
    postcard::to_extend(form, head).expect("all lengths are known")
}

/// Decodes a form from untrusted bytes; `None` if they are no such form, or other bytes follow it. Memory grows with the
/// bytes received, not with the lengths that they claim.
#[must_use]
pub fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Option<T> {
    match postcard::take_from_bytes(bytes) {
        Ok((form, [])) => Some(form),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_decoded_in_full_or_not_at_all() {
        let bytes = encode_after(vec![9], &(3_u8, "text"));
        assert_eq!(bytes, [9, 3, 4, b't', b'e', b'x', b't']);
        assert_eq!(decode(&bytes[1..]), Some((3_u8, "text")));
        assert_eq!(decode::<(u8, &str)>(&bytes[1..6]), None);
        assert_eq!(decode::<(u8, &str)>(&[&bytes[1..], &[0]].concat()), None);
        assert_eq!(decode::<Vec<u64>>(&[0xff, 0xff, 0xff, 0xff, 0x0f]), None);
    }
}
