//! Workers behind a network with every kind of fault.

use std::{
    fs::File,
    net::TcpListener,
    time::{Duration, Instant},
};

use rollmesh::{WorkerGroup, control::Control, hub::SecurityConfig, worker_group::Placement};
use rollmesh_core::{protocol::WorkerState, worker::RolloutConfig};
use tokio::time::sleep;

use super::{
    behind::check_samples_under_faults,
    proxy::{InjectedFault, Proxy, Way, Weather},
    rig::{Dice, Outcome, Rig, calm, listen_until, watch},
};
use crate::support::{
    Process, is_long,
    process::{Invitation, Signal},
    until,
};

/// A run without local workers, and up to two workers of which each has a network of its own.
struct Scene {
    rig: Rig,
    run: Process,
    hub: Invitation,
    proxies: Vec<Proxy>,
    workers: Vec<Process>,
}

/// Env steps of a slot per fragment: uploads are large enough to be distinguished from other frames.
const LENGTH: u64 = 64;

/// Returns the address on which a hub really listens.
fn listens_at(rig: &Rig) -> String {
    let audit = rig.audit();
    let started = audit.iter().find(|line| line["event"] == "started").unwrap();
    started["address"].as_str().unwrap().into()
}

impl Scene {
    async fn start() -> Self {
        Self::start_with(2, &[]).await
    }

    /// Starts the same with the given number of workers, and more settings.
    async fn start_with(workers: usize, more: &[&str]) -> Self {
        let proxies = vec![Proxy::start().await, Proxy::start().await];
        let hosts = proxies.iter().flat_map(|proxy| ["--public-host".to_owned(), proxy.address.to_string()]);
        let hosts: Vec<String> = hosts.collect();
        let settings: Vec<&str> = more.iter().copied().chain(hosts.iter().map(String::as_str)).collect();
        let rig = Rig::new(0, u64::MAX, LENGTH, &settings);
        let mut run = rig.start();
        let mut hub = run.invitation().await;
        // It prints the address for workers, which is that of the network.
        hub.address = listens_at(&rig);
        let mut scene = Self { rig, run, hub, proxies, workers: Vec::new() };
        (0..workers).for_each(|_| scene.add_worker());
        until("an iteration", || scene.rig.iterations() > 0).await;
        scene
    }

    /// Starts the next worker. Files next to the run's directory are for the first.
    fn add_worker(&mut self) {
        let (hub, proxy) = (&self.hub, &self.proxies[self.workers.len()]);
        proxy.lead_to(hub.address.parse().unwrap());
        let args = ["worker", "--hub", &format!("ws://{}", proxy.address)];
        let worker = Process::start_program(std::env::current_exe().unwrap(), args, |command| {
            command.env("ROLLMESH_TOKEN", &hub.worker_token);
            if self.workers.is_empty() {
                command.env("ROLLMESH_CHAOS_DIR", self.rig.sibling(""));
            }
        });
        self.workers.push(worker);
    }

    async fn some_iterations(&self, count: u64) {
        let then = self.rig.iterations();
        until("iterations", || self.rig.iterations() >= then + count).await;
    }

    async fn end(self) -> Outcome {
        self.end_as(&[]).await
    }

    /// Ends the run, whose result must be that of an undisturbed run with these settings.
    async fn end_as(self, more: &[&str]) -> Outcome {
        self.run.signal(Signal::TERM);
        self.run.finish_with(0).await;
        for worker in self.workers {
            worker.signal(Signal::KILL);
            worker.finish().await;
        }
        let found = self.rig.outcome();
        found.must_equal(&calm(found.env_steps, 1, LENGTH, more).await);
        found
    }
}

/// Returns whether a worker counts as hung.
fn is_hung(hub: &Control) -> bool {
    hub.workers().values().any(|row| row.state == WorkerState::Hung.to_wire())
}

/// Returns whether both workers are connected, and neither hangs.
fn is_whole(hub: &Control) -> bool {
    hub.workers().len() == 2 && !is_hung(hub)
}

/// Injects every fault by itself, and then all of them at random.
pub(crate) async fn injected_network_faults_change_no_weights() {
    let ms = |millis| Way::Late(Duration::from_millis(millis));
    let scene = Scene::start().await;
    for fault in [InjectedFault::Cut, InjectedFault::ResetMidFrame, InjectedFault::Twice, InjectedFault::Replay] {
        let (hits, connections) = (scene.proxies[0].hits(), scene.proxies[0].connections());
        assert!(scene.proxies[0].hit(fault));
        until("a hit", || scene.proxies[0].hits() > hits).await;
        if fault != InjectedFault::Twice {
            until("another connection", || scene.proxies[0].connections() > connections).await;
        }
        scene.some_iterations(3).await;
    }
    let mut dice = Dice::new();
    let rounds = if is_long() { 60 } else { 4 };
    for _ in 0..rounds {
        let proxy = &scene.proxies[dice.below(2)];
        let ways = [Way::Clear, ms(5), ms(50), Way::Trickle, Way::Held];
        proxy.set(Weather { up: ways[dice.below(5)], down: ways[dice.below(5)] });
        sleep(Duration::from_millis(dice.below(700) as u64)).await;
        let _ = proxy.hit(
            [InjectedFault::Cut, InjectedFault::ResetMidFrame, InjectedFault::Twice, InjectedFault::Replay]
                [dice.below(4)],
        );
        sleep(Duration::from_millis(dice.below(700) as u64)).await;
        proxy.set(Weather::CLEAR);
    }
    scene.some_iterations(5).await;
    let hits: u64 = scene.proxies.iter().map(Proxy::hits).sum();
    let connections: u64 = scene.proxies.iter().map(Proxy::connections).sum();
    let found = scene.end().await;
    let uninvited = found.ledger.uninvited;
    println!(
        "{} env steps over {connections} connections with {hits} injected faults; of {} that were lost, and what was not wanted: \
         {uninvited:?}",
        found.env_steps,
        found.ledger.granted - found.ledger.committed,
    );
    assert!(uninvited.rejected.late + uninvited.rejected.duplicate + uninvited.superseded > 0, "{uninvited:?}");
}

/// Runs the worker of a group behind such a network.
pub(crate) async fn group_samples_the_same_behind_such_a_network() {
    let proxy = Proxy::start().await;
    let config = RolloutConfig::new("CartPole-v1").num_envs(4).rollout_fragment_length(50).fcnet_hiddens(&[8]);
    let group = |placement| WorkerGroup::builder(config.clone()).num_workers(1).placement(placement);
    let security = SecurityConfig { hosts: vec![proxy.address.to_string()], ..SecurityConfig::default() };
    // Its address is that of the network, so a port that was free is the real one.
    let listen = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let behind = group(Placement::Remote).security(security).listen(listen).build().unwrap();
    proxy.lead_to(listen);
    let args = ["worker", "--hub", &format!("ws://{}", proxy.address)];
    let token = behind.worker_token().unwrap().to_hex();
    let worker = Process::start_program(std::env::current_exe().unwrap(), args, |command| {
        command.env("ROLLMESH_TOKEN", token);
    });
    let calm = group(Placement::Threads).build().unwrap();
    // The group's calls block, and the network needs this thread.
    let sampled = tokio::task::spawn_blocking(move || check_samples_under_faults(behind, calm, &proxy)).await;
    worker.signal(Signal::KILL);
    let worker = worker.finish().await;
    assert!(sampled.is_ok(), "{sampled:?} {}", worker.stderr);
}

/// Cuts off a worker's connection without notice: first in both directions, then in one.
pub(crate) async fn dead_connections_are_detected_by_their_leases() {
    let scene = Scene::start().await;
    let mut hub = watch(&scene.hub).await;
    hub.until("both workers", |hub| hub.workers().len() == 2).await.unwrap();
    scene.some_iterations(5).await;
    let held = Duration::from_secs(if is_long() { 25 } else { 1 });
    let mut longest = Duration::ZERO;
    for weather in [
        Weather { up: Way::Held, down: Way::Held },
        Weather { up: Way::Held, down: Way::Clear },
        Weather { up: Way::Clear, down: Way::Held },
    ] {
        scene.proxies[0].set(weather);
        let began = Instant::now();
        hub.until("the other one to be found", is_hung).await.unwrap();
        longest = longest.max(began.elapsed());
        let (then, since) = (scene.rig.iterations(), Instant::now());
        let is_enough = || scene.rig.iterations() >= then + 5 && since.elapsed() >= held;
        listen_until(&mut hub, "iterations", is_enough).await;
        scene.proxies[0].set(Weather::CLEAR);
        hub.until("both workers", is_whole).await.unwrap();
        let then = scene.rig.iterations();
        listen_until(&mut hub, "iterations", || scene.rig.iterations() >= then + 5).await;
    }
    assert!(longest < Duration::from_secs(5), "{longest:?}");
    let found = scene.end().await;
    let uninvited = found.ledger.uninvited;
    // In the long form the cut lasts longer than the hub waits for a silent peer, so that no upload arrives late.
    assert!(is_long() || uninvited.rejected.late > 0, "{uninvited:?}");
    println!("cut off workers were found after {longest:?} at most; {uninvited:?}");
}

/// Stops a worker in the middle of a lease. When it resumes, another worker has the lease, of which it is not
/// notified.
pub(crate) async fn late_upload_of_a_stopped_worker_is_refused() {
    const ENV: [&str; 2] = ["--env", "Stuck-v0"];
    // No hedge helps it, so that its lease expires.
    let mut scene = Scene::start_with(1, &ENV).await;
    let mut hub = watch(&scene.hub).await;
    let (trap, way) = (scene.rig.sibling("trap"), scene.rig.sibling("way"));
    File::create_new(&trap).unwrap();
    listen_until(&mut hub, "a worker in the trap", || !trap.exists()).await;
    scene.workers[0].signal(Signal::STOP);
    scene.proxies[0].set(Weather { up: Way::Clear, down: Way::Held });
    hub.until("it to be found", is_hung).await.unwrap();
    scene.add_worker();
    let then = scene.rig.iterations();
    listen_until(&mut hub, "iterations", || scene.rig.iterations() >= then + 3).await;
    File::create_new(&way).unwrap();
    scene.workers[0].signal(Signal::CONT);
    hub.until("what comes late", |hub| hub.ledger().ledger.uninvited.rejected.late > 0).await.unwrap();
    scene.proxies[0].set(Weather::CLEAR);
    hub.until("both workers", is_whole).await.unwrap();
    let then = scene.rig.iterations();
    listen_until(&mut hub, "iterations", || scene.rig.iterations() >= then + 3).await;
    let found = scene.end_as(&ENV).await;
    let uninvited = found.ledger.uninvited;
    assert!(uninvited.rejected.late > 0, "{uninvited:?}");
    println!("a stopped worker brought {} fragments too late", uninvited.rejected.late);
}

/// Checks that a flipped bit under TLS ends the connection, and nothing else.
pub(crate) async fn flipped_bit_under_tls_ends_only_the_connection() {
    let proxy = Proxy::start().await;
    let address = proxy.address.to_string();
    let rig = Rig::new(0, u64::MAX, LENGTH, &["--tls-self-signed", "--public-host", &address]);
    let mut run = rig.start();
    let line = run.line("rollmesh worker --hub wss://").await;
    let token = line.split_once("ROLLMESH_TOKEN=").unwrap().1.split(' ').next().unwrap();
    let fingerprint = line.rsplit(' ').next().unwrap();
    proxy.lead_to(listens_at(&rig).parse().unwrap());
    let url = format!("wss://{address}");
    let args = ["worker", "--hub", &url, "--tls-fingerprint", fingerprint];
    let worker = Process::start_with(args, |command| _ = command.env("ROLLMESH_TOKEN", token));
    until("an iteration", || rig.iterations() > 0).await;
    let flips = if is_long() { 100 } else { 3 };
    for flip in 0..flips {
        let (hits, connections) = (proxy.hits(), proxy.connections());
        assert!(proxy.hit(if flip % 2 == 0 { InjectedFault::FlipUp } else { InjectedFault::FlipDown }));
        until("a flipped bit", || proxy.hits() > hits).await;
        until("another connection", || proxy.connections() > connections).await;
        let then = rig.iterations();
        until("iterations", || rig.iterations() >= then + 2).await;
    }
    run.signal(Signal::TERM);
    run.finish_with(0).await;
    worker.signal(Signal::KILL);
    worker.finish().await;
    let found = rig.outcome();
    found.must_equal(&calm(found.env_steps, 1, LENGTH, &[]).await);
    println!(
        "{flips} flipped bits, {} connections, {} of {} env steps regenerated",
        proxy.connections(),
        found.ledger.granted - found.ledger.committed,
        found.ledger.granted,
    );
}
