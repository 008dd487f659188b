//! The leases of a run: what was granted, and what came of it.

use rollmesh_core::{
    ids::{LeaseId, WorkerId},
    lease::Lease,
    protocol::{
        Message, convert,
        message::{AgentUpload, FragmentUpload, LeaseRefused, RunAnswer},
        printable,
    },
    time::Micros,
};

use super::Run;

/// Granted leases that are remembered per worker, to read uploads that come after the end of their lease.
const REMEMBERED_LEASES: usize = 4;

/// An upload that is not what its lease asked for.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UploadFault {
    /// The group's books decide on it: the lease is long over, or never was.
    #[error("the lease is unknown")]
    Unknown,
    #[error(transparent)]
    Invalid(#[from] convert::UploadError),
}

/// What a worker hands over.
pub(crate) enum Upload {
    /// Rows of one agent per slot.
    Lanes(FragmentUpload),
    /// Rows by policy.
    Agents(AgentUpload),
}

impl Upload {
    pub(crate) fn lease(&self) -> LeaseId {
        match self {
            Self::Lanes(upload) => LeaseId(upload.lease),
            Self::Agents(upload) => LeaseId(upload.lease),
        }
    }
}

impl Run {
    /// Remembers a lease on its way to a worker; the message to send.
    pub(crate) fn grant(&mut self, worker: WorkerId, lease: Lease) -> Message {
        let message = Message::LeaseGrant(convert::lease_grant(self.number, &lease));
        self.granted.insert(lease.id, (worker, lease));
        let of_worker: Vec<LeaseId> =
            self.granted.iter().filter(|(_, (owner, _))| *owner == worker).map(|(id, _)| *id).collect();
        for old in of_worker.iter().rev().skip(REMEMBERED_LEASES) {
            self.granted.remove(old);
        }
        message
    }

    /// Slots of a worker's latest lease.
    pub(crate) fn latest_slots(&self, worker: WorkerId) -> u32 {
        let mut latest = self.granted.values().rev().filter(|(owner, _)| *owner == worker);
        latest.next().map_or(0, |(_, lease)| lease.slots.len() as u32)
    }

    pub(crate) fn forget_worker(&mut self, worker: WorkerId) {
        self.granted.retain(|_, (owner, _)| *owner != worker);
    }

    /// A worker says whether it can run leases of a run. False if it was not asked, or has answered.
    pub(crate) fn handle_answer(&mut self, worker: WorkerId, answer: &RunAnswer, now: Micros) -> bool {
        answer.run == self.number && self.group.handle_answer(worker, answer.read(), now)
    }

    /// A worker does not want a lease, or gives up a fragment of it. False if it has none of that number.
    pub(crate) fn handle_refused(&mut self, worker: WorkerId, refused: &LeaseRefused, now: Micros) -> bool {
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

    /// Reads an upload and hands it to the group.
    pub(crate) fn handle_upload(
        &mut self,
        worker: WorkerId,
        mut upload: Upload,
        now: Micros,
    ) -> Result<(), UploadFault> {
        let id = upload.lease();
        let Some((_, lease)) = self.granted.get(&id).filter(|(owner, _)| *owner == worker) else {
            self.group.handle_forgotten(worker, id, now);
            return Err(UploadFault::Unknown);
        };
        let start = |slot| self.group.start_of(slot, lease.fragment);
        let whole = match &mut upload {
            Upload::Lanes(FragmentUpload { slots, states, state_ends, .. })
            | Upload::Agents(AgentUpload { slots, states, state_ends, .. }) => {
                convert::complete_states(slots, states, state_ends, start)
            }
        };
        if let Err(error) = whole {
            // The slot was set back, or another worker was faster: the states that it began with are no longer here.
            self.group.handle_refused(worker, id, &error.to_string(), now);
            return Ok(());
        }
        let fragments = match &upload {
            Upload::Lanes(upload) => convert::slot_fragments(upload, self.number, lease, &self.limits),
            Upload::Agents(upload) => convert::agent_fragments(upload, self.number, lease, &self.limits),
        };
        match fragments {
            Ok(fragments) => {
                self.group.handle_fragments(worker, id, fragments, now);
                Ok(())
            }
            Err(error) => {
                self.group.handle_invalid(worker, id, now);
                Err(error.into())
            }
        }
    }
}
