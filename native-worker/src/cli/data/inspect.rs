//! `rollmesh data inspect`.

use std::process::ExitCode;

use clap::Args;
use rollmesh_data::{
    dataset::BatchStream as _,
    survey::{Bin, PolicyReport, Report, Survey},
};
use serde_json::{Value, json};

use super::{
    InputArgs, bytes,
    numbers::{said, short},
};
use crate::{
    cli::{
        exit::Failure,
        table::{count, table},
    },
    offline::logged::Logged,
    terminal::printable,
};

/// Number of rows of the histogram.
const BINS: u32 = 16;
/// Length of its longest bar in characters.
const BAR: u64 = 40;

#[derive(Args)]
#[command(
    after_help = "Examples:\n  rollmesh data inspect samples\n  rollmesh data inspect 'samples/*.json' --json\n  \
                        rollmesh data inspect hopper-medium.hdf5\n  rollmesh data inspect D4RL/door/human-v2"
)]
pub(super) struct InspectArgs {
    #[command(flatten)]
    input: InputArgs,
}

pub(super) fn run(args: &InspectArgs) -> Result<ExitCode, Failure> {
    let mut logged = args.input.open()?;
    let reading = args.input.progress(&logged);
    let mut survey = Survey::default();
    reading.each(&mut logged, |batch, place| {
        if place.is_first {
            survey.begin_file();
        }
        survey.add(&batch).map_err(Failure::other)
    })?;
    reading.progress.finish();
    if args.input.json {
        println!("{}", object(&logged, &survey.report(BINS)));
    } else {
        print(&logged, &survey.report(BINS));
    }
    Ok(ExitCode::SUCCESS)
}

fn object(logged: &Logged, report: &Report) -> Value {
    let files = logged.files().iter().map(|file| json!({"path": file.path, "format": file.format.name()}));
    json!({
        "files": files.collect::<Vec<_>>(),
        "bytes": logged.progress().1,
        "batches": report.batches,
        "env_steps": report.env_steps,
        "corrupt_lines": logged.corrupt_lines(),
        "left_out": logged.left_out(),
        "policies": report.policies,
    })
}

fn print(logged: &Logged, report: &Report) {
    match logged.files() {
        [file] => println!("{} ({}, {})", file.path.display(), file.format, bytes(logged.progress().1)),
        files => println!("{} files ({})", files.len(), bytes(logged.progress().1)),
    }
    println!("batches     {}", report.batches);
    println!("env steps   {}", report.env_steps);
    if logged.corrupt_lines() > 0 {
        println!("corrupt     {}, passed over (see `rollmesh data validate`)", count(logged.corrupt_lines(), "line"));
    }
    logged.left_out().iter().for_each(|what| println!("left out    {}", printable(what)));
    for (id, policy) in &report.policies {
        if report.policies.len() > 1 {
            println!("\npolicy {}: {}", printable(id), count(policy.rows, "row"));
        }
        print_policy(policy);
    }
}

fn print_policy(policy: &PolicyReport) {
    let unfinished = match policy.unfinished {
        0 => String::new(),
        n => format!(", and {n} that did not end"),
    };
    println!("episodes    {}{unfinished}", policy.episodes);
    println!("return      {}", said(&policy.returns));
    println!("length      {}", said(&policy.lengths));
    println!();
    let header = ["column", "type", "rows", "min", "mean", "max"].map(String::from);
    let rows = policy.columns.iter().map(|(name, column)| {
        let values = &column.values;
        let number = |number: f64| match values.count {
            0 => "-".into(),
            // Episode numbers differ in their last digits, so integers are printed exactly.
            _ if number.fract() == 0.0 && number.abs() < 2f64.powi(53) => format!("{number}"),
            _ => short(number),
        };
        let odd = if values.not_finite > 0 { format!(" ({} not finite)", values.not_finite) } else { String::new() };
        let (min, mean, max) = (number(values.min), number(values.mean), number(values.max) + &odd);
        [name.clone(), column.kinds.join(" or "), column.rows.to_string(), min, mean, max]
    });
    // Numbers stand to the right.
    println!("{}", table(&std::iter::once(header).chain(rows).collect::<Vec<_>>(), |i| i > 1).trim_end());
    let bins = &policy.histogram;
    let Some(most) = bins.iter().map(|bin| bin.count).max().filter(|most| *most > 0) else { return };
    println!("\nepisodes by return");
    let all_equal = policy.returns.min == policy.returns.max;
    let range = |bin: &Bin| match all_equal {
        true => short(policy.returns.min),
        false => format!("{} to {}", short(bin.from), short(bin.to)),
    };
    let ranges: Vec<String> = bins.iter().map(range).collect();
    let width = ranges.iter().map(String::len).max().unwrap_or(0);
    for (bin, range) in bins.iter().zip(ranges) {
        let bar = "█".repeat((bin.count * BAR).div_ceil(most) as usize);
        println!("{range:>width$}  {bar}{}{}", if bin.count > 0 { " " } else { "" }, bin.count);
    }
}
