use super::*;
use crate::{
    batch::{AnyBatch, SampleBatch, T},
    callbacks::{CallbackList, PolicyMappingFn, WorkerInfo},
    column::ColumnData,
    config::Config,
    episode::{Losses, Quarantined},
    ids::PolicyId,
    policy::PolicyMap,
    prelude::*,
    sampler::{InputReader, IoContext, SampleError, SamplerHost},
    time::Micros,
};

/// Returns batches of one row, whose `t` counts up from a number.
struct Count(i64);

impl InputReader for Count {
    fn next(&mut self, _host: &mut SamplerHost<'_>) -> Result<AnyBatch, SampleError> {
        self.0 += 1;
        Ok(SampleBatch::new().with(T, ColumnData::scalars(vec![self.0 - 1]))?.into())
    }

    fn stop(&mut self) -> Result<(), SampleError> {
        self.0 = -1;
        Ok(())
    }
}

fn with_policies<R>(mut policies: PolicyMap, f: impl FnOnce(&mut SamplerHost<'_>) -> R) -> R {
    let mapping: PolicyMappingFn = Arc::new(|_, _, _, _| PolicyId::DEFAULT);
    f(&mut SamplerHost {
        worker: &WorkerInfo::default(),
        policies: &mut policies,
        mapping: &mapping,
        observation_fn: None,
        callbacks: &mut CallbackList::new(),
        clock: &|| Micros(0),
        interrupt: None,
    })
}

/// Returns the `t` of the next batches.
fn ts(input: &mut dyn InputReader, batches: usize) -> Vec<i64> {
    let t = |batch: AnyBatch| batch.single().unwrap().get(T).unwrap()[0];
    with_policies(PolicyMap::new(), |host| (0..batches).map(|_| t(input.next(host).unwrap())).collect())
}

#[test]
fn sources_are_mixed_by_their_probabilities() {
    let mixed = |seed| {
        let sources: Vec<(f64, Box<dyn InputReader>)> =
            vec![(0.75, Box::new(Count(0))), (0.0, Box::new(Count(1_000_000))), (0.25, Box::new(Count(2_000_000)))];
        ts(&mut MixedInput::new(sources, seed, 1).unwrap(), 1_000)
    };
    let drawn = mixed(7);
    let firsts = drawn.iter().filter(|t| **t < 1_000_000).count();
    assert!((700..800).contains(&firsts), "{firsts}");
    assert_eq!(drawn.iter().filter(|t| (1_000_000..2_000_000).contains(*t)).count(), 0);
    assert_eq!(mixed(7), drawn);
    assert_ne!(mixed(8), drawn);
}

/// A reader that always reports losses.
struct Losing(u64);

impl InputReader for Losing {
    fn next(&mut self, _host: &mut SamplerHost<'_>) -> Result<AnyBatch, SampleError> {
        Err(SampleError::Input("lost".into()))
    }

    fn losses(&mut self) -> Losses {
        let quarantined = vec![Quarantined { env: self.0 as usize, reason: "smoke".into() }];
        let n = self.0;
        Losses {
            env_steps: n,
            agent_steps: n,
            blackholed_env_steps: n,
            blackholed_agent_steps: n,
            corrupt_lines: n,
            quarantined,
        }
    }
}

#[test]
fn losses_of_all_sources_add_up() {
    let sources: Vec<(f64, Box<dyn InputReader>)> = vec![(0.5, Box::new(Losing(1))), (0.5, Box::new(Losing(2)))];
    let mut losses = MixedInput::new(sources, 0, 0).unwrap().losses();
    assert_eq!(losses.quarantined.iter().map(|out| out.env).collect::<Vec<_>>(), [1, 2]);
    losses.quarantined = Losing(3).losses().quarantined;
    assert_eq!(losses, Losing(3).losses());
}

#[test]
fn probabilities_sum_to_one() {
    let sum = |probabilities: &[f64]| {
        let sources = probabilities.iter().map(|p| (*p, Box::new(Count(0)) as Box<dyn InputReader>)).collect();
        MixedInput::new(sources, 0, 0).map(|_| ()).map_err(|error| error.to_string())
    };
    assert_eq!(sum(&[0.1; 10]), Ok(()));
    for wrong in [&[][..], &[0.5, 0.4], &[1.5, -0.5], &[f64::NAN], &[0.5, 0.6]] {
        assert!(sum(wrong).unwrap_err().contains("probabilit"), "{wrong:?}");
    }
}

#[test]
fn shuffling_gives_every_batch_once() {
    let mut shuffled = ShuffledInput::new(Box::new(Count(0)), 10, 3, 0);
    let order = ts(&mut shuffled, 100);
    let mut sorted = order.clone();
    sorted.sort_unstable();
    sorted.dedup();
    assert_eq!(sorted.len(), 100);
    assert!(!order.is_sorted());
    // No batch is returned before it was read.
    assert!(order.iter().enumerate().all(|(i, t)| *t < i as i64 + 10));
    assert_eq!(ts(&mut ShuffledInput::new(Box::new(Count(0)), 10, 3, 0), 100), order);
    assert_eq!(ts(&mut ShuffledInput::new(Box::new(Count(0)), 1, 3, 0), 3), [0, 1, 2]);
    assert_eq!(ts(&mut ShuffledInput::new(Box::new(Count(0)), 0, 3, 0), 3), [0, 1, 2]);
}

/// Returns parts of one buffer, of these sizes.
struct Parts {
    all: ColumnData<i64>,
    sizes: &'static [usize],
    given: usize,
    at: usize,
}

impl Parts {
    fn new(sizes: &'static [usize]) -> Self {
        Self { all: ColumnData::scalars((0..10_000).collect()), sizes, given: 0, at: 0 }
    }
}

impl InputReader for Parts {
    fn next(&mut self, _host: &mut SamplerHost<'_>) -> Result<AnyBatch, SampleError> {
        let size = self.sizes[self.given % self.sizes.len()];
        let part = self.all.slice(self.at..self.at + size);
        (self.given, self.at) = (self.given + 1, self.at + size);
        Ok(SampleBatch::new().with(T, part)?.into())
    }
}

#[test]
fn shuffle_buffer_is_limited_in_bytes() {
    const SIZES: [usize; 5] = [1, 30, 2, 12, 5];
    let (buffer, largest) = (40, 30);
    let parts = Parts::new(&SIZES);
    let shared = parts.all.shared().clone();
    let mut shuffled = ShuffledInput::new(Box::new(parts), 1_000, 3, 0).with_buffer(8 * buffer);
    let given: Vec<AnyBatch> =
        with_policies(PolicyMap::new(), |host| (0..200).map(|_| shuffled.next(host).unwrap()).collect());
    let (mut out, mut is_shuffled) = (0, false);
    let mut firsts = BTreeSet::new();
    for batch in &given {
        let ts = batch.single().unwrap().get(T).unwrap();
        out += ts.len();
        let behind = ts[0] as usize + ts.len();
        is_shuffled |= behind < out;
        // Every batch that was read earlier and not returned is still waiting.
        assert!(behind <= out + buffer + largest, "{behind} of {out}");
        assert!(firsts.insert(ts[0]), "it comes once");
    }
    assert!(is_shuffled);
    // Only the input and this test still reference the buffer: no part keeps it alive.
    assert_eq!(Arc::strong_count(&shared), 2);

    let mut parts = ShuffledInput::new(Box::new(Parts::new(&SIZES)), 3, 3, 0).with_buffer(8 * 29);
    let error = with_policies(PolicyMap::new(), |host| parts.next(host)).unwrap_err();
    assert_eq!(error, SampleError::BatchTooLarge { bytes: 240, buffer: 232 });
}

#[test]
fn names_files_and_mixtures_are_opened() {
    use crate::worker::{InputSource, Registry};
    let mut registry = Registry::builtin().with_input("count", |_| Ok(Box::new(Count(0))));
    let context = |config: &str| IoContext::new(WorkerInfo::default(), config.parse::<Config>().unwrap(), None);
    let source = |json: &str| serde_json::from_str::<InputSource>(json).unwrap();
    let open = |registry: &Registry, json: &str, config: &str| registry.open_input(&source(json), &mut context(config));

    let error = |registry: &Registry, json: &str| open(registry, json, "{}").err().unwrap().to_string();
    assert!(error(&registry, r#""a/*.json""#).starts_with("there is no input 'a/*.json'; known are: count, sampler"));
    assert!(error(&registry, r#"["a.json"]"#).contains("no files in this program"));
    registry.file_input = Some(Arc::new(|files, _| Ok(Box::new(Count(100 * files.len() as i64)))));
    let first = |json: &str| ts(&mut *open(&registry, json, "{}").unwrap(), 1)[0];
    assert_eq!(first(r#""count""#), 0);
    assert_eq!(first(r#""a/*.json""#), 100);
    assert_eq!(first(r#"["a.json", "b"]"#), 200);
    assert_eq!(first(r#"{"count": 0.0, "a.json": 1.0}"#), 100);
    assert!(error(&registry, r#"{"count": 0.5, "a.json": 0.25}"#).contains("sum to 0.75"));
    let mut shuffled = open(&registry, r#""count""#, r#"{"shuffle_buffer_size": 5}"#).unwrap();
    assert!(!ts(&mut *shuffled, 20).is_sorted());
    // The buffer holds only one of them.
    let mut shuffled = open(&registry, r#""count""#, r#"{"shuffle_buffer_size": 5, "buffer_size": 8}"#).unwrap();
    assert!(ts(&mut *shuffled, 20).is_sorted());
    assert_eq!(serde_json::to_string(&source(r#"{"sampler":1.0}"#)).unwrap(), r#"{"sampler":1.0}"#);
}
