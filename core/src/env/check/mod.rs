//! Conformance checks for environments, users' own included.

mod agents;
mod error;
mod probe;
pub(super) mod rows;

pub use agents::check_multi_agent_env;
pub use error::CheckError;

use self::probe::LaneProbe;
use super::{EnvError, EnvSpec, EnvState};
use crate::{
    ids::SlotId,
    prelude::*,
    rng::{Purpose, Streams},
    space::Space,
};

/// Options of the checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckOptions {
    /// Number of lanes, at least one; two or more to detect lanes that depend on each other.
    pub lanes: u32,
    /// Steps of every lane in each of the checks.
    pub steps: u32,
    /// Seed of all random numbers.
    pub seed: u64,
}

impl Default for CheckOptions {
    fn default() -> Self {
        Self { lanes: 3, steps: 300, seed: 1 }
    }
}

impl CheckOptions {
    fn with_a_lane(self) -> Self {
        Self { lanes: self.lanes.max(1), ..self }
    }
}

/// This many lanes, and the other options by default.
impl From<u32> for CheckOptions {
    fn from(lanes: u32) -> Self {
        Self { lanes, ..Self::default() }
    }
}

type Check = fn(&EnvSpec, &CheckOptions) -> Result<(), CheckError>;

const CHECKS: [Check; 6] =
    [check_rows, check_determinism, check_independence, check_snapshots, check_refusals, check_damage];

/// Checks an environment with random actions from its space: number of lanes, spaces and element types, finite rewards,
/// observations in their space; that the same seeds give the same bits whatever was in the buffers before; that a lane does
/// not depend on others; that a lane which is restored from its snapshot, or replayed, continues bit-identically; that a
/// rejected action moves no lane; and that damaged snapshots are rejected or can be continued. For an
/// [opaque](EnvState::Opaque) environment only the rows are checked.
///
/// The last observation of a terminated episode may be out of the bounds of a box, as CartPole's is. An environment may also
/// accept actions from outside of its space, for example by clipping them. A panic of the environment is not caught.
///
/// # Errors
/// The first [`CheckError`] found; [`check_env_all`] continues.
pub fn check_env(spec: &EnvSpec, options: impl Into<CheckOptions>) -> Result<(), CheckError> {
    let options = options.into().with_a_lane();
    checks(spec, &options)?.iter().try_for_each(|check| check(spec, &options))
}

/// Does the same as [`check_env`], but continues after an error with the next kind of check: returns the first error of
/// every kind, without repetitions.
#[must_use]
pub fn check_env_all(spec: &EnvSpec, options: impl Into<CheckOptions>) -> Vec<CheckError> {
    let options = options.into().with_a_lane();
    let checks = match checks(spec, &options) {
        Ok(checks) => checks,
        Err(error) => return vec![error],
    };
    let mut errors = Vec::new();
    for error in checks.iter().filter_map(|check| check(spec, &options).err()) {
        if !errors.contains(&error) {
            errors.push(error);
        }
    }
    errors
}

/// Returns the checks for an environment with this state capability.
fn checks(spec: &EnvSpec, options: &CheckOptions) -> Result<&'static [Check], CheckError> {
    match LaneProbe::new(spec, options, 0..1)?.state() {
        EnvState::Opaque => Ok(&CHECKS[..1]),
        EnvState::Snapshot | EnvState::Replay => Ok(&CHECKS),
    }
}

/// Checks lanes, spaces and rewards.
fn check_rows(spec: &EnvSpec, options: &CheckOptions) -> Result<(), CheckError> {
    let mut probe = LaneProbe::new(spec, options, 0..options.lanes)?;
    probe.reset()?;
    for _ in 0..options.steps {
        probe.step("a step")?;
        probe.reset_ended()?;
    }
    Ok(())
}

/// Compares three instances; the third one has other content in its buffers before it writes there.
fn check_determinism(spec: &EnvSpec, options: &CheckOptions) -> Result<(), CheckError> {
    let probe = || LaneProbe::new(spec, options, 0..options.lanes);
    let mut twins = [probe()?, probe()?, probe()?.with_ones_in_buffers()];
    let compare = |[first, second, third]: &[LaneProbe; 3], during| {
        let step = first.step;
        match (first.first_difference(second), first.first_difference(third)) {
            (Some(lane), _) => Err(CheckError::NotDeterministic { during, lane, step }),
            (None, Some(lane)) => {
                let array = first.difference(lane, third).unwrap_or("obs");
                Err(CheckError::NotWritten { array, during, lane, step })
            }
            (None, None) => Ok(()),
        }
    };
    for probe in &mut twins {
        probe.reset()?;
    }
    compare(&twins, "a reset")?;
    for _ in 0..options.steps {
        for probe in &mut twins {
            probe.step("a step")?;
        }
        compare(&twins, "a step")?;
        for probe in &mut twins {
            probe.reset_ended()?;
        }
        compare(&twins, "a reset")?;
    }
    Ok(())
}

/// Compares all lanes together with each alone.
fn check_independence(spec: &EnvSpec, options: &CheckOptions) -> Result<(), CheckError> {
    let mut together = LaneProbe::new(spec, options, 0..options.lanes)?;
    let mut alone = Vec::new();
    for slot in 0..options.lanes {
        alone.push(LaneProbe::new(spec, options, slot..slot + 1)?);
    }
    let compare = |together: &LaneProbe, alone: &[LaneProbe]| {
        let mut lanes = alone.iter().enumerate();
        match lanes.find(|(lane, probe)| !together.agrees(*lane, probe, 0)) {
            Some((lane, _)) => Err(CheckError::Coupled { lane, step: together.step }),
            None => Ok(()),
        }
    };
    together.reset()?;
    alone.iter_mut().try_for_each(LaneProbe::reset)?;
    compare(&together, &alone)?;
    for _ in 0..options.steps {
        together.step("a step")?;
        alone.iter_mut().try_for_each(|probe| probe.step("a step"))?;
        compare(&together, &alone)?;
        together.reset_ended()?;
        alone.iter_mut().try_for_each(LaneProbe::reset_ended)?;
        compare(&together, &alone)?;
    }
    Ok(())
}

/// Continues repeatedly from snapshots in a fresh instance.
fn check_snapshots(spec: &EnvSpec, options: &CheckOptions) -> Result<(), CheckError> {
    let mut original = LaneProbe::new(spec, options, 0..options.lanes)?;
    original.reset()?;
    let mut twin: Option<LaneProbe> = None;
    let compare = |original: &LaneProbe, twin: &Option<LaneProbe>| {
        let difference = twin.as_ref().and_then(|twin| original.first_difference(twin));
        difference.map_or(Ok(()), |lane| Err(CheckError::BadRestore { lane, step: original.step }))
    };
    for step in 0..options.steps {
        if step % 16 == 3 {
            let mut fresh = LaneProbe::new(spec, options, 0..options.lanes)?;
            fresh.restore_from(&original)?;
            twin = Some(fresh);
            compare(&original, &twin)?;
        }
        for probe in [Some(&mut original), twin.as_mut()].into_iter().flatten() {
            probe.step("a step")?;
        }
        compare(&original, &twin)?;
        for probe in [Some(&mut original), twin.as_mut()].into_iter().flatten() {
            probe.reset_ended()?;
        }
        compare(&original, &twin)?;
    }
    Ok(())
}

/// Returns numbers outside of the first component of a space.
fn invalid_numbers(space: &Space) -> Vec<f64> {
    match space {
        Space::Box(space) => {
            let bounds = space.bounds().next();
            let beyond = bounds.into_iter().flat_map(|(low, high)| [low - 1.0, high + 1.0]);
            beyond.filter(|x| x.is_finite()).chain([f64::NAN]).collect()
        }
        Space::Discrete { n } => vec![f64::from(*n), -1.0],
        Space::MultiDiscrete { nvec } => nvec.iter().take(1).flat_map(|n| [f64::from(*n), -1.0]).collect(),
        Space::MultiBinary { .. } => vec![2.0, -1.0],
        Space::Tuple(_) | Space::Dict(_) => Vec::new(),
    }
}

/// Gives the last lane an action from outside of the space. If that is rejected, all lanes must continue unaffected.
fn check_refusals(spec: &EnvSpec, options: &CheckOptions) -> Result<(), CheckError> {
    let space = LaneProbe::new(spec, options, 0..options.lanes)?.action_space;
    for number in invalid_numbers(&space) {
        let mut probe = LaneProbe::new(spec, options, 0..options.lanes)?;
        let mut twin = LaneProbe::new(spec, options, 0..options.lanes)?;
        for probe in [&mut probe, &mut twin] {
            probe.reset()?;
            probe.step("a step")?;
            probe.reset_ended()?;
        }
        let Some(last) = probe.lanes().checked_sub(1) else { return Ok(()) };
        let range = probe.action_range(last);
        probe.sample_actions();
        if !rows::put_first(probe.actions.part_mut(range.clone()), number) {
            continue;
        }
        let action = rows::describe(probe.actions.part(range));
        match probe.step_raw() {
            Ok(()) => continue,
            Err(EnvError::InvalidAction { .. }) => {}
            Err(source) => return Err(CheckError::Failed { during: "an invalid action", step: probe.step, source }),
        }
        for _ in 0..options.steps.min(20) {
            for probe in [&mut probe, &mut twin] {
                probe.step("a step")?;
            }
            if let Some(lane) = probe.first_difference(&twin) {
                return Err(CheckError::MovedByRefused { lane, step: probe.step, action });
            }
            for probe in [&mut probe, &mut twin] {
                probe.reset_ended()?;
            }
        }
    }
    Ok(())
}

/// Restores snapshots that are truncated, extended, damaged or made up.
fn check_damage(spec: &EnvSpec, options: &CheckOptions) -> Result<(), CheckError> {
    let mut probe = LaneProbe::new(spec, options, 0..1)?;
    probe.reset()?;
    let streams = Streams::new(options.seed, Purpose::Audit);
    for step in 0..options.steps.min(100) {
        let mut rng = streams.at(SlotId(0), 0, step, 0);
        let good = probe.snapshot(0)?;
        let mut bad = good.clone();
        match step % 4 {
            0 => bad.truncate(rng.below(good.len() as u32) as usize),
            1 => bad.extend((0..=rng.below(16)).map(|_| rng.next_u32() as u8)),
            2 => bad.iter_mut().for_each(|byte| *byte = rng.next_u32() as u8),
            _ => {
                for _ in 0..=rng.below(4) {
                    let at = rng.below(good.len() as u32) as usize;
                    bad.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= 1 << rng.below(8));
                }
            }
        }
        match probe.restore(0, &bad) {
            Ok(()) => probe.play_on()?,
            Err(EnvError::BadSnapshot(_) | EnvError::NotReplayed { .. }) => {}
            Err(source) => return Err(CheckError::Failed { during: "`restore` of damaged bytes", step, source }),
        }
        probe.restore(0, &good).map_err(|source| CheckError::Failed { during: "`restore`", step, source })?;
        probe.step("a step")?;
        probe.reset_ended()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
