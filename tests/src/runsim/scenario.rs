//! The description of a simulated run: its size, its workers, the users' requests, and the faults.

use rollmesh_core::time::Micros;

use crate::scenario::Dice;

/// A request of a user or a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Pause the run.
    Pause,
    /// Resume it.
    Resume,
    /// Stop it.
    Stop,
    /// Drain it.
    Drain,
    /// Drain it, and admit no more workers: the program is about to exit.
    Exit,
    /// Begin the next iteration of a stepwise run.
    Step,
    /// Start a further run, which waits for the one in progress.
    Start(QueuedRun),
    /// Remove the waiting run of this number.
    RemoveRun(u32),
}

/// A run that an operator starts while another one may be in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuedRun {
    /// The number of iterations of the run.
    pub iterations: u64,
    /// The milliseconds until its parts are built.
    pub make_ms: u64,
    /// Whether building the parts fails.
    pub fails: bool,
}

/// A worker of the scenario.
#[derive(Clone, Copy, Debug)]
pub struct RunWorker {
    /// The microseconds per env step.
    pub us_per_step: u64,
    /// The falsified fragments among its own, per thousand; `None` for a trusted worker.
    pub falsification: Option<u64>,
    /// Whether the worker presents the shared token.
    pub shares_token: bool,
}

/// A fault that a test plants in the shell of the simulated hub, to show that the checker finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plant {
    /// Commands to roll back are ignored.
    IgnoreRollBack,
    /// The run is rolled back to a state after the doubtful batch.
    RollBackTooLittle,
    /// Results of audits are lost.
    ForgetAudits,
    /// The audits of a run that is rolled back are lost.
    LoseAudits,
    /// Every audit passes.
    BlindAudits,
    /// The token of a principal that failed an audit stays valid.
    KeepTokens,
    /// A paused run is not notified.
    IgnorePause,
    /// The next iteration begins before the checkpoint is taken.
    SaveLate,
    /// A stepwise run begins iterations on its own.
    ForgetTurns,
    /// Requests to stop are forgotten.
    ForgetStop,
    /// Iterations begin while an evaluation decides whether the run continues.
    ForgetEvaluations,
    /// The run continues after its end.
    EndTwice,
    /// Workers are admitted that the hub refuses.
    AdmitAnyone,
    /// Workers are admitted while the program is about to exit.
    ForgetExit,
    /// Dashboards are not shown the end of the run.
    ForgetDashboards,
    /// A run begins that was removed while its parts were built.
    BeginRemoved,
    /// Runs that wait do not begin.
    ForgetWaiting,
    /// Runs do not begin in the order in which they were started.
    RotateQueue,
    /// Workers that hang are not ended.
    ForgetHung,
    /// A run continues that no worker can sample for.
    ForgetHopeless,
    /// Local workers that exit are not replaced.
    ForgetReplacement,
    /// A local worker that exits is replaced by two.
    ReplaceTwice,
    /// Commands to end workers do not reach launchers.
    ForgetEndWorker,
    /// Reports of launchers are lost that workers have ended.
    ForgetWorkerEnded,
    /// Weights are not evaluated when an evaluation is due.
    ForgetToEvaluate,
    /// Outcomes of evaluations are lost.
    LoseEvaluations,
    /// Evaluations that make no progress are not given up.
    ForgetDeadline,
    /// Answers of evaluation workers do not reach the requesting programs.
    LoseAnswers,
    /// Evaluation workers are not notified of cancelled evaluations.
    LoseCancels,
}

impl Plant {
    /// Every kind.
    pub const ALL: [Self; 29] = [
        Self::IgnoreRollBack,
        Self::RollBackTooLittle,
        Self::ForgetAudits,
        Self::LoseAudits,
        Self::BlindAudits,
        Self::KeepTokens,
        Self::IgnorePause,
        Self::SaveLate,
        Self::ForgetTurns,
        Self::ForgetStop,
        Self::ForgetEvaluations,
        Self::EndTwice,
        Self::AdmitAnyone,
        Self::ForgetExit,
        Self::ForgetDashboards,
        Self::BeginRemoved,
        Self::ForgetWaiting,
        Self::RotateQueue,
        Self::ForgetHung,
        Self::ForgetHopeless,
        Self::ForgetReplacement,
        Self::ReplaceTwice,
        Self::ForgetEndWorker,
        Self::ForgetWorkerEnded,
        Self::ForgetToEvaluate,
        Self::LoseEvaluations,
        Self::ForgetDeadline,
        Self::LoseAnswers,
        Self::LoseCancels,
    ];
}

/// A simulated run.
#[derive(Clone, Debug)]
pub struct RunScenario {
    /// The seed of all draws.
    pub seed: u64,
    /// The number of slots.
    pub num_slots: u32,
    /// The env steps of a fragment.
    pub length: u32,
    /// The number of iterations of the first run.
    pub iterations: u64,
    /// The workers.
    pub workers: Vec<RunWorker>,
    /// Whether none of the workers can run the run's leases.
    pub are_unable: bool,
    /// The capacities of the launchers, which start the local workers on other hosts.
    pub launchers: Vec<u32>,
    /// The failed starts of local workers, per thousand.
    pub failed_starts: u64,
    /// Whether iterations of the first run begin only on request.
    pub stepwise: bool,
    /// Whether the run has checkpoints.
    pub has_files: bool,
    /// The minimum milliseconds between two iterations.
    pub throttle_ms: u64,
    /// The milliseconds that the learner takes for a batch.
    pub learner_ms: u64,
    /// The milliseconds that the disk takes for a snapshot.
    pub save_ms: u64,
    /// The milliseconds that an evaluation takes.
    pub evaluation_ms: u64,
    /// The number of iterations between two evaluations; 0 for none.
    pub evaluation_every: u64,
    /// The evaluations that fail or hang, per thousand.
    pub failed_evaluations: u64,
    /// The maximum milliseconds that an audit takes.
    pub audit_ms: u64,
    /// The number of evaluation workers.
    pub evaluators: usize,
    /// The number of programs that request evaluations.
    pub askers: usize,
    /// The times of the requests for evaluations, each with its program.
    pub asks: Vec<(Micros, usize)>,
    /// The users' requests, with their times.
    pub requests: Vec<(Micros, Request)>,
    /// The mean milliseconds between faults; 0 for none.
    pub fault_every_ms: u64,
    /// Whether the hub's process crashes, too.
    pub hub_crashes: bool,
    /// The lost messages, per thousand.
    pub lost: u64,
    /// The maximum milliseconds that a message is in transit.
    pub delay_ms: u64,
    /// The time at which faults end.
    pub until: Micros,
    /// The planted fault of the shell.
    pub plant: Option<Plant>,
}

impl RunScenario {
    /// Returns whether the weights of this iteration are evaluated.
    pub(super) fn is_evaluated(&self, iteration: u64) -> bool {
        self.evaluation_every > 0 && iteration > 0 && iteration.is_multiple_of(self.evaluation_every)
    }

    /// Returns a chaotic run with a planted fault. The run contains everything that can reveal the fault, and takes
    /// time.
    #[must_use]
    pub fn planted(seed: u64, plant: Plant) -> Self {
        let mut scenario = Self { plant: Some(plant), ..Self::chaotic(seed) };
        match plant {
            Plant::ForgetEndWorker | Plant::ForgetWorkerEnded if !scenario.are_unable => {
                scenario.launchers = vec![scenario.workers.len() as u32];
            }
            Plant::LoseAnswers | Plant::LoseCancels => {
                (scenario.evaluators, scenario.askers) = (1, 1);
                scenario.asks = (0..20).map(|ask| (Micros::from_millis(100 * ask), 0)).collect();
            }
            Plant::LoseAudits => {
                // Several workers falsify rows, which are recomputed only when most batches are complete.
                scenario.workers.truncate(1);
                let divergent = RunWorker { us_per_step: 100, falsification: Some(100), shares_token: false };
                scenario.workers.extend(vec![divergent; 3]);
                (scenario.num_slots, scenario.iterations, scenario.audit_ms) = (8, 10, 3_000);
                (scenario.stepwise, scenario.hub_crashes, scenario.are_unable) = (false, false, false);
                scenario.requests.clear();
                return scenario;
            }
            _ => return scenario,
        }
        (scenario.iterations, scenario.learner_ms, scenario.fault_every_ms) = (100, 400, 400);
        scenario
    }

    /// Returns a run with all faults, in ways that depend on the seed.
    #[must_use]
    pub fn chaotic(seed: u64) -> Self {
        let mut dice = Dice::new(seed);
        let iterations = dice.between(3, 12);
        let stepwise = dice.chance(250);
        let mut sometimes = |most: u64| if dice.chance(500) { dice.between(1, most) } else { 0 };
        let (lost, delay_ms, fault_every_ms) = (sometimes(50), sometimes(200), sometimes(1_500));
        let (throttle_ms, evaluation_every) = (sometimes(100), sometimes(4));
        // The first worker is honest and trusted.
        let mut workers = vec![RunWorker {
            us_per_step: 10u64.pow(dice.between(1, 3) as u32),
            falsification: None,
            shares_token: true,
        }];
        for _ in 0..dice.between(0, 3) {
            let falsification = dice.chance(500).then(|| dice.one_of(&[0, 50, 400]));
            // A divergent worker with the shared token would be another principal with every connection.
            let shares_token = falsification.unwrap_or(0) == 0 && dice.chance(500);
            workers.push(RunWorker { us_per_step: 10u64.pow(dice.between(1, 4) as u32), falsification, shares_token });
        }
        let mut requests: Vec<(Micros, Request)> = Vec::new();
        for _ in 0..dice.between(0, 2) {
            let (at, span) = (dice.within_ms(1_500), dice.within_ms(1_000));
            requests.extend([(at, Request::Pause), (at + span, Request::Resume)]);
        }
        let end = dice.within_ms(3_000);
        match dice.between(0, 6) {
            0 => requests.push((end, Request::Stop)),
            1 => requests.push((end, Request::Drain)),
            2 => requests.extend([(end, Request::Stop), (end + dice.within_ms(50), Request::Stop)]),
            3 => requests.extend([(end, Request::Drain), (end + dice.within_ms(50), Request::Stop)]),
            4 => requests.push((end, Request::Exit)),
            _ => {}
        }
        if stepwise {
            let mut at = Micros(0);
            // A hub that crashes or rolls back needs more requests.
            for _ in 0..8 * iterations {
                at = at + dice.within_ms(300);
                requests.push((at, Request::Step));
            }
            // A program that asks for no more iterations stops the run.
            requests.extend([(at + Micros::from_secs(60), Request::Stop), (at + Micros::from_secs(61), Request::Stop)]);
        }
        if dice.chance(300) {
            // The numbers of queued runs begin with 2; a roll-back uses a number, too.
            for number in 2..2 + dice.between(1, 3) {
                let make_ms = if dice.chance(500) { dice.between(1, 20) } else { dice.between(100, 3_000) };
                let (iterations, fails) = (dice.between(1, 2), dice.chance(150));
                let at = dice.within_ms(2_000);
                requests.push((at, Request::Start(QueuedRun { iterations, make_ms, fails })));
                if dice.chance(500) {
                    requests.push((at + dice.within_ms(4_000), Request::RemoveRun(number as u32)));
                }
            }
        }
        let num_local = workers.iter().filter(|worker| worker.falsification.is_none()).count() as u64;
        let are_unable = dice.chance(20);
        let mut launchers = Vec::new();
        // Workers of launchers are untrusted here, and untrusted workers could not end a run that no worker can sample
        // for.
        if !are_unable && dice.chance(250) {
            launchers.push(dice.between(num_local, num_local + 1) as u32);
            launchers.extend(dice.chance(500).then(|| dice.between(1, 3) as u32));
        }
        let (mut evaluators, mut askers, mut asks) = (0, 0, Vec::new());
        if dice.chance(300) {
            (evaluators, askers) = (dice.between(1, 2) as usize, dice.between(1, 2) as usize);
            let ask = |_| (dice.within_ms(5_000), dice.between(0, askers as u64 - 1) as usize);
            asks = (0..8).map(ask).collect();
        }
        Self {
            seed,
            num_slots: dice.between(1, 6) as u32,
            length: dice.between(1, 6) as u32,
            iterations,
            workers,
            are_unable,
            launchers,
            failed_starts: if dice.chance(300) { dice.between(1, 500) } else { 0 },
            stepwise,
            has_files: dice.chance(700),
            throttle_ms,
            learner_ms: dice.between(1, 100),
            save_ms: dice.between(1, 300),
            evaluation_ms: dice.between(1, 500),
            evaluation_every,
            failed_evaluations: if dice.chance(300) { dice.between(1, 500) } else { 0 },
            audit_ms: dice.between(1, 1_500),
            evaluators,
            askers,
            asks,
            requests,
            fault_every_ms,
            hub_crashes: dice.chance(300),
            lost,
            delay_ms,
            until: Micros::from_secs(20),
            plant: None,
        }
    }
}
