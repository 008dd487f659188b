//! Plays traces of the watched environment back, at a pace that is good to watch.

use std::sync::Arc;

use rollmesh_core::protocol::message::EnvTrace;

use crate::picture::{Kind, Picture};

/// Longer pauses than this, of a hidden page for example, are skipped.
const LONGEST_PAUSE_MS: f64 = 250.0;

/// One moment of an environment.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Frame {
    /// What there is to see.
    pub(crate) picture: Picture,
    /// Did the episode end in this step?
    pub(crate) done: bool,
    /// Steps since the start of the trace.
    pub(crate) row: u32,
    /// The slot that is seen.
    pub(crate) slot: u32,
}

/// A trace and the place in it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Playback {
    now: Option<Now>,
    next: Option<Arc<EnvTrace>>,
}

#[derive(Clone, Debug)]
struct Now {
    trace: Arc<EnvTrace>,
    kind: Kind,
    /// In rows.
    place: f64,
}

impl Playback {
    /// Takes the newest trace, of an environment of that kind. It is shown when the one being shown has ended, or at
    /// once if it is of another slot or run.
    pub(crate) fn offer(&mut self, trace: &Arc<EnvTrace>, kind: Kind) {
        let same_story = |now: &Now| now.trace.run == trace.run && now.trace.slot == trace.slot && now.kind == kind;
        match &self.now {
            Some(now) if Arc::ptr_eq(&now.trace, trace) => {}
            Some(now) if same_story(now) => self.next = Some(trace.clone()),
            _ => {
                self.now = Some(Now { trace: trace.clone(), kind, place: 0.0 });
                self.next = None;
            }
        }
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Lets time pass. At the end of a trace its last moment stays until there is a newer trace, or it is played again.
    pub(crate) fn advance(&mut self, ms: f64, again: bool) {
        let Some(Now { trace, kind, place }) = &mut self.now else { return };
        *place += ms.clamp(0.0, LONGEST_PAUSE_MS) * f64::from(kind.steps_per_s()) / 1_000.0;
        let end = rows(trace) as f64;
        if *place >= end {
            *place = match self.next.take() {
                Some(next) => {
                    *trace = next;
                    0.0
                }
                None if again => 0.0,
                None => end,
            };
        }
    }

    /// The moment to show; none without a trace, or if there is no picture of it.
    #[must_use]
    pub(crate) fn frame(&self) -> Option<Frame> {
        let Now { trace, kind, place } = self.now.as_ref()?;
        let row = (*place as usize).min(rows(trace).checked_sub(1)?);
        let len = row_bytes(trace)?;
        let bytes = trace.obs.get(row * len..(row + 1) * len)?.as_chunks().0;
        let obs: Vec<f32> = bytes.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
        let done = trace.dones.get(row).is_some_and(|done| *done != 0);
        Some(Frame { picture: kind.picture(&obs)?, done, row: row as u32, slot: trace.slot })
    }
}

fn row_bytes(trace: &EnvTrace) -> Option<usize> {
    (trace.obs_len as usize).checked_mul(4)
}

fn rows(trace: &EnvTrace) -> usize {
    row_bytes(trace).and_then(|len| trace.obs.len().checked_div(len)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trace(slot: u32, xs: &[f32]) -> Arc<EnvTrace> {
        let obs = xs.iter().flat_map(|x| [*x, 0.0, -x, 0.0]).flat_map(f32::to_le_bytes).collect();
        let mut dones = vec![0; xs.len()];
        *dones.last_mut().expect("rows") = 1;
        Arc::new(EnvTrace { run: 1, slot, episode: 0, t: 0, obs_len: 4, obs, dones })
    }

    fn frame(slot: u32, row: u32, done: bool, x: f32) -> Option<Frame> {
        let picture = Kind::CartPole.picture(&[x, 0.0, -x, 0.0]).expect("a CartPole");
        Some(Frame { picture, done, row, slot })
    }

    #[test]
    fn rows_pass_at_the_pace_of_the_environment_and_the_last_stays() {
        let mut playback = Playback::default();
        assert_eq!(playback.frame(), None);
        playback.offer(&trace(0, &[0.0, 0.1, 0.2]), Kind::CartPole);
        assert_eq!(playback.frame(), frame(0, 0, false, 0.0));
        playback.advance(20.0, false);
        assert_eq!(playback.frame(), frame(0, 1, false, 0.1));
        playback.advance(200.0, false);
        assert_eq!(playback.frame(), frame(0, 2, true, 0.2));
        playback.advance(20.0, true);
        assert_eq!(playback.frame(), frame(0, 0, false, 0.0));
    }

    #[test]
    fn the_newest_trace_follows_and_another_slot_comes_at_once() {
        let mut playback = Playback::default();
        playback.offer(&trace(0, &[0.0, 0.1]), Kind::CartPole);
        playback.offer(&trace(0, &[0.2, 0.3]), Kind::CartPole);
        playback.offer(&trace(0, &[0.4, 0.5]), Kind::CartPole);
        assert_eq!(playback.frame(), frame(0, 0, false, 0.0));
        playback.advance(100.0, false);
        assert_eq!(playback.frame(), frame(0, 0, false, 0.4));
        playback.offer(&trace(7, &[0.0]), Kind::CartPole);
        assert_eq!(playback.frame(), frame(7, 0, true, 0.0));
    }

    #[test]
    fn traces_that_are_empty_torn_or_of_another_env_show_nothing() {
        let good = trace(0, &[0.5]);
        let broken = [
            EnvTrace { obs: vec![], ..(*good).clone() },
            EnvTrace { obs: vec![0; 15], ..(*good).clone() },
            EnvTrace { obs_len: 0, ..(*good).clone() },
            EnvTrace { obs_len: 3, ..(*good).clone() },
            EnvTrace { obs_len: u32::MAX, ..(*good).clone() },
        ];
        for trace in broken {
            let mut playback = Playback::default();
            playback.offer(&Arc::new(trace), Kind::CartPole);
            playback.advance(1_000.0, false);
            assert_eq!(playback.frame(), None);
        }
    }
}
