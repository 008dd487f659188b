//! Checks that commands in documents and help texts are valid.

use std::{
    fs,
    path::{Path, PathBuf},
};

use clap::{CommandFactory as _, Parser as _};

use super::Cli;

/// Returns a command line's words, without variables before it and a pipe or `&` behind it; values that a hub prints are
/// replaced. `cargo run -- …` runs a program with the same command line.
///
/// Commands for a Ray cluster are the Python package's, whose tests parse them.
fn command(line: &str) -> Option<Vec<String>> {
    let line = match line.trim().split_once(" -- ") {
        Some((run, arguments)) if run.starts_with("cargo run") => format!("rollmesh {arguments}"),
        _ => line.trim().to_owned(),
    };
    let words = shlex::split(&line)?.into_iter().skip_while(|word| word.starts_with("ROLLMESH_TOKEN="));
    let words = words.take_while(|word| !["|", "&"].contains(&&**word));
    let words: Vec<String> = words.map(|word| if word == "…" { "0".repeat(64) } else { word }).collect();
    let is_program = words.len() > 1 && words[0] == "rollmesh" && !words.contains(&"--ray".into());
    is_program.then_some(words)
}

fn check(place: &str, line: &str) -> usize {
    let Some(command) = command(line) else { return 0 };
    match Cli::try_parse_from(command) {
        Err(error) if error.use_stderr() => panic!("{place}: {line}\n{error}"),
        _ => 1,
    }
}

/// Returns the Markdown files in a folder and its subfolders.
fn documents(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(documents(&path));
        } else if path.extension().is_some_and(|of| of == "md") {
            found.push(path);
        }
    }
    found
}

#[test]
fn every_command_in_the_documents_is_one() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut files = vec![root.join("README.md")];
    files.extend(documents(&root.join("docs")));
    files.extend(documents(&root.join("examples")));
    let mut found = 0;
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        let shell = text.split("```sh\n").skip(1).filter_map(|rest| rest.split("```").next());
        found += shell.flat_map(str::lines).map(|line| check(&file.display().to_string(), line)).sum::<usize>();
    }
    assert!(found > 100, "{found} commands");
}

#[test]
fn short_help_of_every_command_fits_a_screen() {
    let mut all = Cli::command().term_width(80);
    all.build();
    let mut todo = vec![all];
    while let Some(mut command) = todo.pop() {
        let help = command.render_help().to_string();
        let lines = help.lines().count();
        let widest = help.lines().map(|line| line.chars().count()).max().unwrap_or(0);
        let name = command.get_bin_name().unwrap_or_default();
        assert!(lines <= 40 && widest <= 80, "`{name} -h` has {lines} lines of {widest} columns:\n{help}");
        todo.extend(command.get_subcommands().map(|command| command.clone().term_width(80)));
    }
}

#[test]
fn every_example_of_the_help_is_one() {
    let mut found = 0;
    let mut todo = vec![Cli::command()];
    while let Some(command) = todo.pop() {
        let helps = [command.get_after_help(), command.get_after_long_help()];
        let helps: Vec<String> = helps.into_iter().flatten().map(ToString::to_string).collect();
        let lines = helps.iter().flat_map(|help| help.lines());
        found += lines.map(|line| check(command.get_name(), line)).sum::<usize>();
        todo.extend(command.get_subcommands().cloned());
    }
    assert!(found > 20, "{found} examples");
}
