//! The latest fragments of slots, for dashboards that request them or watch a slot.

use core::iter;

use super::clip::ClipJob;
use crate::{
    batch::{SlotFragment, codec},
    ids::{FragmentNo, SlotId, WeightsVersion},
    prelude::*,
    protocol::message::FragmentReport,
    weights::Weights,
};

/// Maximum number of bytes of rows that are sent; of a larger fragment the first rows are.
const MAX_BATCH_BYTES: usize = 200 << 10;
/// Fragments that are kept of a slot, if they are not too large.
const MAX_FRAGMENTS: usize = 8;
/// Maximum number of bytes of the rows that are kept, but for the latest fragment of each slot.
const MAX_BYTES: usize = 64 << 20;
/// Uploads of a slot whose worker is remembered: the learner takes fragments soon after they arrive.
const MAX_UPLOADS: usize = 16;
/// Versions of weights that are kept, to recompute the latest fragments.
const MAX_WEIGHTS: usize = 4;

/// The latest fragments by slot, and which workers have uploaded them.
#[derive(Debug, Default)]
pub struct RecentFragments {
    slots: BTreeMap<SlotId, Recent>,
    /// Size of the rows of all fragments.
    bytes: usize,
    weights: VecDeque<Weights>,
    /// The fragment of which pictures were made last.
    drawn: Option<(SlotId, FragmentNo)>,
}

#[derive(Debug, Default)]
struct Recent {
    /// Oldest first.
    fragments: VecDeque<SlotFragment>,
    uploads: VecDeque<(FragmentNo, u32)>,
}

impl RecentFragments {
    /// Records the worker of an upload.
    pub(super) fn note_upload(&mut self, worker: u32, fragments: impl Iterator<Item = (SlotId, FragmentNo)>) {
        for (slot, fragment) in fragments {
            let uploads = &mut self.slots.entry(slot).or_default().uploads;
            if uploads.len() == MAX_UPLOADS {
                uploads.pop_front();
            }
            uploads.push_back((fragment, worker));
        }
    }

    /// Adds the fragments of a batch. The rows are shared, not copied.
    pub fn add<'a>(
        &mut self,
        fragments: impl Iterator<Item = &'a SlotFragment>,
        weights_of: impl Fn(WeightsVersion) -> Option<Weights>,
    ) {
        for fragment in fragments {
            let version = fragment.weights_version;
            if self.weights.back().is_none_or(|weights| weights.version() != version) {
                self.weights.extend(weights_of(version));
            }
            let recent = &mut self.slots.entry(fragment.slot).or_default().fragments;
            self.bytes += size_of_rows(fragment);
            recent.push_back(fragment.clone());
            while recent.len() > MAX_FRAGMENTS || (recent.len() > 1 && self.bytes > MAX_BYTES) {
                self.bytes -= recent.pop_front().as_ref().map_or(0, size_of_rows);
            }
        }
        let over = self.weights.len().saturating_sub(MAX_WEIGHTS);
        self.weights.drain(..over);
    }

    /// Returns the latest fragment of a slot to be drawn, unless it was drawn before or cannot be recomputed.
    pub fn take_clip_job(&mut self, run: u32, slot: SlotId) -> Option<ClipJob> {
        let mut recent = self.slots.get(&slot)?.fragments.iter().rev();
        let fragment = recent.next().filter(|fragment| self.drawn != Some((slot, fragment.fragment)))?;
        let is_before = |before: &&SlotFragment| before.fragment.0 + 1 == fragment.fragment.0;
        let start = recent.next().filter(is_before).map(|before| before.state.clone());
        if start.is_none() && fragment.fragment.0 > 0 {
            return None;
        }
        let weights = self.weights.iter().find(|weights| weights.version() == fragment.weights_version)?.clone();
        self.drawn = Some((slot, fragment.fragment));
        Some(ClipJob { run, fragment: fragment.clone(), start, weights })
    }

    /// Reports the fragment of a slot that many before the latest one.
    pub(super) fn report(&self, run: u32, slot: SlotId, back: u32) -> Result<FragmentReport, String> {
        let recent = self.slots.get(&slot);
        let all = recent.map_or(0, |recent| recent.fragments.len());
        let fragment = recent.and_then(|recent| recent.fragments.iter().rev().nth(back as usize));
        let fragment = fragment.ok_or_else(|| match all {
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
            by_policy: fragment.agents.is_some(),
            batch: batch(fragment).ok_or("the fragment is too large to be shown")?,
            ..FragmentReport::default()
        };
        Ok(report.with_cuts(&fragment.cuts))
    }
}

fn size_of_rows(fragment: &SlotFragment) -> usize {
    fragment.agents.as_ref().map_or_else(|| fragment.rows.size_bytes(), |agents| agents.size_bytes())
}

/// Encodes the rows, or as many of the first ones as there is room for.
fn batch(fragment: &SlotFragment) -> Option<Vec<u8>> {
    let fits = |bytes: &Vec<u8>| bytes.len() <= MAX_BATCH_BYTES;
    if let Some(agents) = &fragment.agents {
        return Some(codec::encode_multi_agent(agents)).filter(fits);
    }
    let halves = iter::successors(Some(fragment.rows.len()), |rows| Some(rows / 2).filter(|rows| *rows > 0));
    halves.filter_map(|rows| Some(codec::encode(&fragment.rows.slice(0, rows).ok()?))).find(fits)
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
        recent.note_upload(7, [(slot, FragmentNo(0))].into_iter());
        recent.add([fragment(200_000)].iter(), |_| None);
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
        (0..20).for_each(|next| recent.add([number(next)].iter(), |_| None));
        let found = |back| recent.report(1, SlotId(4), back).map(|report| report.fragment);
        assert_eq!([found(0), found(7)], [Ok(19), Ok(12)]);
        assert!(found(8).unwrap_err().contains("the latest 8"));
        (0..20).for_each(|next| recent.add([fragment(MAX_BYTES / 8), number(next)].iter(), |_| None));
        assert!(recent.bytes <= MAX_BYTES + (1 << 10), "{} bytes", recent.bytes);
    }
}
