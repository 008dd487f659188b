//! Checks that the reference tables of the documents are those of the program, and writes them on demand.

use std::{collections::BTreeMap, env, fs, path::Path};

use rollmesh_core::run::{RolloutConfig, RunConfig};
use serde_json::{Value, json};

use super::envs;
use crate::{
    Registry,
    hub::{Limit, limits},
    learner::run_schema,
    native,
};

/// If this environment variable is set, the test writes the tables instead of comparing them.
const WRITE: &str = "ROLLMESH_WRITE_TABLES";

const SETTINGS_HEAD: &str = "| setting | default | values | meaning |\n|---|---|---|---|\n";

/// An enumeration with more values than this is one of registered names.
const MAX_LISTED_VALUES: usize = 10;

#[test]
fn tables_of_the_documents_are_those_of_the_program() {
    let registry = native(Registry::builtin());
    let schema = run_schema(&registry);
    let tables = [
        ("docs/settings.md", "settings", settings(&schema)),
        ("docs/settings.md", "worker defaults", worker_defaults()),
        ("docs/settings.md", "algorithms", algorithms(&schema)),
        ("docs/settings.md", "presets", presets(&schema)),
        ("docs/environments.md", "environments", environments(&registry)),
        ("docs/limits.md", "limits", limits_of_hubs()),
    ];
    for (file, name, table) in tables {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(file);
        let text = fs::read_to_string(&path).unwrap();
        let (begin, end) = (format!("<!-- begin {name} -->\n\n"), format!("\n<!-- end {name} -->"));
        let (before, rest) = text.split_once(&begin).unwrap_or_else(|| panic!("{file} has no {begin}"));
        let (found, after) = rest.split_once(&end).unwrap_or_else(|| panic!("{file} has no {end}"));
        if env::var_os(WRITE).is_some() {
            fs::write(&path, format!("{before}{begin}{table}{end}{after}")).unwrap();
        } else {
            assert!(found == table, "the {name} in {file} are out of date: run this test with {WRITE}=1 to write them");
        }
    }
}

/// Returns a table of settings for each section.
fn settings(schema: &Value) -> String {
    let mut sections: BTreeMap<String, String> = BTreeMap::new();
    for (section, row) in rows("", schema) {
        *sections.entry(section).or_default() += &row;
    }
    tables(sections)
}

/// Returns a table of the settings whose defaults differ between a run and a worker alone.
fn worker_defaults() -> String {
    let (run, worker) = (json!(RunConfig::default()), json!(RolloutConfig::default()));
    let worker = worker.as_object().expect("settings by name").iter();
    let rows = worker.filter(|(name, value)| run[&**name] != **value);
    let head = "| setting | a run's default | a worker's |\n|---|---|---|\n".to_owned();
    rows.fold(head, |table, (name, value)| table + &format!("| `{name}` | `{}` | `{value}` |\n", run[&**name]))
}

/// Returns a table of settings for each algorithm.
fn algorithms(schema: &Value) -> String {
    let algorithms = schema["$defs"].as_object().expect("algorithms by name");
    let rows_of = |algorithm: &Value| -> String { rows("", algorithm).into_iter().map(|(_, row)| row).collect() };
    tables(algorithms.iter().map(|(name, algorithm)| (name.clone(), rows_of(algorithm))).collect())
}

fn tables(rows_by_heading: BTreeMap<String, String>) -> String {
    let tables = rows_by_heading.into_iter().map(|(heading, rows)| format!("### {heading}\n\n{SETTINGS_HEAD}{rows}"));
    tables.collect::<Vec<_>>().join("\n")
}

/// Returns section and row of every setting below `path`.
fn rows(path: &str, schema: &Value) -> Vec<(String, String)> {
    if schema.get("$ref").is_some() {
        return Vec::new(); // another name of a setting
    }
    if is_group(schema) {
        let group = &schema["properties"];
        let name = |key: &str| if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
        let settings = group.as_object().expect("settings by name").iter();
        return settings.flat_map(|(key, setting)| rows(&name(key), setting)).collect();
    }
    let mut found = vec![(text(schema, "x-section").to_owned(), row(path, schema))];
    let alternatives = schema.get("anyOf").and_then(Value::as_array).into_iter().flatten();
    let groups = alternatives.filter(|alternative| is_group(alternative));
    found.extend(groups.flat_map(|group| rows(path, group)));
    found
}

/// Returns whether values of this schema are objects of settings.
fn is_group(schema: &Value) -> bool {
    schema.get("properties").is_some() && schema.get("required").is_none()
}

fn row(path: &str, setting: &Value) -> String {
    let mut meaning = text(setting, "description").to_owned();
    if setting.get("x-fixed").is_some() {
        meaning += &format!(" With workers: {}.", text(setting, "x-fixed"));
    }
    if setting.get("x-host").is_some() {
        meaning += " This machine only.";
    }
    format!("| `{path}` | `{}` | {} | {meaning} |\n", setting["default"], values(setting))
}

/// Returns the values that a setting may have, in words.
fn values(schema: &Value) -> String {
    let list = |key: &str| schema.get(key).and_then(Value::as_array);
    if let Some(alternatives) = list("anyOf") {
        return alternatives.iter().map(values).collect::<Vec<_>>().join("; ");
    }
    if let Some(names) = list("enum") {
        let quoted =
            names.iter().map(|name| name.as_str().map_or_else(|| format!("`{name}`"), |name| format!("`{name}`")));
        let is_long = names.len() > MAX_LISTED_VALUES;
        return if is_long { "a registered name".into() } else { quoted.collect::<Vec<_>>().join(", ") };
    }
    match (text(schema, "type"), schema.get("items")) {
        ("null", _) => "`null`".into(),
        ("boolean", _) => "`true`, `false`".into(),
        ("string", _) => "text".into(),
        ("array", Some(items)) => format!("list of {}", values(items)),
        ("array", None) => text(schema, "description").to_owned(),
        (number, _) => {
            let bounds = [("exclusiveMinimum", "above"), ("minimum", "from"), ("maximum", "to")];
            let bounds = bounds.iter().filter_map(|(key, word)| Some(format!(" {word} {}", schema.get(key)?)));
            bounds.fold(number.to_owned(), |words, bound| words + &bound)
        }
    }
}

fn text<'a>(schema: &'a Value, key: &str) -> &'a str {
    schema.get(key).and_then(Value::as_str).unwrap_or_default()
}

fn presets(schema: &Value) -> String {
    let presets = schema["x-presets"].as_array().expect("a list of presets").iter();
    let row = |preset: &Value| {
        let [env, algorithm] = ["env", "algorithm"].map(|key| preset[key].as_str().unwrap_or("any"));
        let rows = if preset["reads_input"] == true { "read from files" } else { "sampled" };
        format!("| {env} | {algorithm} | {rows} | `{}` |\n", preset["settings"])
    };
    let head = "| environment | algorithm | rows | settings |\n|---|---|---|---|\n".to_owned();
    presets.map(row).fold(head, |table, row| table + &row)
}

fn environments(registry: &Registry) -> String {
    let mut table = "| environment | observations | actions | time limit | solved at | settings |\n".to_owned();
    table += "|---|---|---|---|---|---|\n";
    for env in registry.envs.iter() {
        let goal = env.reward_threshold.map_or_else(String::new, |goal| goal.to_string());
        let settings = env.settings.iter().flatten().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
        let cells = envs::row(env).unwrap().join(" | ");
        table += &format!("| {cells} | {goal} | {settings} |\n");
    }
    for env in registry.envs.iter_multi_agent() {
        for [name, observations, actions, limit] in envs::agent_rows(env).unwrap() {
            // Rows of agents are indented.
            let name = name.strip_prefix("  ").map_or_else(|| name.clone(), |agents| format!("↳ {agents}"));
            table += &format!("| {name} | {observations} | {actions} | {limit} |  |  |\n");
        }
    }
    table
}

fn limits_of_hubs() -> String {
    let row = |Limit { name, value, unit, beyond }| format!("| `{name}` | {value} | {unit} | {beyond} |\n");
    let head = "| limit | value | unit | beyond it |\n|---|---:|---|---|\n".to_owned();
    limits().into_iter().map(row).fold(head, |table, row| table + &row)
}
