//! Entries of a worker's policies: the policy, its preprocessor and its filter, and their serialised state.

use super::{
    Policy, PolicyError,
    stash::{Stash, StashError, Stashed},
};
use crate::{
    encoding,
    filter::Filter,
    ids::WeightsVersion,
    lists::{Bytes, List},
    prelude::*,
    preprocess::Preprocessor,
    weights::{Tensor, Weights},
};

/// Makes an object of a policy's kind and shape, in its first state.
pub type PolicyMaker<P = dyn Policy> = Arc<dyn Fn() -> Result<Box<P>, PolicyError> + Send + Sync>;

/// A policy, and the preprocessor and filter of its observations. They come and go together.
///
/// The preprocessor follows from the specification: it is no part of what is [stashed](Stash::stash), so the code that makes
/// the entry again sets it again.
pub struct PolicyEntry<P: ?Sized = dyn Policy> {
    spec: Cow<'static, str>,
    maker: Option<PolicyMaker<P>>,
    stays: bool,
    /// The policy itself.
    pub policy: Box<P>,
    /// The preprocessor of observations, if any.
    pub preprocessor: Option<Preprocessor>,
    /// The filter of observations, applied after the preprocessor.
    pub filter: Filter,
}

impl<P: Policy + ?Sized> PolicyEntry<P> {
    /// Creates an entry of a policy without preprocessor and filter; for `spec` see [`Stash::spec`].
    #[must_use]
    pub fn new(spec: impl Into<Cow<'static, str>>, policy: Box<P>) -> Self {
        Self { spec: spec.into(), maker: None, stays: false, policy, preprocessor: None, filter: Filter::NoFilter }
    }

    /// Sets how to make another object of its kind.
    #[must_use]
    pub fn with_maker(mut self, maker: PolicyMaker<P>) -> Self {
        self.maker = Some(maker);
        self
    }

    /// Returns the factory of objects of its kind, if it is known. Entries that share it are of the same policy.
    #[must_use]
    pub fn maker(&self) -> Option<&PolicyMaker<P>> {
        self.maker.as_ref()
    }

    /// Creates another object with the same state, for another thread to act with. Its filter has seen the same and has
    /// nothing in its buffer.
    ///
    /// # Errors
    /// [`StashError::Policy`] where it is unknown how to make one, and of a policy that does not take its own state.
    pub fn twin(&self) -> Result<Self, StashError> {
        let unknown = || {
            PolicyError::Failed(
                "it is an object, and a sampler on a thread of its own needs another one like it: give a registered \
                 kind or a PolicySpec instead"
                    .into(),
            )
        };
        let mut policy = (self.maker.as_ref().ok_or_else(unknown)?)()?;
        policy.set_weights(self.policy.weights())?;
        policy.set_extra_state(&self.policy.extra_state())?;
        let mut filter = self.filter.clone();
        filter.reset_buffer();
        let (maker, preprocessor) = (self.maker.clone(), self.preprocessor.clone());
        Ok(Self { spec: self.spec.clone(), maker, stays: self.stays, policy, preprocessor, filter })
    }

    /// Sets whether it [stays](Stash::may_leave) where it is, since it could not be recreated.
    #[must_use]
    pub fn with_staying(self, stays: bool) -> Self {
        Self { stays, ..self }
    }

    /// Sets the preprocessor.
    #[must_use]
    pub fn with_preprocessor(mut self, preprocessor: Option<Preprocessor>) -> Self {
        self.preprocessor = preprocessor;
        self
    }

    /// Sets the filter.
    #[must_use]
    pub fn with_filter(mut self, filter: Filter) -> Self {
        self.filter = filter;
        self
    }
}

/// An entry with a policy of unknown specification.
impl<P: Policy + ?Sized> From<Box<P>> for PolicyEntry<P> {
    fn from(policy: Box<P>) -> Self {
        Self::new("", policy)
    }
}

impl<P: Policy + ?Sized> Stash for PolicyEntry<P> {
    fn spec(&self) -> &str {
        &self.spec
    }

    fn may_leave(&self) -> bool {
        !self.stays
    }

    /// Returns the bytes of weights, filter and extra state; data that the policy derives from its weights takes about
    /// as much again.
    fn size_bytes(&self) -> usize {
        let tensors: usize = self.policy.weights().tensors().iter().map(|tensor| size_of_val(&*tensor.values)).sum();
        tensors.saturating_add(self.filter.size_bytes()).saturating_add(self.policy.extra_state_bytes())
    }

    fn stash(&self) -> Result<Vec<u8>, StashError> {
        let weights = self.policy.weights().clone();
        PolicyState { weights, filter: self.filter.clone(), extra: self.policy.extra_state() }.encode()
    }

    fn restore(&mut self, state: &[u8]) -> Result<(), StashError> {
        let state = PolicyState::decode(state)?;
        self.policy.set_weights(&state.weights)?;
        self.policy.set_extra_state(&state.extra)?;
        self.filter = state.filter;
        Ok(())
    }
}

/// Everything of a policy that outlives its object.
#[derive(Clone, Debug, PartialEq)]
pub struct PolicyState {
    /// Tensors and version.
    pub weights: Weights,
    /// Statistics and buffer.
    pub filter: Filter,
    /// See [`Policy::extra_state`].
    pub extra: Vec<u8>,
}

impl PolicyState {
    /// Version of the encoding, its first byte.
    pub const VERSION: u8 = 1;

    /// Most tensors that are read, more than any policy has: empty ones take more memory than bytes.
    const MAX_TENSORS: usize = 1 << 20;

    /// Encodes the state: the format's version, and in postcard's encoding the weights' version and tensors, the filter
    /// and the policy's extra state. The encoding is lossless.
    ///
    /// # Errors
    /// [`StashError::TooLarge`] above [`Stashed::MAX_BYTES`].
    pub fn encode(&self) -> Result<Vec<u8>, StashError> {
        let (version, tensors) = (self.weights.version().0, self.weights.tensors());
        let form = (version, tensors, Bytes(self.filter.encode().into()), Bytes((&self.extra).into()));
        let bytes = encoding::encode_after(vec![Self::VERSION], &form);
        if bytes.len() > Stashed::MAX_BYTES { Err(StashError::TooLarge(bytes.len())) } else { Ok(bytes) }
    }

    /// Decodes untrusted bytes. Memory grows with the bytes that are there, not with what they claim.
    ///
    /// # Errors
    /// [`StashError`].
    pub fn decode(bytes: &[u8]) -> Result<Self, StashError> {
        if bytes.len() > Stashed::MAX_BYTES {
            return Err(StashError::TooLarge(bytes.len()));
        }
        match bytes.split_first() {
            Some((&Self::VERSION, body)) => Self::read(body).ok_or(StashError::Damaged),
            Some((&version, _)) => Err(StashError::Version(version)),
            None => Err(StashError::Damaged),
        }
    }

    fn read(body: &[u8]) -> Option<Self> {
        type Form<'a> = (u64, List<Tensor, { PolicyState::MAX_TENSORS }>, Bytes<'a>, Bytes<'a>);
        let (version, tensors, filter, extra) = encoding::decode::<Form<'_>>(body)?;
        let weights = Weights::new(WeightsVersion(version), tensors.0).ok()?;
        Some(Self { weights, filter: Filter::decode(&filter.0).ok()?, extra: extra.0.into_owned() })
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;
    use crate::{
        column::{DType, RowShape},
        env::{EnvSpaces, RowsMut, RowsRef},
        filter::FilterKind,
        kernels::Kernels,
        policy::{ActionInput, ActionOutput, ModelConfig, ModelSpec, NetPolicy, RandomPolicy},
        space::Space,
    };

    fn net(seed: u64) -> Box<NetPolicy> {
        let (observation, action) = (Space::vector(&[-9.0; 3], &[9.0; 3]), Space::Discrete { n: 2 });
        let spaces = EnvSpaces { observation, observation_type: DType::F32, action, action_type: DType::I64 };
        let model = ModelConfig::of_widths(&[4]);
        let weights = ModelSpec::for_spaces(&spaces, &model).unwrap().init_weights(seed).unwrap();
        Box::new(NetPolicy::new(&spaces, &model, weights, 1, Kernels::PORTABLE).unwrap())
    }

    fn filter(values: &[f64]) -> Filter {
        let mut filter = Filter::new(FilterKind::MeanStdFilter, RowShape::SCALAR).unwrap();
        filter.filter_rows(&mut values.to_vec(), true).unwrap();
        filter
    }

    #[test]
    fn one_becomes_the_other() {
        let (mut a, b) = (PolicyEntry::new("net", net(1)), PolicyEntry::new("net", net(2)));
        let b = b.with_filter(filter(&[1.0, 4.0]));
        a.restore(&b.stash().unwrap()).unwrap();
        assert_eq!((a.policy.weights(), &a.filter), (b.policy.weights(), &b.filter));
        let obs = [0.3, -0.2, 0.9];
        let mut values = [[0.0; 1]; 2];
        a.policy.compute_values(RowsRef::F32(&obs), &[], &mut values[0]).unwrap();
        net(2).compute_values(RowsRef::F32(&obs), &[], &mut values[1]).unwrap();
        assert_eq!(values[0], values[1]);
    }

    #[test]
    fn twins_do_the_same_and_go_their_own_ways() {
        let plain = PolicyEntry::new("net", net(1)).with_filter(filter(&[1.0, 4.0]));
        let error = plain.twin().err().unwrap();
        assert!(error.to_string().contains("give a registered kind or a PolicySpec"), "{error}");
        let one = plain.with_maker(Arc::new(|| Ok(net(2))));
        let mut two = one.twin().unwrap();
        assert_eq!(two.policy.weights(), one.policy.weights());
        assert!(Arc::ptr_eq(two.maker().unwrap(), one.maker().unwrap()));
        let seen = |entry: &PolicyEntry<_>| entry.filter.mean_std().map(|f| (f.running().n(), f.buffer().n()));
        assert_eq!((seen(&one), seen(&two)), (Some((2, 2)), Some((2, 0))));
        two.filter.filter_rows(&mut [7.0], true).unwrap();
        assert_eq!((seen(&one), seen(&two)), (Some((2, 2)), Some((3, 1))));
    }

    /// A policy with a step counter.
    struct Counting(RandomPolicy, u8);

    impl Policy for Counting {
        fn compute_actions(&mut self, input: ActionInput<'_>, out: ActionOutput<'_>) -> Result<(), PolicyError> {
            self.1 += 1;
            self.0.compute_actions(input, out)
        }
        fn compute_values(&mut self, obs: RowsRef<'_>, state: &[f32], values: &mut [f32]) -> Result<(), PolicyError> {
            self.0.compute_values(obs, state, values)
        }
        fn weights(&self) -> &Weights {
            self.0.weights()
        }
        fn set_weights(&mut self, weights: &Weights) -> Result<(), PolicyError> {
            self.0.set_weights(weights)
        }
        fn extra_state(&self) -> Vec<u8> {
            vec![self.1]
        }
        fn set_extra_state(&mut self, bytes: &[u8]) -> Result<(), PolicyError> {
            self.1 = bytes.first().copied().unwrap_or(0);
            Ok(())
        }
    }

    #[test]
    fn stash_restores_state_other_than_weights() {
        let new = || PolicyEntry::new("counting", Box::new(Counting(RandomPolicy::new(2, 0), 0)));
        let (mut a, mut b) = (new(), new());
        a.policy
            .compute_actions(
                ActionInput::new(RowsRef::F32(&[]), &[]),
                ActionOutput::new(RowsMut::I64(&mut []), &mut [], &mut []),
            )
            .unwrap();
        b.restore(&a.stash().unwrap()).unwrap();
        assert_eq!((b.policy.1, b.size_bytes()), (1, 1));
        // Most policies have nothing of the kind, and say so.
        let mut plain: PolicyEntry<RandomPolicy> = Box::new(RandomPolicy::new(2, 0)).into();
        let error = plain.restore(&a.stash().unwrap()).unwrap_err();
        assert_eq!(error.to_string(), "the policy takes no state besides weights, not 1 bytes");
    }

    #[test]
    fn weights_of_another_shape_are_refused() {
        let mut a = PolicyEntry::new("net", net(1));
        let b = PolicyEntry::new("random", Box::new(RandomPolicy::new(2, 0)));
        assert!(matches!(a.restore(&b.stash().unwrap()), Err(StashError::Policy(PolicyError::Weights(_)))));
        assert_eq!(a.restore(&[]), Err(StashError::Damaged));
        assert_eq!(a.restore(&[2]), Err(StashError::Version(2)));
    }

    #[test]
    fn tensors_without_elements_have_any_shape() {
        let tensor = Tensor { name: "w".into(), shape: vec![1 << 31, 1 << 31, 0], values: vec![] };
        let weights = Weights::new(WeightsVersion(0), vec![tensor]).unwrap();
        let state = PolicyState { weights, filter: Filter::NoFilter, extra: vec![7] };
        assert_eq!(PolicyState::decode(&state.encode().unwrap()), Ok(state));
    }

    fn state() -> impl Strategy<Value = PolicyState> {
        let tensor = vec(0..4_u32, 0..3).prop_flat_map(|shape| {
            let len = shape.iter().product::<u32>() as usize;
            (Just(shape), vec(any::<f32>().prop_map(|x| if x.is_finite() { x } else { -0.0 }), len))
        });
        let filter = prop_oneof![Just(Filter::NoFilter), vec(-9.0..9.0, 0..4).prop_map(|values| filter(&values))];
        (any::<u64>(), vec(tensor, 0..4), filter, vec(any::<u8>(), 0..9)).prop_map(
            |(version, tensors, filter, extra)| {
                let named = tensors.into_iter().enumerate();
                let tensors =
                    named.map(|(i, (shape, values))| Tensor { name: format!("t{i}"), shape, values }).collect();
                PolicyState { weights: Weights::new(WeightsVersion(version), tensors).unwrap(), filter, extra }
            },
        )
    }

    proptest! {
        #[test]
        fn stash_and_restore_is_the_identity(state in state()) {
            let bytes = state.encode().unwrap();
            prop_assert_eq!(PolicyState::decode(&bytes).unwrap().encode().unwrap(), bytes.clone());
            prop_assert_eq!(PolicyState::decode(&bytes), Ok(state));
        }

        #[test]
        fn no_bytes_panic(state in state(), at in any::<prop::sample::Index>(), byte in any::<u8>(), cut in any::<bool>()) {
            let mut bytes = state.encode().unwrap();
            let at = at.index(bytes.len());
            bytes[at] = byte;
            if cut {
                bytes.truncate(at);
            }
            let _ = PolicyState::decode(&bytes);
        }
    }
}
