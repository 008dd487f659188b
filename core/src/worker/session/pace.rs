//! Whether the slots of a lease are worked on together or in turn.

use crate::time::Micros;

/// An env step that takes this long takes no longer if its slot is worked on by itself: networks of the width that
/// workers act with need a small part of it, see [`kernels`](crate::kernels).
const SLOW_STEP: Micros = Micros(500);

/// What a worker knows of the pace of its environments, and what follows from it.
///
/// Slots that are worked on together are all done at the same time, at the end of the lease, and a worker that dies before
/// takes all of them along. Where env steps take their time nothing is gained by that, so slots have their turns, and each is
/// handed over when it is done; unless that turns out to be slower, as with environments that step all their lanes at once.
#[derive(Debug, Default)]
pub(super) struct Pace {
    turns: Turns,
    /// The running lease has several slots: with one it makes no difference.
    has_several: bool,
    /// Env steps of the running lease.
    done: u64,
    /// When the running lease was looked at first and how many of its env steps were done then. Not at its beginning, when
    /// environments may have to be made.
    since: Option<(Micros, u64)>,
    /// The pace of the running lease since then.
    measured: Option<Micros>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Turns {
    /// Steps were fast so far.
    #[default]
    Together,
    /// Steps are slow; together they took this long each.
    InTurn { together: Micros },
    /// In turn they were slower.
    BetterTogether,
}

impl Pace {
    /// A lease of so many slots begins; true if they are to be worked on in turn.
    pub(super) fn begin(&mut self, slots: usize) -> bool {
        *self = Self { turns: self.turns, has_several: slots > 1, ..Self::default() };
        matches!(self.turns, Turns::InTurn { .. })
    }

    /// So many env steps of the lease are done.
    pub(super) fn advance_to(&mut self, env_steps: u64) {
        self.done = env_steps;
    }

    /// It is now this late.
    pub(super) fn look(&mut self, now: Micros) {
        match self.since {
            None if self.done > 0 => self.since = Some((now, self.done)),
            Some((since, before)) if self.done > before => {
                self.measured = Some(Micros(now.since(since).0 / (self.done - before)));
            }
            None | Some(_) => {}
        }
    }

    /// The lease is done.
    pub(super) fn end(&mut self) {
        let Some(step) = self.measured.filter(|_| self.has_several) else { return };
        self.turns = match self.turns {
            Turns::Together if step >= SLOW_STEP => Turns::InTurn { together: step },
            // The machine stood still before, not the environment.
            Turns::InTurn { .. } if step < SLOW_STEP => Turns::Together,
            Turns::InTurn { together } if step.0 > together.0 + together.0 / 4 => Turns::BetterTogether,
            turns => turns,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Does a lease in slices of so many env steps, each of which takes so long. Whether its slots had their turns.
    fn lease(pace: &mut Pace, slots: usize, step: u64) -> bool {
        let in_turn = pace.begin(slots);
        for slice in 0..4 {
            pace.look(Micros(7 + slice * 10 * step));
            pace.advance_to((slice + 1) * 10);
        }
        pace.end();
        in_turn
    }

    #[test]
    fn slots_have_their_turns_where_steps_are_slow() {
        let mut pace = Pace::default();
        assert_eq!(
            [499, 500, 500, 600, 499, 10].map(|step| lease(&mut pace, 3, step)),
            [false, false, true, true, true, false]
        );
    }

    #[test]
    fn lanes_that_are_stepped_at_once_stay_together() {
        let mut pace = Pace::default();
        assert_eq!([600, 751, 600, 600].map(|step| lease(&mut pace, 3, step)), [false, true, false, false]);
    }

    #[test]
    fn one_slot_or_a_short_lease_tells_nothing() {
        let mut pace = Pace::default();
        assert_eq!([1, 1, 3].map(|slots| lease(&mut pace, slots, 900)), [false; 3]);
        let mut pace = Pace::default();
        for _ in 0..2 {
            assert!(!pace.begin(3));
            pace.look(Micros(0));
            pace.advance_to(10);
            pace.look(Micros(1_000_000));
            pace.end();
        }
    }
}
