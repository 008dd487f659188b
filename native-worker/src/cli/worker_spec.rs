//! The flags for the resources of local workers.

use std::{path::Path, sync::Arc};

use clap::Args;

use crate::launch::{BadAmount, Inventory, Launcher, LocalLauncher, WorkerSpec};
use crate::learner::DeviceSpec;

#[derive(Args, Clone, Debug, Default)]
pub(super) struct SpecFlags {
    /// CPUs that each local worker has for itself
    ///
    /// [default: none, it runs anywhere]
    #[arg(long, hide_short_help = true, value_name = "N", default_value_t = 0, hide_default_value = true)]
    worker_cpus: u32,
    /// GPUs that only this local worker sees
    ///
    /// Its environments may use them; its policies act there with --worker-device cuda:0 [default: all, shared]
    #[arg(long, hide_short_help = true, value_name = "N")]
    worker_gpus: Option<u32>,
    /// Where the policies of each local worker act
    ///
    /// cpu, cuda:N among the GPUs that it sees, or metal; for runs with device_rows = true [default: cpu]
    #[arg(long, hide_short_help = true, value_name = "DEVICE")]
    worker_device: Option<DeviceSpec>,
    /// Memory limit of each local worker, like 2GiB
    ///
    /// [default: none]
    #[arg(long, hide_short_help = true, value_name = "SIZE", value_parser = memory)]
    worker_memory: Option<u64>,
    /// Amount of a resource that each local worker needs
    ///
    /// Like simulator=1; may be given several times
    #[arg(long, hide_short_help = true, value_name = "NAME=N", value_parser = resource)]
    worker_resource: Vec<(String, u32)>,
    /// Amount of a resource for all local workers
    ///
    /// May be given several times
    #[arg(long, hide_short_help = true, value_name = "NAME=N", value_parser = resource)]
    resources: Vec<(String, u32)>,
}

/// Reads an amount of memory.
pub(super) fn memory(text: &str) -> Result<u64, BadAmount> {
    WorkerSpec::parse_memory(text)
}

fn resource(text: &str) -> Result<(String, u32), BadAmount> {
    WorkerSpec::parse_resource(text)
}

impl SpecFlags {
    pub(super) fn spec(&self) -> WorkerSpec {
        WorkerSpec {
            cpus: self.worker_cpus,
            gpus: self.worker_gpus,
            device: self.worker_device.map(|device| device.to_string()),
            memory: self.worker_memory,
            resources: self.worker_resource.iter().cloned().collect(),
        }
    }

    pub(super) fn launcher(&self, program: &Path) -> Arc<dyn Launcher> {
        let inventory = self
            .resources
            .iter()
            .fold(Inventory::of_machine(), |inventory, (name, amount)| inventory.with_resource(name, *amount));
        Arc::new(LocalLauncher::new(program).with_inventory(inventory))
    }
}
