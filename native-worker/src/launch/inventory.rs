//! The resources of a machine, and the grants of them.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
};

use super::{LaunchError, WorkerSpec};

/// The resources for workers. Clones share one account: a resource that one of them grants is not free in the others.
#[derive(Clone, Debug)]
pub struct Inventory {
    shared: Arc<Mutex<Stock>>,
}

#[derive(Clone, Debug, Default)]
struct Stock {
    cpus: Amounts<u32>,
    gpus: Amounts<String>,
    memory: u64,
    memory_left: u64,
    /// Total and free amount by name.
    resources: BTreeMap<String, (u32, u32)>,
}

/// Distinguishable items.
#[derive(Clone, Debug)]
struct Amounts<T> {
    all: usize,
    free: BTreeSet<T>,
}

impl<T> Default for Amounts<T> {
    fn default() -> Self {
        Self { all: 0, free: BTreeSet::new() }
    }
}

impl<T: Ord + Clone> Amounts<T> {
    fn new(all: impl IntoIterator<Item = T>) -> Self {
        let free = BTreeSet::from_iter(all);
        Self { all: free.len(), free }
    }

    fn check(&self, what: &'static str, wanted: u32) -> Result<(), LaunchError> {
        short(what, wanted.into(), self.free.len() as u64, self.all as u64)
    }

    /// Takes the first items, at most as many as there are.
    fn take(&mut self, wanted: u32) -> Vec<T> {
        let taken: Vec<T> = self.free.iter().take(wanted as usize).cloned().collect();
        taken.iter().for_each(|one| _ = self.free.remove(one));
        taken
    }
}

fn short(what: &'static str, wanted: u64, free: u64, all: u64) -> Result<(), LaunchError> {
    if wanted > free { Err(LaunchError::Short { what, wanted, free, all }) } else { Ok(()) }
}

impl Inventory {
    /// Creates an inventory of these CPUs, by the operating system's numbers, with unlimited memory, and nothing else.
    #[must_use]
    pub fn new(cpus: impl IntoIterator<Item = u32>) -> Self {
        let stock = Stock { cpus: Amounts::new(cpus), memory: u64::MAX, memory_left: u64::MAX, ..Stock::default() };
        Self { shared: Arc::new(Mutex::new(stock)) }
    }

    /// Returns the inventory of the resources that this process may use: the machine's CPUs, its memory, and the GPUs
    /// in `CUDA_VISIBLE_DEVICES`, else all with device files. Numbered CPUs need Linux; elsewhere there are none to
    /// grant.
    ///
    /// The whole process has one account of it: a resource of one group's worker is not free for those of another.
    #[must_use]
    pub fn of_machine() -> Self {
        static MACHINE: OnceLock<Inventory> = OnceLock::new();
        let take_stock = || {
            let inventory = Self::new(own_cpus()).with_gpus(own_gpus());
            match memory_limit() {
                Some(memory) => inventory.with_memory(memory),
                None => inventory,
            }
        };
        MACHINE.get_or_init(take_stock).clone()
    }

    /// Sets the GPUs, as in `CUDA_VISIBLE_DEVICES`. The result has an account of its own.
    #[must_use]
    pub fn with_gpus<T: Into<String>>(self, gpus: impl IntoIterator<Item = T>) -> Self {
        self.with(|stock| stock.gpus = Amounts::new(gpus.into_iter().map(Into::into)))
    }

    /// Sets the bytes of memory. The result has an account of its own.
    #[must_use]
    pub fn with_memory(self, bytes: u64) -> Self {
        self.with(|stock| (stock.memory, stock.memory_left) = (bytes, bytes))
    }

    /// Declares a resource that workers share: licences, simulators and the like. The result has an account of its own.
    #[must_use]
    pub fn with_resource(self, name: impl Into<String>, amount: u32) -> Self {
        self.with(|stock| _ = stock.resources.insert(name.into(), (amount, amount)))
    }

    fn with(self, set: impl FnOnce(&mut Stock)) -> Self {
        let mut stock = self.stock().clone();
        set(&mut stock);
        Self { shared: Arc::new(Mutex::new(stock)) }
    }

    /// Reserves the resources that a worker needs, until the grant is dropped.
    ///
    /// # Errors
    /// [`LaunchError`], which names the resource that is short. Nothing is reserved then.
    pub fn grant(&self, spec: &WorkerSpec) -> Result<Grant, LaunchError> {
        let mut stock = self.stock();
        stock.check(spec)?;
        let cpus = stock.cpus.take(spec.cpus);
        let gpus = spec.gpus.map(|wanted| stock.gpus.take(wanted));
        stock.memory_left -= spec.memory.unwrap_or(0);
        for (name, wanted) in &spec.resources {
            if let Some((_, left)) = stock.resources.get_mut(name) {
                *left -= wanted;
            }
        }
        drop(stock);
        Ok(Grant { inventory: self.clone(), spec: spec.clone(), cpus, gpus })
    }

    fn stock(&self) -> MutexGuard<'_, Stock> {
        // No code panics while holding the lock.
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Stock {
    fn check(&self, spec: &WorkerSpec) -> Result<(), LaunchError> {
        if spec.cpus > 0 && cfg!(not(target_os = "linux")) {
            return Err(LaunchError::Unsupported { what: "CPUs of its own", needs: "Linux" });
        }
        if spec.memory.is_some() && cfg!(not(unix)) {
            return Err(LaunchError::Unsupported { what: "limits of memory", needs: "a Unix" });
        }
        self.cpus.check("CPUs", spec.cpus)?;
        self.gpus.check("GPUs", spec.gpus.unwrap_or(0))?;
        short("bytes of memory", spec.memory.unwrap_or(0), self.memory_left, self.memory)?;
        for (name, &wanted) in &spec.resources {
            let Some(&(all, free)) = self.resources.get(name) else {
                let known: Vec<&str> = self.resources.keys().map(String::as_str).collect();
                let known = if known.is_empty() { "none".into() } else { known.join(", ") };
                return Err(LaunchError::UnknownResource { name: name.clone(), known });
            };
            if wanted > free {
                return Err(LaunchError::ShortResource { name: name.clone(), wanted, free, all });
            }
        }
        Ok(())
    }
}

/// The resources granted to a worker. Dropping it releases them.
#[derive(Debug)]
pub struct Grant {
    inventory: Inventory,
    spec: WorkerSpec,
    cpus: Vec<u32>,
    gpus: Option<Vec<String>>,
}

impl Grant {
    /// Returns the exclusive CPUs; empty for all.
    #[must_use]
    pub fn cpus(&self) -> &[u32] {
        &self.cpus
    }

    /// Returns the visible GPUs; `None` for all.
    #[must_use]
    pub fn gpus(&self) -> Option<&[String]> {
        self.gpus.as_deref()
    }

    /// Returns the memory limit in bytes.
    #[must_use]
    pub fn memory(&self) -> Option<u64> {
        self.spec.memory
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        let mut stock = self.inventory.stock();
        stock.cpus.free.extend(self.cpus.drain(..));
        stock.gpus.free.extend(self.gpus.take().into_iter().flatten());
        stock.memory_left += self.spec.memory.unwrap_or(0);
        for (name, amount) in &self.spec.resources {
            if let Some((_, left)) = stock.resources.get_mut(name) {
                *left += amount;
            }
        }
    }
}

#[cfg(target_os = "linux")]
fn own_cpus() -> Vec<u32> {
    use rustix::thread::{CpuSet, sched_getaffinity};
    let set = sched_getaffinity(None).unwrap_or_default();
    (0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).map(|cpu| cpu as u32).collect()
}

#[cfg(not(target_os = "linux"))]
fn own_cpus() -> Vec<u32> {
    Vec::new()
}

fn own_gpus() -> Vec<String> {
    if let Ok(names) = std::env::var(crate::child::VISIBLE_DEVICES) {
        return names.split(',').map(str::trim).filter(|name| !name.is_empty()).map(Into::into).collect();
    }
    // One device per card: /dev/nvidia0, /dev/nvidia1, …
    let devices = std::fs::read_dir("/dev").into_iter().flatten().flatten();
    let number = |name: &str| name.strip_prefix("nvidia").and_then(|number| number.parse::<u32>().ok());
    let numbers: BTreeSet<u32> = devices.filter_map(|device| number(device.file_name().to_str()?)).collect();
    numbers.iter().map(u32::to_string).collect()
}

/// Returns the machine's memory, or the limit of this process's container; `None` if unknown.
fn memory_limit() -> Option<u64> {
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kilobytes = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    // Control groups v2 and v1; "max" is no limit.
    let limits = ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"];
    let of_groups = limits.iter().filter_map(|path| std::fs::read_to_string(path).ok()?.trim().parse().ok());
    of_groups.chain(kilobytes?.checked_mul(1024)).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn worker(cpus: u32) -> WorkerSpec {
        WorkerSpec { cpus, ..WorkerSpec::default() }
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn resources_are_granted_once_and_returned() {
        let inventory = Inventory::new([0, 2, 4]).with_gpus(["GPU-a", "GPU-b"]).with_memory(100);
        let spec = WorkerSpec { gpus: Some(1), memory: Some(60), ..worker(2) };
        let first = inventory.grant(&spec).unwrap();
        assert_eq!((first.cpus(), first.gpus()), (&[0, 2][..], Some(&["GPU-a".to_owned()][..])));
        let error = inventory.grant(&worker(2)).unwrap_err();
        assert!(matches!(error, LaunchError::Short { what: "CPUs", wanted: 2, free: 1, all: 3 }), "{error}");
        let error = inventory.grant(&WorkerSpec { memory: Some(41), ..worker(1) }).unwrap_err();
        assert!(matches!(error, LaunchError::Short { what: "bytes of memory", wanted: 41, free: 40, .. }), "{error}");
        let error = inventory.grant(&WorkerSpec { gpus: Some(2), ..worker(1) }).unwrap_err();
        assert!(matches!(error, LaunchError::Short { what: "GPUs", wanted: 2, free: 1, all: 2 }), "{error}");
        // The refused request has taken nothing.
        let second = inventory.grant(&WorkerSpec { gpus: Some(1), memory: Some(40), ..worker(1) }).unwrap();
        assert_eq!((second.cpus(), second.gpus()), (&[4][..], Some(&["GPU-b".to_owned()][..])));
        drop(first);
        assert_eq!(inventory.grant(&spec).unwrap().cpus(), [0, 2]);
    }

    #[test]
    fn resources_have_to_be_declared() {
        let inventory = Inventory::new([]).with_resource("simulator", 2);
        let error = inventory.grant(&worker(0).with_resource("licence", 1)).unwrap_err();
        let expected = "a worker needs the resource 'licence', and there is none of that name; declared are: simulator";
        assert!(error.is_refusal());
        assert_eq!(error.to_string(), expected);
        let spec = worker(0).with_resource("simulator", 2);
        let taken = inventory.clone().grant(&spec).unwrap();
        assert!(matches!(inventory.grant(&spec), Err(LaunchError::ShortResource { free: 0, all: 2, .. })));
        drop(taken);
        assert!(inventory.grant(&spec).is_ok());
    }

    #[test]
    fn a_worker_that_needs_nothing_is_never_refused() {
        let inventory = Inventory::new([]);
        let grants: Vec<Grant> = (0..100).map(|_| inventory.grant(&WorkerSpec::default()).unwrap()).collect();
        assert!(grants.iter().all(|grant| grant.cpus().is_empty() && grant.gpus().is_none()));
        // No GPUs is different from all GPUs.
        let none = inventory.grant(&WorkerSpec { gpus: Some(0), ..WorkerSpec::default() }).unwrap();
        assert_eq!(none.gpus(), Some(&[][..]));
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_machine_has_cpus_and_memory_and_one_account_of_them() {
        let inventory = Inventory::of_machine();
        let cpus = own_cpus().len() as u32;
        let taken = inventory.grant(&worker(cpus)).unwrap();
        assert_eq!(taken.cpus().len() as u32, cpus);
        assert!(matches!(Inventory::of_machine().grant(&worker(1)), Err(LaunchError::Short { what: "CPUs", .. })));
        assert!(Inventory::of_machine().with_resource("licence", 1).grant(&worker(1)).is_err());
        drop(taken);
        let all = WorkerSpec { memory: Some(u64::MAX), ..WorkerSpec::default() };
        assert!(matches!(inventory.grant(&all), Err(LaunchError::Short { what: "bytes of memory", .. })));
    }
}
