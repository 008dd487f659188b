//! Bodies that describe hosts, workers and fragments for dashboards, as they are on the wire.

use serde::{Deserialize, Serialize};

use super::convert::WireCut;
use crate::{
    batch::{Cut, CutReason},
    prelude::*,
};

/// A worker's host and version, and how busy the host is. A worker sends it when it is admitted; one on another machine than
/// the hub's repeats it. The hub forwards it to dashboards, and adds a report about itself.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HostReport {
    /// The worker's id, set by the hub; 0 for the hub itself.
    pub worker: u32,
    /// Name of the host. The hub shortens this and other texts by [`shortened`](super::handshake::shortened).
    pub host: String,
    /// Name and version of the program.
    pub version: String,
    /// Number of CPUs; 0 if unknown, as for the numbers below.
    pub cpus: u32,
    /// Load of all CPUs together in percent; NaN if it is not measured.
    pub cpu_percent: f32,
    /// Used memory in bytes.
    pub memory_used: u64,
    /// Memory of the host in bytes; 0 if it is not measured.
    pub memory_total: u64,
    /// Memory of the process in bytes.
    pub process_memory: u64,
    /// The GPUs, at most [`MAX_GPUS`](Self::MAX_GPUS) of them.
    #[serde(with = "crate::lists::AtMost::<{ HostReport::MAX_GPUS }>")]
    pub gpus: Vec<GpuReport>,
}

impl HostReport {
    /// Maximum number of GPUs.
    pub const MAX_GPUS: usize = 16;
}

/// The load of a GPU.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GpuReport {
    /// Its name.
    pub name: String,
    /// Its load in percent.
    pub percent: f32,
    /// Used memory in bytes.
    pub memory_used: u64,
    /// Its memory in bytes.
    pub memory_total: u64,
}

/// The peers of a hub except the workers of runs: dashboards, launchers, evaluation workers, clients. Tables with an
/// entry each.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OtherPeers {
    /// Their numbers.
    pub ids: Vec<u32>,
    /// Their kinds, for example `evaluation worker`, joined by newlines.
    pub services: String,
    /// Their names, joined by newlines.
    pub names: String,
    /// Number of peers that are omitted.
    pub left_out: u32,
}

impl OtherPeers {
    /// Maximum number of peers in a message.
    pub const MAX: usize = 64;

    /// Lists number, service and name of the first [`MAX`](Self::MAX) peers.
    #[must_use]
    pub fn new<'a>(peers: impl Iterator<Item = (u32, &'static str, &'a str)>) -> Self {
        let mut all = Self::default();
        for (id, service, name) in peers {
            if all.ids.len() == Self::MAX {
                all.left_out += 1;
                continue;
            }
            if !all.ids.is_empty() {
                all.services.push('\n');
                all.names.push('\n');
            }
            all.ids.push(id);
            all.services.push_str(service);
            // A hub admits printable names only.
            all.names.push_str(name);
        }
        all
    }

    /// Iterates over number, service and name.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &str, &str)> {
        let texts = self.services.split('\n').zip(self.names.split('\n'));
        self.ids.iter().zip(texts).map(|(&id, (service, name))| (id, service, name))
    }
}

/// New lines of a worker's log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerLog {
    /// The worker's id.
    pub worker: u32,
    /// Number of the first line within the worker's log, from 0.
    pub first: u64,
    /// The lines, at most [`MAX_LINES`](Self::MAX_LINES) of them.
    #[serde(with = "crate::lists::AtMost::<{ WorkerLog::MAX_LINES }>")]
    pub lines: Vec<LogLine>,
}

impl WorkerLog {
    /// Maximum number of lines of a message.
    pub const MAX_LINES: usize = 64;
    /// Maximum length of a line in characters.
    pub const MAX_CHARS: usize = 200;
}

/// A line of a worker's log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogLine {
    /// When it was written, in seconds since 1970.
    pub seconds: u64,
    /// 0 information, 1 warning, 2 error.
    pub level: u8,
    /// The text.
    pub text: String,
}

/// Consecutive env steps with pictures: of the watched slot, or of an evaluated episode.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnvClip {
    /// Number of the run.
    pub run: u32,
    /// The slot; 0 for an evaluation.
    pub slot: u32,
    /// Version of the weights that chose the actions; of an evaluation the number of iterations.
    pub weights_version: u64,
    /// Episode and `t` of each step, two numbers of 32 bits, little-endian.
    #[serde(with = "crate::lists::bytes")]
    pub steps: Vec<u8>,
    /// Width of a picture; 0 without pictures.
    pub width: u32,
    /// Height of a picture.
    pub height: u32,
    /// The film has a picture of every `stride`-th step.
    pub stride: u32,
    /// The pictures, a [`Film`](crate::env::render::Film).
    #[serde(with = "crate::lists::bytes")]
    pub film: Vec<u8>,
    /// Actions, rewards, log-probabilities and values, encoded like the rows of a [`FragmentReport`]; empty if unknown. Rows
    /// by policy have episode and `t`; otherwise there is a row for each step.
    #[serde(with = "crate::lists::bytes")]
    pub batch: Vec<u8>,
    /// The reason why there are no pictures; otherwise empty.
    pub reason: String,
}

impl EnvClip {
    /// Maximum number of steps.
    pub const MAX_STEPS: usize = 256;
    /// Maximum number of bytes of the film, …
    pub const MAX_FILM_BYTES: usize = 200 << 10;
    /// … of the rows, …
    pub const MAX_BATCH_BYTES: usize = 40 << 10;
    /// … and of the reason.
    pub const MAX_REASON_BYTES: usize = 512;

    /// Iterates over episode and `t` of the steps.
    pub fn steps(&self) -> impl Iterator<Item = (u32, u32)> {
        self.steps.as_chunks::<4>().0.as_chunks::<2>().0.iter().map(|pair| pair.map(u32::from_le_bytes).into())
    }
}

/// Requests a recent fragment. Answered with a [`FragmentReport`], or a [`Reply`](super::message::Reply) and a reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecentFragmentRequest {
    /// The request's number.
    pub request: u32,
    /// The slot.
    pub slot: u32,
    /// The number of fragments before the latest one of the slot.
    pub back: u32,
}

/// A fragment of a slot, as the learner gets it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FragmentReport {
    /// The request's number.
    pub request: u32,
    /// Number of the run.
    pub run: u32,
    /// The slot.
    pub slot: u32,
    /// Number of the fragment.
    pub fragment: u64,
    /// The worker that made it; 0 if that is unknown.
    pub worker: u32,
    /// Version of the weights that chose the actions.
    pub weights_version: u64,
    /// Number of its rows; `batch` may have fewer.
    pub rows: u32,
    /// The rows, as [`codec::encode_any`](crate::batch::codec::encode_any) writes them: by policy if there are several.
    #[serde(with = "crate::lists::bytes")]
    pub batch: Vec<u8>,
    /// End of each cut within the rows; none if the rows are by policy.
    pub cut_ends: Vec<u32>,
    /// Wire form of each cut's reason.
    pub cut_reasons: Vec<u8>,
}

impl FragmentReport {
    /// Sets the cuts.
    #[must_use]
    pub fn with_cuts(mut self, cuts: &[Cut]) -> Self {
        self.cut_ends = cuts.iter().map(|cut| cut.end).collect();
        self.cut_reasons = cuts.iter().map(|cut| WireCut::from(cut.reason).to_wire()).collect();
        self
    }

    /// Iterates over the ends of the cuts and their reasons; `None` for a reason that this version does not know.
    pub fn cuts(&self) -> impl Iterator<Item = (u32, Option<CutReason>)> {
        let reason = |&reason| WireCut::try_from(reason).ok().map(CutReason::from);
        self.cut_ends.iter().copied().zip(self.cut_reasons.iter().map(reason))
    }
}
