//! The rows of `plain`, made by worker processes of a hub.

use std::{
    net::{Ipv4Addr, SocketAddr},
    pin::pin,
    process::ExitCode,
    time::Instant,
};

use rollmesh_core::{
    batch::{CutReason, SlotFragment},
    hash::RolloutHasher,
};
use serde::Serialize;

use super::{SampleArgs, exit_code, kept::Kept};
use crate::{
    Registry,
    cli::{cpu_time::CpuTimes, exit::Failure, host, runtime, signals, spare_memory, worker_spec::SpecFlags},
    hub::{Hub, Sampling, SecurityConfig},
    progress::Progress,
    train::{RunConfig, RunRequest},
};

/// What is printed.
#[derive(Default, Serialize)]
struct Summary {
    env_steps: u64,
    episodes: u64,
    /// Of the episodes that ended; none ended, no mean.
    episode_return_mean: Option<f64>,
    /// Accepted by the hub, from the first batch to the last; with a hash, hashing included.
    steps_per_s: f64,
    num_workers: u32,
    /// Everything that workers sent, on the socket. None without steps.
    bytes_per_step: Option<f64>,
    /// Over the same time as the speed. None where the system does not tell.
    hub_cpu_ns_per_step: Option<f64>,
    worker_cpu_ns_per_step: Option<f64>,
    rollout_hash: Option<String>,
}

pub(super) fn run(args: &SampleArgs, config: RunConfig, registry: &Registry) -> Result<ExitCode, Failure> {
    let request = RunRequest { init_weights: args.weights()?, ..config.into() };
    request.check(registry).map_err(Failure::usage)?;
    let kept = args.flags.output.as_deref().map(|output| Kept::open(output, registry)).transpose()?;
    spare_memory();
    let summary = runtime(2)?.block_on(async {
        let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let hub = host::config(listen, false, SecurityConfig::default())?;
        let mut hub = host::start(hub, &SpecFlags::default(), registry).await?;
        let summary = sample(&mut hub, args, request, kept).await;
        hub.shutdown().await;
        summary
    })?;
    if args.json {
        println!("{}", serde_json::to_string(&summary).map_err(Failure::other)?);
    } else {
        print(&summary);
    }
    Ok(exit_code(summary.env_steps, args))
}

/// Rows that are still wanted.
enum Left {
    OfEachSlot(u64),
    /// Where some slots have more of them than others.
    InAll(u64),
}

impl Left {
    fn rows(&self) -> u64 {
        match self {
            Self::OfEachSlot(rows) | Self::InAll(rows) => *rows,
        }
    }

    /// How many of each fragment's first rows are wanted. They are, then, no longer.
    fn take(&mut self, fragments: &[SlotFragment]) -> Vec<u64> {
        let first = |fragment: &SlotFragment, left: u64| fragment.env_steps().min(left);
        match self {
            Self::OfEachSlot(left) => {
                let rows: Vec<u64> = fragments.iter().map(|fragment| first(fragment, *left)).collect();
                // The fragments of a batch are equally long.
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
        }
    }
}

/// What is counted of the batches.
struct Tally {
    left: Left,
    kept: Option<Kept>,
    hasher: Option<RolloutHasher>,
    returns: f64,
    summary: Summary,
}

impl Tally {
    fn add(&mut self, fragments: Vec<SlotFragment>) -> Result<(), Failure> {
        let wanted = self.left.take(&fragments);
        if let Some(kept) = &mut self.kept {
            kept.write(&fragments, &wanted)?;
        }
        for (fragment, rows) in fragments.into_iter().zip(wanted) {
            let fragment = first_rows(fragment, rows);
            self.summary.env_steps += rows;
            self.summary.episodes += fragment.episodes.len() as u64;
            self.returns += fragment.episodes.iter().map(|episode| episode.episode_return).sum::<f64>();
            if let Some(hasher) = &mut self.hasher {
                hasher.add(&fragment).map_err(Failure::other)?;
            }
        }
        Ok(())
    }

    fn finish(self) -> Summary {
        let episodes = self.summary.episodes;
        Summary {
            episode_return_mean: (episodes > 0).then(|| self.returns / episodes as f64),
            rollout_hash: self.hasher.map(|hasher| hasher.finish().to_string()),
            ..self.summary
        }
    }
}

/// At most so many rows of a fragment, and the episodes that end within them. Only the last fragment of a slot has more.
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

/// Where the clock began to run.
struct Mark {
    at: Instant,
    env_steps: u64,
    cpu: CpuTimes,
}

async fn sample(
    hub: &mut Hub,
    args: &SampleArgs,
    mut request: RunRequest,
    kept: Option<Kept>,
) -> Result<Summary, Failure> {
    let config = &mut request.config;
    let (num_workers, num_envs) = (config.num_workers, u64::from(config.num_slots()));
    let each = args.env_steps.div_ceil(num_envs);
    // Rounded up as the rows are.
    let env_steps = each * num_envs;
    let progress = Progress::new(env_steps, "env steps", !args.json);
    // Which rows come is chance in other modes.
    let is_synchronous = config.mode.is_synchronous();
    let hasher = (!args.no_hash && is_synchronous).then(RolloutHasher::new);
    let left = if is_synchronous { Left::OfEachSlot(each) } else { Left::InAll(env_steps) };
    let mut tally = Tally { left, kept, hasher, returns: 0.0, summary: Summary { num_workers, ..Summary::default() } };
    config.stop.env_steps = env_steps;
    let Sampling { mut batches, summary } = hub.sample(request).await.map_err(Failure::other)?;
    let mut interrupted = pin!(signals::interrupted());
    let mut begun: Option<Mark> = None;
    let mut last = Instant::now();
    loop {
        let fragments = tokio::select! {
            fragments = batches.recv() => fragments,
            Some(notice) = hub.next_notice() => {
                if !args.json || notice.level > 0 {
                    progress.println(&notice.text);
                }
                continue;
            }
            () = &mut interrupted => {
                signals::exit_after_grace();
                break;
            }
        };
        let Some(fragments) = fragments else { break };
        last = Instant::now();
        tally.add(fragments)?;
        progress.at(tally.summary.env_steps);
        if begun.is_none() {
            let cpu = CpuTimes::of(hub.traffic().await.worker_pids);
            begun = Some(Mark { at: Instant::now(), env_steps: tally.summary.env_steps, cpu });
        }
        if tally.left.rows() == 0 {
            break;
        }
    }
    let traffic = hub.traffic().await;
    let cpu = CpuTimes::of(traffic.worker_pids);
    progress.finish();
    drop(batches);
    if let Ok(ended) = summary.await
        && let Some(error) = ended.end.error()
    {
        return Err(Failure::Other(error));
    }
    if let Some(kept) = &mut tally.kept {
        kept.close()?;
    }
    let mut summary = tally.finish();
    let steps = Some(summary.env_steps).filter(|steps| *steps > 0);
    summary.bytes_per_step = steps.map(|steps| traffic.received_bytes as f64 / steps as f64);
    if let Some(mark) = begun {
        let steps = summary.env_steps.saturating_sub(mark.env_steps) as f64;
        summary.steps_per_s = steps / last.duration_since(mark.at).as_secs_f64().max(1e-9);
        let per_step = |time: std::time::Duration| time.as_nanos() as f64 / steps.max(1.0);
        summary.hub_cpu_ns_per_step = cpu.own_since(&mark.cpu).map(per_step);
        summary.worker_cpu_ns_per_step = cpu.others_since(&mark.cpu).map(per_step);
    }
    Ok(summary)
}

fn print(summary: &Summary) {
    let mean = summary.episode_return_mean.map_or_else(|| "-".to_owned(), |mean| format!("{mean:.2}"));
    let time = |time: Option<f64>| time.map_or_else(|| "-".to_owned(), |time| format!("{time:.0} ns"));
    println!("env steps     {}", summary.env_steps);
    println!("episodes      {} (mean return {mean})", summary.episodes);
    println!("steps/s       {:.0} accepted from {} workers", summary.steps_per_s, summary.num_workers);
    let bytes = summary.bytes_per_step.map_or_else(|| "-".to_owned(), |bytes| format!("{bytes:.1}"));
    println!("bytes/step    {bytes}");
    println!(
        "CPU per step  hub {}, workers {}",
        time(summary.hub_cpu_ns_per_step),
        time(summary.worker_cpu_ns_per_step)
    );
    println!("rollout hash  {}", summary.rollout_hash.as_deref().unwrap_or("-"));
}
