//! Set-up, demo and checks: `cargo xtask help`.
//!
//! Plain Rust with few dependencies, because it is the first program that a new machine compiles.
//! It installs everything under the target directory; only packages from the user's own package managers (rustup, apt)
//! are global.

mod additions;
mod artifacts;
mod checks;
mod chromium;
mod cuda;
mod demo;
mod job;
mod layers;
mod licences;
mod own_page;
mod plan;
mod progress;
mod steps;
mod suites;
mod toolchain;
mod tools;
mod workspace;

use std::process::ExitCode;

use anyhow::Result;
use lexopt::prelude::*;

const HELP: &str = "\
Usage: cargo xtask COMMAND

  demo [ARGS…]                    install what is missing, build, and run `rollmesh demo ARGS…`
  test [--long] [STEP…]           run every check, or only the named steps and what they need
       --long                     also the checks that take minutes
       --list                     name the steps and do nothing
  page [--registry CRATE]         build the dashboard into dist; with a crate's registry() in its Web Workers into CRATE/dist
  dist                            build binary, page, crates, wheel and npm package of this version
  help                            print this text
";

enum Command {
    Demo { args: Vec<std::ffi::OsString> },
    Test { long: bool, steps: Vec<String> },
    Page { registry: Option<std::path::PathBuf> },
    Dist,
    List,
    Help,
}

fn main() -> ExitCode {
    let command = match parse(lexopt::Parser::from_env()) {
        Ok(command) => command,
        Err(error) => {
            eprintln!("error: {error}\n\n{HELP}");
            return ExitCode::from(2);
        }
    };
    match run(command) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn parse(mut parser: lexopt::Parser) -> Result<Command, lexopt::Error> {
    let command = match parser.next()? {
        None | Some(Short('h') | Long("help")) => return Ok(Command::Help),
        Some(Value(command)) => command.string()?,
        Some(other) => return Err(other.unexpected()),
    };
    match command.as_str() {
        "demo" => Ok(Command::Demo { args: parser.raw_args()?.collect() }),
        "test" => parse_test(&mut parser),
        "page" => parse_page(&mut parser),
        "dist" => alone(&mut parser, Command::Dist),
        "help" => alone(&mut parser, Command::Help),
        other => Err(format!("there is no command `{other}`").into()),
    }
}

/// Returns a command that takes no arguments.
fn alone(parser: &mut lexopt::Parser, command: Command) -> Result<Command, lexopt::Error> {
    parser.next()?.map_or(Ok(command), |argument| Err(argument.unexpected()))
}

fn parse_test(parser: &mut lexopt::Parser) -> Result<Command, lexopt::Error> {
    let (mut long, mut list, mut steps) = (false, false, Vec::new());
    while let Some(arg) = parser.next()? {
        match arg {
            Long("long") => long = true,
            Long("list") => list = true,
            Value(step) => steps.push(step.string()?),
            other => return Err(other.unexpected()),
        }
    }
    match list {
        false => Ok(Command::Test { long, steps }),
        true if long || !steps.is_empty() => Err("`--list` names all steps: leave the other arguments out".into()),
        true => Ok(Command::List),
    }
}

fn parse_page(parser: &mut lexopt::Parser) -> Result<Command, lexopt::Error> {
    let mut registry = None;
    while let Some(arg) = parser.next()? {
        match arg {
            Long("registry") => registry = Some(parser.value()?.into()),
            other => return Err(other.unexpected()),
        }
    }
    Ok(Command::Page { registry })
}

fn run(command: Command) -> Result<ExitCode> {
    match command {
        Command::Help => print!("{HELP}"),
        Command::List => print!("{}", plan::list(steps::STEPS)),
        Command::Demo { args } => return demo::run(&args),
        Command::Page { registry } => return own_page::run(registry.as_deref()),
        Command::Test { long, steps } => {
            let report = plan::run(&plan::select(steps::STEPS, &steps, long)?);
            print!("{report}");
            return Ok(exit_code(report.all_passed()));
        }
        Command::Dist => {
            let built = plan::run(&plan::select(steps::STEPS, &["dist".to_owned()], false)?).all_passed();
            if built {
                println!("\n{}", artifacts::dist_path().display());
            }
            return Ok(exit_code(built));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn exit_code(success: bool) -> ExitCode {
    if success { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_that_a_command_does_not_take_are_errors() {
        let parse = |line: &str| parse(lexopt::Parser::from_args(line.split(' '))).is_ok();
        for good in ["dist", "help", "test --list", "test --long fmt", "page --registry x", "demo --port 1"] {
            assert!(parse(good), "{good}");
        }
        for bad in
            ["dist x", "dist --list", "help test", "test --list fmt", "test fmt --list", "test --long --list", "page x"]
        {
            assert!(!parse(bad), "{bad}");
        }
    }
}
