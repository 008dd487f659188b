//! Implements choices among finitely many values.

use super::{Distribution, DistributionError, Share, components};
use crate::{column::Element, math, prelude::*, rng::Rng};

/// One of `n` values, with probabilities proportional to the exponentials of `n` logits.
///
/// A logit of -infinity excludes a value, as masks do. A draw uses one word of the stream, and gives the same bits as the
/// kernel that chooses actions ([`kernels::draw::categorical`](crate::kernels::draw::categorical)) for the same logits and
/// word.
#[doc(alias("TorchCategorical", "softmax"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Categorical {
    n: u32,
}

impl Categorical {
    /// Creates a distribution over the values `0..n`.
    ///
    /// # Errors
    /// [`DistributionError::BadSize`] for 0, or for 2^24 or more.
    pub fn new(n: u32) -> Result<Self, DistributionError> {
        components(n as usize).map(|_| Self { n })
    }
}

impl Distribution for Categorical {
    type Action = i64;

    fn input_len(&self) -> usize {
        self.n as usize
    }

    fn action_len(&self) -> usize {
        1
    }

    fn draw_row<T: Element>(
        &self,
        inputs: &[f32],
        rng: Option<&mut Rng>,
        action: &mut [T],
    ) -> Result<f32, DistributionError> {
        let choice = Logits::new(inputs).draw(rng);
        action.fill(T::from_f64(choice.value as f64));
        Ok(choice.logp)
    }

    fn logp_of_row(&self, inputs: &[f32], action: &[i64]) -> Result<f32, DistributionError> {
        action.iter().map(|value| Logits::new(inputs).logp(0, *value)).sum()
    }

    fn entropy_of_row(&self, inputs: &[f32]) -> f32 {
        Logits::new(inputs).entropy()
    }

    fn kl_of_row(&self, inputs: &[f32], other: &[f32]) -> f32 {
        Logits::new(inputs).kl(&Logits::new(other))
    }
}

/// Independent [`Categorical`]s, one for each component, with their logits concatenated. Each draw uses one word. Components
/// need not count from 0.
#[doc(alias = "TorchMultiCategorical")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MultiCategorical {
    nvec: Vec<u32>,
    /// The first value of each component.
    low: Vec<i64>,
    input_len: usize,
}

impl MultiCategorical {
    /// Creates a distribution with component `i` over the values `0..nvec[i]`.
    ///
    /// # Errors
    /// [`DistributionError::BadSize`] for no components, a component without values, or 2^24 or more values in all.
    pub fn new(nvec: impl Into<Vec<u32>>) -> Result<Self, DistributionError> {
        let nvec = nvec.into();
        let total: u64 = nvec.iter().map(|n| u64::from(*n)).sum();
        let input_len = components(usize::try_from(total).unwrap_or(usize::MAX))?;
        if nvec.contains(&0) {
            Err(DistributionError::BadSize)
        } else {
            Ok(Self { low: vec![0; nvec.len()], nvec, input_len })
        }
    }

    /// Lets component `i` count from `low[i]`, or from 0 where `low` is shorter.
    #[must_use]
    pub fn with_low(mut self, low: &[i64]) -> Self {
        self.low.fill(0);
        self.low.iter_mut().zip(low).for_each(|(first, low)| *first = *low);
        self
    }

    /// Returns the first value of each component.
    #[must_use]
    pub fn low(&self) -> &[i64] {
        &self.low
    }

    /// Returns how many values each component has.
    #[must_use]
    pub fn nvec(&self) -> &[u32] {
        &self.nvec
    }

    /// Iterates over the components' logits.
    fn parts<'a>(&'a self, mut inputs: &'a [f32]) -> impl Iterator<Item = Logits<'a>> {
        self.nvec.iter().map(move |n| {
            let (own, rest) = inputs.split_at_checked(*n as usize).unwrap_or((inputs, &[]));
            inputs = rest;
            Logits::new(own)
        })
    }
}

impl Distribution for MultiCategorical {
    type Action = i64;

    fn input_len(&self) -> usize {
        self.input_len
    }

    fn action_len(&self) -> usize {
        self.nvec.len()
    }

    fn draw_row<T: Element>(
        &self,
        inputs: &[f32],
        mut rng: Option<&mut Rng>,
        action: &mut [T],
    ) -> Result<f32, DistributionError> {
        let logps = self.parts(inputs).zip(&self.low).zip(action).map(|((logits, low), action)| {
            let choice = logits.draw(rng.as_deref_mut());
            *action = T::from_f64(low.saturating_add(choice.value) as f64);
            choice.logp
        });
        Ok(logps.sum())
    }

    fn logp_of_row(&self, inputs: &[f32], action: &[i64]) -> Result<f32, DistributionError> {
        let values = action.iter().zip(&self.low).map(|(value, low)| value.saturating_sub(*low));
        self.parts(inputs).zip(values).enumerate().map(|(i, (logits, value))| logits.logp(i, value)).sum()
    }

    fn entropy_of_row(&self, inputs: &[f32]) -> f32 {
        self.parts(inputs).map(|logits| logits.entropy()).sum()
    }

    fn kl_of_row(&self, inputs: &[f32], other: &[f32]) -> f32 {
        self.parts(inputs).zip(self.parts(other)).map(|(p, q)| p.kl(&q)).sum()
    }
}

struct CategoricalChoice {
    value: i64,
    logp: f32,
}

/// Logits of one choice, with their maximum and the sum of the exponentials. The operations and their order are the same as
/// in the kernel that chooses actions.
struct Logits<'a> {
    logits: &'a [f32],
    max: f32,
    total: f32,
    log_total: f32,
}

impl<'a> Logits<'a> {
    fn new(logits: &'a [f32]) -> Self {
        let max = logits.iter().fold(f32::NEG_INFINITY, |max, x| if *x > max { *x } else { max });
        let total = logits.iter().fold(0.0, |total, x| total + math::exp(x - max));
        Self { logits, max, total, log_total: math::log(total) }
    }

    /// Chooses a value with a random number, or the most probable one without.
    fn draw(&self, rng: Option<&mut Rng>) -> CategoricalChoice {
        rng.map_or_else(|| self.mode(), |rng| self.at(rng.uniform_f32()))
    }

    /// Returns the value whose interval of the cumulative probabilities contains `uniform`.
    fn at(&self, uniform: f32) -> CategoricalChoice {
        let target = uniform * self.total;
        let last = self.logits.len().saturating_sub(1);
        let (mut cumulated, mut value) = (0.0, 0);
        // The last value gets the remainder left by rounding.
        for (i, x) in self.logits.iter().take(last).enumerate() {
            cumulated += math::exp(x - self.max);
            value = if cumulated <= target { i + 1 } else { value };
        }
        self.choice(value)
    }

    /// Returns the first of the most probable values.
    fn mode(&self) -> CategoricalChoice {
        self.choice(self.logits.iter().position(|x| *x == self.max).unwrap_or(0))
    }

    fn choice(&self, value: usize) -> CategoricalChoice {
        let logp = self.logits.get(value).map_or(f32::NAN, |x| self.shifted(*x));
        CategoricalChoice { value: value as i64, logp }
    }

    /// Returns the log-probability of a value with this logit.
    fn shifted(&self, logit: f32) -> f32 {
        (logit - self.max) - self.log_total
    }

    fn logp(&self, component: usize, action: i64) -> Result<f32, DistributionError> {
        let logit = usize::try_from(action).ok().and_then(|value| self.logits.get(value));
        let values = self.logits.len() as u32;
        logit.map(|x| self.shifted(*x)).ok_or(DistributionError::NoSuchAction { component, action, values })
    }

    fn entropy(&self) -> f32 {
        0.0 - self.mean(|logp| logp)
    }

    fn kl(&self, other: &Self) -> f32 {
        let terms = self.logits.iter().zip(other.logits).map(|(p, q)| {
            let share = |of: &Self, x: f32| Share { p: math::exp(x - of.max) / of.total, logp: of.shifted(x) };
            share(self, *p).divergence(share(other, *q))
        });
        terms.sum::<f64>() as f32
    }

    /// Returns the mean of a function over the values; ignores values with probability 0, whatever the function returns for
    /// them.
    fn mean(&self, mut f: impl FnMut(f32) -> f32) -> f32 {
        let terms = self.logits.iter().map(|x| {
            let (p, y) = (math::exp(x - self.max) / self.total, f(self.shifted(*x)));
            if p == 0.0 { 0.0 } else { p * y }
        });
        terms.sum()
    }
}
