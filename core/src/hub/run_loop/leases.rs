//! The leases of a run: grants, and the answers of workers.

use super::RunLoop;
use crate::{
    batch::SlotFragment,
    ids::{FragmentNo, LeaseId, SlotId, WorkerId},
    lease::Lease,
    prelude::*,
    protocol::{
        Message,
        convert::{self, FragmentLimits},
        message::{AgentUpload, FragmentUpload, LeaseRefused, RunAnswer},
        printable,
    },
    time::Micros,
};

/// The reason why an upload does not match its lease.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UploadFault {
    /// The lease ended long ago, or never existed; the ledger counts the upload.
    #[error("the lease is unknown")]
    Unknown,
    /// Its bytes are not the rows of the lease.
    #[error(transparent)]
    Invalid(#[from] convert::UploadError),
}

/// A worker's upload for a lease.
#[derive(Debug)]
pub enum WorkerUpload {
    /// Rows of one agent per slot.
    Lanes(FragmentUpload),
    /// Rows by policy.
    Agents(AgentUpload),
}

impl WorkerUpload {
    /// Returns the lease that the upload names.
    #[must_use]
    pub fn lease(&self) -> LeaseId {
        match self {
            Self::Lanes(upload) => LeaseId(upload.lease),
            Self::Agents(upload) => LeaseId(upload.lease),
        }
    }
}

impl WorkerUpload {
    /// Returns the fragments that the upload names.
    pub fn fragments(&self) -> impl Iterator<Item = (SlotId, FragmentNo)> {
        let (slots, fragment) = match self {
            Self::Lanes(upload) => (&upload.slots, upload.fragment),
            Self::Agents(upload) => (&upload.slots, upload.fragment),
        };
        slots.iter().map(move |slot| (SlotId(*slot), FragmentNo(fragment)))
    }

    /// Returns true if it refers to states that only the run's group knows.
    #[must_use]
    pub fn has_deltas(&self) -> bool {
        match self {
            Self::Lanes(FragmentUpload { states, state_ends, .. })
            | Self::Agents(AgentUpload { states, state_ends, .. }) => convert::has_deltas(states, state_ends),
        }
    }
}

/// Decodes and checks the uploads of a lease, on any thread: that takes long.
#[derive(Clone, Debug)]
pub struct UploadDecoder {
    run: u32,
    lease: Arc<Lease>,
    limits: Arc<FragmentLimits>,
}

/// The content of an upload.
#[derive(Debug)]
pub struct DecodedUpload {
    lease: LeaseId,
    fragments: Result<Vec<SlotFragment>, convert::UploadError>,
}

impl UploadDecoder {
    /// Leases of a worker whose uploads can be decoded: they may arrive after their lease has ended.
    pub const KEPT: usize = 4;

    /// Returns the lease.
    #[must_use]
    pub fn lease(&self) -> LeaseId {
        self.lease.id
    }

    /// Decodes an upload whose states are [complete](WorkerUpload::has_deltas).
    #[must_use]
    pub fn decode(&self, upload: &WorkerUpload) -> DecodedUpload {
        let fragments = match upload {
            WorkerUpload::Lanes(upload) => convert::slot_fragments(upload, self.run, &self.lease, &self.limits),
            WorkerUpload::Agents(upload) => convert::agent_fragments(upload, self.run, &self.lease, &self.limits),
        };
        DecodedUpload { lease: self.lease.id, fragments }
    }
}

impl DecodedUpload {
    /// Creates an upload whose fragments need no decoding.
    #[must_use]
    pub fn new(lease: LeaseId, fragments: Vec<SlotFragment>) -> Self {
        Self { lease, fragments: Ok(fragments) }
    }

    /// Returns its fragments; none if it is invalid.
    pub fn fragments(&self) -> impl Iterator<Item = (SlotId, FragmentNo)> {
        self.fragments.iter().flatten().map(|fragment| (fragment.slot, fragment.fragment))
    }

    /// Returns the lease that it is for.
    #[must_use]
    pub fn lease(&self) -> LeaseId {
        self.lease
    }
}

impl RunLoop {
    /// Records a lease that is being sent to a worker, and returns the message to send.
    pub fn grant(&mut self, worker: WorkerId, lease: Lease) -> Message {
        let message = Message::LeaseGrant(convert::lease_grant(self.number, &lease));
        self.granted.insert(lease.id, (worker, Arc::new(lease)));
        let of_worker: Vec<LeaseId> =
            self.granted.iter().filter(|(_, (owner, _))| *owner == worker).map(|(id, _)| *id).collect();
        for old in of_worker.iter().rev().skip(UploadDecoder::KEPT) {
            self.granted.remove(old);
        }
        message
    }

    /// Returns what decodes the uploads of a granted lease.
    #[must_use]
    pub fn decoder(&self, lease: LeaseId) -> Option<UploadDecoder> {
        self.granted.get(&lease).map(|(_, lease)| self.decoder_of(lease))
    }

    fn decoder_of(&self, lease: &Arc<Lease>) -> UploadDecoder {
        UploadDecoder { run: self.number, lease: lease.clone(), limits: self.limits.clone() }
    }

    /// Returns the number of slots of a worker's latest lease.
    #[must_use]
    pub fn latest_slots(&self, worker: WorkerId) -> u32 {
        let mut latest = self.granted.values().rev().filter(|(owner, _)| *owner == worker);
        latest.next().map_or(0, |(_, lease)| lease.slots.len() as u32)
    }

    /// Removes the leases of a worker that has disconnected.
    pub fn forget_worker(&mut self, worker: WorkerId) {
        self.granted.retain(|_, (owner, _)| *owner != worker);
    }

    /// Handles a worker's answer whether it can run the leases of this run. Returns false if it was not asked, or has answered.
    pub fn handle_answer(&mut self, worker: WorkerId, answer: &RunAnswer, now: Micros) -> bool {
        answer.run == self.number && self.group.handle_answer(worker, answer.read(), now)
    }

    /// Handles a worker's refusal of a lease, or of a fragment of it. Returns false if the worker has no lease of that number.
    pub fn handle_refused(&mut self, worker: WorkerId, refused: &LeaseRefused, now: Micros) -> bool {
        let id = LeaseId(refused.lease);
        let had = self.granted.get(&id).is_some_and(|(owner, _)| *owner == worker);
        if let Some(failure) = refused.failure() {
            if had {
                self.group.handle_failed(worker, id, failure, now);
            }
            return had;
        }
        if had {
            self.granted.remove(&id);
        }
        self.group.handle_refused(worker, id, &printable(&refused.reason), now);
        had
    }

    /// Decodes an upload and passes its fragments to the group.
    ///
    /// # Errors
    /// [`UploadFault`]; the group has counted the upload then.
    pub fn handle_upload(
        &mut self,
        worker: WorkerId,
        mut upload: WorkerUpload,
        now: Micros,
    ) -> Result<(), UploadFault> {
        let id = upload.lease();
        let decoder = self.check_owner(worker, id, now)?;
        let start = |slot| self.group.start_of(slot, decoder.lease.fragment);
        let whole = match &mut upload {
            WorkerUpload::Lanes(FragmentUpload { slots, states, state_ends, .. })
            | WorkerUpload::Agents(AgentUpload { slots, states, state_ends, .. }) => {
                convert::complete_states(slots, states, state_ends, start)
            }
        };
        if let Err(error) = whole {
            // The slot was rewound, or another worker was faster: the states that the fragment began with are no longer
            // kept.
            self.group.handle_refused(worker, id, &error.to_string(), now);
            return Ok(());
        }
        self.handle_decoded(worker, decoder.decode(&upload), now)
    }

    /// Passes the fragments of an upload to the group that a [decoder](Self::decoder) has read.
    ///
    /// # Errors
    /// [`UploadFault`]; the group has counted the upload then.
    pub fn handle_decoded(
        &mut self,
        worker: WorkerId,
        DecodedUpload { lease, fragments }: DecodedUpload,
        now: Micros,
    ) -> Result<(), UploadFault> {
        self.check_owner(worker, lease, now)?;
        match fragments {
            Ok(fragments) => {
                self.group.handle_fragments(worker, lease, fragments, now);
                Ok(())
            }
            Err(error) => {
                self.group.handle_invalid(worker, lease, now);
                Err(error.into())
            }
        }
    }

    /// Returns what decodes the uploads of a worker's lease; counts an upload for any other lease.
    fn check_owner(&mut self, worker: WorkerId, id: LeaseId, now: Micros) -> Result<UploadDecoder, UploadFault> {
        match self.granted.get(&id) {
            Some((owner, lease)) if *owner == worker => Ok(self.decoder_of(lease)),
            _ => {
                self.group.handle_forgotten(worker, id, now);
                Err(UploadFault::Unknown)
            }
        }
    }
}
