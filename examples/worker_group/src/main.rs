//! Sample, learn, sync: a thread, a process and workers that connect sample the traffic grid; its three policies learn here.

use std::{env, error::Error, process::ExitCode};

use rollmesh::{
    Registry, main_with,
    worker_group::{ParallelSample, Placement, SyncWeights, WorkerGroup},
};
use rollmesh_core::{batch::AnyBatch, episode::GlobalVars, worker::RolloutConfig};

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let argument = env::args().nth(1);
    if argument.as_deref() == Some("worker") {
        // The group has started this program as one of its workers.
        return Ok(main_with(Registry::builtin()));
    }
    let all_env_steps = argument.map_or(Ok(96_000), |steps| steps.parse())?;
    let config: RolloutConfig = toml::from_str(include_str!("../../traffic_grid/traffic_grid.toml"))?;
    let mut group = WorkerGroup::builder(config.num_envs(2)).num_workers(1).listen("127.0.0.1:0".parse()?).build()?;
    group.add_workers_at(&Placement::Processes(None), 1, true)?;
    group.add_workers_at(&Placement::Remote, 1, false)?;
    if let (Some(token), Some(url)) = (group.worker_token(), group.worker_url()) {
        println!("one more: ROLLMESH_TOKEN={} rollmesh worker --hub {url}", token.to_hex());
    }
    let mut progress = GlobalVars::default();
    while progress.timestep < all_env_steps {
        // Workers that have connected take part from now on.
        group.probe_unhealthy_workers()?;
        let batch = AnyBatch::concat(&group.synchronous_parallel_sample(ParallelSample::env_steps(1_600))?)?;
        let learner = group.local_worker().ok_or("the group has no local worker")?;
        learner.learn_on_batch(&batch)?;
        progress.timestep += batch.env_steps() as u64;
        group.sync_weights(SyncWeights { global_vars: Some(&progress), ..SyncWeights::default() })?;
        let workers = group.num_healthy_remote_workers();
        let mean = group.metrics()?.episode_return.mean;
        println!("{} env steps of {workers} workers: return {mean:.1}", progress.timestep);
    }
    Ok(ExitCode::SUCCESS)
}
