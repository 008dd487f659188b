//! Divergent fragments that arrive when the run is about to end.

use std::{
    sync::{Arc, Condvar, Mutex},
    thread,
};

use rollmesh::{
    Registry,
    hub::{Hub, HubConfig, OnDivergence},
    train::{RunConfig, RunEnd, RunRequest},
};
use rollmesh_core::{
    column::{DType, RowShape},
    env::{Env, EnvError, EnvSpec, EnvState, Rng, Step, Vectorized},
    protocol::{Message, Role},
    space::Space,
};

use tokio::sync::watch;

use super::{
    TestHub,
    divergent::{flip_a_reward, token_of_page, watchful},
    end,
    hand_made::HandMade,
    small,
};
use crate::support::{client::hello, soon};

/// Env steps of an iteration.
const ROUND: u64 = 12 * 16;

/// A gate that is open while fragments may be replayed.
struct Gate(Mutex<bool>, Condvar);

impl Gate {
    /// Returns a closed gate; every test has its own.
    fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::new(false), Condvar::new()))
    }

    fn open(&self) {
        *self.0.lock().unwrap() = true;
        self.1.notify_all();
    }

    fn pass(&self) {
        drop(self.1.wait_while(self.0.lock().unwrap(), |is_open| !*is_open).unwrap());
    }
}

/// An environment that counts its actions.
struct Counting {
    t: u8,
    on_step: Arc<dyn Fn() + Send + Sync>,
}

impl Env for Counting {
    type Obs = f32;
    type Act = i64;

    fn observation_space(&self) -> Space {
        Space::uniform(DType::F32, RowShape::new(&[1]).unwrap(), 0.0, 1.0)
    }

    fn action_space(&self) -> Space {
        Space::Discrete { n: 2 }
    }

    fn reset(&mut self, _rng: &mut Rng, obs: &mut [f32]) -> Result<(), EnvError> {
        (self.t, obs[0]) = (0, 0.0);
        Ok(())
    }

    fn step(&mut self, action: &[i64], _rng: &mut Rng, obs: &mut [f32]) -> Result<Step, EnvError> {
        (self.on_step)();
        self.t += 1;
        obs[0] = f32::from(self.t) / 10.0;
        Ok(Step { reward: action[0] as f64, terminated: self.t == 10, truncated: false })
    }

    fn snapshot(&self, out: &mut Vec<u8>) -> EnvState {
        out.push(self.t);
        EnvState::Snapshot
    }

    fn restore(&mut self, snapshot: &[u8], obs: &mut [f32]) -> Result<(), EnvError> {
        let &[t] = snapshot else { return Err(EnvError::BadSnapshot(snapshot.len())) };
        (self.t, obs[0]) = (t, f32::from(t) / 10.0);
        Ok(())
    }
}

/// Returns a registry with an environment whose audits have to wait.
fn registry(gate: &Arc<Gate>) -> Registry {
    let gate = gate.clone();
    counting("Gated-v0", move || {
        if thread::current().name() == Some("audits") {
            gate.pass();
        }
    })
}

/// Returns a registry with an environment that calls this in every step.
pub(crate) fn counting(name: &str, on_step: impl Fn() + Send + Sync + 'static) -> Registry {
    let on_step: Arc<dyn Fn() + Send + Sync> = Arc::new(on_step);
    Registry::builtin().with_env(EnvSpec::fallible(name, move |contexts, _| {
        let env = || Counting { t: 0, on_step: on_step.clone() };
        Ok(Box::new(Vectorized::new(contexts.iter().map(|_| env()).collect())))
    }))
}

async fn start(registry: &Registry) -> TestHub {
    let secured = |config| HubConfig { security: watchful(1.0, OnDivergence::RollBack), ..config };
    TestHub::start_by("127.0.0.1:0", |config| async { Hub::start(secured(config), registry).await }).await
}

fn gated(config: &mut RunConfig) {
    config.rollout.env = Some("Gated-v0".into());
}

#[tokio::test]
async fn run_does_not_end_before_the_last_divergent_fragment_is_found() {
    let gate = Gate::new();
    let registry = registry(&gate);
    let mut hub = start(&registry).await;
    let run = hub.train_with(small(0, 3 * ROUND), gated).await;
    let mut divergent = HandMade::join_with(&hub, token_of_page(&hub).await, "browser", registry.envs.clone()).await;
    let last = divergent.upload_after(2).await;
    divergent.client.say(&Message::FragmentUpload(divergent.changed(&last, flip_a_reward))).await;
    let status = hub.status("all iterations", |status| status.iteration == 3).await;
    assert_eq!(status.env_steps, 3 * ROUND);
    gate.open();
    let line = hub.notice("the run goes back").await;
    // Nothing of it had been replayed when later snapshots were taken.
    assert!(line.contains(" from iteration 3 to 0"), "{line}");
    let mut honest = HandMade::join_with(&hub, token_of_page(&hub).await, "browser", registry.envs.clone()).await;
    let summary = tokio::select! {
        summary = end(run) => summary,
        () = honest.stay() => panic!("an honest tab was thrown out"),
    };
    assert_eq!((summary.end, summary.env_steps), (RunEnd::Finished, 3 * ROUND));
    assert_eq!((summary.tainted, summary.unaudited), (false, 0));
    hub.hub.shutdown().await;
}

#[tokio::test]
async fn divergent_fragment_found_after_the_end_taints_the_run() {
    let gate = Gate::new();
    let registry = registry(&gate);
    let mut hub = start(&registry).await;
    let run = hub.train_with(small(0, 1_000_000_000), gated).await;
    let token = token_of_page(&hub).await;
    let mut divergent = HandMade::join_with(&hub, token, "browser", registry.envs.clone()).await;
    let lie = divergent.upload_after(1).await;
    divergent.client.say(&Message::FragmentUpload(divergent.changed(&lie, flip_a_reward))).await;
    hub.status("the false fragment in a batch", |status| status.iteration == 2).await;
    hub.hub.stop_run().await;
    // The run does not wait for the recomputation: the summary says so.
    let summary = end(run).await;
    assert_eq!((summary.end, summary.env_steps, summary.tainted), (RunEnd::Stopped, 2 * ROUND, false));
    assert_eq!(summary.unaudited, 2 * 12);
    gate.open();
    hub.notice("the run that has ended contains rows of a quarantined principal: it is tainted").await;
    let mut again = hub.connect().await;
    again.say(&Message::Hello(hello(Role::Worker, token))).await;
    assert!(again.refusal().await.is_some(), "its token is revoked");
    hub.hub.shutdown().await;
}

#[tokio::test]
async fn hub_that_is_about_to_exit_rolls_back_first() {
    let (replayed, mut audited) = watch::channel(0);
    let registry = counting("Counted-v0", move || {
        if thread::current().name() == Some("audits") {
            replayed.send_modify(|steps| *steps += 1);
        }
    });
    let mut hub = start(&registry).await;
    let directory = tempfile::tempdir().unwrap();
    let run_dir = Some(directory.path().join("run"));
    let request = RunRequest { run_dir, ..small(0, 1_000_000_000) };
    let run = hub.train_with(request, |config| config.rollout.env = Some("Counted-v0".into())).await;
    let token = token_of_page(&hub).await;
    let mut divergent = HandMade::join_with(&hub, token, "browser", registry.envs.clone()).await;
    let lie = divergent.upload_after(3).await;
    // Of a principal whose honest fragments are still in doubt, earlier snapshots are kept instead.
    soon("audits of the honest fragments", audited.wait_for(|steps| *steps >= 3 * ROUND)).await.unwrap();
    let lie = divergent.changed(&lie, flip_a_reward);
    let said = async {
        hub.hub.traffic().await;
        divergent.client.say(&Message::FragmentUpload(lie)).await;
    };
    tokio::join!(biased; hub.hub.drain(), said);
    let line = hub.notice("the run goes back").await;
    let summary = end(run).await;
    assert_eq!((summary.end, summary.env_steps, summary.tainted), (RunEnd::Drained, 3 * ROUND, false), "{line}");
    hub.hub.shutdown().await;
}
