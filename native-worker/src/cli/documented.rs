//! Commands in documents and in the help are ones that the program takes.

use std::{fs, path::Path};

use clap::{CommandFactory as _, Parser as _};

use super::Cli;

/// What a shell would be given, without variables before and `&` or a comment behind.
fn command(line: &str) -> Option<Vec<String>> {
    let words: Vec<String> = shlex::split(line.trim().trim_end_matches('&')).unwrap_or_default();
    let begin = words.iter().position(|word| !word.starts_with("ROLLMESH_TOKEN="))?;
    (words[begin] == "rollmesh" && words.len() > begin + 1).then(|| words[begin..].to_vec())
}

fn check(place: &str, line: &str) -> usize {
    let Some(command) = command(line) else { return 0 };
    match Cli::try_parse_from(command) {
        Err(error) if error.use_stderr() => panic!("{place}: {line}\n{error}"),
        _ => 1,
    }
}

#[test]
fn every_command_in_the_documents_is_one() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let files = [
        "README.md",
        "docs/command-line.md",
        "docs/performance.md",
        "examples/external/README.md",
        "examples/traffic_grid/README.md",
    ];
    let mut found = 0;
    for file in files {
        let text = fs::read_to_string(root.join(file)).unwrap();
        let shell = text.split("```sh\n").skip(1).filter_map(|rest| rest.split("```").next());
        found += shell.flat_map(str::lines).map(|line| check(file, line)).sum::<usize>();
    }
    assert!(found > 50, "{found} commands");
}

#[test]
fn every_example_of_the_help_is_one() {
    let mut found = 0;
    let mut todo = vec![Cli::command()];
    while let Some(command) = todo.pop() {
        let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        found += help.lines().map(|line| check(command.get_name(), line)).sum::<usize>();
        todo.extend(command.get_subcommands().cloned());
    }
    assert!(found > 20, "{found} examples");
}
