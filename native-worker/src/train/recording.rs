//! Recording of a run over leases: the episodes of its first slot.
//!
//! Workers send no pictures. The hub recomputes the fragments of the episodes that it records, as an audit does, on a thread
//! of its own: the run does not wait for pictures, and its rows do not depend on them.

use std::{
    collections::BTreeSet,
    ops::Range,
    path::Path,
    sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel},
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

use super::run::{Run, RunPlace, StartError};
use crate::{
    NativeWorker as _,
    envs::catch_panics,
    monitor::{Monitor, MonitorError, MonitorOptions, Schedule},
};

/// The slot whose episodes are recorded.
const SLOT: SlotId = SlotId(0);
const SCHEDULE: Schedule = Schedule::Cubic;
/// Maximum number of fragments that wait to be drawn. Drawing may be slower than sampling.
const MAX_WAITING: usize = 4_096;
/// How long the end of a run waits for fragments that are still to be drawn.
const PATIENCE: Duration = Duration::from_secs(10);

/// Number of an episode of the slot, and the number of its env steps so far.
type Position = (u32, u32);

/// The recording of a run. Dropping it ends it without waiting.
pub(super) struct Recording {
    jobs: SyncSender<Job>,
    faults: Receiver<String>,
    /// The slot's state after its last fragment; `None` before the first one.
    state: Option<Vec<u8>>,
    /// The number of its last fragment in this process.
    latest: Option<FragmentNo>,
}

/// A fragment of which pictures are needed.
struct Job {
    fragment: FragmentNo,
    weights: Weights,
    start: Option<Vec<u8>>,
    /// The slot's state after it.
    end: Vec<u8>,
    /// The episodes that end in it.
    episodes: Vec<EpisodeMetrics>,
}

impl Recording {
    /// Begins to record a run, if its settings say so. A run that is resumed keeps what it has recorded before.
    pub(super) fn of(place: RunPlace<'_>, run: &Run, resumes: bool) -> Result<Option<Self>, StartError> {
        let config = run.config();
        let Some(path) = config.rollout.monitor_path.as_deref() else { return Ok(None) };
        let home = config.home(SLOT);
        let options =
            MonitorOptions { worker_index: home.worker_index, schedule: SCHEDULE, ..MonitorOptions::default() };
        let monitor = Monitor::new(path, options)?;
        if !resumes && monitor.has_recordings() {
            return Err(MonitorError::Occupied(Path::new(path).to_owned()).into());
        }
        let state = run.state.group.state_of(SLOT).map(<[u8]>::to_vec);
        let ((jobs, queue), (told, faults)) = (sync_channel(MAX_WAITING), channel());
        let mut recorder = Recorder {
            recorded: monitor.complete_episodes()?,
            monitor,
            env: home.vector_index as usize,
            run: config.clone(),
            registry: place.registry.clone(),
            kernels: place.kernels,
            runner: None,
            position: position(state.as_deref()),
            is_recording: false,
            has_pictures: true,
            next: 0,
            frame: Frame::new(),
        };
        let record = move || recorder.record_all(&queue, &told);
        thread::Builder::new().name("recording".into()).spawn(record).map_err(StartError::Thread)?;
        Ok(Some(Self { jobs, faults, state, latest: None }))
    }

    /// Records the slot's fragments among those of a batch, in the order in which they were sampled.
    pub(super) fn add(&mut self, fragments: &[SlotFragment], weights_of: impl Fn(WeightsVersion) -> Option<Weights>) {
        for fragment in fragments.iter().filter(|fragment| fragment.slot == SLOT) {
            let start = self.state.replace(fragment.state.clone());
            let before = self.latest.replace(fragment.fragment).map(|before| before.0 + 1);
            let expected = before.unwrap_or(if start.is_some() { fragment.fragment.0 } else { 0 });
            if fragment.fragment.0 != expected {
                // A stale fragment was dropped, and with it the state that this one begins with.
                continue;
            }
            let [first, last] = [start.as_deref(), self.state.as_deref()].map(position);
            let is_scheduled = episodes_between(first, last).any(|episode| SCHEDULE.includes(number_of(episode)));
            // Without weights, or with a full queue, the recorder sees a gap and ends the recording of the episode.
            if let Some(weights) = weights_of(fragment.weights_version).filter(|_| is_scheduled) {
                let (end, episodes) = (fragment.state.clone(), fragment.episodes.clone());
                let _ = self.jobs.try_send(Job { fragment: fragment.fragment, weights, start, end, episodes });
            }
        }
    }

    /// Returns why an episode was not recorded.
    pub(super) fn poll_fault(&self) -> Option<String> {
        self.faults.try_recv().ok()
    }

    /// Finishes the recording, also of the open episode as far as it was sampled, and returns what failed.
    pub(super) fn finish(self) -> Vec<String> {
        let Self { jobs, faults, .. } = self;
        drop(jobs);
        let mut found = Vec::new();
        loop {
            match faults.recv_timeout(PATIENCE) {
                Ok(fault) => found.push(fault),
                Err(RecvTimeoutError::Disconnected) => return found,
                Err(RecvTimeoutError::Timeout) => {
                    let seconds = PATIENCE.as_secs();
                    found.push(format!("the last episodes are not recorded: that takes longer than {seconds} s"));
                    return found;
                }
            }
        }
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
struct Recorder {
    monitor: Monitor,
    /// Index of the slot's environment within its home worker.
    env: usize,
    /// The numbers of the episodes that earlier processes of the run have recorded.
    recorded: BTreeSet<u64>,
    run: RunConfig,
    registry: Registry,
    kernels: Kernels,
    /// Created with the first fragment.
    runner: Option<SlotRunner>,
    /// Where the latest fragment ended.
    position: Position,
    /// True while the episode at this position is being recorded.
    is_recording: bool,
    /// False once the environment turned out to have no pictures.
    has_pictures: bool,
    /// The first episode whose end was not recorded yet.
    next: u32,
    frame: Frame,
}

impl Recorder {
    fn record_all(&mut self, jobs: &Receiver<Job>, faults: &Sender<String>) {
        let mut latest = None;
        while let Ok(job) = jobs.recv() {
            let fault = self.record(&job).err();
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
        if let Err(error) = self.monitor.stop() {
            let _ = faults.send(error.to_string());
        }
    }

    fn record(&mut self, job: &Job) -> Result<(), String> {
        let [first, last] = [job.start.as_deref(), Some(&job.end[..])].map(position);
        if first != self.position || !self.is_recording {
            self.is_recording = false;
            self.monitor.stop().map_err(|error| error.to_string())?;
        }
        self.position = last;
        let is_known = |episode: u32| episode > first.0 || first.1 == 0 || self.is_recording;
        let is_wanted = |episode: &u32| {
            let number = number_of(*episode);
            SCHEDULE.includes(number) && !self.recorded.contains(&number) && is_known(*episode)
        };
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
    fn draw(&mut self, job: &Job, wanted: &BTreeSet<u32>) -> Result<(), String> {
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
        job: &Job,
        wanted: &BTreeSet<u32>,
        picture: &mut dyn FnMut(&mut Frame) -> bool,
    ) -> Result<(), MonitorError> {
        self.end_before(episode, job, wanted)?;
        self.monitor.number_next(number_of(episode));
        if self.has_pictures && self.monitor.records(self.env) {
            self.has_pictures = picture(&mut self.frame);
            if self.has_pictures {
                self.monitor.frame(self.env, &self.frame)?;
            }
        }
        Ok(())
    }

    /// Records the ends of the wanted episodes before this one.
    fn end_before(&mut self, episode: u32, job: &Job, wanted: &BTreeSet<u32>) -> Result<(), MonitorError> {
        for ended in &job.episodes {
            if !(self.next..episode).contains(&ended.episode) || !wanted.contains(&ended.episode) {
                continue;
            }
            self.next = ended.episode + 1;
            self.monitor.number_next(number_of(ended.episode));
            let (env, length, episode_return) = (self.env, ended.len, ended.episode_return);
            self.monitor.end(&RolloutMetrics { env, length, episode_return, ..RolloutMetrics::default() })?;
        }
        Ok(())
    }
}

impl Job {
    fn lease(&self) -> Lease {
        let source = self.start.clone().map_or(SlotSource::New, SlotSource::State);
        Lease {
            id: LeaseId(0),
            fragment: self.fragment,
            weights_version: self.weights.version(),
            slots: vec![LeasedSlot { slot: SLOT, source }],
        }
    }
}

fn not_drawn(reason: &dyn std::fmt::Display) -> String {
    format!("an episode of slot {SLOT} is not recorded: {reason}")
}
