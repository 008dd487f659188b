//! The rules of launchers: the workers that they run, and the times within which they and the hub detect that a worker
//! has ended.

use std::collections::{BTreeMap, BTreeSet};

use rollmesh_core::time::Micros;

use super::{RunEvent, RunScenario};

/// The time within which a connected launcher ends a worker that the hub does not count as running, and within which
/// the hub learns that a worker has ended.
const NOTICED_WITHIN: Micros = Micros::from_secs(5);

/// The checker's model of launchers.
#[derive(Debug, Default)]
pub(super) struct LaunchModel {
    connected: BTreeSet<usize>,
    /// All workers ever started.
    started: BTreeSet<u64>,
    running: BTreeMap<u64, LaunchedModel>,
    /// The workers whose end a connected launcher has reported, by number, with the launcher and the time.
    reported: BTreeMap<u32, (usize, Micros)>,
    restarts: u64,
}

#[derive(Clone, Copy, Debug)]
struct LaunchedModel {
    launcher: usize,
    /// The time since which the launcher has been connected and the hub has not counted the worker as running.
    orphan_since: Option<Micros>,
}

impl LaunchModel {
    /// Checks an event. `local` are the numbers of the workers that the hub counts as running.
    pub(super) fn step(
        &mut self,
        scenario: &RunScenario,
        event: &RunEvent,
        local: &BTreeSet<u32>,
        at: Micros,
    ) -> Result<(), &'static str> {
        let must = |rule: bool, text| if rule { Ok(()) } else { Err(text) };
        match *event {
            RunEvent::LauncherConnected { launcher } => {
                self.connected.insert(launcher);
                self.count_orphans_from(at, |worker| worker.launcher == launcher);
            }
            RunEvent::LauncherLost { launcher } => {
                self.check_noticed(at)?;
                self.connected.remove(&launcher);
                self.reported.retain(|_, (by, _)| *by != launcher);
            }
            RunEvent::LauncherStarted { launcher, worker } => {
                must(self.started.insert(worker), "it was started before")?;
                let running = self.running.values().filter(|running| running.launcher == launcher).count();
                must(running < scenario.launchers[launcher] as usize, "all places are taken")?;
                let is_known = local.contains(&(worker as u32)) && worker == self.id(worker as u32);
                let orphan_since = (!is_known).then_some(at);
                self.running.insert(worker, LaunchedModel { launcher, orphan_since });
            }
            RunEvent::LauncherEnded { launcher, worker, is_heard } => {
                self.check_noticed(at)?;
                must(self.running.remove(&worker).is_some(), "it does not run")?;
                let number = worker as u32;
                if is_heard && local.contains(&number) && worker == self.id(number) {
                    self.reported.insert(number, (launcher, at));
                }
            }
            RunEvent::LocalExited { number } => {
                let reported = self.reported.remove(&number);
                must(reported.is_none_or(|(_, since)| at <= since + NOTICED_WITHIN), "the hub learns that too late")?;
                let worker = self.id(number);
                self.running.entry(worker).and_modify(|running| running.orphan_since = Some(at));
            }
            RunEvent::Restarted { .. } => {
                self.restarts += 1;
                self.reported.clear();
                self.running.values_mut().for_each(|running| running.orphan_since = Some(at));
            }
            _ => {}
        }
        Ok(())
    }

    /// Checks that no connected launcher has kept running, past the limit, a worker that the hub does not count as
    /// running, and that the hub has not counted as running, past the limit, a worker whose end such a launcher has
    /// reported.
    pub(super) fn check_noticed(&self, at: Micros) -> Result<(), &'static str> {
        let is_late = |since: Micros| since + NOTICED_WITHIN < at;
        let is_orphan = |running: &LaunchedModel| {
            self.connected.contains(&running.launcher) && running.orphan_since.is_some_and(is_late)
        };
        if self.running.values().any(is_orphan) {
            return Err("a launcher runs a worker that the hub has given up");
        }
        if self.reported.values().any(|(_, since)| is_late(*since)) {
            return Err("the hub does not learn that a worker has ended");
        }
        Ok(())
    }

    fn count_orphans_from(&mut self, at: Micros, is_it: impl Fn(&LaunchedModel) -> bool) {
        let orphans = self.running.values_mut().filter(|running| running.orphan_since.is_some() && is_it(running));
        orphans.for_each(|running| running.orphan_since = Some(at));
    }

    /// Returns the id of a worker of the hub's current process.
    fn id(&self, number: u32) -> u64 {
        (self.restarts + 1) << 32 | u64::from(number)
    }
}
