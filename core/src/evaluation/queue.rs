//! Who waits for which evaluation. Decides, and does nothing by itself.

use core::fmt;

use serde::{Deserialize, Serialize};

use crate::prelude::*;

/// An evaluation that was asked for. Later ones have higher numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Ticket(pub u64);

impl fmt::Display for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One of those who ask: a handle, or a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Asker(pub u64);

/// What becomes of an asker's earlier evaluations when it asks for another one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Earlier {
    /// They are cancelled, also the one that is being done, and their results are dropped.
    #[default]
    Cancel,
    /// They come first.
    Keep,
}

/// An asker has too many evaluations in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{max} evaluations wait already: poll for their results first", max = EvaluationQueue::<(), ()>::MAX_PER_ASKER)]
pub struct QueueFull;

/// Evaluations of one worker, which does one at a time: what was asked for by whom, and what came of it.
///
/// Askers do not disturb each other: [`Earlier::Cancel`] concerns an asker's own evaluations, others keep their turn.
/// Every result, be it an error, is given out once.
///
/// ```
/// use rollmesh_core::evaluation::{Asker, Earlier, EvaluationQueue};
///
/// let (me, mut queue) = (Asker(1), EvaluationQueue::new());
/// let first = queue.submit(me, "old weights", Earlier::Cancel)?;
/// assert_eq!(queue.start(), Some((first, "old weights")));
/// let second = queue.submit(me, "new weights", Earlier::Cancel)?;
/// assert!(queue.is_cancelled(first)); // whoever does it stops
/// queue.finish(first, 20.0);
/// assert_eq!(queue.start(), Some((second, "new weights")));
/// queue.finish(second, 500.0);
/// assert_eq!((queue.poll(me), queue.poll(me)), (Some((second, 500.0)), None));
/// # Ok::<(), rollmesh_core::evaluation::QueueFull>(())
/// ```
#[derive(Debug)]
pub struct EvaluationQueue<J, R> {
    latest: u64,
    waiting: VecDeque<(Asker, Ticket, J)>,
    /// The one that is being done; without an asker it is cancelled.
    running: Option<(Option<Asker>, Ticket)>,
    results: VecDeque<(Asker, Ticket, R)>,
}

impl<J, R> Default for EvaluationQueue<J, R> {
    fn default() -> Self {
        Self { latest: 0, waiting: VecDeque::new(), running: None, results: VecDeque::new() }
    }
}

impl<J, R> EvaluationQueue<J, R> {
    /// The most evaluations and results of an asker.
    pub const MAX_PER_ASKER: usize = 64;

    /// Nothing to do.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// An evaluation is asked for.
    ///
    /// # Errors
    /// [`QueueFull`].
    pub fn submit(&mut self, asker: Asker, job: J, earlier: Earlier) -> Result<Ticket, QueueFull> {
        if earlier == Earlier::Cancel {
            self.forget(asker);
        }
        let waiting = self.waiting.iter().filter(|(other, ..)| *other == asker).count();
        let results = self.results.iter().filter(|(other, ..)| *other == asker).count();
        if waiting + results >= Self::MAX_PER_ASKER {
            return Err(QueueFull);
        }
        self.latest += 1;
        let ticket = Ticket(self.latest);
        self.waiting.push_back((asker, ticket, job));
        Ok(ticket)
    }

    /// The next evaluation to be done, unless one is being done.
    pub fn start(&mut self) -> Option<(Ticket, J)> {
        if self.running.is_some() {
            return None;
        }
        let (asker, ticket, job) = self.waiting.pop_front()?;
        self.running = Some((Some(asker), ticket));
        Some((ticket, job))
    }

    /// The evaluation that is being done, also if it is cancelled.
    #[must_use]
    pub fn running(&self) -> Option<Ticket> {
        self.running.map(|(_, ticket)| ticket)
    }

    /// True if nobody wants it any more, or it is not being done.
    #[must_use]
    pub fn is_cancelled(&self, ticket: Ticket) -> bool {
        !matches!(self.running, Some((Some(_), running)) if running == ticket)
    }

    /// An evaluation is over, one way or the other. The result of one that nobody wants any more is dropped.
    pub fn finish(&mut self, ticket: Ticket, result: R) {
        if let Some((Some(asker), ticket)) = self.running.take_if(|(_, running)| *running == ticket) {
            self.results.push_back((asker, ticket, result));
        }
    }

    /// An asker's earliest result, once.
    pub fn poll(&mut self, asker: Asker) -> Option<(Ticket, R)> {
        let at = self.results.iter().position(|(other, ..)| *other == asker)?;
        self.results.remove(at).map(|(_, ticket, result)| (ticket, result))
    }

    /// True if an asker waits for something, or has a result that it has not seen.
    #[must_use]
    pub fn is_pending(&self, asker: Asker) -> bool {
        self.waiting.iter().any(|(other, ..)| *other == asker)
            || self.results.iter().any(|(other, ..)| *other == asker)
            || matches!(self.running, Some((Some(other), _)) if other == asker)
    }

    /// An asker wants nothing of what it has asked for.
    pub fn forget(&mut self, asker: Asker) {
        self.waiting.retain(|(other, ..)| *other != asker);
        self.results.retain(|(other, ..)| *other != asker);
        if let Some((owner, _)) = &mut self.running {
            owner.take_if(|other| *other == asker);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ME: Asker = Asker(1);
    const YOU: Asker = Asker(2);

    #[test]
    fn only_the_second_result_is_ever_returned() {
        let mut queue = EvaluationQueue::new();
        assert_eq!(queue.poll(ME), None);
        let first = queue.submit(ME, (), Earlier::Cancel).unwrap();
        assert!(queue.start().is_some() && queue.start().is_none() && !queue.is_cancelled(first));
        queue.finish(first, 1);
        // It was done, and nobody had asked for it when the next one came.
        let second = queue.submit(ME, (), Earlier::Cancel).unwrap();
        assert_eq!(queue.poll(ME), None);
        assert_eq!(queue.start(), Some((second, ())));
        queue.finish(first, 9);
        assert_eq!(queue.running(), Some(second));
        queue.finish(second, 2);
        assert_eq!((queue.poll(ME), queue.poll(ME)), (Some((second, 2)), None));
    }

    #[test]
    fn askers_do_not_disturb_each_other() {
        let mut queue = EvaluationQueue::new();
        let mine = queue.submit(ME, "mine", Earlier::Cancel).unwrap();
        let yours = queue.submit(YOU, "yours", Earlier::Cancel).unwrap();
        assert_eq!(queue.start(), Some((mine, "mine")));
        let next = queue.submit(ME, "next", Earlier::Cancel).unwrap();
        assert!(queue.is_cancelled(mine));
        queue.finish(mine, 0);
        assert_eq!(queue.start(), Some((yours, "yours")));
        queue.finish(yours, 1);
        assert_eq!(queue.start(), Some((next, "next")));
        queue.finish(next, 2);
        assert_eq!((queue.poll(YOU), queue.poll(ME)), (Some((yours, 1)), Some((next, 2))));
    }

    #[test]
    fn a_queue_keeps_the_order_and_has_an_end() {
        let mut queue = EvaluationQueue::new();
        for job in 0..EvaluationQueue::<usize, usize>::MAX_PER_ASKER {
            queue.submit(ME, job, Earlier::Keep).unwrap();
        }
        assert_eq!(queue.submit(ME, 0, Earlier::Keep), Err(QueueFull));
        assert!(queue.submit(YOU, 0, Earlier::Keep).is_ok());
        while let Some((ticket, job)) = queue.start() {
            queue.finish(ticket, job);
        }
        assert_eq!(queue.submit(ME, 0, Earlier::Keep), Err(QueueFull));
        let results: Vec<usize> = core::iter::from_fn(|| queue.poll(ME)).map(|(_, job)| job).collect();
        assert!(results.iter().copied().eq(0..64) && !queue.is_pending(ME) && queue.is_pending(YOU));
        queue.forget(YOU);
        assert_eq!(queue.poll(YOU), None);
    }

    proptest::proptest! {
        /// Whatever happens in whatever order: results come in the order of the tickets, each once, to who asked, and none
        /// of those that were cancelled.
        #[test]
        fn nothing_is_given_out_twice(steps in proptest::collection::vec((0u8..4, 0u64..3, proptest::bool::ANY), 0..200)) {
            let mut queue: EvaluationQueue<Asker, Asker> = EvaluationQueue::new();
            let mut wanted: Vec<(Asker, Ticket)> = Vec::new();
            let mut running = None;
            for (what, asker, keep) in steps {
                let asker = Asker(asker);
                match what {
                    0 => {
                        let earlier = if keep { Earlier::Keep } else { Earlier::Cancel };
                        if !keep {
                            wanted.retain(|(other, _)| *other != asker);
                        }
                        if let Ok(ticket) = queue.submit(asker, asker, earlier) {
                            wanted.push((asker, ticket));
                        }
                    }
                    1 => running = queue.start().or(running),
                    2 => if let Some((ticket, owner)) = running.take() { queue.finish(ticket, owner) },
                    _ => if let Some((ticket, owner)) = queue.poll(asker) {
                        proptest::prop_assert_eq!(owner, asker);
                        let at = wanted.iter().position(|entry| entry.0 == asker);
                        proptest::prop_assert_eq!(at.map(|at| wanted.remove(at)), Some((asker, ticket)));
                    },
                }
            }
        }
    }
}
