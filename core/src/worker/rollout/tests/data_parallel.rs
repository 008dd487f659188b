use core::sync::atomic::{AtomicU32, Ordering};

use super::super::test_support::*;
use crate::{
    batch::{AnyBatch, MultiAgentBatch},
    filter::Filter,
    ids::PolicyId,
    policy::{AllReduce, AllReduceError, PolicyError, PolicyState},
    prelude::*,
    protocol::Token,
    worker::{
        DataParallelConfig, DataParallelError, JoinRequest, NewPolicy, PolicyConfig, RolloutConfig, RolloutError,
        RolloutWorker, RolloutWorkerBuilder, SgdOptions, Shell,
    },
};

/// A rank 0 that mirrors this rank, but has the first weights.
struct Twin {
    gave_up: Arc<AtomicU32>,
    is_over: bool,
}

impl Twin {
    fn check(&self) -> Result<(), AllReduceError> {
        if self.is_over { Err(AllReduceError::Left { rank: 0 }) } else { Ok(()) }
    }
}

impl AllReduce for Twin {
    fn rank(&self) -> u32 {
        1
    }

    fn world_size(&self) -> u32 {
        2
    }

    fn all_reduce(&mut self, _step: &str, _values: &mut [f32], _weight: f64) -> Result<(), AllReduceError> {
        // The mean of two equal values.
        self.check()
    }

    fn all_gather(&mut self, step: &str, bytes: &[u8], limit: usize) -> Result<Vec<Vec<u8>>, AllReduceError> {
        self.check()?;
        assert!(bytes.len() <= limit);
        let first = match step {
            "first weights" => {
                let extra = 5u64.to_le_bytes().to_vec();
                PolicyState { weights: weight(100.0), filter: Filter::NoFilter, extra }.encode().unwrap()
            }
            _ => bytes.to_vec(),
        };
        Ok(vec![first, bytes.to_vec()])
    }

    fn give_up(&mut self, _reason: &str) {
        self.gave_up.fetch_add(1, Ordering::Relaxed);
        self.is_over = true;
    }
}

struct Sockets {
    gave_up: Arc<AtomicU32>,
    joined: Arc<AtomicU32>,
}

impl Shell for Sockets {
    fn data_parallel(&mut self, request: &JoinRequest) -> Result<Option<Box<dyn AllReduce>>, DataParallelError> {
        assert!(request.policies.iter().map(|policy| &policy.id).eq([&PolicyId::DEFAULT]));
        self.joined.fetch_add(1, Ordering::Relaxed);
        Ok(Some(Box::new(Twin { gave_up: self.gave_up.clone(), is_over: false })))
    }
}

fn builder(joins: &str) -> RolloutWorkerBuilder {
    let policy = PolicyConfig::new("mock").with_config(joins.parse().unwrap());
    let config = RolloutConfig::default().rollout_fragment_length(6).policy(PolicyId::DEFAULT, policy);
    counting(4, RolloutConfig::default()).config(RolloutConfig { env: Some("Counter".into()), ..config })
}

fn ranks() -> DataParallelConfig {
    DataParallelConfig::new("somewhere", 1, 2, Token::new([1; 32]))
}

/// Returns a worker that has joined, and counters of how often it gave up and joined.
fn joined() -> (RolloutWorker, Arc<AtomicU32>, Arc<AtomicU32>) {
    let (gave_up, joined) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let shell = Sockets { gave_up: gave_up.clone(), joined: joined.clone() };
    let mut worker = builder(r#"{"joins": true}"#).shell(Box::new(shell)).build().unwrap();
    worker.setup_data_parallel(&ranks()).unwrap();
    (worker, gave_up, joined)
}

fn installed(worker: &mut RolloutWorker) -> f32 {
    value_of(&worker.weights(None).unwrap()[&PolicyId::DEFAULT])
}

#[test]
fn setup_data_parallel_refuses_unsuitable_workers_and_settings() {
    let setup = |joins, config: &DataParallelConfig| {
        let shell = Sockets { gave_up: Arc::default(), joined: Arc::default() };
        builder(joins).shell(Box::new(shell)).build().unwrap().setup_data_parallel(config).unwrap_err()
    };
    let wanted = RolloutError::Policy { id: PolicyId::DEFAULT, source: PolicyError::NoDataParallel };
    assert_eq!(setup("{}", &ranks()), wanted);
    assert!(wanted.to_string().starts_with("policy 'default_policy': this policy cannot learn together"), "{wanted}");
    let joins = r#"{"joins": true}"#;
    let beyond = DataParallelConfig { rank: 2, ..ranks() };
    assert_eq!(setup(joins, &beyond), DataParallelError::Rank { rank: 2, world_size: 2 }.into());
    for found in [0, u32::MAX] {
        let size = DataParallelConfig { world_size: found, ..ranks() };
        assert_eq!(setup(joins, &size), DataParallelError::WorldSize { found, most: 256 }.into());
    }
    let mut alone = builder(joins).build().unwrap();
    assert_eq!(alone.setup_data_parallel(&ranks()), Err(DataParallelError::NoShell.into()));
    alone.set_is_policy_to_train(BTreeSet::new());
    assert_eq!(alone.setup_data_parallel(&ranks()), Err(DataParallelError::NothingTrained.into()));
    assert!(alone.data_parallel().is_none());
}

#[test]
fn workers_start_from_the_state_of_the_first_one_and_learn_together() {
    let (mut worker, gave_up, _) = joined();
    assert_eq!(installed(&mut worker), 100.0);
    let state = worker.policy(&PolicyId::DEFAULT).unwrap().extra_state();
    assert_eq!(state, 5u64.to_le_bytes());
    let batch = worker.sample().unwrap();
    assert_eq!(worker.learn_on_batch(&batch).unwrap()[&PolicyId::DEFAULT]["rows"], 6.0);
    assert_eq!(installed(&mut worker), 112.0, "the rows of both");
    let (gradients, info) = worker.compute_gradients(&batch).unwrap().remove(&PolicyId::DEFAULT).unwrap();
    assert_eq!((value_of(&gradients.0), info["batch_count"]), (7.0, 6.0));
    worker.apply_gradients(&[(PolicyId::DEFAULT, gradients)].into()).unwrap();
    assert_eq!(installed(&mut worker), 105.0);
    let options = SgdOptions { num_sgd_iter: 2, minibatch_size: 4, standardize_fields: vec!["rewards".into()] };
    worker.sample_and_learn(6, &options).unwrap();
    assert_eq!(installed(&mut worker), 105.0 + 2.0 * 12.0);
    assert_eq!(worker.global_vars().timestep, 12, "the env steps of both");
    assert!(worker.learn_on_batch(&MultiAgentBatch::new([].into(), 0).into()).unwrap().is_empty());
    assert_eq!(worker.data_parallel().map(|ranks| ranks.rank()), Some(1));
    assert_eq!(gave_up.load(Ordering::Relaxed), 0);
    worker.stop().unwrap();
    assert!(worker.data_parallel().is_none());
}

/// A rank's mistake reaches the others as an error, not as a timeout.
#[test]
fn mistakes_are_reported_and_end_the_group() {
    type Mistake = fn(&mut RolloutWorker) -> Result<(), RolloutError>;
    let mistakes: [(Mistake, &str); 3] = [
        (|worker| worker.sample_and_learn(5, &SgdOptions::default()).map(drop), "6 steps were sampled where 5"),
        (
            |worker| {
                let fields = SgdOptions { standardize_fields: vec!["x".into()], ..SgdOptions::default() };
                worker.sample_and_learn(6, &fields).map(drop)
            },
            "the batch has no column 'x'",
        ),
        (
            |worker| {
                let (b, rows) = (PolicyId::new("b"), worker.sample()?.single()?.clone());
                worker.add_policy(b.clone(), NewPolicy::named("mock"), None, None)?;
                let batch: AnyBatch = MultiAgentBatch::new([(b, rows)].into(), 6).into();
                worker.learn_on_batch(&batch).map(drop)
            },
            "policy 'b' is trained, but has not joined the other ranks: call setup_data_parallel again",
        ),
    ];
    for (mistake, wanted) in mistakes {
        let (mut worker, gave_up, joined) = joined();
        let error = mistake(&mut worker).unwrap_err().to_string();
        assert!(error.starts_with(wanted), "{error}");
        assert!(gave_up.load(Ordering::Relaxed) > 0, "{wanted}");
        let batch = worker.sample().unwrap();
        // It does not silently learn alone.
        let over = RolloutError::AllReduce(AllReduceError::Left { rank: 0 });
        assert_eq!(worker.learn_on_batch(&batch), Err(over.clone()));
        assert_eq!(worker.compute_gradients(&batch), Err(over));
        assert_eq!(installed(&mut worker), 100.0);
        worker.set_is_policy_to_train([PolicyId::DEFAULT]);
        worker.setup_data_parallel(&ranks()).unwrap();
        worker.learn_on_batch(&batch).unwrap();
        assert_eq!((installed(&mut worker), joined.load(Ordering::Relaxed)), (112.0, 2));
    }
}
