//! Sampling with the workers of a hub: a run without a learner.

use std::{
    net::{Ipv4Addr, SocketAddr},
    time::{Duration, Instant},
};

use rollmesh_core::batch::{CutReason, SlotFragment};
use tokio::{
    runtime::Runtime,
    sync::{mpsc, oneshot, watch},
};

use super::{
    SampleArgs,
    kept::Kept,
    summary::{Speed, Tally, WorkerCosts},
};
use crate::{
    Registry,
    cli::{cpu_time::CpuTimes, exit::Failure, host, runtime, spare_memory, worker_spec::SpecFlags},
    hub::{Hub, HubConfig, Sampling, SecurityConfig},
    train::{RunDir, RunRequest, Summary as RunSummary},
};

/// A hub, its run, and the batches of the run.
pub(super) struct Workers {
    runtime: Runtime,
    hub: Hub,
    batches: mpsc::Receiver<Vec<SlotFragment>>,
    summary: oneshot::Receiver<RunSummary>,
    stopped: watch::Receiver<bool>,
    left: Left,
    kept: Option<Kept>,
    num_workers: u32,
    quiet: bool,
    started: Instant,
    begun: Option<Mark>,
    last: Instant,
}

/// Number of rows that are still needed.
pub(super) enum Left {
    OfEachSlot(u64),
    /// In total, if some slots have more of them than others.
    InAll(u64),
    /// In total, in fragments that are not cut.
    InWhole(u64),
}

impl Left {
    fn rows(&self) -> u64 {
        match self {
            Self::OfEachSlot(rows) | Self::InAll(rows) | Self::InWhole(rows) => *rows,
        }
    }

    /// Returns how many of each fragment's first rows are needed, and counts them as taken.
    fn take(&mut self, fragments: &[SlotFragment]) -> Vec<u64> {
        let first = |fragment: &SlotFragment, left: u64| fragment.env_steps().min(left);
        match self {
            Self::OfEachSlot(left) => {
                let rows: Vec<u64> = fragments.iter().map(|fragment| first(fragment, *left)).collect();
                // All fragments of a batch have the same length.
                *left -= rows.last().copied().unwrap_or(0);
                rows
            }
            Self::InAll(left) => {
                let take = |fragment| {
                    let rows = first(fragment, *left);
                    *left -= rows;
                    rows
                };
                fragments.iter().map(take).collect()
            }
            Self::InWhole(left) => {
                let rows: Vec<u64> = fragments.iter().map(SlotFragment::env_steps).collect();
                *left = left.saturating_sub(rows.iter().sum());
                rows
            }
        }
    }
}

/// The start of the measurement.
struct Mark {
    at: Instant,
    env_steps: u64,
    cpu: CpuTimes,
}

impl Workers {
    /// Starts a hub with workers, and the run. `stopped` ends the wait for its next batch.
    pub(super) fn start(
        args: &SampleArgs,
        request: RunRequest,
        output: Option<&str>,
        left: Left,
        stopped: watch::Receiver<bool>,
        registry: &Registry,
    ) -> Result<Self, Failure> {
        request.check_leased(registry).map_err(Failure::usage)?;
        request.run_dir.as_deref().map_or(Ok(()), RunDir::check_writable).map_err(Failure::usage)?;
        let kept = output.map(|output| Kept::open(output, registry)).transpose()?;
        spare_memory();
        let (runtime, num_workers, quiet) = (runtime(2)?, request.config.num_workers, args.json);
        let (hub, sampling) = runtime.block_on(async {
            let hub = host::start(hub_config(args)?, &SpecFlags::default(), registry).await?;
            match (args.no_dashboard, args.remote_only) {
                (false, _) if !quiet => host::print_invitations(&hub),
                (_, true) => host::print_worker_command(&hub),
                _ => {}
            }
            let sampling = hub.sample(request).await.map_err(host::not_begun)?;
            Ok::<_, Failure>((hub, sampling))
        })?;
        let Sampling { batches, summary } = sampling;
        let (started, begun, last) = (Instant::now(), None, Instant::now());
        Ok(Self { runtime, hub, batches, summary, stopped, left, kept, num_workers, quiet, started, begun, last })
    }

    /// Passes the next batch on; false if there is no more.
    pub(super) fn next(&mut self, tally: &mut Tally) -> Result<bool, Failure> {
        if self.left.rows() == 0 {
            return Ok(false);
        }
        let Some(fragments) = self.next_batch(tally) else { return Ok(false) };
        self.last = Instant::now();
        let wanted = self.left.take(&fragments);
        if let Some(kept) = &mut self.kept {
            kept.write(&fragments, &wanted)?;
        }
        let cut = fragments.into_iter().zip(wanted).map(|(fragment, rows)| first_rows(fragment, rows));
        tally.fragments(&cut.collect::<Vec<_>>())?;
        if self.begun.is_none() {
            let traffic = self.runtime.block_on(self.hub.traffic());
            let (at, env_steps) = (Instant::now(), tally.env_steps());
            self.begun = Some(Mark { at, env_steps, cpu: CpuTimes::of(traffic.worker_pids) });
        }
        Ok(true)
    }

    fn next_batch(&mut self, tally: &Tally) -> Option<Vec<SlotFragment>> {
        let Self { runtime, hub, batches, stopped, quiet, .. } = self;
        runtime.block_on(async {
            loop {
                tokio::select! {
                    fragments = batches.recv() => return fragments,
                    Some(notice) = hub.next_notice() => {
                        if !*quiet || notice.level > 0 {
                            tally.tell(&notice.text);
                        }
                    }
                    _ = stopped.wait_for(|stopped| *stopped) => return None,
                }
            }
        })
    }

    /// Ends the run and the hub.
    pub(super) fn finish(mut self, env_steps: u64) -> Result<Speed, Failure> {
        let traffic = self.runtime.block_on(self.hub.traffic());
        let cpu = CpuTimes::of(traffic.worker_pids);
        drop(self.batches);
        // Closed before waiting for slow workers, since a second signal would end the program meanwhile.
        let closed = self.kept.as_mut().map_or(Ok(()), Kept::close);
        let ended = self.runtime.block_on(self.summary);
        self.runtime.block_on(self.hub.shutdown());
        let (error, failures) = ended.map_or_else(|_| Default::default(), |ended| (ended.end.error(), ended.failures));
        error.map_or(Ok(()), |error| Err(Failure::Other(error)))?;
        closed?;
        let mut costs = WorkerCosts { num_workers: self.num_workers, ..WorkerCosts::default() };
        costs.bytes_per_step = (env_steps > 0).then(|| traffic.received_bytes as f64 / env_steps as f64);
        let (since, before) = match &self.begun {
            Some(mark) if mark.env_steps < env_steps => {
                let per_step = |time: Duration| time.as_nanos() as f64 / (env_steps - mark.env_steps) as f64;
                costs.hub_cpu_ns_per_step = cpu.own_since(&mark.cpu).map(per_step);
                costs.worker_cpu_ns_per_step = cpu.others_since(&mark.cpu).map(per_step);
                (mark.at, mark.env_steps)
            }
            // A single batch, which includes the start of the workers.
            _ => (self.started, 0),
        };
        Ok(Speed {
            env_steps: env_steps - before,
            time: self.last.duration_since(since),
            workers: Some(costs),
            failures,
        })
    }
}

/// Returns the hub's configuration: any free port of the loopback interface, unless `--listen` is set.
fn hub_config(args: &SampleArgs) -> Result<HubConfig, Failure> {
    let listen = args.clients.listen;
    let security = match listen.is_some() || args.run_dir.is_some() {
        true => args.clients.security.config(args.run_dir.as_ref())?,
        false => SecurityConfig::default(),
    };
    let listen = listen.unwrap_or_else(|| SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
    let kernels = args.flags.kernels.table().map_err(Failure::usage)?;
    Ok(HubConfig {
        assets: args.clients.assets.clone(),
        kernels,
        ..host::config(listen, !args.no_dashboard, security)?
    })
}

/// Returns the first `rows` rows of a single-agent fragment, and the episodes that end within them. Only the last fragment
/// of a slot has more.
fn first_rows(mut fragment: SlotFragment, rows: u64) -> SlotFragment {
    if fragment.env_steps() > rows {
        let first = fragment.rows.slice(0, rows as usize);
        fragment.rows = first.expect("rows of fragments are not time-major");
        let ends = fragment.cuts.iter().filter(|cut| cut.reason != CutReason::FragmentEnd);
        let ended = ends.take_while(|cut| u64::from(cut.end) <= rows).count();
        fragment.episodes.truncate(ended);
    }
    fragment
}
