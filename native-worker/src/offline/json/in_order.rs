//! A thread pool whose results arrive in the order of the jobs.

use std::{
    collections::VecDeque,
    panic::{self, AssertUnwindSafe},
    sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError},
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

/// Threads that execute jobs; a caller waiting for results helps. Dropping it ends the threads.
pub(super) struct InOrder<T, R> {
    shared: Arc<SharedOrder<T, R>>,
    threads: Vec<JoinHandle<()>>,
}

struct SharedOrder<T, R> {
    work: fn(T) -> R,
    queue: Mutex<Queue<T, R>>,
    /// Notified when there is another job, or when the queue is closed.
    to_do: Condvar,
    done: Condvar,
}

struct Queue<T, R> {
    waiting: VecDeque<T>,
    /// Jobs in progress, with the result (or the panic) once there is one.
    begun: VecDeque<Option<thread::Result<R>>>,
    /// Number of results taken.
    taken: u64,
    is_closed: bool,
}

impl<T: Send + 'static, R: Send + 'static> InOrder<T, R> {
    pub(super) fn new(work: fn(T) -> R, helpers: usize) -> Self {
        let queue = Queue { waiting: VecDeque::new(), begun: VecDeque::new(), taken: 0, is_closed: false };
        let shared =
            Arc::new(SharedOrder { work, queue: Mutex::new(queue), to_do: Condvar::new(), done: Condvar::new() });
        let help = |_| {
            let shared = shared.clone();
            thread::Builder::new().name("json".into()).spawn(move || shared.help()).ok()
        };
        // If the system refuses threads, the caller executes the jobs itself.
        let threads = (0..helpers).filter_map(help).collect();
        Self { shared, threads }
    }

    pub(super) fn push(&self, job: T) {
        self.shared.lock().waiting.push_back(job);
        self.shared.to_do.notify_one();
    }

    /// Returns the number of jobs whose results have not been taken.
    pub(super) fn len(&self) -> usize {
        let queue = self.shared.lock();
        queue.waiting.len() + queue.begun.len()
    }

    /// Waits for the result of the oldest job; `None` if there is none. Panics if that job did.
    pub(super) fn next(&self) -> Option<R> {
        let mut queue = self.shared.lock();
        loop {
            if let Some(result) = queue.take() {
                return Some(result.unwrap_or_else(|panic| panic::resume_unwind(panic)));
            }
            queue = match queue.begin() {
                Some((number, job)) => {
                    drop(queue);
                    self.shared.finish(number, job)
                }
                None if queue.begun.is_empty() => return None,
                None => self.shared.done.wait(queue).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }
}

impl<T, R> Drop for InOrder<T, R> {
    fn drop(&mut self) {
        self.shared.lock().is_closed = true;
        self.shared.to_do.notify_all();
        // Panics are among the results.
        self.threads.drain(..).for_each(|thread| _ = thread.join());
    }
}

impl<T, R> SharedOrder<T, R> {
    fn lock(&self) -> MutexGuard<'_, Queue<T, R>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn help(&self) {
        let mut queue = self.lock();
        while !queue.is_closed {
            queue = match queue.begin() {
                Some((number, job)) => {
                    drop(queue);
                    let queue = self.finish(number, job);
                    self.done.notify_one();
                    queue
                }
                None => self.to_do.wait(queue).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }

    /// Executes a job that was begun.
    fn finish(&self, number: u64, job: T) -> MutexGuard<'_, Queue<T, R>> {
        let result = panic::catch_unwind(AssertUnwindSafe(|| (self.work)(job)));
        let mut queue = self.lock();
        let place = number - queue.taken;
        if let Some(begun) = queue.begun.get_mut(place as usize) {
            *begun = Some(result);
        }
        queue
    }
}

impl<T, R> Queue<T, R> {
    /// Returns the first job that has not been begun, with its number.
    fn begin(&mut self) -> Option<(u64, T)> {
        let job = self.waiting.pop_front()?;
        let number = self.taken + self.begun.len() as u64;
        self.begun.push_back(None);
        Some((number, job))
    }

    /// Returns the first result, if it is available.
    fn take(&mut self) -> Option<thread::Result<R>> {
        let result = self.begun.front_mut()?.take()?;
        self.begun.pop_front();
        self.taken += 1;
        Some(result)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn results_come_in_order_of_submission() {
        for helpers in [0, 1, 3] {
            // Later jobs are shorter.
            let work =
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
        let work = InOrder::new(|done: mpsc::Sender<()>| done.send(()).is_ok(), 1);
        let (done, told) = mpsc::channel();
        work.push(done);
        told.recv().expect("a helper, as the result has not been requested");
        assert_eq!(work.next(), Some(true));
    }

    #[test]
    fn a_panic_is_that_of_who_takes_the_result() {
        for helpers in [0, 2] {
            let work = InOrder::new(|n: u32| assert!(n != 1, "one"), helpers);
            (0..3).for_each(|n| work.push(n));
            assert_eq!(work.next(), Some(()));
            assert!(panic::catch_unwind(AssertUnwindSafe(|| work.next())).is_err());
            assert_eq!((work.next(), work.next()), (Some(()), None));
        }
    }

    #[test]
    fn threads_end_with_the_pool_and_unstarted_jobs_are_dropped() {
        let (jobs, held) = (Arc::new(()), |_: Arc<()>| ());
        let work = InOrder::new(held, 2);
        (0..1_000).for_each(|_| work.push(jobs.clone()));
        drop(work);
        assert_eq!(Arc::strong_count(&jobs), 1);
    }
}
