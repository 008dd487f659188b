//! Puts requests together: those for the same policy and weights that have come by the time a batch is due.

use crate::{prelude::*, protocol::message::Infer, run::InferenceBatch, time::Micros};

/// Requests that wait, oldest first.
#[derive(Debug)]
pub(super) struct Batcher {
    limits: InferenceBatch,
    waiting: Vec<WaitingRequest>,
}

#[derive(Debug)]
struct WaitingRequest {
    request: Infer,
    /// When it was first looked at; `None` until then.
    since: Option<Micros>,
}

/// The common properties of one batch's requests: policy, version, and bytes per row of observations and states.
type Key<'a> = (&'a str, u64, usize, usize);

fn key(request: &Infer) -> Key<'_> {
    let rows = request.rows.max(1) as usize;
    (&request.policy, request.version, request.obs.len() / rows, request.state.len() / rows)
}

impl Batcher {
    pub(super) fn new(limits: InferenceBatch) -> Self {
        Self { limits, waiting: Vec::new() }
    }

    pub(super) fn push(&mut self, request: Infer) {
        self.waiting.push(WaitingRequest { request, since: None });
    }

    /// Returns true if [`poll`](Self::poll) has something to do whatever the time is.
    pub(super) fn has_work(&self) -> bool {
        self.waiting.iter().any(|waiting| waiting.since.is_none() || self.is_full(&waiting.request))
    }

    /// Returns when the oldest request has waited long enough.
    pub(super) fn due_at(&self) -> Option<Micros> {
        let since = self.waiting.first()?.since?;
        Some(since + Micros(u64::from(self.limits.wait_us)))
    }

    fn is_full(&self, like: &Infer) -> bool {
        let rows = |waiting: &WaitingRequest| u64::from(waiting.request.rows);
        let alike = self.waiting.iter().filter(|waiting| key(&waiting.request) == key(like));
        alike.map(rows).sum::<u64>() >= u64::from(self.limits.min_rows)
    }

    /// Returns the next batch that is due: of requests with the same key, the oldest ones, as many as there may be
    /// rows.
    pub(super) fn poll(&mut self, now: Micros) -> Option<Vec<Infer>> {
        for waiting in &mut self.waiting {
            waiting.since.get_or_insert(now);
        }
        let is_due = self.due_at().is_some_and(|due| now >= due);
        let first = match is_due {
            true => self.waiting.first(),
            false => self.waiting.iter().find(|waiting| self.is_full(&waiting.request)),
        };
        let first = first?.request.clone();
        let (mut batch, mut rows) = (Vec::new(), 0);
        self.waiting.retain_mut(|waiting| {
            let takes = key(&waiting.request) == key(&first) && rows < u64::from(self.limits.max_rows);
            if takes {
                rows += u64::from(waiting.request.rows);
                batch.push(core::mem::take(&mut waiting.request));
            }
            !takes
        });
        Some(batch)
    }
}
