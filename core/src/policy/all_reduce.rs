//! Reductions over several learners: sums over all of them, in one order.

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{encoding, prelude::*};

/// A group of processes that learn together, each of them a rank from 0, with the same policies and rows of its own.
///
/// All ranks call the same methods in the same order with the same `step`, a name that says what the call is for; a group
/// in which one does not notifies all ranks. A call returns when all ranks have made it, however long one of them
/// computes. The result is bit-identical on all ranks and depends only on their arguments, not on their order of
/// arrival: sums are computed in the order of ranks.
///
/// After an error the group is over: every later call gives that error again.
#[doc(alias("torch.distributed", "ProcessGroup"))]
pub trait AllReduce: Send {
    /// Returns this process's rank.
    fn rank(&self) -> u32;

    /// Returns the number of ranks.
    #[doc(alias = "get_world_size")]
    fn world_size(&self) -> u32;

    /// Replaces values by their mean over all ranks, each counted with its weight: for means over rows, its number of rows.
    /// Sums are 64-bit floats. Values of a rank without weight do not count, whatever they are; if no rank has any, all
    /// become 0.
    ///
    /// # Errors
    /// [`AllReduceError`]. The values may be anything then.
    fn all_reduce(&mut self, step: &str, values: &mut [f32], weight: f64) -> Result<(), AllReduceError>;

    /// Returns the bytes of every rank, in the order of ranks. No rank may give more than `limit`, which is the same on
    /// all.
    ///
    /// # Errors
    /// [`AllReduceError`].
    fn all_gather(&mut self, step: &str, bytes: &[u8], limit: usize) -> Result<Vec<Vec<u8>>, AllReduceError>;

    /// Ends the group for all ranks, since this one cannot continue. The others get [`AllReduceError::GaveUp`] with the
    /// reason, immediately if they wait. Nothing happens where the group is over already.
    fn give_up(&mut self, reason: &str);
}

impl dyn AllReduce + '_ {
    /// Returns a form of every rank, in the order of ranks, each of at most `limit` bytes in postcard's encoding.
    ///
    /// # Errors
    /// [`AllReduceError`]; [`AllReduceError::Protocol`] names a rank whose bytes are not such a form.
    pub fn gather<T: Serialize + DeserializeOwned>(
        &mut self,
        step: &str,
        own: &T,
        limit: usize,
    ) -> Result<Vec<T>, AllReduceError> {
        let forms = (0..).zip(self.all_gather(step, &encoding::encode(own), limit)?).map(|(rank, bytes)| {
            let reason = || format!("its '{step}' of {} bytes has another form", bytes.len());
            encoding::decode(&bytes).ok_or_else(|| AllReduceError::Protocol { rank, reason: reason() })
        });
        forms.collect()
    }
}

/// The reason why a group is over. The order is part of the protocol between ranks; the variant that is never sent
/// comes last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[non_exhaustive]
pub enum AllReduceError {
    /// A rank no longer answers: its process has ended, hangs, or cannot be reached.
    #[error("rank {rank} is lost: {reason}; start all ranks again, from what rank 0 has saved")]
    Lost {
        /// The rank.
        rank: u32,
        /// The observed failure.
        reason: String,
    },
    /// A rank could not continue and announced that.
    #[error("rank {rank} gave up: {reason}")]
    GaveUp {
        /// The rank.
        rank: u32,
        /// Its own reason.
        reason: String,
    },
    /// A rank was stopped while others continue.
    #[error("rank {rank} has left; let all ranks learn equally often, and stop them together")]
    Left {
        /// The rank.
        rank: u32,
    },
    /// Ranks do different things.
    #[error("rank {rank} is out of step: {reason}; let all ranks call the same methods in the same order")]
    OutOfStep {
        /// The rank, as compared with rank 0.
        rank: u32,
        /// The step that it is at, and that of rank 0.
        reason: String,
    },
    /// A rank has come to other weights, or its optimiser to another state.
    #[error(
        "rank {rank} has other weights or another optimiser's state than rank 0: set or restore them on no rank or on \
         all, or set up data parallelism again"
    )]
    Diverged {
        /// The rank.
        rank: u32,
    },
    /// A rank violates the protocol.
    #[error("rank {rank} does not keep to the protocol: {reason}")]
    Protocol {
        /// The rank.
        rank: u32,
        /// The violation.
        reason: String,
    },
    /// The data exceeds the size of a message.
    #[serde(skip)]
    #[error("'{step}' has {bytes} bytes, and a message takes {limit}")]
    TooLarge {
        /// The name of the step, as the caller gave it.
        step: String,
        /// The size of the data.
        bytes: usize,
        /// The size limit.
        limit: usize,
    },
}
