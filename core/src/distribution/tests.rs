//! Tests the laws of all distributions, and compares with independently computed numbers.

use proptest::prelude::*;

use super::*;
use crate::{
    column::{DType, RowShape},
    ids::SlotId,
    kernels::draw::{DrawBuffers, Draws, categorical},
    math,
    rng::{Purpose, Rng, Streams},
    space::{BoxSpace, Point, Space},
};

fn rng(row: usize) -> Rng {
    Streams::new(11, Purpose::Action).at(SlotId(row as u32), 0, 0, 0)
}

fn close(got: f32, want: f64) {
    assert!((f64::from(got) - want).abs() <= 2e-6 * want.abs().max(1.0), "{got} {want}");
}

const P: [f32; 4] = [0.5, -1.25, 2.0, 0.0];
const Q: [f32; 4] = [1.0, 0.0, -0.5, 0.25];

/// Computed from the definitions, in 64 bits, by another program.
#[test]
fn values_are_those_of_the_definitions() {
    let one = Categorical::new(4).unwrap();
    for (action, want) in [(0, -1.834_498_612_6), (1, -3.584_498_612_6), (2, -0.334_498_612_6), (3, -2.334_498_612_6)] {
        close(one.logp(&P, &[action]).unwrap(), want);
    }
    close(one.entropy(&P).unwrap(), 0.857_946_384_4);
    close(one.kl(&P, &Q).unwrap(), 1.040_337_276_8);
    let multi = MultiCategorical::new([4, 4]).unwrap();
    let both = [P, Q].concat();
    close(multi.logp(&both, &[2, 1]).unwrap(), -2.058_842_163_6);
    close(multi.entropy(&both).unwrap(), 2.094_484_279_6);
    let (p, q) = ([0.3, -1.2, -0.5, 0.7], [0.0, -1.0, 0.2, 0.1]);
    let gaussian = DiagGaussian::new(2).unwrap();
    close(gaussian.logp(&p, &[0.9, 1.5]).unwrap(), -3.426_013_729_1);
    close(gaussian.entropy(&p).unwrap(), 3.037_877_066_4);
    close(gaussian.kl(&p, &q).unwrap(), 0.929_895_960_5);
    let (p, q) = ([0.4, -2.0, 3.0], [0.0, -1.0, 2.5]);
    let bernoulli = Bernoulli::new(3).unwrap();
    close(bernoulli.logp(&p, &[1, 0, 0]).unwrap(), -3.688_530_615_0);
    close(bernoulli.entropy(&p).unwrap(), 1.229_739_014_5);
    close(bernoulli.kl(&p, &q).unwrap(), 0.093_327_192_8);
}

#[test]
fn categorical_gives_the_acting_kernels_bits() {
    const N: usize = 7;
    const ROWS: usize = 200;
    let mut numbers = rng(ROWS);
    let logits: Vec<f32> = (0..N * ROWS).map(|i| numbers.normal() as f32 * (i % 5) as f32 * 3.0).collect();
    let uniforms: Vec<f32> = (0..ROWS).map(|row| rng(row).uniform_f32()).collect();
    let (mut actions, mut logp) = ([0; ROWS], [0.0; ROWS]);
    let draws = Draws { uniforms: &uniforms, actions: &mut actions, logp: &mut logp };
    categorical(&logits, &mut DrawBuffers::default(), draws);
    let (mut own_actions, mut own_logp) = ([0; ROWS], [0.0; ROWS]);
    let distribution = Categorical::new(N as u32).unwrap();
    let mut again = [0.0; ROWS];
    for (row, logits) in logits.chunks_exact(N).enumerate() {
        own_logp[row] = distribution.sample(logits, &mut rng(row), &mut own_actions[row..=row]).unwrap();
        again[row] = distribution.logp(logits, &own_actions[row..=row]).unwrap();
    }
    assert_eq!(own_actions, actions);
    assert_eq!(own_logp.map(f32::to_bits), logp.map(f32::to_bits));
    assert!((0..N as i64).all(|action| actions.contains(&action)));
    assert_eq!(again.map(f32::to_bits), logp.map(f32::to_bits));
}

/// Checks that draws follow probabilities, by the chi-square statistic; correct draws exceed the limit once in a million
/// tests.
fn follows(counts: &[u32], probabilities: &[f64], limit: f64) {
    let n = f64::from(counts.iter().sum::<u32>());
    let terms =
        counts.iter().zip(probabilities).map(|(c, p)| (f64::from(*c) - n * p) * (f64::from(*c) - n * p) / (n * p));
    let chi2: f64 = terms.sum();
    assert!(chi2 < limit, "{counts:?}: {chi2}");
}

#[test]
fn draws_follow_their_probabilities() {
    let n = 20_000;
    let multi = MultiCategorical::new([4, 2]).unwrap();
    let inputs = [&P[..], &[0.3, -0.3]].concat();
    let (mut joint, mut sum) = ([0; 8], 0.0);
    for row in 0..n {
        let mut action = [0; 2];
        sum += f64::from(multi.sample(&inputs, &mut rng(row), &mut action).unwrap());
        joint[(2 * action[0] + action[1]) as usize] += 1;
    }
    let p = |a: i64, b: i64| f64::from(math::exp(multi.logp(&inputs, &[a, b]).unwrap()));
    let probabilities: Vec<f64> = (0..8).map(|i| p(i / 2, i % 2)).collect();
    follows(&joint, &probabilities, 40.5);
    assert!((sum / n as f64 + f64::from(multi.entropy(&inputs).unwrap())).abs() < 0.03);

    let bernoulli = Bernoulli::new(2).unwrap();
    let (mut joint, inputs) = ([0; 4], [1.2, -0.4]);
    for row in 0..n {
        let mut action = [0; 2];
        bernoulli.sample(&inputs, &mut rng(row), &mut action).unwrap();
        joint[usize::from(2 * action[0] + action[1])] += 1;
    }
    let p = |i: u8| f64::from(math::exp(bernoulli.logp(&inputs, &[i / 2, i % 2]).unwrap()));
    follows(&joint, &[p(0), p(1), p(2), p(3)], 30.7);
}

#[test]
fn gaussian_draws_follow_their_density() {
    let (n, inputs) = (20_000, [1.5, -2.0, -0.7, 0.4]);
    let gaussian = DiagGaussian::new(2).unwrap();
    let (mut sums, mut squares, mut logps) = ([0.0; 2], [0.0; 2], 0.0);
    for row in 0..n {
        let mut action = [0.0; 2];
        logps += f64::from(gaussian.sample(&inputs, &mut rng(row), &mut action).unwrap());
        for (i, x) in action.into_iter().enumerate() {
            let x = f64::from(x) - f64::from(inputs[i]);
            sums[i] += x;
            squares[i] += x * x;
        }
    }
    for i in 0..2 {
        let std = f64::from(math::exp(inputs[2 + i]));
        assert!((sums[i] / n as f64).abs() < 0.03 * std && (squares[i] / n as f64 / std / std - 1.0).abs() < 0.05);
    }
    assert!((logps / n as f64 + f64::from(gaussian.entropy(&inputs).unwrap())).abs() < 0.03);
}

/// Returns the sum of the density over a grid.
fn integral<D: Distribution<Action = f32>>(distribution: &D, inputs: &[f32], low: f64, high: f64) -> f64 {
    let n = 4000;
    let step = (high - low) / f64::from(n);
    let density = |i: i32| {
        let x = (low + (f64::from(i) + 0.5) * step) as f32;
        f64::from(math::exp(distribution.logp(inputs, &[x]).unwrap()))
    };
    (0..n).map(density).sum::<f64>() * step
}

#[test]
fn densities_integrate_to_one() {
    for (mean, log_std) in [(0.0, 0.0), (1.3, -0.8), (-0.6, 0.4)] {
        let gaussian = DiagGaussian::new(1).unwrap();
        assert!((integral(&gaussian, &[mean, log_std], -15.0, 15.0) - 1.0).abs() < 1e-4);
    }
}

#[test]
fn masks_forbid_values() {
    let distribution = Categorical::new(3).unwrap();
    let (masked, open) = ([0.5, f32::NEG_INFINITY, 0.5], [0.0; 3]);
    let mut action = [0];
    for row in 0..100 {
        distribution.sample(&masked, &mut rng(row), &mut action).unwrap();
        assert_ne!(action, [1]);
    }
    close(distribution.entropy(&masked).unwrap(), core::f64::consts::LN_2);
    close(distribution.kl(&masked, &open).unwrap(), libm::log(1.5));
    assert_eq!(distribution.logp(&masked, &[1]), Ok(f32::NEG_INFINITY));
    assert_eq!(distribution.kl(&open, &masked), Ok(f32::INFINITY));
    let sure = [f32::INFINITY, f32::NEG_INFINITY];
    let bernoulli = Bernoulli::new(2).unwrap();
    assert_eq!(bernoulli.entropy(&sure), Ok(0.0));
    assert_eq!(bernoulli.logp(&sure, &[1, 0]), Ok(0.0));
}

#[test]
fn the_middle_is_the_most_probable() {
    let mut action = [9; 2];
    let logp = MultiCategorical::new([4, 2]).unwrap().deterministic(&[0.0, 3.0, 1.0, 3.0, -1.0, 1.0], &mut action);
    assert_eq!(action, [1, 1]);
    close(logp.unwrap(), libm::log(0.457_640_278 * 0.880_797_078));
    let mut action = [0.0; 2];
    DiagGaussian::new(2).unwrap().deterministic(&[0.5, -3.0, 0.0, 1.0], &mut action).unwrap();
    assert_eq!(action, [0.5, -3.0]);
    let mut action = [9; 3];
    Bernoulli::new(3).unwrap().deterministic(&[0.1, 0.0, -0.1], &mut action).unwrap();
    assert_eq!(action, [1, 0, 0]);
}

#[test]
fn sizes_must_fit() {
    for refused in [Categorical::new(0).is_err(), Bernoulli::new(0).is_err(), DiagGaussian::new(1 << 24).is_err()] {
        assert!(refused);
    }
    assert!(MultiCategorical::new([]).is_err() && MultiCategorical::new([2, 0]).is_err());
    assert!(MultiCategorical::new([u32::MAX; 3]).is_err());
    let distribution = Categorical::new(3).unwrap();
    let error = distribution.logp(&[0.0; 3], &[3]).unwrap_err();
    assert_eq!(error.to_string(), "component 0: 3 is not one of 3 values");
    let error = distribution.entropy(&[0.0; 2]).unwrap_err();
    assert_eq!(error.to_string(), "the distribution takes 3 inputs, not 2");
    let error = distribution.sample(&[0.0; 3], &mut rng(0), &mut [0; 2]).unwrap_err();
    assert_eq!(error.to_string(), "the distribution has 1 components of actions, not 2");
    assert!(Bernoulli::new(1).unwrap().logp(&[0.0], &[2]).is_err());
}

/// Checks the laws of divergences and log-probabilities.
fn check_laws<D: Distribution>(distribution: &D, p: &[f32], q: &[f32]) {
    let (p, q) = (&p[..distribution.input_len()], &q[..distribution.input_len()]);
    assert_eq!(distribution.kl(p, p), Ok(0.0));
    assert!(distribution.kl(p, q).unwrap() >= 0.0);
    let mut action = vec![D::Action::default(); distribution.action_len()];
    for inputs in [p, q] {
        let expected = distribution.deterministic(inputs, &mut action).unwrap();
        let logp = distribution.logp(inputs, &action).unwrap();
        assert!((logp - expected).abs() <= 1e-2 * expected.abs().max(1.0), "{logp} {expected}");
    }
}

fn compound() -> Space {
    let steps = BoxSpace::new(DType::I32, RowShape::vector(2), vec![-1.0, 3.0], vec![1.0, 4.0]).unwrap().into();
    Space::dict([
        ("a", Space::tuple([Space::Discrete { n: 3 }, Space::vector(&[0.0], &[1.0])]).unwrap()),
        ("b", steps),
        ("c", Space::multi_binary(2).unwrap()),
        ("d", Space::uniform(DType::F64, RowShape::SCALAR, 0.0, f64::INFINITY)),
    ])
    .unwrap()
}

#[test]
fn spaces_choose_their_distribution() {
    let kind = |space: &Space| ActionDistribution::for_space(space).unwrap();
    assert_eq!(kind(&Space::Discrete { n: 4 }), ActionDistribution::Categorical(Categorical::new(4).unwrap()));
    let nvec = [2, 5];
    let distribution = MultiCategorical::new(nvec).unwrap();
    let expected = ActionDistribution::MultiCategorical { distribution, dtype: DType::I64 };
    assert_eq!(kind(&Space::multi_discrete(nvec).unwrap()), expected);
    assert_eq!(kind(&Space::multi_binary(3).unwrap()), ActionDistribution::Bernoulli(Bernoulli::new(3).unwrap()));
    let distribution = DiagGaussian::new(2).unwrap();
    let expected = ActionDistribution::DiagGaussian { distribution, dtype: DType::F32 };
    assert_eq!(kind(&Space::vector(&[0.0; 2], &[1.0; 2])), expected);
    let open = Space::uniform(DType::I32, RowShape::SCALAR, 0.0, f64::INFINITY);
    let error = ActionDistribution::for_space(&open).unwrap_err();
    assert_eq!(error.to_string(), "there is no distribution of actions for Box(0, inf, (), int32)");
    let wide = Space::uniform(DType::I64, RowShape::SCALAR, 0.0, 1e12);
    assert_eq!(ActionDistribution::for_space(&wide), Err(DistributionError::BadSize));
    assert!(ActionDistribution::for_space(&Space::Discrete { n: 0 }).is_err());
}

#[test]
fn parts_are_drawn_and_weighed_by_themselves() {
    let space = compound();
    let whole = ActionDistribution::for_space(&space).unwrap();
    let inputs: Vec<f32> = (0..14).map(|i| (i * 5 % 7) as f32 * 0.3 - 1.0).collect();
    assert_eq!(whole.input_len(), inputs.len());
    let (action, logp) = whole.sample(&inputs, &mut rng(0)).unwrap();
    close(whole.logp(&inputs, &action).unwrap(), logp.into());
    let Point::Dict(parts) = &action else { panic!("no dict") };
    assert_eq!(
        parts.values().map(Point::dtype).collect::<Vec<_>>(),
        [None, Some(DType::I32), Some(DType::U8), Some(DType::F64)]
    );
    // Integers are points of the space, whatever its bounds.
    let Space::Dict(spaces) = &space else { panic!("no dict") };
    assert!(spaces["b"].contains(&parts["b"]));
    // Compares with the parts alone.
    let categorical = Categorical::new(3).unwrap();
    let gaussian = DiagGaussian::new(1).unwrap();
    let steps = MultiCategorical::new([3, 2]).unwrap();
    let binary = Bernoulli::new(2).unwrap();
    let entropy = categorical.entropy(&inputs[..3]).unwrap()
        + gaussian.entropy(&inputs[3..5]).unwrap()
        + steps.entropy(&inputs[5..10]).unwrap()
        + binary.entropy(&inputs[10..12]).unwrap()
        + gaussian.entropy(&inputs[12..]).unwrap();
    close(whole.entropy(&inputs).unwrap(), entropy.into());
    assert_eq!(whole.kl(&inputs, &inputs), Ok(0.0));
    assert!(whole.kl(&inputs, &[0.0; 14]).unwrap() > 0.0);
    let (middle, logp) = whole.deterministic(&inputs).unwrap();
    close(whole.logp(&inputs, &middle).unwrap(), logp.into());
}

#[test]
fn actions_of_another_form_are_errors() {
    let whole = ActionDistribution::for_space(&compound()).unwrap();
    let error = whole.logp(&[0.0; 14], &Point::Tuple(vec![])).unwrap_err();
    assert_eq!(error.to_string(), "a tuple of 0 is no action of the distribution");
    let one = ActionDistribution::for_space(&Space::Discrete { n: 2 }).unwrap();
    for action in [vec![0.0f32].into(), Point::I64(vec![0, 0]), 2.into(), Point::Tuple(vec![])] {
        assert!(one.logp(&[0.0; 2], &action).is_err(), "{action:?}");
    }
    assert!(matches!(whole.entropy(&[0.0; 13]), Err(DistributionError::WrongInputs { wanted: 14, found: 13 })));
}

proptest! {
    #[test]
    fn laws_hold(p in prop::collection::vec(-3.0f32..3.0, 6), q in prop::collection::vec(-3.0f32..3.0, 6)) {
        check_laws(&Categorical::new(5).unwrap(), &p, &q);
        check_laws(&MultiCategorical::new([2, 1, 3]).unwrap(), &p, &q);
        check_laws(&Bernoulli::new(6).unwrap(), &p, &q);
        check_laws(&DiagGaussian::new(3).unwrap(), &p, &q);
    }

    #[test]
    fn probabilities_sum_to_one(inputs in prop::collection::vec(-20.0f32..20.0, 5)) {
        let multi = MultiCategorical::new([3, 2]).unwrap();
        let logp = |i: i64| multi.logp(&inputs, &[i / 2, i % 2]).unwrap();
        let total: f64 = (0..6).map(|i| f64::from(math::exp(logp(i)))).sum();
        prop_assert!((total - 1.0).abs() < 1e-5);
        let entropy: f64 = (0..6).map(|i| -f64::from(math::exp(logp(i)) * logp(i))).sum();
        prop_assert!((entropy - f64::from(multi.entropy(&inputs).unwrap())).abs() < 1e-4);
        let bernoulli = Bernoulli::new(5).unwrap();
        let logp = |i: u8| bernoulli.logp(&inputs, &core::array::from_fn::<_, 5, _>(|k| i >> k & 1)).unwrap();
        let total: f64 = (0..32).map(|i| f64::from(math::exp(logp(i)))).sum();
        prop_assert!((total - 1.0).abs() < 1e-5);
    }

    /// Checks that no inputs cause a panic, and that the drawn actions can be evaluated.
    #[test]
    fn any_inputs_are_survived(p in prop::collection::vec(any::<u32>().prop_map(f32::from_bits), 4)) {
        let mut actions = [0; 2];
        let multi = MultiCategorical::new([3, 1]).unwrap();
        multi.sample(&p, &mut rng(0), &mut actions).unwrap();
        multi.logp(&p, &actions).unwrap();
        multi.deterministic(&p, &mut actions).unwrap();
        multi.logp(&p, &actions).unwrap();
        multi.kl(&p, &P).unwrap();
        let mut actions = [0.0; 2];
        let gaussian = DiagGaussian::new(2).unwrap();
        gaussian.sample(&p, &mut rng(0), &mut actions).unwrap();
        gaussian.logp(&p, &actions).unwrap();
        Bernoulli::new(4).unwrap().entropy(&p).unwrap();
    }
}

/// Compares with the formulas in 64 bits.
#[test]
fn divergences_of_small_steps_do_not_cancel() {
    let normal = DiagGaussian::new(1).unwrap();
    for step in [2e-4f32, -2e-4, 1e-2] {
        let log_ratio = -f64::from(step);
        let wanted = 0.5 * ((2.0 * log_ratio).exp_m1() - 2.0 * log_ratio);
        let kl = f64::from(normal.kl(&[0.0, 0.0], &[0.0, step]).unwrap());
        assert!((kl - wanted).abs() < 1e-5 * wanted, "{kl:e} {wanted:e}");
    }
    let choice = Categorical::new(2).unwrap();
    let switch = Bernoulli::new(1).unwrap();
    for step in [1e-3f32, -1e-3, 3e-2] {
        // The logarithm of (1 + e^step) / 2, and half of each logit's difference.
        let wanted = (f64::from(step).exp_m1() / 2.0).ln_1p() - f64::from(step) / 2.0;
        for kl in [choice.kl(&[0.0, 0.0], &[0.0, step]), switch.kl(&[0.0], &[step])] {
            let kl = f64::from(kl.unwrap());
            assert!((kl - wanted).abs() < 1e-3 * wanted, "{kl:e} {wanted:e}");
        }
    }
    // One of the distributions excludes a value.
    assert_eq!(choice.kl(&[0.0, f32::NEG_INFINITY], &[0.0, 0.0]).unwrap(), core::f32::consts::LN_2);
    assert_eq!(choice.kl(&[0.0, 0.0], &[0.0, f32::NEG_INFINITY]).unwrap(), f32::INFINITY);
}

#[test]
fn a_mean_is_possible_however_small_the_deviation() {
    let normal = DiagGaussian::new(1).unwrap();
    let inputs = [0.5, -120.0];
    assert_eq!(normal.deterministic(&inputs, &mut [0.0]).unwrap(), 120.0 - 0.918_938_5);
    assert_eq!(normal.kl(&inputs, &inputs), Ok(0.0));
}
