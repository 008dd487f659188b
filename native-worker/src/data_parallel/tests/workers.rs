//! Tests of workers with environments of their own.

use std::{
    sync::mpsc,
    thread::{self, JoinHandle},
};

use rollmesh_core::{
    batch::{AnyBatch, MultiAgentBatch},
    ids::PolicyId,
    policy::{AllReduceError, PolicyError},
    protocol::Token,
    time::Micros,
    weights::Weights,
    worker::{
        CommandError, DataParallelConfig, HostFacts as _, NewPolicy, PolicyConfig, Registry, RolloutConfig,
        RolloutError, RolloutWorker, RolloutWorkerBuilder, SgdOptions, WorkerCommand, WorkerPlace,
    },
};

use super::distance;
use crate::{NativeWorker as _, learner::test_support::*};

fn builder(config: RolloutConfig) -> RolloutWorkerBuilder {
    RolloutWorkerBuilder::new(crate::native(Registry::builtin())).config(config).native()
}

fn config(kind: &str, memory: bool) -> RolloutConfig {
    let model = format!(
        r#"{{"lr": 0.001, "model": {{"fcnet_hiddens": [16], "use_lstm": {memory}, "lstm_cell_size": 8, "max_seq_len": 7}}}}"#
    );
    let policy = PolicyConfig::new(kind).with_config(model.parse().unwrap());
    RolloutConfig::new("CartPole-v1").num_envs(3).rollout_fragment_length(40).seed(9).policy(PolicyId::DEFAULT, policy)
}

/// Runs a function for every rank's worker on a thread, after the ranks have joined.
fn workers<R: Send + 'static>(
    world_size: u32,
    make: impl Fn(u32) -> RolloutWorker + Clone + Send + 'static,
    f: impl Fn(u32, RolloutWorker) -> R + Clone + Send + 'static,
) -> Vec<R> {
    loop {
        let port = crate::NativeHost.free_port().unwrap();
        let (failed, failures) = mpsc::channel();
        let threads: Vec<JoinHandle<Option<R>>> = (0..world_size)
            .map(|rank| {
                let (make, f, failed) = (make.clone(), f.clone(), failed.clone());
                thread::spawn(move || {
                    let mut worker = make(rank);
                    let url = format!("tcp://127.0.0.1:{port}");
                    let config = DataParallelConfig::new(url, rank, world_size, Token::new([1; 32]));
                    // As a hub sends it.
                    match worker.execute(WorkerCommand::SetupDataParallel(config)) {
                        Ok(_) => Some(f(rank, worker)),
                        Err(error) => {
                            failed.send(error).unwrap();
                            None
                        }
                    }
                })
            })
            .collect();
        let results: Option<Vec<R>> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        if let Some(results) = results {
            return results;
        }
        // Another process may have taken the port meanwhile.
        drop(failed);
        let errors: Vec<CommandError> = failures.iter().collect();
        let is_taken = |error: &CommandError| error.message.contains("rank 0 cannot listen on ");
        assert!(errors.iter().any(is_taken), "{errors:?}");
    }
}

fn weights_of(worker: &mut RolloutWorker) -> Weights {
    worker.weights(None).unwrap()[&PolicyId::DEFAULT].clone()
}

/// Checks that two workers with half of the environments each equal one with all of them.
#[test]
fn two_workers_with_halves_of_a_batch_equal_one_with_the_whole() {
    for kind in ["pg", "a2c", "ppo"] {
        for memory in [false, true] {
            let make =
                move |rank| builder(config(kind, memory)).place(WorkerPlace::remote(rank + 1, 2)).build().unwrap();
            let run = || {
                workers(2, make, |_, mut worker| {
                    let batches: Vec<AnyBatch> = (0..3)
                        .map(|_| {
                            let batch = worker.sample().unwrap();
                            worker.learn_on_batch(&batch).unwrap();
                            batch
                        })
                        .collect();
                    (batches, weights_of(&mut worker))
                })
            };
            let ranks = run();
            let mut one = builder(config(kind, memory).num_envs(6)).build().unwrap();
            for i in 0..3 {
                let joined = AnyBatch::concat(&[ranks[0].0[i].clone(), ranks[1].0[i].clone()]).unwrap();
                if i == 0 {
                    assert_eq!(one.sample().unwrap().env_steps(), joined.env_steps());
                }
                one.learn_on_batch(&joined).unwrap();
            }
            let apart = distance(&ranks[0].1, &weights_of(&mut one));
            assert!(apart < 1e-6, "{apart} for {kind}, memory {memory}");
            assert_eq!(bits(&ranks[0].1), bits(&ranks[1].1));
            assert_eq!(bits(&run()[0].1), bits(&ranks[0].1), "not a bit may differ between repetitions");
        }
    }
}

/// Checks that weights, moments and the clock come from rank 0, whatever the others had before.
#[test]
fn all_ranks_start_from_the_state_of_rank_0() {
    let all = workers(
        2,
        |rank| {
            let mut worker = builder(config("ppo", false).seed(u64::from(rank))).build().unwrap();
            for _ in 0..rank + 1 {
                let batch = worker.sample().unwrap();
                worker.learn_on_batch(&batch).unwrap();
            }
            worker
        },
        |_, mut worker| {
            let first = worker.save().map(|_| weights_of(&mut worker)).unwrap();
            let batch = worker.sample().unwrap();
            let gradients = worker.compute_gradients(&batch).unwrap();
            assert_eq!(gradients[&PolicyId::DEFAULT].1["batch_count"], 120.0);
            worker.apply_gradients(&gradients.into_iter().map(|(id, (own, _))| (id, own)).collect()).unwrap();
            let (infos, steps) = worker.sample_and_learn(120, &sgd(50)).unwrap();
            assert_eq!(steps, 120);
            (first, infos, weights_of(&mut worker))
        },
    );
    assert_eq!(all[0], all[1]);
    assert_eq!(all[0].0.version().0, 1, "rank 0 had learned once");
    // A step along gradients, and two passes of three minibatches.
    assert_eq!(all[0].2.version().0, 1 + 1 + 2 * 3);
    assert_ne!(bits(&all[0].0), bits(&all[0].2));
}

/// Checks that learning or joining during a sample does not change its weights, as without other ranks.
#[test]
fn sample_in_progress_keeps_its_weights() {
    let make = |rank| builder(config("a2c", false).seed(u64::from(rank))).build().unwrap();
    let all = workers(
        2,
        move |rank| {
            let mut worker = make(rank);
            assert!(worker.sample_within(Micros(0)).unwrap().is_none(), "there is no time for all of it");
            worker
        },
        |_, mut worker| {
            let finish = |worker: &mut RolloutWorker| {
                std::iter::from_fn(|| Some(worker.sample_within(Micros(0)).unwrap())).flatten().next().unwrap()
            };
            let first = finish(&mut worker);
            // Now with rank 0's weights.
            let second = worker.sample().unwrap();
            assert!(worker.sample_within(Micros(0)).unwrap().is_none());
            worker.learn_on_batch(&first).unwrap();
            (first, second, finish(&mut worker))
        },
    );
    for (rank, (first, second, third)) in (0..).zip(all) {
        let mut alone = make(rank);
        assert_eq!(alone.sample().unwrap(), first, "rank {rank}");
        alone.set_weights(&make(0).weights(None).unwrap(), None, None).unwrap();
        assert_eq!(alone.sample().unwrap(), second, "rank {rank}");
        assert_eq!(alone.sample().unwrap(), third, "rank {rank}");
    }
}

fn sgd(minibatch_size: usize) -> SgdOptions {
    SgdOptions { num_sgd_iter: 2, minibatch_size, standardize_fields: vec!["advantages".into()] }
}

/// Covers ranks with different numbers of minibatches; columns are standardised over both.
#[test]
fn samples_of_different_sizes_are_learned_from_together() {
    let run = |minibatch_size| {
        workers(
            2,
            |rank| {
                builder(config("a2c", false).num_envs(rank + 1))
                    .place(WorkerPlace::remote(rank + 1, 2))
                    .build()
                    .unwrap()
            },
            move |rank, mut worker| {
                let (infos, _) = worker.sample_and_learn(40 * (rank as usize + 1), &sgd(minibatch_size)).unwrap();
                (infos, weights_of(&mut worker))
            },
        )
    };
    let small = run(15);
    assert_eq!(small[0], small[1]);
    // As many steps as the larger sample has minibatches, in two passes.
    assert_eq!(small[0].1.version().0, 12);
    assert_eq!(run(0)[1].1.version().0, 2);
}

/// Covers policies with rows on some ranks only.
#[test]
fn policies_learn_if_any_rank_has_rows() {
    let b = PolicyId::new("b");
    let all = workers(
        2,
        |_| {
            let mut worker = builder(config("a2c", false)).build().unwrap();
            worker.add_policy(PolicyId::new("b"), NewPolicy::named("a2c"), None, None).unwrap();
            worker
        },
        move |rank, mut worker| {
            let rows = worker.sample().unwrap().single().unwrap().clone();
            let id = [PolicyId::DEFAULT, PolicyId::new("b")][rank as usize].clone();
            let own: AnyBatch = MultiAgentBatch::new([(id.clone(), rows)].into(), 120).into();
            let first: Vec<PolicyId> = worker.learn_on_batch(&own).unwrap().into_keys().collect();
            // No rank has rows of one policy, and then of any.
            let none: AnyBatch = MultiAgentBatch::new([].into(), 0).into();
            let batch = if rank == 1 { &own } else { &none };
            let second: Vec<PolicyId> = worker.learn_on_batch(batch).unwrap().into_keys().collect();
            assert!(worker.learn_on_batch(&none).unwrap().is_empty());
            (first, second, worker.weights(None).unwrap())
        },
    );
    assert_eq!(all[0], all[1]);
    assert_eq!((&all[0].0, &all[0].1), (&vec![b.clone(), PolicyId::DEFAULT], &vec![b]));
}

#[test]
fn a_mistake_on_one_rank_is_an_error_on_all() {
    let errors = workers(
        2,
        |_| builder(config("ppo", false)).build().unwrap(),
        |rank, mut worker| {
            let mut batch = worker.sample().unwrap().single().unwrap().clone();
            if rank == 1 {
                batch.remove("advantages").unwrap();
            }
            let error = worker.learn_on_batch(&batch.into()).unwrap_err();
            let whole = worker.sample().unwrap();
            // It never silently learns alone.
            assert!(matches!(worker.learn_on_batch(&whole), Err(RolloutError::AllReduce(_))));
            error
        },
    );
    assert!(matches!(&errors[1], RolloutError::Policy { source: PolicyError::Batch(_), .. }), "{}", errors[1]);
    let wanted = "rank 1 gave up: policy 'default_policy': the batch has no column 'advantages'";
    assert_eq!(errors[0].to_string(), wanted);
}

#[test]
fn a_worker_that_stops_is_missed() {
    let errors = workers(
        2,
        |_| builder(config("a2c", false)).build().unwrap(),
        |rank, mut worker| {
            let batch = worker.sample().unwrap();
            if rank == 1 {
                worker.stop().unwrap();
                return worker.learn_on_batch(&batch).unwrap_err();
            }
            worker.learn_on_batch(&batch).unwrap_err()
        },
    );
    assert_eq!(errors, [RolloutError::AllReduce(AllReduceError::Left { rank: 1 }), RolloutError::Stopped]);
}

/// Checks that the error comes before any rank listens or connects.
#[test]
fn policies_without_the_capability_are_named() {
    let mut config = config("ppo", false);
    for kind in ["random", "net"] {
        config.policies.values_mut().for_each(|policy| policy.policy = kind.into());
        config.policies.values_mut().for_each(|policy| policy.config = Default::default());
        let mut worker = builder(config.clone()).build().unwrap();
        let error =
            worker.setup_data_parallel(&DataParallelConfig::new("no address", 0, 2, Token::new([1; 32]))).unwrap_err();
        let wanted = RolloutError::Policy { id: PolicyId::DEFAULT, source: PolicyError::NoDataParallel };
        assert_eq!(error, wanted);
        assert!(error.to_string().starts_with("policy 'default_policy': this policy cannot learn together"), "{error}");
    }
}
