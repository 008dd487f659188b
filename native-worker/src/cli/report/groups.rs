//! Runs in groups that differ in nothing but the seed, and their curves.

use std::collections::BTreeMap;

use rollmesh_core::config::leaves;
use serde_json::json;

use super::NamedRun;

/// A point of a curve: env steps and a value.
pub(super) type Point = (f64, f64);

/// Runs with equal settings but for the seed.
pub(super) struct Group<'a> {
    pub(super) runs: Vec<&'a NamedRun>,
    /// All settings but the seed.
    settings: BTreeMap<String, String>,
}

/// Maximum number of points of a group's curve.
const MAX_POINTS: usize = 2_048;

/// A curve of a group, with the range of its middle half if it has several runs.
#[derive(Debug, Default, PartialEq)]
pub(super) struct GroupCurve {
    pub(super) points: Vec<Point>,
    /// Low and high values at the points' places; empty for one run.
    pub(super) band: Vec<(f64, f64)>,
}

impl<'a> Group<'a> {
    pub(super) fn all(runs: &'a [NamedRun]) -> Vec<Self> {
        let mut groups: Vec<Self> = Vec::new();
        for run in runs {
            let mut settings = settings_of(run);
            settings.remove("seed");
            match groups.iter_mut().find(|group| group.settings == settings) {
                Some(group) => group.runs.push(run),
                None => groups.push(Self { runs: vec![run], settings }),
            }
        }
        groups
    }

    /// Returns the group's name for legends: environment, algorithm, and the settings in which groups differ.
    pub(super) fn name(&self, differing: &[String]) -> String {
        let config = &self.runs[0].curves.config;
        let mut parts = vec![config.env().to_owned(), config.algorithm.clone().unwrap_or_else(|| "sampling".into())];
        let others = differing.iter().filter(|path| !["env", "algorithm"].contains(&&***path));
        parts.extend(others.map(|path| format!("{path} {}", self.settings.get(path).map_or("–", String::as_str))));
        parts.join(", ")
    }

    /// Returns the curve of a number of the runs' points. The curve of several runs covers the places where all of them
    /// have values: a median over the longest runs alone would be biased. Runs without any value are left out.
    pub(super) fn line(&self, points: impl Fn(&NamedRun) -> Vec<Point>) -> GroupCurve {
        let mut runs: Vec<Vec<Point>> = self.runs.iter().map(|run| points(run)).collect();
        runs.iter_mut().for_each(|points| points.retain(|(x, y)| x.is_finite() && y.is_finite()));
        runs.retain(|points| !points.is_empty());
        if runs.len() <= 1 {
            return GroupCurve { points: runs.pop().unwrap_or_default(), band: Vec::new() };
        }
        let at = |x: f64| {
            let mut values = runs.iter().map(|points| value_at(points, x)).collect::<Option<Vec<f64>>>()?;
            values.sort_by(f64::total_cmp);
            let [low, middle, high] = [0.25, 0.5, 0.75].map(|part| quantile(&values, part));
            Some(((x, middle), (low, high)))
        };
        let mut places: Vec<f64> = runs.iter().flatten().map(|point| point.0).collect();
        places.sort_by(f64::total_cmp);
        places.dedup();
        let every = places.len().div_ceil(MAX_POINTS);
        let (points, band) = places.into_iter().step_by(every).filter_map(at).unzip();
        GroupCurve { points, band }
    }
}

/// Returns the settings in which groups differ, by path.
pub(super) fn differing(groups: &[Group<'_>]) -> Vec<String> {
    let mut paths: Vec<&String> = groups.iter().flat_map(|group| group.settings.keys()).collect();
    paths.sort();
    paths.dedup();
    let differs =
        |path: &&String| groups.iter().any(|group| group.settings.get(*path) != groups[0].settings.get(*path));
    paths.into_iter().filter(differs).cloned().collect()
}

/// Returns the settings of a run by path.
pub(super) fn settings_of(run: &NamedRun) -> BTreeMap<String, String> {
    // A configuration that was read can be written.
    let settings = run.curves.config.settings().map(|settings| json!(settings)).unwrap_or_default();
    let set = leaves(&settings, ".").into_iter().filter(|(_, value)| !value.is_null());
    set.map(|(path, value)| (path, value.as_str().map_or_else(|| value.to_string(), str::to_owned))).collect()
}

/// Returns the value at a place, linear between points; `None` beyond the ends.
fn value_at(points: &[Point], x: f64) -> Option<f64> {
    let after = points.partition_point(|point| point.0 < x);
    let next = points.get(after)?;
    if next.0 == x {
        return Some(next.1);
    }
    let before = points[after.checked_sub(1)?];
    Some(before.1 + (x - before.0) / (next.0 - before.0) * (next.1 - before.1))
}

/// Returns a quantile of ascending values, linear between ranks; NaN without a value.
pub(super) fn quantile(values: &[f64], part: f64) -> f64 {
    let Some(last) = values.len().checked_sub(1) else { return f64::NAN };
    let rank = part * last as f64;
    let (low, high) = (values[rank.floor() as usize], values[rank.ceil() as usize]);
    low + rank.fract() * (high - low)
}

#[cfg(test)]
mod tests {
    use rollmesh_core::run::RunConfig;

    use super::*;
    use crate::runs::SavedCurves;

    fn run(name: &str, seed: u64, num_envs: u32) -> NamedRun {
        let config = RunConfig::new("CartPole-v1").seed(seed).num_envs(num_envs);
        let curves = SavedCurves { config, iterations: vec![], evaluations: vec![], summary: None };
        NamedRun { name: name.into(), curves }
    }

    #[test]
    fn runs_that_differ_in_their_seeds_are_a_group_with_a_median() {
        let runs = [run("a", 1, 4), run("b", 2, 4), run("c", 1, 8)];
        let groups = Group::all(&runs);
        assert_eq!(groups.iter().map(|group| group.runs.len()).collect::<Vec<_>>(), [2, 1]);
        assert_eq!(differing(&groups), ["num_envs"]);
        assert_eq!(groups[1].name(&differing(&groups)), "CartPole-v1, ppo, num_envs 8");
        let points = |run: &NamedRun| match &*run.name {
            "a" => vec![(0.0, 0.0), (10.0, 10.0), (20.0, 20.0)],
            _ => vec![(0.0, 4.0), (5.0, 5.0), (10.0, 6.0)],
        };
        let line = groups[0].line(points);
        assert_eq!(line.points, [(0.0, 2.0), (5.0, 5.0), (10.0, 8.0)], "up to the end of the shorter run");
        assert_eq!(line.band[0], (1.0, 3.0));
        assert!(groups[1].line(points).band.is_empty());
    }
}
