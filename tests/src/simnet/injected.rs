//! The injection of faults into the workers and the hub of a simulated run.

use rollmesh_core::{group::SamplingMode, time::Micros};

use super::{Event, Peer, SimNet, workers::Clock};
use crate::scenario::FaultKind;

impl SimNet {
    pub(super) fn inject_fault(&mut self) {
        if !self.is_chaos() {
            return;
        }
        let next = self.dice.within_ms(2 * self.scenario.faults.every_ms);
        self.after(next, Event::InjectFault);
        let kind = self.dice.one_of(&self.scenario.faults.kinds);
        let victims: Vec<Peer> = self.processes.keys().copied().collect();
        match kind {
            FaultKind::Pause => {
                self.log(format_args!("the run is paused"));
                self.hub.group.pause();
                let span = self.dice.within_ms(2_000);
                self.after(span, Event::Resume);
            }
            FaultKind::Storm => self.storm(),
            FaultKind::HubCrash => self.crash_hub(),
            FaultKind::HubFreeze => {
                let span = self.dice.within_ms(9_000);
                self.log(format_args!("the hub stands still for {span}"));
                self.hub.frozen_until = self.hub.frozen_until.max(self.now + span);
            }
            _ if victims.is_empty() => {}
            kind => {
                let victim = self.dice.one_of(&victims);
                self.log(format_args!("worker {} is hit: {kind:?}", victim.worker));
                self.hit(victim, kind);
            }
        }
    }

    fn hit(&mut self, victim: Peer, kind: FaultKind) {
        let (now, span) = (self.now, self.dice.within_ms(9_000));
        let (to_worker, to_hub) = self.dice.one_of(&[(true, false), (false, true), (true, true)]);
        let clock = self.any_clock();
        let Some(process) = self.processes.get_mut(&victim) else { return };
        let who = process.who;
        match kind {
            FaultKind::Freeze => process.frozen_until = now + span,
            FaultKind::Partition => {
                process.unreachable_until = if to_worker { now + span } else { process.unreachable_until };
                process.mute_until = if to_hub { now + span } else { process.mute_until };
            }
            FaultKind::Clock => process.clock = clock,
            FaultKind::Crash => {
                self.processes.remove(&victim);
                let (noticed, restarted) = (self.dice.within_ms(5_000), self.dice.within_ms(3_000));
                self.after(noticed, Event::Lost(victim));
                self.after(restarted, Event::Join(who));
            }
            FaultKind::Remove => {
                self.hub.group.remove_worker(victim.worker, now);
                let replaced = self.dice.within_ms(1_000);
                self.after(replaced, Event::Join(who));
            }
            FaultKind::Pause | FaultKind::Storm | FaultKind::HubCrash | FaultKind::HubFreeze => {}
        }
    }

    /// Returns a clock that is up to an hour off and runs up to eight times too slowly, or a thousand times too fast.
    fn any_clock(&mut self) -> Clock {
        let hour = Micros::from_secs(3_600);
        let said = self.now + Micros(self.dice.between(0, 2 * hour.0));
        let per_mille = self.dice.one_of(&[125, 500, 1_000, 2_000, 1_000_000]);
        Clock { set: (said.since(hour), self.now), per_mille }
    }

    /// Breaks all connections at the same time, after which all workers reconnect within a second.
    fn storm(&mut self) {
        self.log(format_args!("all connections break"));
        for (peer, process) in std::mem::take(&mut self.processes) {
            let delay = self.delay();
            self.after(delay, Event::Lost(peer));
            let back = process.frozen_until.since(self.now) + self.dice.within_ms(1_000);
            self.after(back, Event::Join(process.who));
        }
    }

    /// Restarts the hub from its last saved state. Messages in transit may still arrive, with ids that now belong to other
    /// workers.
    fn crash_hub(&mut self) {
        self.log(format_args!("the hub crashes and restarts"));
        if self.scenario.mode != SamplingMode::Synchronous && self.dice.chance(500) {
            // The saved state includes queued fragments.
            self.hub.check();
            self.hub.save();
        }
        self.restart_hub(u64::MAX);
    }

    /// Restarts the hub from its last saved state before this batch.
    pub(super) fn restart_hub(&mut self, before: u64) {
        self.hub.restart(before);
        let down = self.dice.within_ms(500);
        for (_, process) in std::mem::take(&mut self.processes) {
            let back = process.frozen_until.since(self.now).max(down) + self.dice.within_ms(1_000);
            self.after(back, Event::Join(process.who));
        }
        self.after(down, Event::BeginIteration);
    }
}
