//! Plays traces of the watched environment back in its own time.

use std::sync::Arc;

use rollmesh_core::protocol::message::EnvTrace;

/// CartPole's time step is 20 ms.
const FRAMES_PER_S: f64 = 50.0;
/// Longer pauses than this, of a hidden page for example, are skipped.
const LONGEST_PAUSE_MS: f64 = 250.0;

/// One moment of a CartPole.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Frame {
    /// Position of the cart; the track ends at ±2.4.
    pub(crate) x: f32,
    /// Angle of the pole from upright in radians, clockwise.
    pub(crate) angle: f32,
    /// Did the episode end in this step?
    pub(crate) done: bool,
    /// Steps since the start of the trace.
    pub(crate) row: u32,
}

/// A trace and the place in it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Playback {
    now: Option<(Arc<EnvTrace>, f64)>,
    next: Option<Arc<EnvTrace>>,
}

impl Playback {
    /// Takes the newest trace, to be shown when the one being shown has ended, or at once if it is of another slot or run.
    pub(crate) fn offer(&mut self, trace: &Arc<EnvTrace>) {
        let same_story = |now: &Arc<EnvTrace>| now.run == trace.run && now.slot == trace.slot;
        match &self.now {
            Some((now, _)) if Arc::ptr_eq(now, trace) => {}
            Some((now, _)) if same_story(now) => self.next = Some(trace.clone()),
            _ => {
                self.now = Some((trace.clone(), 0.0));
                self.next = None;
            }
        }
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Lets time pass. At the end of a trace its last moment stays until there is a newer trace.
    pub(crate) fn advance(&mut self, ms: f64) {
        let Some((trace, place)) = &mut self.now else { return };
        *place += ms.clamp(0.0, LONGEST_PAUSE_MS) * FRAMES_PER_S / 1_000.0;
        if *place >= rows(trace) as f64 {
            match self.next.take() {
                Some(next) => self.now = Some((next, 0.0)),
                None => *place = rows(trace) as f64,
            }
        }
    }

    /// The moment to show; none without a trace, or if it is not of a CartPole.
    #[must_use]
    pub(crate) fn frame(&self) -> Option<Frame> {
        let (trace, place) = self.now.as_ref()?;
        let row = (*place as usize).min(rows(trace).checked_sub(1)?);
        let element = |index: usize| {
            let start = (row * trace.obs_len as usize + index) * 4;
            let bytes = trace.obs.get(start..start + 4)?;
            Some(f32::from_le_bytes(bytes.try_into().ok()?))
        };
        let done = trace.dones.get(row).is_some_and(|done| *done != 0);
        Some(Frame { x: element(0)?, angle: element(2)?, done, row: row as u32 })
    }

    /// The trace being shown.
    #[must_use]
    pub(crate) fn trace(&self) -> Option<&EnvTrace> {
        self.now.as_ref().map(|(trace, _)| &**trace)
    }
}

fn rows(trace: &EnvTrace) -> usize {
    if trace.obs_len == 4 { trace.obs.len() / 16 } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trace(slot: u32, t: u32, xs: &[f32]) -> Arc<EnvTrace> {
        let obs = xs.iter().flat_map(|x| [*x, 0.0, -x, 0.0]).flat_map(f32::to_le_bytes).collect();
        let mut dones = vec![0; xs.len()];
        *dones.last_mut().expect("rows") = 1;
        Arc::new(EnvTrace { run: 1, slot, episode: 0, t, obs_len: 4, obs, dones })
    }

    #[test]
    fn rows_pass_at_fifty_a_second_and_the_last_stays() {
        let mut playback = Playback::default();
        assert_eq!(playback.frame(), None);
        playback.offer(&trace(0, 0, &[0.0, 0.1, 0.2]));
        assert_eq!(playback.frame(), Some(Frame { x: 0.0, angle: 0.0, done: false, row: 0 }));
        playback.advance(20.0);
        assert_eq!(playback.frame(), Some(Frame { x: 0.1, angle: -0.1, done: false, row: 1 }));
        playback.advance(200.0);
        assert_eq!(playback.frame(), Some(Frame { x: 0.2, angle: -0.2, done: true, row: 2 }));
    }

    #[test]
    fn the_newest_trace_follows_and_another_slot_comes_at_once() {
        let mut playback = Playback::default();
        playback.offer(&trace(0, 0, &[0.0, 0.1]));
        playback.offer(&trace(0, 2, &[0.2, 0.3]));
        playback.offer(&trace(0, 4, &[0.4, 0.5]));
        assert_eq!(playback.trace().map(|trace| trace.t), Some(0));
        playback.advance(100.0);
        assert_eq!(playback.trace().map(|trace| trace.t), Some(4));
        playback.offer(&trace(7, 0, &[0.0]));
        assert_eq!(playback.trace().map(|trace| trace.slot), Some(7));
    }

    #[test]
    fn traces_that_are_empty_torn_or_of_another_env_show_nothing() {
        let good = trace(0, 0, &[0.5]);
        let broken = [
            EnvTrace { obs: vec![], ..(*good).clone() },
            EnvTrace { obs: vec![0; 15], ..(*good).clone() },
            EnvTrace { obs_len: 3, ..(*good).clone() },
            EnvTrace { obs_len: u32::MAX, ..(*good).clone() },
        ];
        for trace in broken {
            let mut playback = Playback::default();
            playback.offer(&Arc::new(trace));
            playback.advance(1_000.0);
            assert_eq!(playback.frame(), None);
        }
    }
}
