//! A simulated run: its loop, and snapshots that take time.

use std::collections::{BTreeMap, BTreeSet};

use rollmesh_core::{
    group::{AuditPolicy, GroupState},
    hub::{BatchConsumer, HubRun, RunFacts, RunLoop, RunLoopConfig, RunProgress},
    ids::{FragmentNo, LeaseId, WeightsVersion},
    policy::Postprocessing,
    run::RunConfig,
    time::Micros,
    worker::{Registry, RolloutWorkerBuilder},
};

use super::{Plant, RunScenario, evaluation::SimEvaluations};

/// The audit policy: the hub recomputes every fragment of an untrusted worker.
const AUDITS: AuditPolicy = AuditPolicy { share: 1.0, first_fragments: 0 };

/// The seconds that a worker may hang.
const HUNG_TIMEOUT_S: f64 = 5.0;

#[derive(Debug)]
pub(super) struct SimRun {
    state: RunLoop,
    num_workers: u32,
    has_files: bool,
    save_ms: u64,
    pub(super) plant: Option<Plant>,
    /// The snapshots by iteration, and the times at which they are complete.
    pub(super) snapshots: Snapshots,
    pub(super) evaluations: SimEvaluations,
}

pub(super) type Snapshots = BTreeMap<u64, (Snapshot, Micros)>;

/// A state from which the run can resume.
#[derive(Clone, Debug)]
pub(super) struct Snapshot {
    group: Vec<u8>,
    iteration: u64,
    env_steps: u64,
}

/// Returns the parts of a run of the scenario with this number of iterations. The environment does not matter, since
/// the rows are fake.
pub(super) fn parts(scenario: &RunScenario, iterations: u64) -> RunLoopConfig {
    let steps = iterations * u64::from(scenario.num_slots) * u64::from(scenario.length);
    let config = RunConfig::sampling("CartPole-v1", scenario.num_slots)
        .rollout_fragment_length(scenario.length)
        .fcnet_hiddens(&[1])
        .stop_after(steps);
    let mut config = RunConfig { hung_worker_timeout_s: HUNG_TIMEOUT_S, ..config };
    config.evaluation.interval = scenario.evaluation_every;
    let parts = RolloutWorkerBuilder::new(Registry::builtin()).learning_parts(&config).expect("a run");
    let throttle = Micros::from_millis(scenario.throttle_ms);
    let consumer = BatchConsumer::Learner(Postprocessing::None);
    RunLoopConfig { throttle, consumer, ..RunLoopConfig::sampling(1, config, &parts).expect("weights") }
}

impl SimRun {
    /// Begins the run, or resumes it from a snapshot. `life` is the number of earlier lives of runs.
    pub(super) fn new(
        parts: &RunLoopConfig,
        scenario: &RunScenario,
        (number, life): (u32, u32),
        (from, snapshots): (Option<Snapshot>, Snapshots),
        now: Micros,
    ) -> Self {
        let iteration = from.as_ref().map_or(0, |from| from.iteration);
        let parts = RunLoopConfig {
            number,
            first_lease: LeaseId(u64::from(life) << 40),
            weights: parts.weights.with_version(WeightsVersion(iteration)),
            group: from.as_ref().map(|from| GroupState::decode(&from.group).expect("what was saved")),
            ..parts.clone()
        };
        let mut state = RunLoop::new(parts, now).expect("the same run");
        if let Some(Snapshot { iteration, env_steps, .. }) = from {
            state.resume_from(RunProgress { iteration, env_steps, ..RunProgress::default() }, now);
        }
        state.group.set_audits(AUDITS, scenario.seed ^ u64::from(life) << 32).expect("a share");
        Self {
            state,
            num_workers: scenario.workers.len() as u32,
            has_files: scenario.has_files,
            save_ms: scenario.save_ms,
            plant: scenario.plant,
            snapshots,
            evaluations: SimEvaluations::default(),
        }
    }

    pub(super) fn snapshot(&self) -> Snapshot {
        let (iteration, env_steps) = (self.state.iteration(), self.state.env_steps());
        Snapshot { group: self.state.group.state().encode(), iteration, env_steps }
    }

    fn is_complete(&self, before: FragmentNo, now: Micros) -> bool {
        self.snapshots.range(..=before.0).next_back().is_none_or(|(_, (_, complete_at))| *complete_at <= now)
    }
}

impl HubRun for SimRun {
    fn state(&self) -> &RunLoop {
        &self.state
    }

    fn state_mut(&mut self) -> &mut RunLoop {
        &mut self.state
    }

    fn facts(&mut self, roll_back_before: Option<FragmentNo>, now: Micros) -> RunFacts {
        RunFacts {
            num_workers: self.num_workers,
            keeps_last_batch: self.has_files,
            awaits_evaluation: self.plant != Some(Plant::ForgetEvaluations)
                && self.evaluations.schedule.is_awaited(self.state.is_used_up(now)),
            may_be_undone: roll_back_before.is_some_and(|before| self.is_complete(before, now)),
            ..RunFacts::default()
        }
    }

    /// Saves a snapshot if untrusted workers may commit fragments, and keeps the newest snapshot before each doubtful
    /// batch.
    fn keep_for_undoing(&mut self, now: Micros) {
        if !self.state.group.has_untrusted() {
            return;
        }
        let iteration = self.state.iteration();
        if !self.state.is_consuming() && !self.snapshots.contains_key(&iteration) {
            self.snapshots.insert(iteration, (self.snapshot(), now + Micros::from_millis(self.save_ms)));
        }
        let newest_before = |batch: u64| self.snapshots.range(..=batch).next_back().map(|(iteration, _)| *iteration);
        let mut kept: BTreeSet<u64> = self.state.group.doubtful().filter_map(|batch| newest_before(batch.0)).collect();
        kept.insert(iteration);
        self.snapshots.retain(|iteration, _| kept.contains(iteration));
    }
}
