//! Checks that commands in documents and help texts are valid.

use std::{
    fs,
    path::{Path, PathBuf},
};

use super::usage;

/// Returns a command line's words, without variables before it and a pipe or `&` behind it; values that a hub prints
/// are replaced. `cargo run -- …` runs a program with the same command line.
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
    match usage::command().try_get_matches_from(command) {
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
fn help_of_every_command_fits_a_screen_and_names_the_help_with_all_options() {
    let help = |words: &[String], columns: usize, flag: &str| {
        let command = usage::command().term_width(columns);
        let words = words.iter().map(String::as_str).chain([flag]);
        command.try_get_matches_from(words).expect_err("help ends the command").to_string()
    };
    let mut todo = vec![(vec!["rollmesh".to_owned()], usage::command())];
    while let Some((words, command)) = todo.pop() {
        let name = words.join(" ");
        for columns in [80, 100] {
            let short = help(&words, columns, "--help");
            assert_eq!(short, help(&words, columns, "-h"), "{name}");
            let lines = short.lines().count();
            let widest = short.lines().map(|line| line.chars().count()).max().unwrap_or(0);
            assert!(
                lines <= 40 && widest <= columns,
                "`{name} --help` has {lines} lines of {widest} columns:\n{short}"
            );
            assert!(short.trim_end().lines().last().unwrap().contains("--help-all"), "{short}");
        }
        let long = help(&words, 100, "--help-all");
        let named: Vec<&str> = long.split(|c: char| !c.is_alphanumeric() && !"-_".contains(c)).collect();
        for flag in command.get_arguments().filter(|arg| !arg.is_hide_set()).filter_map(clap::Arg::get_long) {
            assert!(named.contains(&&*format!("--{flag}")), "`{name} --help-all` does not name --{flag}");
        }
        let within = command
            .get_subcommands()
            .map(|command| ([&words[..], &[command.get_name().to_owned()]].concat(), command.clone()));
        todo.extend(within);
    }
}

#[test]
fn every_example_of_the_help_is_one() {
    let mut found = 0;
    let mut todo = vec![usage::command()];
    while let Some(command) = todo.pop() {
        let helps = [command.get_after_help(), command.get_after_long_help()];
        let helps: Vec<String> = helps.into_iter().flatten().map(ToString::to_string).collect();
        let lines = helps.iter().flat_map(|help| help.lines());
        found += lines.map(|line| check(command.get_name(), line)).sum::<usize>();
        todo.extend(command.get_subcommands().cloned());
    }
    assert!(found > 20, "{found} examples");
}
