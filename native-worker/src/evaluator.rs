//! The process of a named evaluation worker: its supervisor, its own hub, and its connections to that hub and to others.

use std::{
    io,
    process::ExitCode,
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{self, Receiver, RecvTimeoutError, Sender},
    },
    thread,
    time::Duration,
};

use rollmesh_core::{
    evaluation::{EvalDesk, EvalWorkerError, Evaluates, check_name},
    run::RunConfig,
    worker::HostSettings,
};
use tokio::runtime::Runtime;

use crate::{
    Registry,
    child::{read_json, write_json},
    control::{HubUrl, HubUrlError, Trust},
    eval::{ANSWER, EvalHub, EvalNames, Founding, Name, NameAddress, Pictures, SharedDesk, SupervisedWorker},
    hub::{Hub, HubConfig},
    kernels,
    worker::{self, Duty, EndKind, Evaluating, WorkerConfig},
};

/// Time for the evaluation's process to end when the worker is shut down.
const LAST: Duration = Duration::from_secs(5);
/// Interval at which a worker checks whether it can still be found.
const WATCH: Duration = Duration::from_secs(2);

/// Runs a named evaluation worker.
pub(crate) fn serve_worker() -> ExitCode {
    let Ok(founding) = read_json::<Founding>(io::stdin().lock()) else { return ExitCode::FAILURE };
    // Detaches from the terminal, so that closing it does not end the worker.
    let _ = rustix::process::setsid();
    let found = EvaluatorProcess::open(founding);
    let answer = found.as_ref().map(|_| ()).map_err(Clone::clone);
    let written = write_json(io::stdout().lock(), &answer);
    match found {
        Ok(process) if written.is_ok() => process.run(),
        Ok(_) | Err(_) => ExitCode::FAILURE,
    }
}

/// Makes this process a named evaluation worker, which can be found once this returns.
///
/// # Errors
/// As [`EvalNames::create`].
pub(crate) fn serve_name(names: &EvalNames, name: &str, run: &RunConfig) -> Result<EvaluatorProcess, EvalWorkerError> {
    EvaluatorProcess::open(names.founding(name, run))
}

/// A named evaluation worker.
pub(crate) struct EvaluatorProcess {
    runtime: Runtime,
    hub: Hub,
    host: Arc<EvaluatorState>,
    /// Notified when the worker was shut down.
    ended: Receiver<()>,
    is_at_hub: bool,
}

/// State shared by all connections.
struct EvaluatorState {
    shared: Arc<SharedDesk>,
    /// `None` once it is shut down.
    worker: Mutex<Option<SupervisedWorker>>,
    name: Name,
    /// The device on which its evaluations act.
    device: String,
    ended: Sender<()>,
}

impl EvaluatorProcess {
    /// Takes the name, starts the worker and its hub, and writes their address.
    fn open(founding: Founding) -> Result<Self, EvalWorkerError> {
        let Founding { dir, name, run, hub } = founding;
        check_name(&name)?;
        let failed = |error: io::Error| EvalWorkerError::setup("process", error);
        let taken = || EvalWorkerError::NameTaken(name.clone());
        let file = Name::take(&EvalNames::new(dir), &name).map_err(failed)?.ok_or_else(taken)?;
        let worker = SupervisedWorker::in_process(&crate::program().map_err(failed)?, &run, Pictures::All)?;
        let shared = worker.shared.clone();
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.map_err(failed)?;
        let own = runtime.block_on(Hub::start(HubConfig::local().map_err(failed)?, &Registry::builtin()));
        let own = own.map_err(|error| EvalWorkerError::setup("process", error))?;
        let (ended, is_ended) = mpsc::channel();
        let env = Some(run.env().to_owned());
        let device = run.host.evaluator.device.unwrap_or_else(|| "cpu".into());
        let host = Arc::new(EvaluatorState { shared, worker: Mutex::new(Some(worker)), name: file, device, ended });
        let url: HubUrl =
            own.worker_url().parse().map_err(|error: HubUrlError| EvalWorkerError::setup("process", error))?;
        let here = EvalHub { url, token: own.worker_token(), trust: Trust::default() };
        let is_at_hub = hub.is_some();
        [here].into_iter().chain(hub).try_for_each(|hub| host.join(&runtime, &hub, &name))?;
        let (port, token) = (own.address().port(), own.worker_token().to_hex());
        host.name.write(&NameAddress { port, token, pid: std::process::id(), env }).map_err(failed)?;
        Ok(Self { runtime, hub: own, host, ended: is_ended, is_at_hub })
    }

    /// Evaluates until the worker is shut down, or can no longer be found.
    pub(crate) fn run(self) -> ExitCode {
        while self.ended.recv_timeout(WATCH) == Err(RecvTimeoutError::Timeout) {
            if !self.is_at_hub && !self.host.name.file.exists() {
                self.host.end();
            }
        }
        self.runtime.block_on(self.hub.shutdown());
        ExitCode::SUCCESS
    }
}

impl EvaluatorState {
    /// Joins a hub under a name, and reconnects after the hub was lost. Returns once the hub has admitted it.
    fn join(self: &Arc<Self>, runtime: &Runtime, hub: &EvalHub, name: &str) -> Result<(), EvalWorkerError> {
        let (joined, is_in) = mpsc::channel();
        let host = self.clone();
        let evaluating = Evaluating {
            evaluator: Arc::new(move || Box::new(Hosted(host.clone()))),
            changes: self.shared.changes(),
            joined: Arc::new({
                let joined = joined.clone();
                move || _ = joined.send(Ok(()))
            }),
        };
        let config = WorkerConfig {
            hub: hub.url.to_string(),
            trust: hub.trust.clone(),
            relay: None,
            token: hub.token,
            token_file: None,
            kind: "native",
            name: name.into(),
            device: self.device.clone(),
            kernels: kernels::AUTO,
            host_settings: HostSettings::Refused,
            env_memory_mb: None,
            duty: Duty::Evaluates(evaluating),
        };
        let (stays, leave) = tokio::sync::watch::channel(false);
        let (failed, name, host) = (joined.clone(), name.to_owned(), self.clone());
        runtime.spawn(async move {
            let end = worker::run(config, Registry::builtin(), leave, move |words: &str| {
                let _ = joined.send(Err(EvalWorkerError::io(words)));
            });
            let end = end.await;
            let _ = failed.send(Err(match end.kind {
                EndKind::NameTaken => EvalWorkerError::NameTaken(name),
                _ => EvalWorkerError::io(end.reason),
            }));
            drop(stays);
            // Under this name it can no longer be found: the hub has refused it for good.
            let _ = tokio::task::spawn_blocking(move || host.end()).await;
        });
        is_in.recv_timeout(2 * ANSWER).unwrap_or_else(|_| Err(EvalWorkerError::io("the hub does not let it in")))
    }

    /// Ends the evaluation's process and its child processes, and then this process. A process that cannot be killed is left
    /// to the operating system.
    fn end(self: &Arc<Self>) {
        self.name.give_up();
        self.shared.stop();
        let (sender, receiver) = mpsc::channel();
        let worker = self.worker.lock().unwrap_or_else(PoisonError::into_inner).take();
        let end = move || {
            drop(worker);
            let _ = sender.send(());
        };
        if thread::Builder::new().name("eval-end".into()).spawn(end).is_ok() {
            let _ = receiver.recv_timeout(LAST);
        }
        let _ = self.ended.send(());
    }
}

/// The evaluator of a connection: the supervised worker.
struct Hosted(Arc<EvaluatorState>);

impl Evaluates for Hosted {
    fn at_desk(&mut self, work: &mut dyn FnMut(&mut EvalDesk)) {
        self.0.shared.at_desk(work);
    }

    fn stop(&mut self) {
        self.0.end();
    }
}
