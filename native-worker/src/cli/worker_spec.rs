//! The flags for the resources of local workers.

use std::{path::Path, sync::Arc};

use clap::Args;

use crate::launch::{BadAmount, Inventory, Launcher, LocalLauncher, WorkerSpec};
use crate::learner::DeviceSpec;

#[derive(Args, Clone, Debug, Default)]
pub(super) struct SpecFlags {
    /// CPUs that each local worker has for itself [default: none, it runs anywhere]
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    worker_cpus: u32,
    /// GPUs that each local worker sees, and no other one does [default: all, shared]
    #[arg(long, value_name = "N")]
    worker_gpus: Option<u32>,
    /// Where the policies of each local worker act: cpu, cuda:N among the GPUs that it sees, or metal; for runs with
    /// device_rows = true [default: cpu]
    #[arg(long, value_name = "DEVICE")]
    worker_device: Option<DeviceSpec>,
    /// The most memory that each local worker may take, like 2GiB [default: as much as there is]
    #[arg(long, value_name = "SIZE", value_parser = memory)]
    worker_memory: Option<u64>,
    /// How much of a resource each local worker needs, like simulator=1; may be given several times
    #[arg(long, value_name = "NAME=N", value_parser = resource)]
    worker_resource: Vec<(String, u32)>,
    /// How much of a resource there is for local workers; may be given several times
    #[arg(long, value_name = "NAME=N", value_parser = resource)]
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
