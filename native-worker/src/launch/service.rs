//! A launcher as a program: it connects to a hub, and starts and ends workers for it from a [template](Template).
//!
//! The hub owns all decisions: how many workers there are, and which are replaced. This side owns the processes, and
//! restarts none by itself. If the connection is lost, workers continue for as long as the hub expects their launcher
//! back, and the launcher reports the workers that are still running when it returns.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    path::PathBuf,
    process::ExitStatus,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use rollmesh_core::{
    protocol::{
        Connection, ConnectionEnd, Message, RefusalCode, Role, Token,
        handshake::Identity,
        message::{LaunchWorker, LauncherReady, WorkerEnded},
    },
    worker::WorkerSpec,
};
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::{Instant as TokioInstant, sleep_until, timeout},
};

use super::{
    LaunchedEnd,
    engine::{LaunchEngine, StartOrder, Template, cancel},
    supervised::SupervisedChild,
};
use crate::net::{FollowedToken, LAUNCHER_ABSENCE, Linked, PeerEnd, Route, Trust, asked, reconnect};

/// Time for all workers to end when the launcher ends.
const FAREWELL: Duration = Duration::from_secs(15);
/// A worker that ends sooner than this counts against its machine, …
const SHORT_LIFE: Duration = Duration::from_secs(15);
/// … which is then used last for this long.
const DOUBT: Duration = Duration::from_secs(60);
/// Maximum number of characters of the status of a worker that has ended.
const MAX_STATUS: usize = 500;
/// Exit codes of programs that panicked or were aborted by a fault, as shells and engines report them.
const CRASHES: [i32; 6] = [101, 132, 134, 135, 136, 139];

/// Configuration of a launcher.
#[derive(Debug)]
pub(crate) struct LauncherConfig {
    pub(crate) hub: String,
    pub(crate) trust: Trust,
    pub(crate) token: Token,
    /// The file of the token, which may get another one.
    pub(crate) token_file: Option<PathBuf>,
    /// Identifies it at the hub, together with its token.
    pub(crate) name: String,
    pub(crate) template: Template,
    /// Maximum number of workers at the same time, on each machine if the engine has several.
    pub(crate) capacity: u32,
    /// The time within which a worker has to join the hub.
    pub(crate) token_seconds: u32,
}

/// The reason that a launcher has ended.
#[derive(Debug)]
pub(crate) enum LauncherEnd {
    /// The hub refuses it permanently, or is not trusted.
    Refused(String),
    /// It was asked to end.
    Asked,
}

/// A machine, or another place on which an engine starts workers.
#[derive(Debug)]
struct LaunchMachine {
    /// The machine's name, if the engine has several.
    host: Option<String>,
    running: u32,
    failed_at: Option<Instant>,
}

/// A worker whose command runs.
#[derive(Debug)]
struct LaunchedCommand {
    /// The index of its machine.
    machine: usize,
    /// Ends it when this is dropped; `None` once it was commanded to end.
    keeps: Option<oneshot::Sender<()>>,
}

struct LaunchService {
    config: LauncherConfig,
    machines: Vec<LaunchMachine>,
    workers: BTreeMap<u64, LaunchedCommand>,
    ended: mpsc::Sender<(WorkerEnded, Duration)>,
}

/// Serves a hub until `leave` is true, reconnecting as needed. `say` prints messages for users.
pub(crate) async fn serve(config: LauncherConfig, mut leave: watch::Receiver<bool>, say: impl Fn(&str)) -> LauncherEnd {
    let (ended, mut ends) = mpsc::channel(64);
    let hosts = match &config.template.engine {
        LaunchEngine::Ssh(hosts) => hosts.iter().cloned().map(Some).collect(),
        _ => vec![None],
    };
    let machines = hosts.into_iter().map(|host| LaunchMachine { host, running: 0, failed_at: None }).collect();
    let (hub, trust) = (config.hub.clone(), config.trust.clone());
    let identity = Identity::new(Role::Launcher, config.token, "native", &config.name, config.template.engine.name());
    let mut connection = Connection::new(identity).staying();
    let mut tokens = FollowedToken::new(config.token, config.token_file.clone());
    let mut service = LaunchService { config, machines, workers: BTreeMap::new(), ended };
    let (mut lost, mut lost_at) = (None, TokioInstant::now());
    let end = loop {
        // Then the hub has removed the workers, or does not return.
        let absent = sleep_until(lost_at + LAUNCHER_ABSENCE);
        let socket = {
            let connecting = reconnect(Route::direct(&hub, &trust), &mut connection, lost, &mut leave, &say);
            tokio::pin!(connecting);
            tokio::select! {
                socket = &mut connecting => socket,
                () = absent => {
                    service.release_all();
                    connecting.await
                }
            }
        };
        let mut socket = match socket {
            Ok(socket) => socket,
            Err(end) => break LauncherEnd::from(end),
        };
        connection.renew(tokens.latest());
        let mut link = Linked::new(&mut socket, &mut connection);
        let reason = match link.admitted().await {
            Ok(()) => {
                let reason = service.session(&mut link, &mut ends, &mut tokens, &mut leave, &say).await;
                lost_at = TokioInstant::now();
                reason
            }
            Err(reason) => reason,
        };
        if *leave.borrow() {
            break LauncherEnd::Asked;
        }
        lost = Some(reason);
    };
    service.end_all(&mut ends).await;
    end
}

impl From<PeerEnd> for LauncherEnd {
    fn from(end: PeerEnd) -> Self {
        match end {
            PeerEnd::Asked => Self::Asked,
            PeerEnd::Untrusted(reason) => Self::Refused(reason),
            PeerEnd::Over(ConnectionEnd::Refused { code: Some(RefusalCode::Token), .. }) => {
                let advice = "`rollmesh tokens create --role launcher` makes one";
                Self::Refused(format!("the hub does not accept this token: {advice}"))
            }
            PeerEnd::Over(end) => Self::Refused(end.to_string()),
        }
    }
}

impl LaunchService {
    /// Serves the hub that has admitted this launcher. Returns the reason that the connection was lost.
    async fn session(
        &mut self,
        link: &mut Linked<'_>,
        ends: &mut mpsc::Receiver<(WorkerEnded, Duration)>,
        tokens: &mut FollowedToken,
        leave: &mut watch::Receiver<bool>,
        say: &impl Fn(&str),
    ) -> String {
        // Workers that ended meanwhile are not in the list that the hub gets.
        while let Ok((ended, life)) = ends.try_recv() {
            self.forget(&ended, life);
        }
        let lost = tokio::select! {
            lost = self.exchange(link, ends, tokens, say) => lost.err().unwrap_or_default(),
            () = asked(leave) => String::new(),
        };
        if let Some(ConnectionEnd::Closed { .. }) = link.connection.end() {
            // After the hub's goodbye their tokens are invalid.
            self.release_all();
        } else if *leave.borrow() {
            // A hub that does not receive it waits for a while, and then removes this launcher.
            link.leave("it was asked to leave").await;
        }
        lost
    }

    /// Exchanges messages until the connection is lost.
    ///
    /// # Errors
    /// The reason that it was lost.
    async fn exchange(
        &mut self,
        link: &mut Linked<'_>,
        ends: &mut mpsc::Receiver<(WorkerEnded, Duration)>,
        tokens: &mut FollowedToken,
        say: &impl Fn(&str),
    ) -> Result<Infallible, String> {
        link.send(&self.ready()).await?;
        // After the report, so that a command that follows finds the places known.
        say(&format!("serving the hub at {}, with places for {} workers", self.config.hub, self.capacity()));
        loop {
            link.flush().await?;
            let refused = tokio::select! {
                message = link.next() => match message? {
                    Some(Message::LaunchWorker(order)) => self.start(&order).err().map(|status| (order.worker, status)),
                    // Its end is reported.
                    Some(Message::EndWorker(end)) => match self.workers.get_mut(&end.worker) {
                        Some(running) => {
                            running.keeps = None;
                            None
                        }
                        None => Some((end.worker, "it is not running".into())),
                    },
                    // The connection lets no other kind through.
                    Some(_) | None => None,
                },
                Some((ended, life)) = ends.recv() => {
                    self.forget(&ended, life);
                    say(&format!("worker {} ended: {}", ended.worker as u32, ended.status));
                    link.send(&Message::WorkerEnded(ended)).await?;
                    None
                }
                token = tokens.next() => {
                    link.connection.renew(token);
                    // From then on its workers depend on this token.
                    link.send(&self.ready()).await?;
                    None
                }
            };
            if let Some((worker, status)) = refused {
                link.send(&Message::WorkerEnded(WorkerEnded { worker, status, is_crash: false })).await?;
            }
        }
    }

    /// Returns the report of this launcher's state.
    fn ready(&self) -> Message {
        Message::LauncherReady(LauncherReady {
            capacity: self.capacity(),
            token_seconds: self.config.token_seconds,
            running: self.workers.keys().copied().collect(),
        })
    }

    /// Returns how many workers may run at the same time.
    fn capacity(&self) -> u32 {
        self.config.capacity.saturating_mul(self.machines.len() as u32).min(LauncherReady::MAX_WORKERS as u32)
    }

    /// Starts a worker, on the machine with the fewest; machines on which one has just failed come last.
    fn start(&mut self, order: &LaunchWorker) -> Result<(), String> {
        let spec: WorkerSpec = serde_json::from_str(&order.spec)
            .map_err(|error| format!("the hub's specification of the worker is unknown here: {error}"))?;
        if self.workers.contains_key(&order.worker) {
            return Ok(());
        }
        let in_doubt = |machine: &LaunchMachine| machine.failed_at.is_some_and(|at| at.elapsed() < DOUBT);
        let free = self.machines.iter().enumerate().filter(|(_, machine)| machine.running < self.config.capacity);
        let best = free.min_by_key(|(_, machine)| (in_doubt(machine), machine.running));
        let (index, host) = best.map(|(index, machine)| (index, machine.host.clone())).ok_or("all places are taken")?;
        let prefix = host.as_deref().unwrap_or_else(|| match &self.config.template.engine {
            LaunchEngine::Custom(_) => &self.config.name,
            engine => engine.name(),
        });
        let start = StartOrder { name: name_of(prefix, order.number), token: order.token.to_hex(), spec, host };
        let (keeps, stop) = oneshot::channel();
        let (template, ended, worker) = (self.config.template.clone(), self.ended.clone(), order.worker);
        tokio::spawn(async move {
            let began = Instant::now();
            let LaunchedEnd { status, is_crash } = run(&template, &start, stop).await;
            let status = status.chars().take(MAX_STATUS).collect();
            // The service may be over.
            let _ = ended.send((WorkerEnded { worker, status, is_crash }, began.elapsed())).await;
        });
        self.machines[index].running += 1;
        self.workers.insert(worker, LaunchedCommand { machine: index, keeps: Some(keeps) });
        Ok(())
    }

    /// Frees the place of a worker that has ended after this time.
    fn forget(&mut self, ended: &WorkerEnded, life: Duration) {
        let Some(running) = self.workers.remove(&ended.worker) else { return };
        let machine = &mut self.machines[running.machine];
        machine.running -= 1;
        machine.failed_at = (life < SHORT_LIFE && running.keeps.is_some()).then(Instant::now);
    }

    fn release_all(&mut self) {
        self.workers.values_mut().for_each(|worker| worker.keeps = None);
    }

    /// Ends all workers, and waits for them.
    async fn end_all(mut self, ends: &mut mpsc::Receiver<(WorkerEnded, Duration)>) {
        let mut left = self.workers.len();
        self.workers.clear();
        let all = async {
            while left > 0 && ends.recv().await.is_some() {
                left -= 1;
            }
        };
        // Workers that are still running are killed with this process.
        let _ = timeout(FAREWELL, all).await;
    }
}

/// Returns a worker's name; at most 64 printable ASCII characters, which hub and engines accept.
fn name_of(prefix: &str, number: u32) -> String {
    let prefix: String = prefix.chars().filter(|c| c.is_ascii_alphanumeric() || "-_.@".contains(*c)).take(48).collect();
    format!("{prefix}-{number}")
}

/// Runs a worker until it ends, or `stop` is dropped.
async fn run(template: &Template, start: &StartOrder, stop: oneshot::Receiver<()>) -> LaunchedEnd {
    let started = match template.command(start) {
        Ok(started) => started,
        Err(error) => return LaunchedEnd::plain(error.to_string()),
    };
    let program = started.command.get_program().to_string_lossy().into_owned();
    let worker = match SupervisedChild::start(started.command, &started.input).await {
        Ok(worker) => worker,
        Err(error) => return LaunchedEnd::plain(format!("{program} cannot be started: {error}")),
    };
    let is_job = template.engine == LaunchEngine::Sbatch;
    let job = Arc::new(Mutex::new(None));
    let heard_job = job.clone();
    // `sbatch --parsable` prints the number of the job, and a cluster's name behind a semicolon.
    let heard = move |line: &str| {
        let number = line.split(';').next().unwrap_or_default().to_owned();
        heard_job.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(number);
    };
    let stop = async {
        // Nothing is sent: the other end is dropped.
        let _ = stop.await;
        let job = job.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(job) = job.filter(|_| is_job) {
            cancel(&job).await;
        }
    };
    match worker.run(&format!("[{}] ", start.name), heard, stop).await {
        Ok(end) => end_of(&template.engine, &program, end.status, &end.last_line),
        Err(error) => LaunchedEnd::plain(error.to_string()),
    }
}

/// Describes the end of a worker's command. An engine's own failure is no fault inside the worker.
fn end_of(engine: &LaunchEngine, program: &str, status: ExitStatus, last_line: &str) -> LaunchedEnd {
    let end = LaunchedEnd::from(status);
    let is_crash = match engine {
        LaunchEngine::Here => end.is_crash,
        _ => status.code().is_some_and(|code| CRASHES.contains(&code)),
    };
    let said = if last_line.is_empty() || status.success() { String::new() } else { format!(": {last_line}") };
    LaunchedEnd { status: format!("{program}: {}{said}", end.status), is_crash }
}
