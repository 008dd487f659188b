//! An asynchronous sampler, which runs on a thread of its own.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        mpsc::{Receiver, RecvTimeoutError, Sender, channel, sync_channel},
    },
    thread::{Builder, JoinHandle},
    time::Duration,
};

use rollmesh_core::{
    batch::AnyBatch,
    callbacks::CallbackList,
    env::SubEnv,
    episode::{Losses, RolloutMetrics},
    sampler::{Budget, InputReader, Interrupt, Position, ResumePoint, SampleError, SamplerHost},
    worker::{AsyncSampling, MovedSampler},
};

use super::{
    callbacks::SharedCallbacks,
    changes::Known,
    thread::{Item, SamplerCommand, SamplerParts},
};
use crate::envs::words;

/// Runs any sampler on a thread of its own, ahead of the consumer of its batches.
///
/// The thread starts with the first call of [`next`](InputReader::next). It puts batches into a queue of
/// [`QUEUE`](Self::QUEUE) and blocks while that is full: nothing is dropped, and as long as nothing is changed, batches
/// and episodes are bit-identical to those of the sampler without a thread.
///
/// **Changes.** The thread has its own copies of the policies. Every call sends it what has changed in the worker: weights,
/// extra states (including what policies derived from global variables, if they keep it there), filters, added and removed
/// policies, the mapping and the observation function. The thread applies changes between two calls of the sampler, so a
/// fragment never mixes two versions of the weights. Older batches are returned first: at most those in the queue, one that
/// waits for space, and the one in progress. Changes that hooks make to the policies they are given affect the thread's
/// copies only.
///
/// **Filters.** Observations are counted in the thread immediately, and in the worker's filters as batches are taken:
/// batches that were sampled ahead and are never taken are not counted. Statistics are merged, so they differ from
/// those of a sampler without a thread in the last digits; the rows do not. Statistics that are put into the worker's
/// filters from elsewhere are handled like changes.
///
/// **Errors** are queued like batches. After one the thread waits for the next call, so that a fault is reported once. A
/// panic ends the thread: all further calls return [`SampleError::Died`] with its message.
///
/// **Environments.** Accessing them, or setting the sampler's position, calls the sampler back to the worker's thread, which
/// waits for the fragment in progress. Changes to them take effect with the first batch that was not sampled yet.
///
/// **Position** is the position after the latest batch that was returned, so a worker restored from it continues with the next
/// batch, however far ahead the thread has been.
///
/// **Stopping** interrupts the fragment before its next environment step, does not wait for space in the queue, and joins
/// the thread. So it waits for the step, reset or hook in progress, and for ever for one that never returns, as does a call
/// of [`next`](InputReader::next). Batches that were sampled ahead are lost.
pub struct AsyncSampler {
    place: SamplerPlace,
    interrupt: Arc<Interrupt>,
    known: Known,
    /// Items that were in the queue when the sampler was called back.
    waiting: VecDeque<Item>,
    /// Number of items taken.
    taken: u64,
    /// True if the latest item was an error.
    failed: bool,
    metrics: Vec<RolloutMetrics>,
    losses: Losses,
    /// The sampler's position after the latest item that was taken.
    point: ResumePoint,
}

/// The place of the sampler.
enum SamplerPlace {
    Here(Box<SamplerParts>),
    Away { thread: JoinHandle<SamplerParts>, commands: Sender<SamplerCommand>, items: Receiver<Item> },
    Dead(String),
    Stopped,
}

impl AsyncSampler {
    /// Maximum number of batches in the queue.
    pub const QUEUE: usize = 5;
    /// Polling interval of a waiting caller for progress of the thread.
    const LOOK: Duration = Duration::from_millis(1);

    /// Takes a sampler over, with all its parts. The callbacks are shared: episode hooks are called by the thread, others by
    /// the worker, never concurrently. Callbacks that are added to the worker later get no episode hooks.
    ///
    /// # Errors
    /// [`SampleError::PolicyMap`] for a stashed policy that cannot be restored.
    pub fn around(mut sampling: AsyncSampling) -> Result<MovedSampler, SampleError> {
        let mut callbacks = CallbackList::new();
        if !sampling.callbacks.is_empty() {
            let shared = SharedCallbacks::new(core::mem::take(&mut sampling.callbacks));
            sampling.callbacks.push(Box::new(shared.clone()));
            callbacks.push(Box::new(shared));
        }
        let sampler = Self {
            known: Known::of(&mut sampling)?,
            point: sampling.sampler.resume_point(),
            place: SamplerPlace::Here(Box::new(SamplerParts::new(sampling))),
            interrupt: Arc::default(),
            waiting: VecDeque::new(),
            taken: 0,
            failed: false,
            metrics: Vec::new(),
            losses: Losses::default(),
        };
        Ok(MovedSampler { sampler: Box::new(sampler), callbacks })
    }

    /// Moves the sampler to a thread, unless it is there.
    fn send_away(&mut self) {
        self.place = match core::mem::replace(&mut self.place, SamplerPlace::Stopped) {
            SamplerPlace::Here(engine) => {
                let (commands, received) = channel();
                let (products, items) = sync_channel(Self::QUEUE);
                let interrupt = self.interrupt.clone();
                let name = format!("sampler-{}", engine.sampling.worker.worker_index);
                match Builder::new().name(name).spawn(move || engine.run(&received, &products, &interrupt)) {
                    Ok(thread) => SamplerPlace::Away { thread, commands, items },
                    Err(error) => SamplerPlace::Dead(format!("it cannot be started: {error}")),
                }
            }
            place => place,
        };
    }

    fn send(&self, command: SamplerCommand) {
        if let SamplerPlace::Away { commands, .. } = &self.place {
            // A thread that has ended reports the reason through the queue.
            let _ = commands.send(command);
        }
    }

    /// Calls the sampler back between two batches. `None` if it was stopped or has died.
    fn call_back(&mut self) -> Option<&mut SamplerParts> {
        self.send(SamplerCommand::ComeBack);
        if let SamplerPlace::Away { items, .. } = &self.place {
            // Empties the queue until the thread has ended.
            self.waiting.extend(items.iter());
        }
        self.join();
        match &mut self.place {
            SamplerPlace::Here(engine) => Some(engine),
            _ => None,
        }
    }

    /// Waits for the thread, which was commanded to end or has ended.
    fn join(&mut self) {
        self.place = match core::mem::replace(&mut self.place, SamplerPlace::Stopped) {
            SamplerPlace::Away { thread, commands, items } => {
                drop((commands, items));
                match thread.join() {
                    Ok(engine) => SamplerPlace::Here(Box::new(engine)),
                    Err(panic) => SamplerPlace::Dead(words(panic.as_ref())),
                }
            }
            place => place,
        };
    }

    /// Returns the next item, if it arrives in time; `None` waits without a limit. A timeout is reported only after the
    /// thread has made progress: with a hung environment the caller hangs, too, as without a thread, and the hang is
    /// detected.
    fn next_item(&mut self, within: Option<Duration>) -> Result<Option<Item>, SampleError> {
        if let Some(item) = self.waiting.pop_front() {
            return Ok(Some(item));
        }
        if let SamplerPlace::Away { items, .. } = &self.place {
            let rounds = self.interrupt.rounds();
            let mut patience = within;
            loop {
                let received = match patience {
                    Some(patience) => items.recv_timeout(patience),
                    None => items.recv().map_err(|_| RecvTimeoutError::Disconnected),
                };
                match received {
                    Ok(item) => return Ok(Some(item)),
                    Err(RecvTimeoutError::Timeout) if self.interrupt.rounds() != rounds => return Ok(None),
                    Err(RecvTimeoutError::Timeout) => patience = Some(Self::LOOK),
                    Err(RecvTimeoutError::Disconnected) => break,
                }
            }
        }
        // Only a panic ends the thread by itself.
        self.join();
        Err(match &self.place {
            SamplerPlace::Dead(why) => SampleError::Died(why.clone()),
            _ => SampleError::Stopped,
        })
    }

    fn end(&mut self) -> Result<(), SampleError> {
        self.interrupt.set(true);
        self.waiting.clear();
        self.join();
        match core::mem::replace(&mut self.place, SamplerPlace::Stopped) {
            SamplerPlace::Here(mut engine) => engine.sampling.sampler.stop(),
            SamplerPlace::Dead(_) | SamplerPlace::Stopped | SamplerPlace::Away { .. } => Ok(()),
        }
    }

    /// Moves the sampler to another place, and drops the batches that it has made ahead.
    fn restart(
        &mut self,
        move_to: impl FnOnce(&mut dyn InputReader) -> Result<(), SampleError>,
    ) -> Result<(), SampleError> {
        let Some(engine) = self.call_back() else {
            return Err(match &self.place {
                SamplerPlace::Dead(why) => SampleError::Died(why.clone()),
                _ => SampleError::Stopped,
            });
        };
        move_to(engine.sampling.sampler.as_mut())?;
        engine.ahead.clear();
        let lost_now = engine.sampling.sampler.losses();
        self.point = engine.sampling.sampler.resume_point();
        for item in self.waiting.drain(..) {
            self.losses.add(item.losses);
            match item.batch {
                Ok(batch) => {
                    self.losses.env_steps += batch.env_steps() as u64;
                    self.losses.agent_steps += batch.agent_steps() as u64;
                }
                Err(_) => self.failed = true,
            }
        }
        self.losses.add(lost_now);
        self.known.forget_filters();
        Ok(())
    }
}

impl InputReader for AsyncSampler {
    fn next(&mut self, host: &mut SamplerHost<'_>) -> Result<AnyBatch, SampleError> {
        // It waits until there is a batch, or the thread has ended.
        self.next_within(host, &mut Budget::endless())?.ok_or(SampleError::Stopped)
    }

    /// Waits for the thread until the budget is used up, and at least until the thread has begun a round.
    fn next_within(
        &mut self,
        host: &mut SamplerHost<'_>,
        budget: &mut Budget,
    ) -> Result<Option<AnyBatch>, SampleError> {
        if matches!(self.place, SamplerPlace::Stopped) {
            return Err(SampleError::Stopped);
        }
        let change = self.known.changes(host, self.taken)?;
        self.send_away();
        self.send(change.map_or(SamplerCommand::Taken(self.taken), |change| SamplerCommand::Change(Box::new(change))));
        if core::mem::take(&mut self.failed) {
            self.send(SamplerCommand::GoOn);
        }
        let within = budget.left(host.clock).map(Duration::from);
        let Some(item) = self.next_item(within)? else { return Ok(None) };
        self.taken += 1;
        self.failed = item.batch.is_err();
        self.metrics.extend(item.metrics);
        self.losses.add(item.losses);
        self.point = item.point;
        self.known.absorb(host, &item.seen, item.change)?;
        item.batch.map(Some)
    }

    fn metrics(&mut self) -> Vec<RolloutMetrics> {
        core::mem::take(&mut self.metrics)
    }

    fn losses(&mut self) -> Losses {
        let quarantined = self.losses.quarantined.clone();
        core::mem::replace(&mut self.losses, Losses { quarantined, ..Losses::default() })
    }

    fn for_each_env(&mut self, f: &mut dyn FnMut(SubEnv<'_>)) {
        if let Some(engine) = self.call_back() {
            engine.sampling.sampler.for_each_env(f);
        }
    }

    fn resume_point(&self) -> ResumePoint {
        self.point.clone()
    }

    fn resume(&mut self, point: &ResumePoint) -> Result<(), SampleError> {
        self.restart(|sampler| sampler.resume(point))
    }

    fn set_position(&mut self, position: &Position) -> Result<(), SampleError> {
        self.restart(|sampler| sampler.set_position(position))
    }

    fn stop(&mut self) -> Result<(), SampleError> {
        self.end()
    }
}

impl Drop for AsyncSampler {
    fn drop(&mut self) {
        // An error cannot be reported here.
        let _ = self.end();
    }
}
