//! A worker as the group sees it.

use super::QuarantineCause;
use crate::{
    ids::{FragmentNo, LeaseId, WeightsVersion},
    protocol::{Inability, WorkerState},
    time::Micros,
};

/// Properties of a worker when it joins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerProfile {
    /// A lease expires when its worker reports no new env steps for this long.
    pub progress_timeout: Micros,
}

impl WorkerProfile {
    /// Profile of a worker process.
    pub const NATIVE: Self = Self { progress_timeout: Micros::from_secs(3) };
    /// Profile of a browser tab, which the browser may throttle at any time.
    pub const BROWSER: Self = Self { progress_timeout: Micros::from_secs(30) };
}

/// A worker whose lease expired and that has sent nothing since.
#[derive(Debug)]
pub(super) struct Hung {
    /// The lease that expired.
    pub(super) lease: LeaseId,
    /// The duration for which the lease went without progress.
    pub(super) patience: Micros,
    /// When to send the revocation again.
    pub(super) ask_at: Micros,
}

/// A worker whose lease was committed by others, and that has sent nothing since its revocation.
#[derive(Debug)]
pub(super) struct Overtaken {
    /// The lease that it lost.
    pub(super) lease: LeaseId,
    /// When the lease would have expired: from then on the worker counts as hung.
    pub(super) until: Micros,
}

/// A worker's answer whether it can run the leases of this run.
#[derive(Debug)]
pub(super) enum Answer {
    None,
    Able,
    Unable(Inability),
}

#[derive(Debug)]
pub(super) struct Worker {
    profile: WorkerProfile,
    pub(super) answer: Answer,
    pub(super) lease: Option<LeaseId>,
    /// The lease that it begins after [`lease`](Self::lease).
    pub(super) follow_up: Option<LeaseId>,
    /// Start and env steps of the lease that ended last, see [`LiveLease`](super::lease_table::LiveLease).
    pub(super) done: (Micros, u64),
    pub(super) hung: Option<Hung>,
    /// Gets no lease before it has answered: it may hang, and a lease that others finish never expires.
    pub(super) overtaken: Option<Overtaken>,
    pub(super) leaving: bool,
    /// Whether [`GroupCommand::Dismiss`](super::GroupCommand::Dismiss) was sent.
    pub(super) dismissed: bool,
    pub(super) quarantined: Option<QuarantineCause>,
    /// Failures since the last useful fragment.
    pub(super) strikes: u32,
    /// Leases that expired since the last useful fragment.
    timeouts: u32,
    pub(super) env_steps: u64,
    /// Iteration of the latest lease.
    pub(super) latest: Option<FragmentNo>,
    /// The newest weights that it has reported as applied.
    pub(super) applied: Option<WeightsVersion>,
    /// Env steps per second of the latest leases; 0 for those not measured yet.
    speeds: [u64; Self::SPEEDS],
    rate: RateMeter,
}

impl Worker {
    const SPEEDS: usize = 4;

    pub(super) fn new(profile: WorkerProfile, now: Micros) -> Self {
        Self {
            profile,
            answer: Answer::None,
            lease: None,
            follow_up: None,
            done: (now, 0),
            hung: None,
            overtaken: None,
            leaving: false,
            dismissed: false,
            quarantined: None,
            strikes: 0,
            timeouts: 0,
            env_steps: 0,
            latest: None,
            applied: None,
            speeds: [0; Self::SPEEDS],
            rate: RateMeter::new(now),
        }
    }

    pub(super) fn state(&self) -> WorkerState {
        if self.quarantined.is_some() {
            WorkerState::Quarantined
        } else if self.leaving {
            WorkerState::Leaving
        } else if matches!(self.answer, Answer::None) {
            WorkerState::Unanswered
        } else if matches!(self.answer, Answer::Unable(_)) {
            WorkerState::Unable
        } else if self.hung.is_some() {
            WorkerState::Hung
        } else if self.lease.is_some() || self.overtaken.is_some() {
            WorkerState::Sampling
        } else {
            WorkerState::Idle
        }
    }

    /// Returns true for a worker among which slots can be split.
    pub(super) fn is_sound(&self) -> bool {
        matches!(self.state(), WorkerState::Idle | WorkerState::Sampling) && self.overtaken.is_none()
    }

    /// Returns how long a lease may go without progress. Doubles with every expired lease, up to 32 times, so that a merely
    /// slow worker finishes in the end even if it is the only one.
    pub(super) fn patience(&self) -> Micros {
        self.profile.progress_timeout.times(1 << self.timeouts.min(5))
    }

    /// Records that a lease expired. Returns how long it went without progress.
    pub(super) fn timed_out(&mut self, lease: LeaseId, now: Micros) -> Micros {
        let patience = self.patience();
        self.timeouts += 1;
        self.hung = Some(Hung { lease, patience, ask_at: now + self.profile.progress_timeout });
        patience
    }

    /// Returns when an overtaken worker counts as hung.
    pub(super) fn hangs_at(&self) -> Option<Micros> {
        self.overtaken.as_ref().filter(|_| !self.leaving && self.quarantined.is_none()).map(|overtaken| overtaken.until)
    }

    /// Returns when to ask a hung worker for a sign of life; `None` for one that gets no leases anyway.
    pub(super) fn ask_at(&self) -> Option<Micros> {
        self.hung.as_ref().filter(|_| !self.leaving && self.quarantined.is_none()).map(|hung| hung.ask_at)
    }

    pub(super) fn schedule_next_ping(&mut self, now: Micros) {
        if let Some(hung) = &mut self.hung {
            hung.ask_at = now + self.profile.progress_timeout;
        }
    }

    /// Records a useful fragment.
    pub(super) fn delivered(&mut self) {
        self.strikes = 0;
        self.timeouts = 0;
    }

    pub(super) fn committed(&mut self, env_steps: u64, now: Micros) {
        self.env_steps += env_steps;
        self.rate.add(env_steps, now);
    }

    pub(super) fn env_steps_per_s(&self, now: Micros) -> f64 {
        self.rate.per_second(now)
    }

    /// Records the speed of a lease.
    pub(super) fn measured(&mut self, env_steps: u64, took: Micros) {
        self.speeds.rotate_right(1);
        self.speeds[0] = per_second(env_steps, took);
    }

    /// Records the age of a lease when it was lost: the worker is at most that fast, which matters only if it was assumed to
    /// be faster. `assumed` is the assumed speed of a worker that was never measured.
    pub(super) fn lost(&mut self, env_steps: u64, after: Micros, assumed: u64) {
        if self.speed().unwrap_or(assumed) > per_second(env_steps, after) {
            self.measured(env_steps, after);
        }
    }

    /// Returns the worker's speed from grant to commit, in env steps per second: the best of the latest few leases, so that
    /// a single slow lease moves no slots and a single fast one restores the speed.
    pub(super) fn speed(&self) -> Option<u64> {
        self.speeds.iter().copied().max().filter(|&speed| speed > 0)
    }
}

/// Returns the env steps per second, at least 1.
fn per_second(env_steps: u64, took: Micros) -> u64 {
    (env_steps.saturating_mul(1_000_000) / took.0.max(1)).max(1)
}

/// Counts env steps in the last five seconds, in constant space.
#[derive(Debug)]
pub(crate) struct RateMeter {
    since: Micros,
    /// Seconds on the caller's clock of the newest bucket.
    newest: u64,
    /// Bucket of second `s` at `s % 5`.
    buckets: [u64; Self::SECONDS as usize],
}

impl RateMeter {
    const SECONDS: u64 = 5;
    const SECOND: u64 = 1_000_000;

    pub(crate) fn new(now: Micros) -> Self {
        Self { since: now, newest: now.0 / Self::SECOND, buckets: [0; Self::SECONDS as usize] }
    }

    pub(crate) fn add(&mut self, env_steps: u64, now: Micros) {
        let second = now.0 / Self::SECOND;
        for passed in (self.newest + 1..=second).take(Self::SECONDS as usize) {
            // Only the remainder matters: after five seconds every bucket has been emptied.
            self.buckets[(passed % Self::SECONDS) as usize] = 0;
        }
        self.newest = self.newest.max(second);
        self.buckets[(self.newest % Self::SECONDS) as usize] += env_steps;
    }

    pub(crate) fn per_second(&self, now: Micros) -> f64 {
        let second = now.0 / Self::SECOND;
        let oldest = (second + 1).saturating_sub(Self::SECONDS);
        let counted: u64 = (oldest..=self.newest).map(|s| self.buckets[(s % Self::SECONDS) as usize]).sum();
        let window_start = Micros((oldest * Self::SECOND).max(self.since.0));
        counted as f64 * Self::SECOND as f64 / now.since(window_start).0.max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prelude::*;

    #[test]
    fn the_rate_forgets_after_five_seconds() {
        let mut rate = RateMeter::new(Micros::from_secs(10));
        for second in 10..20 {
            rate.add(100, Micros::from_secs(second));
        }
        assert_eq!(rate.per_second(Micros::from_secs(20)), 100.0);
        assert_eq!(rate.per_second(Micros::from_secs(22)), 50.0);
        assert_eq!(rate.per_second(Micros::from_secs(30)), 0.0);
        rate.add(700, Micros::from_secs(40));
        assert_eq!(rate.per_second(Micros::from_secs(44)), 175.0);
    }

    #[test]
    fn the_rate_of_a_newcomer_is_not_diluted() {
        let mut rate = RateMeter::new(Micros::from_millis(10_500));
        rate.add(300, Micros::from_millis(11_000));
        assert_eq!(rate.per_second(Micros::from_millis(12_000)), 200.0);
    }

    #[test]
    fn speed_is_the_best_of_four_leases() {
        let mut worker = Worker::new(WorkerProfile::NATIVE, Micros(0));
        assert_eq!(worker.speed(), None);
        worker.measured(100, Micros::from_millis(100));
        for _ in 0..3 {
            worker.measured(100, Micros::from_secs(1));
        }
        assert_eq!(worker.speed(), Some(1_000));
        worker.measured(100, Micros::from_secs(1));
        assert_eq!(worker.speed(), Some(100));
        worker.measured(1, Micros::from_secs(10));
        assert_eq!(worker.speed(), Some(100));
    }

    #[test]
    fn lost_lease_only_lowers_the_speed_of_its_worker() {
        let mut worker = Worker::new(WorkerProfile::NATIVE, Micros(0));
        worker.lost(100, Micros::from_secs(1), 80);
        assert_eq!(worker.speed(), None);
        worker.lost(100, Micros::from_secs(1), 300);
        assert_eq!(worker.speed(), Some(100));
        worker.lost(1_000, Micros::from_secs(1), 0);
        assert_eq!(worker.speed(), Some(100));
        for _ in 0..4 {
            worker.lost(10, Micros::from_secs(1), 0);
        }
        assert_eq!(worker.speed(), Some(10));
    }

    #[test]
    fn patience_doubles_until_something_arrives() {
        let mut worker = Worker::new(WorkerProfile::NATIVE, Micros(0));
        let patience: Vec<u64> = (0..7)
            .map(|_| {
                let seconds = worker.patience().0 / 1_000_000;
                worker.timed_out(LeaseId(0), Micros(0));
                seconds
            })
            .collect();
        assert_eq!(patience, [3, 6, 12, 24, 48, 96, 96]);
        worker.delivered();
        assert_eq!(worker.patience(), Micros::from_secs(3));
    }
}
