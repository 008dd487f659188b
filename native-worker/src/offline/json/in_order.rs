//! A thread pool whose results arrive in the order of the jobs.

use std::{
    collections::VecDeque,
    panic::{self, AssertUnwindSafe},
    sync::{
        Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError,
        mpsc::{self, Receiver, SyncSender, TryRecvError},
    },
    thread::{self, JoinHandle},
};

/// Returns the number of helper threads to start alongside the caller's.
pub(super) fn helpers() -> usize {
    // Reading lines and taking batches is serial, and limits throughput beyond this number.
    const MOST: usize = 7;
    static HELPERS: LazyLock<usize> =
        LazyLock::new(|| thread::available_parallelism().map_or(0, |processors| (processors.get() - 1).min(MOST)));
    *HELPERS
}

/// Threads that execute jobs; a caller waiting for results helps. Dropping it ends the threads, and drops the jobs that they have
/// not begun.
pub(super) struct InOrder<T, R> {
    jobs: Arc<Jobs<T, R>>,
    /// Of the jobs whose results have not been taken.
    results: VecDeque<Receiver<thread::Result<R>>>,
    threads: Vec<JoinHandle<()>>,
}

/// Jobs that have not begun, and where their results go; `None` once the pool is dropped.
type PendingJobs<T, R> = Option<VecDeque<(T, SyncSender<thread::Result<R>>)>>;

struct Jobs<T, R> {
    work: fn(T) -> R,
    waiting: Mutex<PendingJobs<T, R>>,
    /// Notified when there is another job, and when the pool is dropped.
    changed: Condvar,
}

impl<T: Send + 'static, R: Send + 'static> InOrder<T, R> {
    pub(super) fn new(work: fn(T) -> R, helpers: usize) -> Self {
        let jobs = Arc::new(Jobs { work, waiting: Mutex::new(Some(VecDeque::new())), changed: Condvar::new() });
        let help = |_| {
            let jobs = jobs.clone();
            thread::Builder::new().name("json".into()).spawn(move || jobs.help()).ok()
        };
        // If the system refuses threads, the caller executes the jobs itself.
        let threads = (0..helpers).filter_map(help).collect();
        Self { jobs, results: VecDeque::new(), threads }
    }

    pub(super) fn push(&mut self, job: T) {
        let (done, result) = mpsc::sync_channel(1);
        self.results.push_back(result);
        if let Some(waiting) = &mut *self.jobs.lock() {
            waiting.push_back((job, done));
        }
        self.jobs.changed.notify_one();
    }

    /// Returns the number of jobs whose results have not been taken.
    pub(super) fn len(&self) -> usize {
        self.results.len()
    }

    /// Waits for the result of the oldest job; `None` if there is none. Panics if that job did.
    pub(super) fn next(&mut self) -> Option<R> {
        let oldest = self.results.pop_front()?;
        let result = loop {
            match oldest.try_recv() {
                Err(TryRecvError::Empty) if self.jobs.execute_next() => {}
                Err(TryRecvError::Empty) => break oldest.recv().expect("a job that has begun has a result"),
                result => break result.expect("a job that has begun has a result"),
            }
        };
        Some(result.unwrap_or_else(|panic| panic::resume_unwind(panic)))
    }
}

impl<T, R> Drop for InOrder<T, R> {
    fn drop(&mut self) {
        *self.jobs.lock() = None;
        self.jobs.changed.notify_all();
        // Panics are among the results.
        self.threads.drain(..).for_each(|thread| _ = thread.join());
    }
}

impl<T, R> Jobs<T, R> {
    fn lock(&self) -> MutexGuard<'_, PendingJobs<T, R>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Executes the first job that has not begun, and returns whether there was one.
    fn execute_next(&self) -> bool {
        let Some((job, done)) = self.lock().as_mut().and_then(VecDeque::pop_front) else { return false };
        // The channel holds one result; the pool may be dropped.
        let _ = done.send(panic::catch_unwind(AssertUnwindSafe(|| (self.work)(job))));
        true
    }

    fn help(&self) {
        let is_idle = |waiting: &mut PendingJobs<T, R>| waiting.as_ref().is_some_and(VecDeque::is_empty);
        while self.changed.wait_while(self.lock(), is_idle).unwrap_or_else(PoisonError::into_inner).is_some() {
            self.execute_next();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_come_in_order_of_submission() {
        for helpers in [0, 1, 3] {
            // Later jobs are shorter.
            let mut work =
                InOrder::new(|n: u64| (n, (0..(100 - n) * 100).fold(n, |sum, x| sum.wrapping_mul(31) ^ x)).0, helpers);
            (0..50).for_each(|n| work.push(n));
            assert_eq!(work.len(), 50);
            let first: Vec<u64> = std::iter::from_fn(|| work.next()).take(20).collect();
            (50..100).for_each(|n| work.push(n));
            let rest: Vec<u64> = std::iter::from_fn(|| work.next()).collect();
            assert_eq!([first, rest].concat(), (0..100).collect::<Vec<_>>(), "{helpers}");
            assert_eq!(work.len(), 0);
        }
    }

    #[test]
    fn helper_thread_does_the_work_meanwhile() {
        let mut work = InOrder::new(|done: mpsc::Sender<()>| done.send(()).is_ok(), 1);
        let (done, finished) = mpsc::channel();
        work.push(done);
        finished.recv().expect("a helper, as the result has not been requested");
        assert_eq!(work.next(), Some(true));
    }

    #[test]
    fn panic_of_a_helper_reaches_the_caller_that_takes_its_result() {
        for helpers in [0, 2] {
            let mut work = InOrder::new(|n: u32| assert!(n != 1, "one"), helpers);
            (0..3).for_each(|n| work.push(n));
            assert_eq!(work.next(), Some(()));
            assert!(panic::catch_unwind(AssertUnwindSafe(|| work.next())).is_err());
            assert_eq!((work.next(), work.next()), (Some(()), None));
        }
    }

    #[test]
    fn threads_end_with_the_pool_and_unstarted_jobs_are_dropped() {
        let (jobs, held) = (Arc::new(()), |_: Arc<()>| ());
        let mut work = InOrder::new(held, 2);
        (0..1_000).for_each(|_| work.push(jobs.clone()));
        drop(work);
        assert_eq!(Arc::strong_count(&jobs), 1);
    }
}
