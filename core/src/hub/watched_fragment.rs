//! The latest fragment of the watched slot, for dashboards that request it.

use core::iter;

use crate::{
    batch::{SlotFragment, codec},
    ids::{FragmentNo, SlotId},
    prelude::*,
    protocol::message::FragmentReport,
};

/// Maximum number of bytes of rows that are sent; of a larger fragment the first rows are.
const MAX_BATCH_BYTES: usize = 200 << 10;
/// Uploads whose worker is remembered: the learner takes fragments soon after they arrive.
const MAX_UPLOADS: usize = 64;

/// The latest fragment of the watched slot, and which workers have uploaded fragments of it.
#[derive(Debug, Default)]
pub(super) struct WatchedFragment {
    latest: Option<SlotFragment>,
    uploads: VecDeque<Upload>,
}

#[derive(Debug)]
struct Upload {
    slot: u32,
    fragment: u64,
    worker: u32,
}

impl WatchedFragment {
    /// Records the worker of an upload that has fragments of the watched slot.
    pub(super) fn note_upload(
        &mut self,
        worker: u32,
        fragments: impl Iterator<Item = (SlotId, FragmentNo)>,
        watched: SlotId,
    ) {
        for (slot, fragment) in fragments.filter(|(slot, _)| *slot == watched) {
            if self.uploads.len() == MAX_UPLOADS {
                self.uploads.pop_front();
            }
            self.uploads.push_back(Upload { slot: slot.0, fragment: fragment.0, worker });
        }
    }

    /// Replaces the fragment, unless a batch had none of the slot.
    pub(super) fn take(&mut self, fragment: Option<SlotFragment>) {
        self.latest = fragment.or_else(|| self.latest.take());
    }

    pub(super) fn report(&self, run: u32) -> Result<FragmentReport, &'static str> {
        let fragment = self.latest.as_ref().ok_or("no batch has had a fragment of the watched slot yet")?;
        let (slot, number) = (fragment.slot.0, fragment.fragment.0);
        let mut uploads = self.uploads.iter().rev();
        let worker =
            uploads.find(|upload| (upload.slot, upload.fragment) == (slot, number)).map(|upload| upload.worker);
        let report = FragmentReport {
            request: 0,
            run,
            slot,
            fragment: number,
            worker: worker.unwrap_or(0),
            weights_version: fragment.weights_version.0,
            rows: fragment.agents.as_ref().map_or_else(|| fragment.rows.len(), |agents| agents.len()) as u32,
            by_policy: fragment.agents.is_some(),
            batch: batch(fragment).ok_or("the fragment is too large to be shown")?,
            ..FragmentReport::default()
        };
        Ok(report.with_cuts(&fragment.cuts))
    }
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
        let mut watched = WatchedFragment::default();
        assert!(watched.report(1).unwrap_err().contains("no batch"));
        watched.take(Some(fragment(200_000)));
        watched.take(None);
        let report = watched.report(1).expect("a fragment");
        let sent = codec::decode(&report.batch).expect("it was encoded").len();
        assert!(report.rows == 200_000 && (25_000..=50_000).contains(&sent), "{sent} rows");
        assert_eq!(report.cuts().collect::<Vec<_>>(), [(2, Some(CutReason::Terminated))]);
        assert_eq!((report.slot, report.worker), (4, 0));
    }
}
