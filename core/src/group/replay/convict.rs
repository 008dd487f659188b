//! Parties that have lied.

use super::{Party, Standing};
use crate::{
    group::{ExpiryCause, LeaseGroup, QuarantineCause},
    ids::{FragmentNo, SlotId, WorkerId},
    prelude::*,
};

/// A party whose fragment was not what it should be: it was made again, or what it contradicted was. Without that nobody is
/// convicted: whoever only contradicts somebody who is trusted gets no more leases, and that is all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conviction {
    /// The party.
    pub party: Party,
    /// Its workers that are here.
    pub workers: Vec<WorkerId>,
    /// The slot of the fragment.
    pub slot: SlotId,
    /// Its number.
    pub fragment: FragmentNo,
    /// Fragments of the party, and such as go on from them, that no batch had taken: they are no longer committed.
    pub dropped: u32,
    /// The first batch that has a fragment of the party in it which nobody has made again; none if no batch has been taken
    /// with one. Whatever was saved before it was taken is clean. Where slots do not keep step that may be the batch that is
    /// not complete: what is queued cannot be dropped there but by going back to where the last batch was taken.
    pub first_doubtful: Option<FragmentNo>,
}

impl LeaseGroup {
    /// A party that has lied, once for every time that it was seen: its workers get no more leases; what it has committed and
    /// no batch has taken, is no longer committed, in synchronous mode, and made again by others. What is in batches is
    /// for the caller to undo, and in the other modes what is queued, too.
    pub fn poll_conviction(&mut self) -> Option<Conviction> {
        self.audits.convictions.pop_front()
    }

    /// A party that contradicts what is known to be right has lied.
    pub(in crate::group) fn convict_contradicting(&mut self, party: Party, place: (SlotId, FragmentNo)) {
        let first_doubtful = self.audits.parties.get(&party).and_then(Standing::first_doubtful);
        self.convict(party, place, first_doubtful, QuarantineCause::Audit);
    }

    pub(super) fn convict(
        &mut self,
        party: Party,
        (slot, fragment): (SlotId, FragmentNo),
        first_doubtful: Option<FragmentNo>,
        cause: QuarantineCause,
    ) {
        // What else it has pending is of no interest any more.
        let standing = self.audits.parties.entry(party).or_default();
        *standing = Standing { committed: standing.committed, ..Standing::default() };
        self.audits.forget_tasks(party);
        let of_party = |(&worker, &of): (&WorkerId, &Party)| (of == party).then_some(worker);
        let workers: Vec<WorkerId> = self.audits.of_workers.iter().filter_map(of_party).collect();
        for &worker in &workers {
            self.quarantine(worker, cause);
        }
        let dropped = self.drop_commits_of(party);
        let taken = self.open.front().map_or(self.next_fragment, |first| first.fragment);
        let first_doubtful = first_doubtful.filter(|&first| first < taken || self.is_free());
        self.audits.convictions.push_back(Conviction { party, workers, slot, fragment, dropped, first_doubtful });
    }

    /// Takes back what a party has committed and no batch has taken, with all that goes on from it.
    fn drop_commits_of(&mut self, party: Party) -> u32 {
        if self.is_free() {
            // The order of commits is written down already.
            return 0;
        }
        let mut dropped = 0;
        for (slot, next, fragments, env_steps) in self.slots.drop_commits_of(party, self.leases.next_id()) {
            dropped += fragments;
            self.ledger.take_back(env_steps);
            for lease in self.leases.ids(|lease| lease.fragment > next && lease.slots.contains(&slot)) {
                self.expire(lease, ExpiryCause::Revoked);
            }
        }
        dropped
    }
}
