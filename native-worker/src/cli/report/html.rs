//! The page of the report.

use std::fmt::Write as _;

use serde_json::Value;

use super::{
    NamedRun, UnreadableRun,
    groups::{Group, Point, differing, quantile, settings_of},
    svg::{COLOURS, chart},
};
use crate::{cli::data::numbers::short, runs::IterationMetrics};

const STYLE: &str = "\
:root{color-scheme:light dark;--ink:light-dark(#1b1f24,#e6e9ee);--muted:light-dark(#57606a,#9aa4b2);--line:light-dark(#d8dee4,#333b46)}\
body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:var(--ink);background:Canvas}\
figure{margin:1.5rem 0}figcaption{font-weight:600}svg{width:100%;height:auto}svg text{font-size:11px;fill:var(--muted)}\
.grid{stroke:var(--line);fill:none}.line{fill:none;stroke:var(--c);stroke-width:1.8}.band{fill:var(--c);opacity:.18}\
.c0{--c:light-dark(#0a62c9,#6cb0ff)}.c1{--c:light-dark(#b3411b,#ff9d76)}.c2{--c:light-dark(#1a7f37,#6fdd8b)}\
.c3{--c:light-dark(#8250df,#c297ff)}.c4{--c:light-dark(#9a6700,#e3b341)}.c5{--c:light-dark(#bf3989,#ff8fcf)}\
.scroll{overflow-x:auto}table{border-collapse:collapse;margin:1rem 0}th,td{padding:.25rem .75rem .25rem 0;text-align:left;\
border-bottom:1px solid var(--line);white-space:nowrap}td.n{text-align:right;font-variant-numeric:tabular-nums}\
.swatch{display:inline-block;width:.8em;height:.8em;margin-right:.5em;background:var(--c)}.muted{color:var(--muted)}";

type Number = fn(&IterationMetrics) -> Option<f64>;

/// The curves of iterations.
const CURVES: [(&str, Number); 7] = [
    ("Mean return", |metrics| metrics.episode_return_mean),
    ("Episode length", |metrics| metrics.episode_len_mean),
    ("Env steps per second", |metrics| Some(metrics.steps_per_s)),
    ("Policy loss", |metrics| Some(metrics.stats.policy_loss)),
    ("Value loss", |metrics| Some(metrics.stats.vf_loss)),
    ("Entropy", |metrics| Some(metrics.stats.entropy)),
    ("KL divergence", |metrics| Some(metrics.stats.kl)),
];

/// Returns the whole page.
pub(super) fn page(groups: &[Group<'_>], runs: &[NamedRun], unreadable: &[UnreadableRun]) -> String {
    let differing = differing(groups);
    let mut page = format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width, initial-scale=1\"><title>rollmesh: {count}</title><style>{STYLE}</style></head>\
         <body><h1>{count}</h1><p class=\"muted\">Written by rollmesh {version}. Curves are by env steps; several seeds are \
         their median and the range of their middle half, where all of them have values.</p>",
        count = counted(runs.len(), groups.len()),
        version = env!("CARGO_PKG_VERSION"),
    );
    page.push_str(&group_table(groups, &differing));
    page.push_str(&curves(groups));
    page.push_str(&run_table(runs));
    page.push_str(&unreadable_table(unreadable));
    page.push_str(&settings_tables(groups));
    page.push_str("</body></html>\n");
    page
}

/// Returns a text for HTML, elements and attributes.
pub(super) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

fn counted(runs: usize, groups: usize) -> String {
    let runs = if runs == 1 { "1 run".into() } else { format!("{runs} runs") };
    if groups == 1 { runs } else { format!("{runs} in {groups} groups") }
}

/// Writes a table.
fn table(head: &[&str], rows: impl IntoIterator<Item = Vec<Cell>>) -> String {
    let mut table = String::from("<div class=\"scroll\"><table><thead><tr>");
    head.iter().for_each(|name| table.push_str(&format!("<th scope=\"col\">{}</th>", escaped(name))));
    table.push_str("</tr></thead><tbody>");
    for row in rows {
        table.push_str("<tr>");
        for cell in row {
            let _ = match cell {
                Cell::Markup(markup) => write!(table, "<td>{markup}</td>"),
                Cell::Text(text) => write!(table, "<td>{}</td>", escaped(&text)),
                Cell::Number(number) => write!(table, "<td class=\"n\">{}</td>", escaped(&number)),
            };
        }
        table.push_str("</tr>");
    }
    table.push_str("</tbody></table></div>");
    table
}

enum Cell {
    /// Already HTML.
    Markup(String),
    Text(String),
    Number(String),
}

/// Writes a table of the groups with their colours, seeds, and the quantiles of their last mean returns.
fn group_table(groups: &[Group<'_>], differing: &[String]) -> String {
    let row = |(index, group): (usize, &Group<'_>)| {
        let seeds: Vec<String> = group.runs.iter().map(|run| run.curves.config.rollout.seed.to_string()).collect();
        let last = |run: &&NamedRun| run.curves.iterations.iter().rev().find_map(|metrics| metrics.episode_return_mean);
        let mut returns: Vec<f64> = group.runs.iter().filter_map(last).collect();
        returns.sort_by(f64::total_cmp);
        let quantiles = [0.0, 0.25, 0.5, 0.75, 1.0].map(|part| Cell::Number(number(quantile(&returns, part))));
        let name = format!("<span class=\"swatch c{}\"></span>{}", index % COLOURS, escaped(&group.name(differing)));
        [Cell::Markup(name), Cell::Text(seeds.join(", "))].into_iter().chain(quantiles).collect()
    };
    let head = ["Group", "Seeds", "Least", "25 %", "Median", "75 %", "Greatest"];
    format!("<h2>Last mean return</h2>{}", table(&head, groups.iter().enumerate().map(row)))
}

fn curves(groups: &[Group<'_>]) -> String {
    let of = |points: &dyn Fn(&NamedRun) -> Vec<Point>, title: &str| {
        let lines: Vec<_> = groups.iter().map(|group| group.line(points)).collect();
        chart(title, &lines).unwrap_or_default()
    };
    let mut all = String::from("<h2>Curves</h2>");
    let evaluations = |run: &NamedRun| {
        let point = |metrics: &crate::runs::EvaluationMetrics| {
            Some((metrics.env_steps as f64, metrics.episode_return_mean.or(metrics.partial_return_mean)?))
        };
        run.curves.evaluations.iter().filter_map(point).collect()
    };
    for (index, (title, value)) in CURVES.iter().enumerate() {
        let points = |run: &NamedRun| {
            let point = |metrics: &IterationMetrics| Some((metrics.env_steps as f64, value(metrics)?));
            run.curves.iterations.iter().filter_map(point).collect()
        };
        all.push_str(&of(&points, title));
        if index == 0 {
            all.push_str(&of(&evaluations, "Mean return of evaluations"));
        }
    }
    all
}

fn run_table(runs: &[NamedRun]) -> String {
    let row = |run: &NamedRun| {
        let summary = |name: &str| run.curves.summary.as_ref().map_or(&Value::Null, |summary| &summary[name]);
        let last = run.curves.iterations.last();
        let end = summary("end").as_str().unwrap_or("in progress, or interrupted");
        vec![
            Cell::Text(run.name.clone()),
            Cell::Text(end.into()),
            Cell::Number(run.curves.config.rollout.seed.to_string()),
            Cell::Number(last.map_or_else(String::new, |metrics| metrics.env_steps.to_string())),
            Cell::Number(number(last.and_then(|metrics| metrics.episode_return_mean).unwrap_or(f64::NAN))),
            Cell::Number(number(last.map_or(f64::NAN, |metrics| metrics.wall_s))),
            Cell::Text(summary("weights_hash").as_str().unwrap_or_default().into()),
        ]
    };
    let head = ["Run", "End", "Seed", "Env steps", "Mean return", "Seconds", "Hash of the weights"];
    format!("<h2>Runs</h2>{}", table(&head, runs.iter().map(row)))
}

fn unreadable_table(runs: &[UnreadableRun]) -> String {
    if runs.is_empty() {
        return String::new();
    }
    let row = |run: &UnreadableRun| vec![Cell::Text(run.name.clone()), Cell::Text(run.reason.clone())];
    format!("<h2>Runs that could not be read</h2>{}", table(&["Run", "Reason"], runs.iter().map(row)))
}

fn settings_tables(groups: &[Group<'_>]) -> String {
    let differing = differing(groups);
    let mut all = String::from("<h2>Settings</h2>");
    for group in groups {
        let rows = settings_of(group.runs[0]).into_iter().filter(|(path, _)| path != "seed");
        let rows = rows.map(|(path, value)| vec![Cell::Text(path), Cell::Text(value)]);
        let _ = write!(
            all,
            "<details><summary>{}</summary>{}</details>",
            escaped(&group.name(&differing)),
            table(&["Setting", "Value"], rows)
        );
    }
    all
}

fn number(value: f64) -> String {
    if value.is_finite() { short(value) } else { "–".into() }
}
