//! Fits to a chain whose values are known.

use super::*;

const GAMMA: f64 = 0.9;

/// Returns the steps of two states, as one-hot rows. Action 0 stays and pays 1 in state 0, action 1 goes to the other
/// state and pays nothing; state 1 ends with 2 for any action. The policy stays with probability 0.75.
fn chain() -> Transitions {
    let mut chain = Transitions { obs_len: 2, num_actions: 2, ..Transitions::default() };
    for (state, action, reward, next, ends) in
        [(0, 0, 1.0, 0, false), (0, 1, 0.0, 1, false), (1, 0, 2.0, 0, true), (1, 1, 2.0, 1, true)]
    {
        for _ in 0..8 {
            chain.obs.extend([[1.0, 0.0], [0.0, 1.0]][state]);
            chain.new_obs.extend([[1.0, 0.0], [0.0, 1.0]][next]);
            chain.actions.push(action);
            chain.rewards.push(reward);
            chain.terminateds.push(ends);
            chain.new_probs.extend([0.75, 0.25]);
        }
    }
    chain
}

fn fitted(config: FittedQConfig, seed: u64) -> (Vec<f32>, Fit) {
    let mut model = FittedQ::new(2, 2, GAMMA, config, seed, Kernels::PORTABLE).unwrap();
    let mut passes = 0;
    let lr = model.config.lr;
    let fit = model.passes(&chain(), |_| lr, |_| passes += 1).unwrap();
    assert_eq!(fit.passes, passes);
    let mut q = vec![0.0; 4];
    model.q_values(&[1.0, 0.0, 0.0, 1.0], &mut q).unwrap();
    (q, fit)
}

fn config() -> FittedQConfig {
    let fcnet_hiddens = vec![16];
    let minibatch_size = Some(8);
    FittedQConfig {
        n_iters: 400,
        lr: 0.01,
        min_loss_threshold: 0.0,
        minibatch_size,
        fcnet_hiddens,
        ..FittedQConfig::default()
    }
}

#[test]
fn values_of_a_chain_are_found() {
    // v = 0.75 (1 + 0.9 v) + 0.25 * 0.9 * 2
    let v = (0.75 + 0.45) / (1.0 - 0.675);
    let wanted = [1.0 + 0.9 * v, 1.8, 2.0, 2.0];
    for polyak_coef in [1.0, 0.3] {
        let (q, fit) = fitted(FittedQConfig { polyak_coef, ..config() }, 3);
        for (found, wanted) in q.iter().zip(wanted) {
            assert!((f64::from(*found) - wanted).abs() < 0.1, "{q:?} {wanted:?}");
        }
        assert!(fit.loss < 0.01 && fit.passes <= 400, "{fit:?}");
    }
}

/// A fit must not depend on the units of observations and rewards.
#[test]
fn a_log_is_fitted_in_any_units() {
    let v = (0.75 + 0.45) / (1.0 - 0.675);
    let wanted = [1.0 + 0.9 * v, 1.8, 2.0, 2.0];
    for (obs_unit, origin, reward_unit) in [(1.0, 0.0, 1.0), (1e-3, 5.0, 1e4), (300.0, -1e3, 1e-3)] {
        let obs = |obs: f32| origin + obs_unit * obs;
        let mut chain = chain();
        chain.obs.iter_mut().chain(&mut chain.new_obs).for_each(|x| *x = obs(*x));
        chain.rewards.iter_mut().for_each(|reward| *reward *= reward_unit);
        let config = FittedQConfig { minibatch_size: Some(8), ..FittedQConfig::for_log(0.97) };
        let (mut model, fit) = FittedQ::of_log(&chain, GAMMA, config, 3, Kernels::PORTABLE, |_| ()).unwrap();
        let mut q = vec![0.0; 4];
        model.q_values(&[obs(1.0), obs(0.0), obs(0.0), obs(1.0)], &mut q).unwrap();
        for (found, wanted) in q.iter().zip(wanted) {
            assert!((f64::from(*found / reward_unit) - wanted).abs() < 0.05, "{q:?} {wanted:?}");
        }
        assert!(fit.loss < 1e-3 * f64::from(reward_unit).powi(2), "{fit:?}");
    }
}

#[test]
fn same_seed_gives_bit_identical_fits() {
    let short = FittedQConfig { n_iters: 20, ..config() };
    assert_eq!(fitted(short.clone(), 3), fitted(short.clone(), 3));
    assert_ne!(fitted(short.clone(), 3).0, fitted(short, 4).0);
}

#[test]
fn a_small_loss_is_the_end() {
    let (_, fit) = fitted(FittedQConfig { min_loss_threshold: 0.5, ..config() }, 3);
    assert!(fit.loss < 0.5 && fit.passes < 100, "{fit:?}");
}

#[test]
fn unsuitable_transitions_and_settings_are_refused() {
    let mut model = FittedQ::new(3, 2, GAMMA, config(), 3, Kernels::PORTABLE).unwrap();
    let error = model.fit(&chain()).unwrap_err().to_string();
    assert!(error.ends_with("it takes 3 numbers and 2 actions, not 2 and 2"), "{error}");
    assert!(model.q_values(&[0.0; 4], &mut [0.0; 2]).is_err() && model.q_values(&[0.0; 3], &mut [0.0; 3]).is_err());
    let nothing = Transitions { obs_len: 3, num_actions: 2, ..Transitions::default() };
    assert_eq!(model.fit(&nothing), Err(EstimateError::NoSamples));
    assert_eq!(
        FittedQ::of_log(&nothing, GAMMA, config(), 3, Kernels::PORTABLE, |_| ()).err(),
        Some(EstimateError::NoSamples)
    );
    assert!(FittedQ::new(0, 2, GAMMA, config(), 3, Kernels::PORTABLE).is_err());
    assert!(FittedQ::new(2, 2, GAMMA, FittedQConfig { lr: f64::NAN, ..config() }, 3, Kernels::PORTABLE).is_err());
    let mut huge = chain();
    huge.rewards.fill(f32::MAX);
    let error = FittedQ::new(2, 2, GAMMA, config(), 3, Kernels::PORTABLE).unwrap().fit(&huge).unwrap_err().to_string();
    assert!(error.contains("try a smaller lr"), "{error}");
}
