//! Obstacles to actions: the reasons that disabled controls show.

use rollmesh_core::protocol::{Phase, WorkerState};

use super::{Action, Connection, State, TabJob};

/// Kinds of a group's workers without a connection to its hub.
const UNCONNECTED: [&str; 3] = ["thread", "process", "remote"];

impl State {
    /// Returns the reason why an action is impossible now; `None` if it is possible.
    #[must_use]
    pub fn obstacle(&self, action: &Action) -> Option<&'static str> {
        match action {
            // These need no hub.
            Action::Leave { .. } => return self.tab.is_out().then_some("This tab does nothing for the hub."),
            Action::Save { .. } => return self.saving_obstacle(),
            Action::Compare { run } if self.comparison.has(run) => return None,
            Action::Compare { .. } if self.comparison.is_full() => return Some("Sixteen runs are compared already."),
            _ => {}
        }
        if let Some(obstacle) = self.listener_obstacle(action) {
            return Some(obstacle);
        }
        if let Some(obstacle) = self.group_obstacle(action) {
            return Some(obstacle);
        }
        if self.requests.is_waiting(action) {
            return Some("Asked; there is no answer yet.");
        }
        let phase = self.phase();
        let is_over = !phase.is_active();
        match action {
            Action::Pause | Action::Resume | Action::Drain if phase == Phase::Draining => {
                Some("The run is draining: it ends when its leases have.")
            }
            Action::Pause if phase == Phase::Paused => Some("The run is paused already."),
            Action::Resume if phase == Phase::Running => Some("The run is not paused."),
            Action::Pause | Action::Resume | Action::Stop | Action::Drain | Action::Checkpoint if is_over => {
                Some("No run is in progress.")
            }
            Action::Start(_) if !is_over && !self.runs.may_wait => Some("A run is in progress; stop it first."),
            Action::ResumeSaved { .. } if !is_over => Some("A run is in progress; stop it first."),
            Action::ShowFragment { .. } if self.run.is_none() => Some("There is no run yet."),
            Action::RemoveWorker { worker } | Action::RestartWorker { worker } => match self.workers.get(worker) {
                None => Some("This worker has disconnected."),
                Some(row) if row.state == WorkerState::Leaving.to_wire() => Some("This worker is leaving already."),
                Some(row) if !row.local && matches!(action, Action::RestartWorker { .. }) => {
                    Some("This worker was not started by the hub: restart it where it was started.")
                }
                Some(_) => None,
            },
            Action::Watch { slot } => self.slot_obstacle(*slot),
            Action::Join { .. } if self.tab.is_joining() => Some("Asked; there is no answer yet."),
            Action::Join { .. } if self.tab.job() == Some(&TabJob::Sample) => None,
            Action::Join { .. } | Action::Evaluate(_) if !self.tab.is_out() => Some("This tab has joined already."),
            _ => None,
        }
    }

    /// Returns the reason why no hub handles this action. The hub of a tab has no files, and this tab works for it
    /// already.
    fn listener_obstacle(&self, action: &Action) -> Option<&'static str> {
        let needs_native = matches!(
            action,
            Action::Checkpoint
                | Action::Join { .. }
                | Action::Evaluate(_)
                | Action::Invite(_)
                | Action::ListSaved
                | Action::ResumeSaved { .. }
                | Action::DeleteSaved { .. }
                | Action::CloneSaved { .. }
        );
        match (&self.connection, action) {
            // The trainer handles no requests before it has sent the settings that runs may have.
            _ if self.is_tab() && !needs_native => {
                self.schema.is_none().then_some("The trainer of this tab is not ready.")
            }
            (Connection::Online { .. }, Action::Compare { .. } | Action::ListSaved | Action::ShowFragment { .. }) => {
                None
            }
            (Connection::Online { .. }, _) if self.is_viewer => {
                Some("This page has a viewer's token, which shows everything and changes nothing.")
            }
            (Connection::Online { .. }, _) => None,
            (Connection::NoToken, _) => Some("The page has no token for a hub."),
            (Connection::Refused { .. }, _) => Some("The hub has refused this page."),
            (Connection::Connecting { .. } | Connection::Waiting { .. }, _) => Some("No hub is in reach."),
        }
    }

    /// Returns the reason why a program's worker group does not do this: the program decides on its workers, except for
    /// those that connect by themselves.
    fn group_obstacle(&self, action: &Action) -> Option<&'static str> {
        if !self.is_of_group() {
            return None;
        }
        match action {
            Action::Start(_) | Action::ResumeSaved { .. } => {
                Some("This hub belongs to a program's worker group and executes no runs.")
            }
            Action::AddWorker => Some("The program decides how many workers its group has."),
            Action::RemoveWorker { worker } => {
                let row = self.workers.get(worker)?;
                let is_own = row.local || UNCONNECTED.contains(&&*row.kind);
                is_own.then_some("The program decides how many workers its group has: it removes this one.")
            }
            _ => None,
        }
    }

    fn saving_obstacle(&self) -> Option<&'static str> {
        if !self.is_tab() {
            return Some("The hub keeps the run's files.");
        }
        let has_learned = self.run.as_ref().is_some_and(|run| run.iteration > 0);
        (!has_learned).then_some("Nothing has been learned yet.")
    }

    fn slot_obstacle(&self, slot: u32) -> Option<&'static str> {
        let slots = self.run.as_ref().map_or(0, |run| run.num_slots);
        (slot >= slots).then_some("The run has no such slot.")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rollmesh_core::{
        config::Config,
        protocol::message::{RunStatus, WorkerRow},
    };

    use super::{
        super::{RunSchema, Source},
        *,
    };

    fn state(phase: Phase) -> State {
        let worker =
            |worker, state: WorkerState| (worker, WorkerRow { worker, state: state.to_wire(), ..WorkerRow::default() });
        State {
            connection: Connection::Online { server: "rollmesh".into() },
            source: Source::Hub,
            run: Some(RunStatus { run: 1, phase: phase.to_wire(), num_slots: 4, ..RunStatus::default() }),
            workers: [worker(1, WorkerState::Sampling), worker(2, WorkerState::Leaving)].into(),
            ..State::default()
        }
    }

    fn can(state: &State, action: Action) -> bool {
        state.obstacle(&action).is_none()
    }

    #[test]
    fn the_phase_decides_what_a_run_can_be_asked() {
        let start = || Action::Start(Config::new());
        for &phase in Phase::ALL {
            let state = state(phase);
            let (running, paused) = (phase == Phase::Running, phase == Phase::Paused);
            let draining = phase == Phase::Draining;
            assert_eq!(can(&state, Action::Pause), running, "{phase:?}");
            assert_eq!(can(&state, Action::Resume), paused, "{phase:?}");
            assert_eq!(can(&state, Action::Drain), running || paused, "{phase:?}");
            assert_eq!(can(&state, Action::Stop), running || paused || draining, "{phase:?}");
            assert_eq!(can(&state, Action::Checkpoint), running || paused || draining, "{phase:?}");
            assert_eq!(can(&state, start()), !running && !paused && !draining, "{phase:?}");
        }
    }

    #[test]
    fn workers_and_slots_must_exist() {
        let state = state(Phase::Running);
        assert!(can(&state, Action::RemoveWorker { worker: 1 }));
        assert!(!can(&state, Action::RemoveWorker { worker: 2 }));
        assert!(!can(&state, Action::RestartWorker { worker: 1 }), "it is not the hub's");
        assert!(!can(&state, Action::RemoveWorker { worker: 3 }));
        assert!(can(&state, Action::Watch { slot: 3 }));
        assert!(!can(&state, Action::Watch { slot: 4 }));
    }

    #[test]
    fn program_decides_about_the_workers_of_its_group() {
        let mut state = state(Phase::Idle);
        let remove = |worker| Action::RemoveWorker { worker };
        for (worker, kind, local) in [(3, "thread", false), (4, "native", true), (5, "native", false)] {
            let row = WorkerRow { worker, kind: kind.into(), local, ..WorkerRow::default() };
            state.workers.insert(worker, row);
        }
        let all = [Action::AddWorker, Action::Start(Config::new()), remove(3), remove(4), remove(5)];
        let allowed = |state: &State| all.clone().map(|action| can(state, action));
        for (schema, is_of_group) in [(r#"{"properties": {}}"#, false), (r#"{"not": {}}"#, true)] {
            state.schema = Some(Arc::new(RunSchema::parse(schema).expect("a schema")));
            let is_free = !is_of_group;
            let wanted = [is_free, is_free, is_free, is_free, true];
            assert_eq!((state.is_of_group(), allowed(&state)), (is_of_group, wanted));
        }
    }

    #[test]
    fn without_a_hub_only_the_run_in_this_tab_can_be_controlled() {
        let mut state = state(Phase::Running);
        state.connection = Connection::Waiting { attempt: 1 };
        state.tab.join(TabJob::Sample, 1);
        for action in [Action::Pause, Action::AddWorker, Action::Join { workers: 1 }, Action::Watch { slot: 0 }] {
            assert!(!can(&state, action));
        }
        assert!(can(&state, Action::Leave { worker: None }));
        state.source = Source::Tab;
        assert_eq!(state.obstacle(&Action::AddWorker), Some("The trainer of this tab is not ready."));
        state.schema = Some(Arc::new(RunSchema::parse("{}").expect("a schema")));
        let worker = Action::RemoveWorker { worker: 1 };
        for action in [Action::Pause, Action::Stop, Action::Drain, Action::Watch { slot: 3 }, Action::AddWorker, worker]
        {
            assert!(can(&state, action.clone()), "{action:?}");
        }
        for action in [Action::ListSaved, Action::Join { workers: 1 }, Action::Checkpoint, Action::Watch { slot: 4 }] {
            assert!(!can(&state, action.clone()), "{action:?}");
        }
    }

    #[test]
    fn a_policy_is_saved_only_from_a_tab_that_has_learned() {
        let mut state = state(Phase::Running);
        assert!(!can(&state, Action::Save { file: "policy.json" }));
        state.source = Source::Tab;
        assert!(!can(&state, Action::Save { file: "policy.json" }));
        state.run.as_mut().expect("a run").iteration = 1;
        assert!(can(&state, Action::Save { file: "policy.json" }));
    }

    #[test]
    fn a_viewer_changes_nothing() {
        let mut state = state(Phase::Running);
        state.is_viewer = true;
        for action in [
            Action::Pause,
            Action::AddWorker,
            Action::Join { workers: 1 },
            Action::Watch { slot: 0 },
            Action::Checkpoint,
        ] {
            assert!(state.obstacle(&action).is_some_and(|reason| reason.contains("viewer")), "{action:?}");
        }
    }
}
