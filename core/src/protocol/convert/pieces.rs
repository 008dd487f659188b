//! Pieces of episodes, derived from cuts. Encoder and decoder share the code, so that they always agree.

use crate::{
    batch::{Cut, CutReason},
    prelude::*,
    protocol::wire_enum::wire_enum,
};

wire_enum! {
    /// [`CutReason`] on the wire.
    "reason for a cut" pub(in crate::protocol) WireCut {
        /// The episode terminated.
        Terminated = 0,
        /// The episode was truncated.
        Truncated = 1,
        /// The fragment is full.
        FragmentEnd = 2,
    }
}

impl From<CutReason> for WireCut {
    fn from(reason: CutReason) -> Self {
        match reason {
            CutReason::Terminated => Self::Terminated,
            CutReason::Truncated => Self::Truncated,
            CutReason::FragmentEnd => Self::FragmentEnd,
        }
    }
}

impl From<WireCut> for CutReason {
    fn from(reason: WireCut) -> Self {
        match reason {
            WireCut::Terminated => Self::Terminated,
            WireCut::Truncated => Self::Truncated,
            WireCut::FragmentEnd => Self::FragmentEnd,
        }
    }
}

/// Returns the numbers and lengths of the episodes that end within a fragment, which follow from its cuts. `None` if a
/// number overflows.
pub(super) fn finished_episodes(first_episode: u32, first_t: u32, cuts: &[Cut]) -> Option<Vec<(u32, u32)>> {
    let mut finished = Vec::with_capacity(cuts.len());
    let (mut episode, mut t, mut start) = (first_episode, first_t, 0);
    for cut in cuts {
        let len = t.checked_add(cut.end.checked_sub(start)?)?;
        if cut.reason == CutReason::FragmentEnd {
            continue;
        }
        finished.push((episode, len));
        (episode, t, start) = (episode.checked_add(1)?, 0, cut.end);
    }
    Some(finished)
}

/// Returns the episode and `t` of the step after the last cut.
pub(super) fn next_step(first_episode: u32, first_t: u32, cuts: &[Cut]) -> Option<(u32, u32)> {
    let mut ended = cuts.iter().filter(|cut| cut.reason != CutReason::FragmentEnd);
    let episode = first_episode.checked_add(ended.clone().count() as u32)?;
    let rows = cuts.last().map_or(0, |cut| cut.end);
    let (start, t) = ended.next_back().map_or((0, first_t), |cut| (cut.end, 0));
    Some((episode, t.checked_add(rows.checked_sub(start)?)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(end: u32, reason: CutReason) -> Cut {
        Cut { end, reason, bootstrap_value: 0.0 }
    }

    #[test]
    fn lengths_count_what_came_before_the_fragment() {
        let cuts = [cut(3, CutReason::Terminated), cut(10, CutReason::Truncated), cut(12, CutReason::FragmentEnd)];
        assert_eq!(finished_episodes(7, 20, &cuts), Some(vec![(7, 23), (8, 7)]));
        assert_eq!(next_step(7, 20, &cuts), Some((9, 2)));
        assert_eq!(next_step(7, 20, &cuts[..2]), Some((9, 0)));
        assert_eq!(next_step(7, 20, &[cut(4, CutReason::FragmentEnd)]), Some((7, 24)));
        assert_eq!(finished_episodes(7, u32::MAX, &cuts), None);
        assert_eq!(finished_episodes(u32::MAX, 0, &cuts), None);
    }
}
