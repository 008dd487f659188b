//! Printing the report.

use rollmesh_core::estimate::{Estimate, Interval};
use serde_json::{Value, json};

use super::{
    EstimatorName, OpeArgs,
    estimate::{EstimateFound, Holds},
    read::Data,
};
use crate::{
    checkpoint::PolicyCheckpoint,
    cli::{data::numbers::short, table::table},
};

/// Width of the picture of intervals in characters.
const PICTURE: usize = 40;
/// With fewer samples, intervals are unreliable; with fewer effective samples, ratio-based estimates depend on a few
/// episodes.
const FEW: f64 = 10.0;
/// Share of episodes without beginning or end above which a hint says that they count as whole ones.
const MANY_CUT: f64 = 0.05;

pub(super) struct OpeReport<'a> {
    pub(super) args: &'a OpeArgs,
    pub(super) checkpoint: &'a PolicyCheckpoint,
    pub(super) gamma: f64,
    pub(super) data: &'a Data,
    pub(super) found: &'a EstimateFound,
}

impl OpeReport<'_> {
    pub(super) fn json(&self) -> Value {
        let Self { args, checkpoint, data, found, .. } = self;
        let (behavior, interval) = &found.behavior;
        let estimates = found.estimates.iter().map(|line| {
            let (of, Interval { low, high }) = (&line.estimate, line.interval);
            json!({
                "estimator": line.name.name(), "v_target": of.v_target, "v_target_std": of.v_target_std,
                "low": low, "high": high, "interval_holds": line.holds.name(), "v_gain": of.v_gain, "v_delta": of.v_delta,
            })
        });
        let fit = found.fit.map(|fit| json!({"passes": fit.passes, "loss": fit.loss}));
        json!({
            "policy": args.checkpoint,
            "env": checkpoint.run.env(),
            "iteration": checkpoint.iteration,
            "files": data.files,
            "corrupt_lines": data.corrupt_lines,
            "rows": data.logged.rows.len(),
            "episodes": data.logged.episodes,
            "unfinished": data.logged.unfinished,
            "begun_late": data.logged.begun_late,
            "samples": found.samples,
            "bandit": args.bandit,
            "gamma": if args.bandit { 1.0 } else { self.gamma },
            "epsilon_greedy": args.epsilon_greedy,
            "confidence": args.confidence,
            "resamples": args.resamples,
            "refits": args.wants_model().then_some(args.refits),
            "seed": args.seed,
            "effective_sample_size": found.effective_samples,
            "v_behavior": behavior.v_behavior,
            "v_behavior_std": behavior.v_behavior_std,
            "v_behavior_low": interval.low,
            "v_behavior_high": interval.high,
            "fitted_q": fit,
            "estimates": estimates.collect::<Vec<_>>(),
            "hints": self.hints(),
        })
    }

    /// Returns warnings about the reliability of the numbers.
    fn hints(&self) -> Vec<String> {
        let Self { args, found, .. } = self;
        let mut hints = Vec::new();
        let has = |name| found.estimates.iter().any(|line| line.name == name);
        if has(EstimatorName::Wis) && found.equal_rewards && !args.bandit {
            hints.push("every step pays the same: there wis cannot tell policies apart, take cwpdis".into());
        }
        if found.estimates.iter().any(|line| line.holds == Holds::FirstStates) {
            let what = "the interval of dm is of first states alone, not of what the model learned";
            hints.push(format!("{what}: --refits 10 holds that, too"));
        }
        let straying: Vec<&str> =
            found.estimates.iter().filter(|line| line.strays).map(|line| line.name.name()).collect();
        if !straying.is_empty() {
            let what = "ends far outside of what any episode comes to: few episodes carry everything";
            hints.push(format!(
                "the interval of {} {what}; log more, or of a policy that is more alike",
                straying.join(", ")
            ));
        }
        let logged = &self.data.logged;
        let parts = [(logged.unfinished, "without their end"), (logged.begun_late, "without their beginning")];
        for (n, lacks) in parts.into_iter().filter(|_| !args.bandit) {
            let share = n as f64 / logged.episodes as f64;
            if share > MANY_CUT {
                let percent = short((100.0 * share).round());
                hints.push(format!(
                    "{percent} % of the episodes are {lacks} and count as whole ones: log complete episodes"
                ));
            }
        }
        if (found.samples as f64) < FEW {
            hints.push(format!("intervals from {} samples are guesses: log more", found.samples));
        }
        hints
    }

    pub(super) fn print(&self) {
        let Self { args, checkpoint, data, found, .. } = self;
        let logged = &data.logged;
        let aside = |n: usize, what: &str| if n > 0 { format!(", {n} {what}") } else { String::new() };
        let late = aside(logged.begun_late, "not seen from their beginning");
        let unfinished = aside(logged.unfinished, "not seen to end");
        println!("data        {} rows in {} episodes{late}{unfinished}", logged.rows.len(), logged.episodes);
        if data.corrupt_lines > 0 {
            println!("passed over {} lines that are no batches", data.corrupt_lines);
        }
        let epsilon = match args.epsilon_greedy {
            0.0 => String::new(),
            epsilon => format!(", any action with probability {epsilon}"),
        };
        println!("policy      {}, {} steps old{epsilon}", checkpoint.run.env(), checkpoint.env_steps);
        println!(
            "discount    {}",
            if args.bandit { "none, rows stand for themselves".into() } else { short(self.gamma) }
        );
        if let Some(fit) = found.fit {
            println!("fitted Q    {} passes, loss {}, {} refits", fit.passes, short(fit.loss), args.refits);
        }
        if let Some(samples) = found.effective_samples {
            let few = if samples < FEW { ": too few to trust estimates by ratios" } else { "" };
            println!("effective   {samples:.1} of {} samples{few}", found.samples);
        }
        println!();
        let (behavior, interval) = &found.behavior;
        let own = ReportLine::new("behavior", behavior.v_behavior, behavior.v_behavior_std, *interval, None);
        let lines = found.estimates.iter().map(|line| {
            let of = &line.estimate;
            ReportLine::new(line.name.name(), of.v_target, of.v_target_std, line.interval, gain(of))
        });
        let lines: Vec<ReportLine> = std::iter::once(own).chain(lines).collect();
        let percent = short(100.0 * args.confidence);
        print_table(&lines, &percent);
        for hint in self.hints() {
            println!("\n{hint}");
        }
    }
}

/// Returns the ratio of both values; `None` where the behaviour policy's is nothing or a loss, since it says nothing there.
fn gain(of: &Estimate) -> Option<f64> {
    (of.v_behavior > 0.0).then_some(of.v_gain)
}

/// A row of the table.
struct ReportLine {
    cells: [String; 6],
    value: f64,
    interval: Interval,
}

impl ReportLine {
    fn new(name: &str, value: f64, std: f64, interval: Interval, gain: Option<f64>) -> Self {
        let gain = gain.map_or_else(|| "-".into(), short);
        let cells = [name.into(), short(value), short(std), short(interval.low), short(interval.high), gain];
        Self { cells, value, interval }
    }
}

fn print_table(lines: &[ReportLine], percent: &str) {
    let header = ["estimator", "value", "std", &format!("{percent} % from"), "to", "gain", ""].map(String::from);
    let low = lines.iter().map(|line| line.interval.low.min(line.value)).fold(f64::INFINITY, f64::min);
    let high = lines.iter().map(|line| line.interval.high.max(line.value)).fold(f64::NEG_INFINITY, f64::max);
    let row = |line: &ReportLine| {
        let [name, value, std, from, to, gain] = line.cells.clone();
        [name, value, std, from, to, gain, picture(line, low, high)]
    };
    let rows: Vec<_> = std::iter::once(header).chain(lines.iter().map(row)).collect();
    print!("{}", table(&rows, |i| matches!(i, 1..=5)));
}

/// Draws `├───●──┤`, on a scale from `low` to `high`.
fn picture(line: &ReportLine, low: f64, high: f64) -> String {
    let place = |value: f64| {
        let part = (value - low) / (high - low);
        // If all numbers are equal, the quotient is NaN.
        if part.is_finite() { (part * (PICTURE - 1) as f64).round() as usize } else { PICTURE / 2 }
    };
    let (from, to, at) = (place(line.interval.low), place(line.interval.high), place(line.value));
    let mark = |i: usize| match i {
        _ if i == at => '●',
        _ if i == from => '├',
        _ if i == to => '┤',
        _ if (from..to).contains(&i) => '─',
        _ => ' ',
    };
    (0..PICTURE).map(mark).collect::<String>().trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use rollmesh_core::estimate::Sample;

    use super::*;

    #[test]
    fn losses_have_no_gain() {
        let of = |v_behavior: f64| gain(&Estimate::of(&[Sample { v_behavior, v_target: 3.0 }]).unwrap());
        assert_eq!((of(2.0), of(0.0), of(-2.0)), (Some(1.5), None, None));
    }

    #[test]
    fn intervals_are_drawn_to_scale() {
        let line = |low, value, high| ReportLine::new("is", value, 0.0, Interval { low, high }, None);
        let drawn = picture(&line(0.0, 19.5, 39.0), 0.0, 39.0);
        assert_eq!(drawn.chars().count(), PICTURE);
        assert!(drawn.starts_with('├') && drawn.ends_with('┤') && drawn.chars().nth(20) == Some('●'), "{drawn}");
        assert_eq!(picture(&line(10.0, 11.0, 13.0), 0.0, 39.0), format!("{}├●─┤", " ".repeat(10)));
        assert_eq!(picture(&line(1.0, 1.0, 1.0), 1.0, 1.0), format!("{}●", " ".repeat(20)));
    }
}
