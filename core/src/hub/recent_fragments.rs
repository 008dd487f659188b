//! The latest fragments of slots, for dashboards that request them or watch a slot.

use core::iter;

use super::clip::{ClipJob, without_pictures};
use crate::{
    batch::{BatchError, MultiAgentBatch, SampleBatch, SlotFragment, codec},
    ids::{FragmentNo, SlotId, WeightsVersion},
    prelude::*,
    protocol::message::{EnvClip, FragmentReport},
    weights::Weights,
};

/// Maximum number of bytes of rows that are sent; of a larger fragment the first rows are.
const MAX_BATCH_BYTES: usize = 200 << 10;
/// Fragments that are kept of a slot, if they are not too large.
const MAX_FRAGMENTS: usize = 8;
/// Fragments of the watched slot that are always kept: the latest one, and the one whose state it began with.
const MIN_WATCHED: usize = 2;
/// Maximum number of bytes of the fragments that are kept, but for [`MIN_WATCHED`].
const MAX_BYTES: usize = 64 << 20;
/// Uploads of a slot whose worker is recorded: the learner takes fragments soon after they arrive.
const MAX_UPLOADS: usize = 16;

/// The latest fragments by slot, and which workers have uploaded them.
#[derive(Debug, Default)]
pub struct RecentFragments {
    slots: BTreeMap<SlotId, Recent>,
    /// The slots of all fragments, by the order in which these were added.
    order: BTreeMap<u64, SlotId>,
    next: u64,
    /// Size of all fragments.
    bytes: usize,
    /// The weights of the watched slot's latest fragment.
    weights: Option<Weights>,
    /// The fragment of which pictures were made last.
    drawn: Option<(SlotId, FragmentNo)>,
}

#[derive(Debug, Default)]
struct Recent {
    /// Oldest first, each with its place in the order.
    fragments: VecDeque<(u64, SlotFragment)>,
    uploads: VecDeque<(FragmentNo, u32)>,
}

impl RecentFragments {
    /// Records the worker of an upload.
    pub(super) fn record_upload(&mut self, worker: u32, fragments: impl Iterator<Item = (SlotId, FragmentNo)>) {
        for (slot, fragment) in fragments {
            let uploads = &mut self.slots.entry(slot).or_default().uploads;
            if uploads.len() == MAX_UPLOADS {
                uploads.pop_front();
            }
            uploads.push_back((fragment, worker));
        }
    }

    /// Adds the fragments of a batch, and the weights of the watched slot's latest one. The rows are shared, not copied. Above
    /// 64 MiB the oldest fragments of all slots are evicted.
    pub fn add<'a>(
        &mut self,
        fragments: impl Iterator<Item = &'a SlotFragment>,
        watched: SlotId,
        weights_of: impl Fn(WeightsVersion) -> Option<Weights>,
    ) {
        for fragment in fragments {
            let (slot, version) = (fragment.slot, fragment.weights_version);
            if slot == watched && self.weights.as_ref().is_none_or(|weights| weights.version() != version) {
                self.weights = weights_of(version);
            }
            let recent = &mut self.slots.entry(slot).or_default().fragments;
            self.bytes += size_of(fragment);
            recent.push_back((self.next, fragment.clone()));
            self.order.insert(self.next, slot);
            self.next += 1;
            if recent.len() > MAX_FRAGMENTS {
                self.evict_oldest_of(slot);
            }
            while self.bytes > MAX_BYTES
                && let Some(slot) = self.evictable(watched)
            {
                self.evict_oldest_of(slot);
            }
        }
    }

    /// Returns the slot of the oldest fragment that may be evicted.
    fn evictable(&self, watched: SlotId) -> Option<SlotId> {
        let kept = self.slots.get(&watched).map_or(0, |recent| recent.fragments.len());
        self.order.values().copied().find(|slot| *slot != watched || kept > MIN_WATCHED)
    }

    fn evict_oldest_of(&mut self, slot: SlotId) {
        let oldest = self.slots.get_mut(&slot).and_then(|recent| recent.fragments.pop_front());
        if let Some((place, fragment)) = oldest {
            self.order.remove(&place);
            self.bytes -= size_of(&fragment);
        }
    }

    /// Evicts the fragments of all other slots: no dashboard is connected that could request them.
    pub(super) fn keep_only(&mut self, watched: SlotId) {
        self.slots.retain(|slot, _| *slot == watched);
        self.order.retain(|_, slot| *slot == watched);
        self.bytes = self.slots.values().flat_map(|recent| &recent.fragments).map(|(_, kept)| size_of(kept)).sum();
    }

    /// Returns the latest fragment of a slot to be drawn, unless it was drawn before. One that cannot be recomputed is returned
    /// once, with the reason.
    pub fn take_clip_job(&mut self, run: u32, slot: SlotId) -> Option<Result<ClipJob, Box<EnvClip>>> {
        let mut recent = self.slots.get(&slot)?.fragments.iter().rev().map(|(_, fragment)| fragment);
        let fragment = recent.next().filter(|fragment| self.drawn != Some((slot, fragment.fragment)))?;
        let is_before = |before: &&SlotFragment| before.fragment.0 + 1 == fragment.fragment.0;
        let start = recent.next().filter(is_before).map(|before| before.state.clone());
        let weights = self.weights.as_ref().filter(|weights| weights.version() == fragment.weights_version);
        self.drawn = Some((slot, fragment.fragment));
        let why_not = |reason: &str| Some(Err(Box::new(without_pictures(run, fragment, reason))));
        if start.is_none() && fragment.fragment.0 > 0 {
            return why_not(
                "the state in which its latest fragment began is not kept: pictures follow with the next one",
            );
        }
        let Some(weights) = weights.cloned() else {
            return why_not("the weights of its latest fragment are not kept: pictures follow with a later one");
        };
        Some(Ok(ClipJob { run, fragment: fragment.clone(), start, weights }))
    }

    /// Reports the fragment of a slot that many before the latest one.
    pub(super) fn report(&self, run: u32, slot: SlotId, back: u32) -> Result<FragmentReport, String> {
        let recent = self.slots.get(&slot);
        let all = recent.map_or(0, |recent| recent.fragments.len());
        let fragment = recent.and_then(|recent| recent.fragments.iter().rev().nth(back as usize));
        let (_, fragment) = fragment.ok_or_else(|| match all {
            0 => format!("no batch has had a fragment of slot {slot} since a dashboard is connected"),
            all => format!("of slot {slot} the latest {all} fragments are kept"),
        })?;
        let mut uploads = recent.into_iter().flat_map(|recent| recent.uploads.iter().rev());
        let worker = uploads.find(|(number, _)| *number == fragment.fragment).map_or(0, |(_, worker)| *worker);
        let report = FragmentReport {
            request: 0,
            run,
            slot: slot.0,
            fragment: fragment.fragment.0,
            worker,
            weights_version: fragment.weights_version.0,
            rows: fragment.agents.as_ref().map_or_else(|| fragment.rows.len(), |agents| agents.len()) as u32,
            batch: batch(fragment).ok_or("the fragment is too large to be shown")?,
            ..FragmentReport::default()
        };
        Ok(report.with_cuts(&fragment.cuts))
    }
}

/// Returns the bytes of rows and states.
fn size_of(fragment: &SlotFragment) -> usize {
    let agents = fragment.agents.as_ref().map_or(0, MultiAgentBatch::size_bytes);
    agents + fragment.rows.size_bytes() + fragment.final_obs.size_bytes() + fragment.state.len()
}

/// Encodes the rows, or as many of the first ones as fit. Encoded rows are about as large as in memory, so only
/// sizes near the limit are encoded.
fn batch(fragment: &SlotFragment) -> Option<Vec<u8>> {
    let (rows, bytes) = match &fragment.agents {
        Some(agents) => (agents.policy_batches.values().map(SampleBatch::len).max().unwrap_or(0), agents.size_bytes()),
        None => (fragment.rows.len(), fragment.rows.size_bytes()),
    };
    let share = (2 * MAX_BATCH_BYTES) as f64 / bytes.max(1) as f64;
    let first = ((rows as f64 * share) as usize).clamp(1, rows.max(1));
    let halves = iter::successors(Some(first), |rows| Some(rows / 2).filter(|rows| *rows > 0));
    halves.filter_map(|rows| first_rows(fragment, rows)).find(|bytes| bytes.len() <= MAX_BATCH_BYTES)
}

/// Encodes the first rows, with several policies of each.
fn first_rows(fragment: &SlotFragment, rows: usize) -> Option<Vec<u8>> {
    let first = |batch: &SampleBatch| batch.slice(0, rows.min(batch.len()));
    let Some(agents) = &fragment.agents else { return Some(codec::encode(&first(&fragment.rows).ok()?)) };
    let by_policy = agents.policy_batches.iter().map(|(id, batch)| Ok((id.clone(), first(batch)?)));
    let by_policy = by_policy.try_collect_ordered::<_, BatchError, _>().ok()?;
    Some(codec::encode_multi_agent(&MultiAgentBatch::new(by_policy, agents.env_steps())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        batch::{Cut, CutReason, REWARDS, SampleBatch},
        column::ColumnData,
    };

    fn fragment(rows: usize) -> SlotFragment {
        let rewards = ColumnData::scalars(vec![0.5_f32; rows]);
        let rows = SampleBatch::new().with(REWARDS, rewards).expect("one column");
        let cuts = vec![Cut { end: 2, reason: CutReason::Terminated, bootstrap_value: 0.0 }];
        SlotFragment { slot: SlotId(4), rows, cuts, ..SlotFragment::default() }
    }

    #[test]
    fn large_fragments_are_cut_to_their_first_rows() {
        let mut recent = RecentFragments::default();
        let slot = SlotId(4);
        assert!(recent.report(1, slot, 0).unwrap_err().contains("no batch"));
        recent.record_upload(7, [(slot, FragmentNo(0))].into_iter());
        recent.add([fragment(200_000)].iter(), slot, |_| None);
        let report = recent.report(1, slot, 0).expect("a fragment");
        let sent = codec::decode(&report.batch).expect("it was encoded").len();
        assert!(report.rows == 200_000 && (25_000..=50_000).contains(&sent), "{sent} rows");
        assert_eq!(report.cuts().collect::<Vec<_>>(), [(2, Some(CutReason::Terminated))]);
        assert_eq!((report.slot, report.worker), (4, 7));
    }

    #[test]
    fn latest_fragments_of_each_slot_are_kept_within_their_limits() {
        let mut recent = RecentFragments::default();
        let number = |number| SlotFragment { fragment: FragmentNo(number), ..fragment(2) };
        let watched = SlotId(4);
        (0..20).for_each(|next| recent.add([number(next)].iter(), watched, |_| None));
        let found = |back| recent.report(1, watched, back).map(|report| report.fragment);
        assert_eq!([found(0), found(7)], [Ok(19), Ok(12)]);
        assert!(found(8).unwrap_err().contains("the latest 8"));
        (0..20).for_each(|next| recent.add([fragment(MAX_BYTES / 8), number(next)].iter(), watched, |_| None));
        assert!(recent.bytes <= MAX_BYTES, "{} bytes", recent.bytes);
    }

    #[test]
    fn oldest_fragments_of_all_slots_are_evicted_with_their_states_but_for_the_watched_slot() {
        let (mut recent, watched) = (RecentFragments::default(), SlotId(0));
        let of_slot = |slot, number| {
            let state = vec![0; MAX_BYTES / 4];
            SlotFragment { slot: SlotId(slot), fragment: FragmentNo(number), state, ..fragment(2) }
        };
        recent.add([of_slot(0, 0), of_slot(0, 1)].iter(), watched, |_| None);
        (1..10).for_each(|slot| recent.add([of_slot(slot, 0)].iter(), watched, |_| None));
        assert!(recent.bytes <= MAX_BYTES && recent.order.len() == 3, "{} fragments", recent.order.len());
        let has = |recent: &RecentFragments, slot, back| recent.report(1, SlotId(slot), back).is_ok();
        assert!(has(&recent, 0, 1) && !has(&recent, 8, 0) && has(&recent, 9, 0));
        recent.keep_only(watched);
        assert!(has(&recent, 0, 1) && !has(&recent, 9, 0) && recent.order.len() == 2);
        assert_eq!(recent.bytes, 2 * size_of(&of_slot(0, 0)));
    }

    #[test]
    fn weights_are_those_of_the_watched_slot_whatever_other_slots_used() {
        let (mut recent, watched) = (RecentFragments::default(), SlotId(1));
        let of = |slot, version| SlotFragment {
            slot: SlotId(slot),
            weights_version: WeightsVersion(version),
            ..fragment(2)
        };
        let weights_of = |version| Weights::new(version, Vec::new()).ok();
        recent.add([of(1, 9), of(2, 3), of(3, 4), of(4, 5), of(5, 6), of(6, 7)].iter(), watched, weights_of);
        let job = recent.take_clip_job(1, watched).expect("a fragment").expect("it can be recomputed");
        assert_eq!(job.weights.version(), WeightsVersion(9));
        assert!(recent.take_clip_job(1, watched).is_none(), "it was drawn");
        let clip = recent.take_clip_job(1, SlotId(2)).expect("a fragment").expect_err("its weights are not kept");
        assert!(clip.slot == 2 && clip.reason.contains("weights"), "{clip:?}");
    }

    #[test]
    fn large_fragments_of_several_policies_are_cut_to_their_first_rows() {
        let rows = fragment(200_000).rows;
        let agents = MultiAgentBatch::new([(crate::ids::PolicyId::DEFAULT, rows)].into(), 200_000);
        let made = SlotFragment { agents: Some(agents), rows: SampleBatch::new(), ..fragment(0) };
        let bytes = batch(&made).expect("its first rows fit");
        assert!((MAX_BATCH_BYTES / 4..=MAX_BATCH_BYTES).contains(&bytes.len()), "{} bytes", bytes.len());
    }
}
