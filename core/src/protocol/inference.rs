//! Bodies of inference: a worker lets another one compute the outputs of its policies' networks, through the hub. Like those
//! of [`message`](super::message), where they are public; their contents are untrusted.

use serde::{Deserialize, Serialize};

use crate::prelude::*;

/// Rows of encoded observations, for one policy and one version of the weights.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Infer {
    /// Id chosen by the sender; the hub sends the request on under another one.
    pub ask: u64,
    /// The policy.
    pub policy: String,
    /// Version of the weights.
    pub version: u64,
    /// Number of rows, at least 1.
    pub rows: u32,
    /// The outputs that are requested besides values: bit 0, the inputs of the actions' distribution; bit 1, the states
    /// after.
    pub wants: u8,
    /// The observations as the networks see them, little-endian 32-bit floats, row by row.
    #[serde(with = "crate::lists::bytes")]
    pub obs: Vec<u8>,
    /// The recurrent states before the rows, in the same form.
    #[serde(with = "crate::lists::bytes")]
    pub state: Vec<u8>,
}

impl Infer {
    /// The bit of `wants` for the inputs of the actions' distribution.
    pub const DIST_INPUTS: u8 = 1;
    /// The bit of `wants` for the states after the rows.
    pub const STATE: u8 = 2;

    /// Returns the bytes of its rows and names.
    #[must_use]
    pub fn num_bytes(&self) -> usize {
        self.policy.len() + self.obs.len() + self.state.len()
    }
}

/// The outputs for the rows of an [`Infer`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inferred {
    /// Id of the request.
    pub ask: u64,
    /// Version of the weights that the outputs were computed with. With an error, a newer version than that of the request
    /// means that its weights are no longer kept.
    pub version: u64,
    /// The reason why there are no outputs; else empty.
    pub error: String,
    /// Of all rows the distribution inputs, if requested, then the values, then the states, if requested, as
    /// little-endian 32-bit floats.
    #[serde(with = "crate::lists::bytes")]
    pub outputs: Vec<u8>,
}

impl Inferred {
    /// Creates the answer to a request that has no outputs.
    #[must_use]
    pub fn failed(request: &Infer, error: &str) -> Self {
        Self { ask: request.ask, version: request.version, error: super::printable(error), outputs: Vec::new() }
    }

    /// Creates the answer to a request for weights that are no longer kept, of which the newest are these.
    #[must_use]
    pub fn not_kept(request: &Infer, newest: u64) -> Self {
        let error = format!("weights {} are no longer kept: the newest here are {newest}", request.version);
        Self { version: newest, ..Self::failed(request, &error) }
    }

    /// Returns true if the answer says that these weights are no longer kept.
    #[must_use]
    pub fn is_not_kept(&self, version: u64) -> bool {
        !self.error.is_empty() && self.version > version
    }
}
