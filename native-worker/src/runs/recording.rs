//! Recording of a run over leases: the episodes of its first slot.
//!
//! Workers send no pictures. The hub recomputes the fragments of the episodes that it records, as an audit does, on a thread
//! of its own: the run does not wait for pictures, and its rows do not depend on them.

use std::{
    collections::BTreeSet,
    ops::Range,
    path::Path,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc::{Receiver, Sender, channel},
    },
    thread,
    time::Duration,
};

use rollmesh_core::{
    batch::{EpisodeMetrics, SlotFragment},
    env::Frame,
    episode::RolloutMetrics,
    ids::{FragmentNo, LeaseId, SlotId, WeightsVersion},
    kernels::Kernels,
    lease::{Lease, LeasedSlot, SlotSource},
    run::RunConfig,
    sampler::position_in,
    weights::Weights,
    worker::{Registry, RolloutWorkerBuilder, SlotRunner},
};
use tokio::{
    sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
    time::{Instant, timeout_at},
};

use super::run::{Run, RunPlace, StartError};
use crate::{
    NativeWorker as _,
    envs::catch_panics,
    monitor::{Monitor, MonitorError, MonitorOptions, Schedule},
};

/// The slot whose episodes are recorded.
const SLOT: SlotId = SlotId(0);
const SCHEDULE: Schedule = Schedule::Cubic;
/// Maximum size of the fragments that wait to be drawn: with their weights and states, but for a single one. Drawing may be
/// slower than sampling.
const MAX_WAITING_BYTES: usize = 1 << 28;
/// The time for which the end of a run waits for fragments that are still to be drawn.
const PATIENCE: Duration = Duration::from_secs(10);

/// Number of an episode of the slot, and the number of its env steps so far.
type Position = (u32, u32);

/// The recording of a run. Dropping it ends it without waiting.
pub(super) struct Recording {
    jobs: Sender<RecordJob>,
    faults: UnboundedReceiver<String>,
    shared: Arc<SharedRecorder>,
    /// The slot's state after its last fragment; `None` before the first one.
    state: Option<Vec<u8>>,
    /// The number of its last fragment in this process.
    latest: Option<FragmentNo>,
}

/// The recording of a run that is over, while its last pictures are being drawn.
pub(crate) struct LastPictures {
    faults: UnboundedReceiver<String>,
    shared: Arc<SharedRecorder>,
    /// The time at which the recording is given up.
    deadline: Instant,
}

/// State that a recording and its thread share.
#[derive(Default)]
struct SharedRecorder {
    is_cancelled: AtomicBool,
    /// Locked while files are written.
    files: Mutex<()>,
    /// Size of the fragments that wait to be drawn, or are being drawn.
    waiting_bytes: AtomicUsize,
}

/// A fragment of which pictures are needed.
struct RecordJob {
    fragment: FragmentNo,
    weights: Weights,
    start: Option<Vec<u8>>,
    /// The slot's state after it.
    end: Vec<u8>,
    /// The episodes that end in it.
    episodes: Vec<EpisodeMetrics>,
}

impl Recording {
    /// Begins to record a run, if its settings say so. A run that is resumed, or was rolled back, keeps the recordings
    /// from before the position from which it continues: later steps are sampled again.
    pub(super) fn of(place: RunPlace<'_>, run: &Run, resumes: bool) -> Result<Option<Self>, StartError> {
        let config = run.config();
        let Some(path) = config.rollout.monitor_path.as_deref() else { return Ok(None) };
        let home = config.home(SLOT);
        let options =
            MonitorOptions { worker_index: home.worker_index, schedule: SCHEDULE, ..MonitorOptions::default() };
        let mut monitor = Monitor::new(path, options)?;
        let state = run.state.group.state_of(SLOT).map(<[u8]>::to_vec);
        let start = position(state.as_deref());
        if resumes {
            monitor.forget_after(number_of(start.0), start.1)?;
        } else if monitor.has_recordings() {
            return Err(MonitorError::Occupied(Path::new(path).to_owned()).into());
        }
        let ((jobs, queue), (fault_sender, faults)) = (channel(), unbounded_channel());
        let shared = Arc::new(SharedRecorder::default());
        let mut recorder = RunRecorder {
            monitor,
            shared: shared.clone(),
            env: home.vector_index as usize,
            run: config.clone(),
            registry: place.maker.registry.clone(),
            kernels: place.maker.kernels,
            runner: None,
            position: start,
            is_recording: false,
            has_pictures: true,
            next: 0,
            frame: Frame::new(),
        };
        let record = move || recorder.record_all(&queue, &fault_sender);
        thread::Builder::new().name("recording".into()).spawn(record).map_err(StartError::Thread)?;
        Ok(Some(Self { jobs, faults, shared, state, latest: None }))
    }

    /// Records the slot's fragments among those of a batch, in the order in which they were sampled.
    pub(super) fn add(&mut self, fragments: &[SlotFragment], weights_of: impl Fn(WeightsVersion) -> Option<Weights>) {
        for fragment in fragments.iter().filter(|fragment| fragment.slot == SLOT) {
            let start = self.state.replace(fragment.state.clone());
            let before = self.latest.replace(fragment.fragment).map(|before| before.0 + 1);
            let expected = before.unwrap_or_else(|| if start.is_some() { fragment.fragment.0 } else { 0 });
            if fragment.fragment.0 != expected {
                // A stale fragment was dropped, and with it the state that this one begins with.
                continue;
            }
            let [first, last] = [start.as_deref(), self.state.as_deref()].map(position);
            let is_scheduled = episodes_between(first, last).any(|episode| SCHEDULE.includes(number_of(episode)));
            // Without weights, or with a full queue, the recorder sees a gap and ends the recording of the episode.
            if let Some(weights) = weights_of(fragment.weights_version).filter(|_| is_scheduled) {
                let (end, episodes) = (fragment.state.clone(), fragment.episodes.clone());
                self.enqueue(RecordJob { fragment: fragment.fragment, weights, start, end, episodes });
            }
        }
    }

    /// Lets the thread draw a fragment, unless too many are waiting.
    fn enqueue(&self, job: RecordJob) {
        let (bytes, waiting) = (job.bytes(), &self.shared.waiting_bytes);
        let before = waiting.fetch_add(bytes, Ordering::Relaxed);
        let is_full = before > 0 && before.saturating_add(bytes) > MAX_WAITING_BYTES;
        if is_full || self.jobs.send(job).is_err() {
            waiting.fetch_sub(bytes, Ordering::Relaxed);
        }
    }

    /// Returns the reason that an episode was not recorded, if there is one.
    pub(super) fn poll_fault(&mut self) -> Option<String> {
        self.faults.try_recv().ok()
    }

    /// Finishes the recording, also of the open episode as far as it was sampled.
    pub(super) fn finish(self) -> LastPictures {
        // The sender of jobs is dropped, so the thread ends after those that are waiting.
        let Self { faults, shared, .. } = self;
        LastPictures { faults, shared, deadline: Instant::now() + PATIENCE }
    }

    /// Ends the recording of a run that continues from an earlier position: afterwards nothing more is written.
    pub(super) fn cancel(self) {
        self.shared.cancel();
        drop(self.shared.writing());
    }
}

impl LastPictures {
    /// Waits for the next reason that an episode was not recorded; returns `None` once all pictures are drawn, or are
    /// given up.
    pub(crate) async fn next_fault(&mut self) -> Option<String> {
        match timeout_at(self.deadline, self.faults.recv()).await {
            Ok(fault) => fault,
            Err(_) if self.shared.cancel() => None,
            Err(_) => {
                let seconds = PATIENCE.as_secs();
                Some(format!("the last episodes are not recorded: that takes longer than {seconds} s"))
            }
        }
    }
}

impl SharedRecorder {
    /// Lets the thread write no more files, once it has written the current one. Returns true if it was cancelled before.
    fn cancel(&self) -> bool {
        self.is_cancelled.swap(true, Ordering::Relaxed)
    }

    fn is_cancelled(&self) -> bool {
        self.is_cancelled.load(Ordering::Relaxed)
    }

    fn writing(&self) -> MutexGuard<'_, ()> {
        // It guards no data.
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the position in the slot's state; that of a new slot if there is none.
fn position(state: Option<&[u8]>) -> Position {
    state.and_then(|state| position_in(state, SLOT)).unwrap_or_default()
}

/// Returns the episodes that have steps between two positions.
fn episodes_between(first: Position, last: Position) -> Range<u32> {
    first.0..last.0.saturating_add(u32::from(last.1 > 0))
}

/// Returns the number of an episode in the recordings, from 1.
fn number_of(episode: u32) -> u64 {
    u64::from(episode) + 1
}

/// The part of a recording on a thread of its own.
struct RunRecorder {
    monitor: Monitor,
    shared: Arc<SharedRecorder>,
    /// Index of the slot's environment within its home worker.
    env: usize,
    run: RunConfig,
    registry: Registry,
    kernels: Kernels,
    /// Created with the first fragment.
    runner: Option<SlotRunner>,
    /// The position after the latest fragment.
    position: Position,
    /// True while the episode at this position is being recorded.
    is_recording: bool,
    /// False once the environment has returned no picture.
    has_pictures: bool,
    /// The first episode whose end was not recorded yet.
    next: u32,
    frame: Frame,
}

impl RunRecorder {
    fn record_all(&mut self, jobs: &Receiver<RecordJob>, faults: &UnboundedSender<String>) {
        let mut latest = None;
        let shared = self.shared.clone();
        for job in jobs.iter().take_while(|_| !shared.is_cancelled()) {
            let fault = self.record(&job).err();
            shared.waiting_bytes.fetch_sub(job.bytes(), Ordering::Relaxed);
            if fault.is_some() {
                self.is_recording = false;
            }
            // An environment that cannot be recomputed fails each time.
            if let Some(fault) = fault.filter(|fault| latest.as_ref() != Some(fault)) {
                latest = Some(fault.clone());
                // The run may be over.
                let _ = faults.send(fault);
            }
        }
        if let Err(error) = self.write(Monitor::stop) {
            let _ = faults.send(error.to_string());
        }
    }

    /// Lets the monitor write files, unless the recording was cancelled: then its open episodes are dropped.
    fn write(&mut self, write: impl FnOnce(&mut Monitor) -> Result<(), MonitorError>) -> Result<(), MonitorError> {
        let _writing = self.shared.writing();
        if self.shared.is_cancelled() {
            self.monitor.discard();
            return Ok(());
        }
        write(&mut self.monitor)
    }

    fn record(&mut self, job: &RecordJob) -> Result<(), String> {
        let [first, last] = [job.start.as_deref(), Some(&job.end[..])].map(position);
        if first != self.position || !self.is_recording {
            self.is_recording = false;
            self.write(Monitor::stop).map_err(|error| error.to_string())?;
        }
        self.position = last;
        let is_known = |episode: u32| episode > first.0 || first.1 == 0 || self.is_recording;
        let is_wanted = |episode: &u32| SCHEDULE.includes(number_of(*episode)) && is_known(*episode);
        let wanted: BTreeSet<u32> = episodes_between(first, last).filter(is_wanted).collect();
        // Of an episode with enough pictures only the end is of interest.
        let is_full = self.is_recording && !self.monitor.records(self.env);
        if self.has_pictures && wanted.iter().any(|episode| *episode > first.0 || !is_full) {
            self.draw(job, &wanted)?;
        }
        self.end_before(u32::MAX, job, &wanted).map_err(|error| error.to_string())?;
        self.is_recording = last.1 > 0 && wanted.contains(&last.0);
        Ok(())
    }

    /// Adds the pictures of a fragment to its episodes.
    fn draw(&mut self, job: &RecordJob, wanted: &BTreeSet<u32>) -> Result<(), String> {
        let mut runner = match self.runner.take() {
            Some(runner) => runner,
            None => {
                let builder = RolloutWorkerBuilder::new(self.registry.clone()).native().kernels(self.kernels);
                let mut runner = SlotRunner::new(&self.run, builder).map_err(|error| not_drawn(&error))?;
                runner.set_guard(catch_panics);
                runner
            }
        };
        let mut drawn = Ok(());
        let made = runner.replay_shown(job.lease(), &job.weights, &mut |(episode, _), picture| {
            if drawn.is_ok() && wanted.contains(&episode) {
                drawn = self.add_picture(episode, job, wanted, picture);
            }
        });
        let made = made.map_err(|error| not_drawn(&error))?;
        drawn.map_err(|error| error.to_string())?;
        if made.first().is_none_or(|made| made.state != job.end) {
            return Err(not_drawn(&"its fragments are other ones when they are recomputed: is it deterministic?"));
        }
        self.runner = Some(runner);
        Ok(())
    }

    fn add_picture(
        &mut self,
        episode: u32,
        job: &RecordJob,
        wanted: &BTreeSet<u32>,
        picture: &mut dyn FnMut(&mut Frame) -> bool,
    ) -> Result<(), MonitorError> {
        self.end_before(episode, job, wanted)?;
        self.monitor.number_next(number_of(episode));
        if self.has_pictures && self.monitor.records(self.env) {
            self.has_pictures = self.monitor.draw(self.env, &mut self.frame, picture)?;
        }
        Ok(())
    }

    /// Records the ends of the wanted episodes before this one.
    fn end_before(&mut self, episode: u32, job: &RecordJob, wanted: &BTreeSet<u32>) -> Result<(), MonitorError> {
        for ended in &job.episodes {
            if !(self.next..episode).contains(&ended.episode) || !wanted.contains(&ended.episode) {
                continue;
            }
            self.next = ended.episode + 1;
            self.monitor.number_next(number_of(ended.episode));
            let (env, length, episode_return) = (self.env, ended.len, ended.episode_return);
            let metrics = RolloutMetrics { env, length, episode_return, ..RolloutMetrics::default() };
            self.write(|monitor| monitor.end(&metrics))?;
        }
        Ok(())
    }
}

impl RecordJob {
    /// Returns the size of its memory in bytes, as if it shared its weights with no other.
    fn bytes(&self) -> usize {
        let weights: usize = self.weights.tensors().iter().map(|tensor| size_of_val(&tensor.values[..])).sum();
        let states = self.start.as_ref().map_or(0, Vec::len) + self.end.len();
        size_of::<Self>() + weights + states + size_of_val(&self.episodes[..])
    }

    fn lease(&self) -> Lease {
        let source = self.start.clone().map_or(SlotSource::New, SlotSource::State);
        Lease {
            id: LeaseId(0),
            fragment: self.fragment,
            weights_version: self.weights.version(),
            slots: vec![LeasedSlot::new(SLOT, source)],
        }
    }
}

fn not_drawn(reason: &dyn std::fmt::Display) -> String {
    format!("an episode of slot {SLOT} is not recorded: {reason}")
}
