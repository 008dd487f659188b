//! Transport of uploads and weights.

use super::*;
use crate::{
    env::{Env, EnvError, EnvSpec, Step, Vectorized},
    protocol::FailureKind,
    rng::Rng,
    sampler::BatchMode,
    space::Space,
};

#[test]
fn a_large_upload_waits_for_credit_and_holds_the_next_lease_back() {
    let mut hub = Hub::new();
    hub.spec = spec().rollout_fragment_length(10_000);
    hub.shake_hands();
    hub.send(&Message::RunStart(RunStart { run: RUN, config: hub.spec.to_wire() }));
    let slots = new_slots(&[0, 1, 2, 3, 4, 5, 6, 7]);
    let (first, second) = (lease(1, 0, 0, &slots), lease(2, 0, 0, &slots));
    hub.grant(&first);
    while hub.session.has_work() {
        hub.session.work(u32::MAX, hub.now);
    }
    hub.grant(&second);
    assert!(!hub.session.has_work());
    assert_eq!(hub.session.counters().leases_done, 1);
    let mut messages = hub.receive();
    assert_eq!(messages, []);
    while let Some(credit) = hub.inbox.take_credit_due() {
        hub.send(&Message::Credit(credit));
        messages.extend(hub.receive());
    }
    let [Message::FragmentUpload(upload)] = &messages[..] else { panic!("{} messages", messages.len()) };
    assert!(upload.data.len() > MAX_BACKLOG_BYTES);
    assert_eq!(convert::slot_fragments(upload, RUN, &first, &limits(&hub.spec)).unwrap().len(), 8);
    assert!(hub.session.has_work());
}

#[test]
fn uploads_over_a_slow_link_are_compressed() {
    let mut hub = Hub::new();
    hub.spec = spec().rollout_fragment_length(10_000);
    hub.shake_hands();
    hub.send(&Message::RunStart(RunStart { run: RUN, config: hub.spec.to_wire() }));
    let slots = [0, 1, 2, 3, 4, 5, 6, 7];
    let mut kinds = Vec::new();
    for fragment in 0..3 {
        let source = if fragment == 0 { SlotSource::New } else { SlotSource::Held };
        let slots: Vec<_> = slots.iter().map(|&slot| (slot, source.clone())).collect();
        let lease = lease(1 + fragment, fragment, 0, &slots);
        hub.grant(&lease);
        while hub.session.has_work() {
            hub.session.work(u32::MAX, hub.now);
        }
        let mut messages = hub.receive();
        // Each credit of half a megabyte takes 50 ms.
        while let Some(credit) = hub.inbox.take_credit_due() {
            hub.now = hub.now + Micros::from_millis(50);
            hub.session.set_time(hub.now);
            hub.send(&Message::Credit(credit));
            messages.extend(hub.receive());
        }
        let [upload] = &messages[..] else { panic!("{} messages", messages.len()) };
        kinds.push(upload.kind());
        let upload = match upload {
            Message::CompressedUpload(upload) => convert::decompressed(upload).unwrap(),
            upload => upload.clone(),
        };
        let Message::FragmentUpload(upload) = upload else { panic!("{:?}", upload.kind()) };
        assert_eq!(convert::slot_fragments(&upload, RUN, &lease, &limits(&hub.spec)).unwrap().len(), 8);
    }
    use crate::protocol::Kind::{CompressedUpload, FragmentUpload};
    assert_eq!(kinds, [FragmentUpload, CompressedUpload, CompressedUpload], "the first upload shows how slow it is");
}

#[test]
fn weights_of_a_relay_act_only_if_the_hub_has_announced_them() {
    let mut hub = Hub::with_run();
    hub.receive();
    let frame = convert::weights_frame(RUN, &weights(3)).unwrap();
    let notice = WeightsNotice { run: RUN, version: 3, bytes: frame.num_bytes() as u32, hash: frame.sha256() };
    let (of_hub, other) = ([weights(3), weights(4)])
        .map(|weights| Message::WeightsUpdate(convert::weights_update(RUN, &weights)).encode())
        .into();
    let request = Message::WeightsRequest(WeightsRequest { run: RUN });
    for bad in [None, Some(&other[..]), Some(&of_hub[1..])] {
        hub.send(&Message::WeightsNotice(notice));
        assert_eq!(hub.session.poll_notice(), Some(notice));
        hub.session.take_relayed(&notice, bad);
        assert_eq!((hub.receive(), &hub.applied), (vec![request.clone()], &vec![]));
    }
    assert_eq!(hub.session.poll_notice(), None);
    hub.session.take_relayed(&WeightsNotice { run: RUN + 1, ..notice }, None);
    hub.session.take_relayed(&notice, Some(&of_hub));
    assert_eq!((hub.receive(), &hub.applied), (vec![], &vec![3]));
}

#[test]
fn weights_of_halves_act_as_they_are() {
    let mut hub = Hub::with_run();
    let halves = weights(2).in_halves();
    hub.send(&Message::HalfWeightsUpdate(convert::half_weights_update(RUN, &halves)));
    hub.receive();
    assert_eq!(hub.applied, [2]);
    hub.send(&Message::HalfWeightsUpdate(convert::half_weights_update(RUN + 1, &weights(3).in_halves())));
    hub.receive();
    assert_eq!(hub.applied, [2], "another run's");
}

/// Observes many numbers, in episodes of a hundred steps.
struct Wide(u32);

impl Env for Wide {
    type Obs = f32;
    type Act = i64;

    fn observation_space(&self) -> Space {
        Space::vector(&[0.0; 1 << 16], &[1.0; 1 << 16])
    }

    fn action_space(&self) -> Space {
        Space::Discrete { n: 2 }
    }

    fn reset(&mut self, _rng: &mut Rng, obs: &mut [f32]) -> Result<(), EnvError> {
        self.0 = 0;
        obs.fill(0.0);
        Ok(())
    }

    fn step(&mut self, _action: &[i64], _rng: &mut Rng, obs: &mut [f32]) -> Result<Step, EnvError> {
        self.0 += 1;
        obs.fill(0.5);
        Ok(Step { terminated: self.0 == 100, ..Step::default() })
    }
}

/// The length of episodes is unknown when the run begins, so the estimate of an upload counts one step.
#[test]
fn fragment_of_a_long_episode_that_fits_into_no_upload_fails_with_advice() {
    let wide =
        EnvSpec::new("Wide-v0", |contexts, _| Box::new(Vectorized::new(contexts.iter().map(|_| Wide(0)).collect())));
    let registry = Registry::builtin().with_env(wide);
    let mut hub = Hub::new();
    hub.session = hub.session.with_workers(move || RolloutWorkerBuilder::new(registry.clone()));
    hub.shake_hands();
    let mut run = RunConfig::new("Wide-v0").slots(1).rollout_fragment_length(1);
    run.rollout = RolloutConfig { batch_mode: BatchMode::CompleteEpisodes, ..run.rollout.single_policy("random") };
    hub.send(&Message::RunStart(RunStart { run: RUN, config: run.to_wire() }));
    hub.grant(&lease(1, 0, 0, &new_slots(&[0])));
    let messages = hub.work();
    assert_eq!(hub.answers, [Ok(())]);
    let Some(Message::LeaseRefused(refused)) = messages.last() else { panic!("{messages:?}") };
    let failure = refused.failure().unwrap();
    assert_eq!((failure.kind, failure.slot), (FailureKind::Fragment, Some(SlotId(0))));
    let (size, advice) = failure.message().split_once("; ").unwrap();
    assert!(size.starts_with("AgentUpload of 5") && advice.contains("`horizon`"), "{failure}");
}
