//! Assignment of slots to workers: a pure function, whose result has no influence on any row.

use alloc::collections::BinaryHeap;
use core::cmp::{Ordering, Reverse};

use crate::{
    ids::{SlotId, WorkerId},
    prelude::*,
};

/// A worker that can take a lease now.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    pub(super) worker: WorkerId,
    /// Env steps per second, at least 1.
    pub(super) speed: u64,
    /// The worker must get at least one slot, however slow it is, so that its speed is measured again.
    pub(super) probe: bool,
}

/// Limits of an assignment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Split {
    /// Most slots per lease.
    pub(super) max_slots_per_lease: u32,
    /// Factor, relative to the best split, by which a split that moves no slots may be slower.
    pub(super) slack: (u128, u128),
}

impl Split {
    /// Usual slack: smaller differences are measurement noise, and not worth the transfer of a slot's state.
    pub(super) const SLACK: (u128, u128) = (17, 16);
    /// Slack of runs in which each move abandons an open episode.
    pub(super) const SLACK_OF_EPISODES: (u128, u128) = (3, 2);
}

/// Splits the slots so that all candidates finish at about the same time.
///
/// `slots` is ascending and names the worker that holds each slot's state; that worker keeps the slot unless it has too
/// many. Candidates are in the order of their workers. A worker for which a single slot would take longer than the others need
/// for all of them gets none. The slots of a worker are ascending; workers without slots are not in the map. Slots beyond the
/// largest lease stay unassigned.
pub(super) fn assign(
    slots: &[(SlotId, Option<WorkerId>)],
    candidates: &[Candidate],
    Split { max_slots_per_lease, slack }: Split,
) -> BTreeMap<WorkerId, Vec<SlotId>> {
    if candidates.is_empty() {
        return BTreeMap::new();
    }
    let limits = limits(slots.len(), candidates, slack);
    let mut shares: Vec<Vec<SlotId>> = vec![Vec::new(); candidates.len()];
    let mut homeless = Vec::new();
    for &(slot, holder) in slots {
        let home = holder.and_then(|worker| candidates.binary_search_by_key(&worker, |c| c.worker).ok());
        match home {
            Some(i) if (shares[i].len() as u128) < limits[i] => shares[i].push(slot),
            _ => homeless.push(slot),
        }
    }
    deal(&homeless, &mut shares, candidates);
    serve_probes(&mut shares, candidates);
    let mut assigned = BTreeMap::new();
    for (candidate, mut share) in candidates.iter().zip(shares) {
        share.sort_unstable();
        share.truncate(max_slots_per_lease as usize);
        if !share.is_empty() {
            assigned.insert(candidate.worker, share);
        }
    }
    assigned
}

/// Gives each slot to the worker that finishes first, in runs of neighbouring slots.
fn deal(homeless: &[SlotId], shares: &mut [Vec<SlotId>], candidates: &[Candidate]) {
    let counts = with_more(homeless.len(), shares.iter().map(|share| share.len() as u128).collect(), candidates);
    let mut rest = homeless.iter().copied();
    for (share, count) in shares.iter_mut().zip(counts) {
        let missing = count as usize - share.len();
        share.extend(rest.by_ref().take(missing));
    }
}

/// Returns the most slots that each candidate may keep: those it finishes within the slack of the best split.
fn limits(slots: usize, candidates: &[Candidate], slack: (u128, u128)) -> Vec<u128> {
    let best = with_more(slots, vec![0; candidates.len()], candidates);
    // The candidate that finishes last in the best split, as a fraction (slots, speed).
    let (count, speed) = best
        .iter()
        .zip(candidates)
        .map(|(&count, c)| (count, u128::from(c.speed)))
        .fold((0, 1), |last, next| if next.0 * last.1 > last.0 * next.1 { next } else { last });
    candidates.iter().map(|c| slack.0 * count * u128::from(c.speed) / (slack.1 * speed)).collect()
}

/// Adds `more` slots to the candidates' counts, each to the one that finishes first with it; the first of equals.
fn with_more(more: usize, mut counts: Vec<u128>, candidates: &[Candidate]) -> Vec<u128> {
    let finish = |(place, (count, candidate)): (usize, (&u128, &Candidate))| {
        Reverse(FinishTime { slots: count + 1, speed: u128::from(candidate.speed.max(1)), place })
    };
    let mut times: BinaryHeap<_> = counts.iter().zip(candidates).enumerate().map(finish).collect();
    for _ in 0..more {
        let Some(mut next) = times.peek_mut() else { break };
        counts[next.0.place] += 1;
        next.0.slots += 1;
    }
    counts
}

/// When a candidate would finish with one more slot.
#[derive(PartialEq, Eq)]
struct FinishTime {
    slots: u128,
    speed: u128,
    place: usize,
}

impl Ord for FinishTime {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.slots * other.speed).cmp(&(other.slots * self.speed)).then(self.place.cmp(&other.place))
    }
}

impl PartialOrd for FinishTime {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Gives a slot to every probe that has none, taken from the candidate with the most slots, if it has at least two.
fn serve_probes(shares: &mut [Vec<SlotId>], candidates: &[Candidate]) {
    for (i, candidate) in candidates.iter().enumerate() {
        if !candidate.probe || !shares[i].is_empty() {
            continue;
        }
        let richest = (0..shares.len()).rev().max_by_key(|&j| shares[j].len());
        let spare = richest.filter(|&j| shares[j].len() > 1).and_then(|j| shares[j].pop());
        shares[i].extend(spare);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidates(speeds: &[u64]) -> Vec<Candidate> {
        let candidate = |(i, &speed)| Candidate { worker: WorkerId(i as u32), speed, probe: false };
        speeds.iter().enumerate().map(candidate).collect()
    }

    fn fresh(n: u32) -> Vec<(SlotId, Option<WorkerId>)> {
        (0..n).map(|slot| (SlotId(slot), None)).collect()
    }

    fn split(max_slots_per_lease: u32) -> Split {
        Split { max_slots_per_lease, slack: Split::SLACK }
    }

    /// Returns the slots held in runs: `counts[w]` for worker `w`.
    fn held(counts: &[u32]) -> Vec<(SlotId, Option<WorkerId>)> {
        let holders = counts.iter().enumerate().flat_map(|(w, &n)| vec![WorkerId(w as u32); n as usize]);
        holders.enumerate().map(|(slot, worker)| (SlotId(slot as u32), Some(worker))).collect()
    }

    fn counts(slots: &[(SlotId, Option<WorkerId>)], candidates: &[Candidate]) -> Vec<usize> {
        let assigned = assign(slots, candidates, split(u32::MAX));
        candidates.iter().map(|c| assigned.get(&c.worker).map_or(0, Vec::len)).collect()
    }

    #[test]
    fn equal_workers_get_equal_shares() {
        assert_eq!(counts(&fresh(12), &candidates(&[1, 1, 1])), [4, 4, 4]);
        assert_eq!(counts(&fresh(8), &candidates(&[5, 5, 5])), [3, 3, 2]);
        assert_eq!(counts(&fresh(2), &candidates(&[1, 1, 1])), [1, 1, 0]);
        assert!(assign(&fresh(3), &[], split(9)).is_empty());
    }

    #[test]
    fn shares_follow_speed() {
        assert_eq!(counts(&fresh(12), &candidates(&[300, 100, 200])), [6, 2, 4]);
        assert_eq!(counts(&fresh(8), &candidates(&[1_000_000, 1_000_000, 1])), [4, 4, 0]);
    }

    #[test]
    fn slots_stay_where_they_are_when_speeds_are_close() {
        let slots = held(&[6, 6]);
        let assigned = assign(&slots, &candidates(&[100, 95]), split(6));
        assert_eq!(assigned[&WorkerId(0)], (0..6).map(SlotId).collect::<Vec<_>>());
        assert_eq!(assigned[&WorkerId(1)], (6..12).map(SlotId).collect::<Vec<_>>());
    }

    #[test]
    fn rebalancing_moves_only_surplus_slots() {
        let slots = held(&[12, 0]);
        let assigned = assign(&slots, &candidates(&[100, 100]), split(6));
        assert_eq!(assigned[&WorkerId(0)], (0..6).map(SlotId).collect::<Vec<_>>());
        assert_eq!(assigned[&WorkerId(1)], (6..12).map(SlotId).collect::<Vec<_>>());
        assert_eq!(counts(&held(&[6, 6]), &candidates(&[300, 100])), [9, 3]);
    }

    #[test]
    fn slots_of_absent_workers_go_to_the_others() {
        let slots = held(&[4, 4, 4]);
        let all = candidates(&[1, 1, 1]);
        let assigned = assign(&slots, &[all[0], all[2]], split(12));
        assert_eq!(assigned[&WorkerId(0)], [0, 1, 2, 3, 4, 5].map(SlotId));
        assert_eq!(assigned[&WorkerId(2)], [6, 7, 8, 9, 10, 11].map(SlotId));
    }

    #[test]
    fn no_lease_is_larger_than_allowed() {
        let assigned = assign(&fresh(9), &candidates(&[300, 100]), split(4));
        assert_eq!(assigned[&WorkerId(0)], [0, 1, 2, 3].map(SlotId));
        assert_eq!(assigned[&WorkerId(1)], [7, 8].map(SlotId));
    }

    #[test]
    fn a_probe_gets_one_slot_from_the_richest() {
        let mut probing = candidates(&[100, 200, 1]);
        probing[2].probe = true;
        assert_eq!(counts(&fresh(9), &probing), [3, 5, 1]);
        assert_eq!(counts(&fresh(1), &probing), [0, 1, 0], "the last slot of a worker is not taken");
    }
}
