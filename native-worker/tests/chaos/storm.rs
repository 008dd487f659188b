//! Hundreds of workers that reconnect at the same time.

use std::time::{Duration, Instant};

use futures_util::{FutureExt as _, SinkExt as _, StreamExt as _};
use rollmesh::kernels::AUTO;
use rollmesh_core::{
    protocol::{Role, Token, handshake::Identity, reconnect_delay},
    time::Micros,
    worker::{Registry, WorkerSession, core_fingerprint},
};
use tokio::{
    sync::watch,
    task::{LocalSet, spawn_local, yield_now},
};
use tokio_tungstenite::{
    connect_async_with_config,
    tungstenite::{Bytes, Message as Frame},
};

use super::rig::{Rig, calm_with_slots, listen_until, watch};
use crate::support::{is_long, process::Signal};

const WORKERS: usize = 200;
const LENGTH: u64 = 8;

/// A worker without a process of its own.
#[derive(Clone)]
struct Light {
    hub: String,
    token: Token,
    fingerprint: [u8; 16],
    number: u32,
}

impl Light {
    /// Works until the hub ends the session. Loses its connection in every storm.
    async fn work(self, mut storms: watch::Receiver<u64>) {
        let mut failures = 0;
        loop {
            let is_over = tokio::select! {
                is_over = self.serve() => is_over,
                _ = storms.changed() => {
                    // All of them at the same time, without any pause.
                    failures = 0;
                    continue;
                }
            };
            if is_over {
                return;
            }
            failures += 1;
            let pause = reconnect_delay(failures, self.number.wrapping_mul(0x9e37_79b9));
            tokio::time::sleep(Duration::from_micros(pause.0)).await;
        }
    }

    /// Works as long as the connection lasts. Returns true once it must not reconnect.
    async fn serve(&self) -> bool {
        let Ok((mut socket, _)) = connect_async_with_config(format!("ws://{}/ws", self.hub), None, true).await else {
            return false;
        };
        let identity = Identity::new(Role::Worker, self.token, "native", &format!("light-{}", self.number), "cpu");
        let identity = Identity { core_fingerprint: self.fingerprint, ..identity };
        let mut session = WorkerSession::new(identity, Registry::builtin(), AUTO);
        let epoch = Instant::now();
        loop {
            while let Some(frame) = session.poll_frame() {
                if socket.send(Frame::Binary(Bytes::from_owner(frame))).await.is_err() {
                    return false;
                }
            }
            let heard = if session.has_work() {
                session.work(16, Micros(epoch.elapsed().as_micros() as u64));
                yield_now().await;
                socket.next().now_or_never()
            } else {
                Some(socket.next().await)
            };
            match heard {
                None | Some(Some(Ok(Frame::Ping(_) | Frame::Pong(_)))) => {}
                Some(Some(Ok(Frame::Binary(bytes)))) => session.handle_frame(&bytes),
                Some(Some(Ok(Frame::Close(frame)))) => return frame.is_some_and(|frame| u16::from(frame.code) == 1001),
                Some(_) => return false,
            }
        }
    }
}

pub(crate) async fn two_hundred_workers_that_reconnect_together_change_nothing() {
    LocalSet::new().run_until(storms(if is_long() { 20 } else { 2 })).await;
}

async fn storms(count: u64) {
    let rig = Rig::with_slots(WORKERS as u64, 0, u64::MAX, LENGTH, &[]);
    let mut run = rig.start();
    let invitation = run.invitation().await;
    let mut hub = watch(&invitation).await;
    let (storm, _) = watch::channel(0u64);
    let token = Token::from_hex(&invitation.worker_token).unwrap();
    let fingerprint = core_fingerprint(AUTO);
    for number in 0..WORKERS as u32 {
        let worker = Light { hub: invitation.address.clone(), token, fingerprint, number };
        spawn_local(worker.work(storm.subscribe()));
    }
    hub.until("all workers", |hub| hub.workers().len() == WORKERS).await.unwrap();
    let mut longest = Duration::ZERO;
    for _ in 0..count {
        let then = rig.iterations();
        listen_until(&mut hub, "iterations", || rig.iterations() > then + 1).await;
        let newest = hub.workers().keys().last().copied().unwrap_or_default();
        let began = Instant::now();
        storm.send_modify(|count| *count += 1);
        let are_back = |hub: &rollmesh::control::Control| {
            hub.workers().len() == WORKERS && hub.workers().keys().all(|&worker| worker > newest)
        };
        hub.until("all workers", are_back).await.unwrap();
        longest = longest.max(began.elapsed());
    }
    let then = rig.iterations();
    listen_until(&mut hub, "iterations", || rig.iterations() > then + 1).await;
    run.signal(Signal::TERM);
    // The workers have to finish their leases meanwhile.
    run.finish_with(0).await;
    let found = rig.outcome();
    found.must_equal(&calm_with_slots(WORKERS as u64, found.env_steps, 1, LENGTH, &[]).await);
    println!(
        "{count} storms of {WORKERS} workers: all were back after {longest:?} at most; {} of {} env steps were lost",
        found.ledger.granted - found.ledger.committed,
        found.ledger.granted,
    );
    assert!(found.ledger.expired.left > 0, "{:?}", found.ledger);
}
