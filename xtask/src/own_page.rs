//! `cargo xtask page --registry CRATE`: the page whose Web Workers have the registry of a user's crate.
//!
//! Cargo chooses no dependency at build time, so this command generates a workspace in which another crate, which calls
//! the user's `registry()`, replaces `rollmesh-web-registry`. The rest is this repository's.

use std::{
    fs,
    path::{Component, Path, PathBuf},
    process::{Command, ExitCode},
};

use anyhow::{Context as _, Result, bail};

use crate::{
    plan,
    progress::say,
    steps::STEPS,
    toolchain::{self, WASM},
    workspace::{command, root, target},
};

/// The steps that install the tools for building a page.
const NEEDED: [&str; 5] = ["fetch", "wasm-target", "wasm-bindgen", "wasm-opt", "trunk"];

/// Builds the page of this repository, or that of a crate into the crate's `dist`.
pub(crate) fn run(registry: Option<&Path>) -> Result<ExitCode> {
    let wanted: &[&str] = if registry.is_some() { &NEEDED } else { &["page"] };
    let wanted: Vec<String> = wanted.iter().map(|step| (*step).to_owned()).collect();
    if !plan::run(&plan::select(STEPS, &wanted, false)?).all_passed() {
        return Ok(ExitCode::FAILURE);
    }
    let Some(registry) = registry else { return Ok(ExitCode::SUCCESS) };
    let folder = registry.canonicalize().with_context(|| format!("there is no {}", registry.display()))?;
    let dist = build(&folder, |trunk| match trunk.status().context("trunk cannot be started")?.success() {
        true => Ok(()),
        false => bail!("the page of {} could not be built; trunk has said why", folder.display()),
    })?;
    say(format_args!("\n{}: a program that is started next to it serves it, or one with `--assets`", dist.display()));
    Ok(ExitCode::SUCCESS)
}

/// Builds the page of a crate with the installed tools; `run` runs trunk. Returns the folder of the page.
pub(crate) fn build(folder: &Path, run: impl FnOnce(&mut Command) -> Result<()>) -> Result<PathBuf> {
    let stage = stage(folder)?;
    let dist = folder.join("dist");
    let mut trunk = command("trunk");
    trunk.args(["build", "--release", "--dist"]).arg(&dist).current_dir(&stage);
    trunk.env("CARGO_TARGET_DIR", target()).env_remove("NO_COLOR");
    toolchain::prepare(&mut trunk, WASM)?;
    run(&mut trunk)?;
    Ok(dist)
}

/// Copies the example of a user's crate to a folder outside a workspace, with the repository's crates by their paths.
pub(crate) fn copy_example(to: &Path) -> Result<()> {
    let from = root().join("examples/own-env");
    copy(&from.join("src"), &to.join("src")).with_context(|| format!("cannot fill {}", to.display()))?;
    let manifest = from.join("Cargo.toml");
    let text = fs::read_to_string(&manifest).with_context(|| format!("cannot read {}", manifest.display()))?;
    fs::write(to.join("Cargo.toml"), crate_manifest(&text, &root().to_string_lossy()))?;
    // The versions that this repository is tested with.
    fs::copy(root().join("Cargo.lock"), to.join("Cargo.lock"))?;
    Ok(())
}

/// Returns the manifest of a crate of this workspace without inheritance: inherited values are written out.
fn crate_manifest(manifest: &str, root: &str) -> String {
    let inherited = |line: &str| match line {
        "version.workspace = true" => Some("version = \"0.1.0\"".to_owned()),
        "edition.workspace = true" => Some("edition = \"2024\"".to_owned()),
        "rollmesh-core.workspace = true" => Some(format!("rollmesh-core = {{ path = \"{root}/core\" }}")),
        "rollmesh.workspace = true" => Some(format!("rollmesh = {{ path = \"{root}/native-worker\" }}")),
        line if line.contains("workspace = true") => None,
        line => Some(line.to_owned()),
    };
    let needed = manifest.lines().take_while(|line| *line != "[dev-dependencies]");
    needed.filter_map(inherited).map(|line| line + "\n").collect()
}

/// Writes the workspace, and returns its folder.
fn stage(folder: &Path) -> Result<PathBuf> {
    let read = |path: &Path| fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()));
    let manifest = folder.join("Cargo.toml");
    let Some(name) = package_name(&read(&manifest)?) else { bail!("{} names no package", manifest.display()) };
    let stage = target().join("xtask/page").join(&name);
    // Files of an earlier state would stay.
    let _ = fs::remove_dir_all(&stage);
    let from = root().to_string_lossy();
    let files = [
        ("Cargo.toml", workspace_manifest(&read(&root().join("Cargo.toml"))?, &from)),
        ("Cargo.lock", read(&root().join("Cargo.lock"))?),
        ("Trunk.toml", read(&root().join("Trunk.toml"))?.split("[watch]").next().unwrap_or_default().to_owned()),
        ("index.html", page(&read(&root().join("index.html"))?, &relative_root(&stage))),
        ("registry/Cargo.toml", registry_manifest(&name, folder)),
        ("registry/src/lib.rs", registry_source(&name)),
    ];
    for (file, text) in files {
        let path = stage.join(file);
        let written = path.parent().map_or(Ok(()), fs::create_dir_all).and_then(|()| fs::write(&path, text));
        written.with_context(|| format!("cannot write {}", path.display()))?;
    }
    copy(&root().join("web/wasm"), &stage.join("wasm")).with_context(|| format!("cannot fill {}", stage.display()))?;
    Ok(stage)
}

/// Returns the name in the section `[package]`.
fn package_name(manifest: &str) -> Option<String> {
    let package = manifest.lines().skip_while(|line| line.trim() != "[package]").skip(1);
    let mut lines = package.take_while(|line| !line.starts_with('['));
    let name = lines.find_map(|line| line.strip_prefix("name")?.trim_start().strip_prefix('='))?;
    Some(name.trim().trim_matches('"').to_owned())
}

/// Returns the repository's manifest for two other members, with its crates by their full paths.
fn workspace_manifest(manifest: &str, root: &str) -> String {
    let mut text = "[workspace]\nresolver = \"3\"\nmembers = [\"registry\", \"wasm\", \"wasm/modules\"]\n".to_owned();
    for line in manifest.lines().skip(1).skip_while(|line| !line.starts_with('[')) {
        let line = match line.split_once("path = \"") {
            Some((head, _)) if line.starts_with("rollmesh-web-registry ") => format!("{head}path = \"registry\" }}"),
            Some((head, tail)) => format!("{head}path = \"{root}/{tail}"),
            None => line.to_owned(),
        };
        text += &(line + "\n");
    }
    text
}

/// Returns the page with the crate and files of the repository, in a folder relative to the page's: trunk accepts no
/// full paths.
fn page(index: &str, root: &str) -> String {
    let staged = index.replace("href=\"web/wasm/", "href=\"wasm/");
    staged.replace("href=\"web/", &format!("href=\"{root}/web/"))
}

/// Returns the repository's folder relative to another: up to the root of the file system, and down from there.
fn relative_root(from: &Path) -> String {
    let up = from.components().filter(|part| matches!(part, Component::Normal(_))).map(|_| "..");
    let down = root().to_string_lossy().trim_start_matches('/').to_owned();
    up.chain([down.as_str()]).collect::<Vec<_>>().join("/")
}

fn registry_manifest(name: &str, folder: &Path) -> String {
    let user = format!("{name} = {{ path = \"{}\" }}", folder.display());
    format!(
        "[package]\nname = \"rollmesh-web-registry\"\nversion.workspace = true\nedition.workspace = true\n\
         publish = false\n\n[dependencies]\nrollmesh-core.workspace = true\n{user}\n"
    )
}

fn registry_source(name: &str) -> String {
    let library = name.replace('-', "_");
    format!(
        "//! What the user's crate registers.\n\n/// All that can be asked for by name in a browser.\n#[must_use]\n\
         pub fn registry() -> rollmesh_core::worker::Registry {{\n    {library}::registry()\n}}\n"
    )
}

fn copy(from: &Path, to: &Path) -> std::io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let to = to.join(entry.file_name());
        if entry.file_type()?.is_dir() { copy(&entry.path(), &to)? } else { fs::copy(entry.path(), to).map(drop)? }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workspace_has_the_users_registry_and_the_repositorys_crates() {
        let manifest = "[workspace]\nresolver = \"3\"\nmembers = [\n    \"core\",\n]\n\n[workspace.dependencies]\n\
                        rollmesh-core = { path = \"core\", version = \"0.1.0\" }\n\
                        rollmesh-web-registry = { path = \"web/registry\", version = \"0.1.0\" }\nserde = \"1\"\n";
        let text = workspace_manifest(manifest, "/r");
        assert!(text.starts_with(
            "[workspace]\nresolver = \"3\"\nmembers = [\"registry\", \"wasm\", \"wasm/modules\"]\n[workspace.dep"
        ));
        assert!(text.contains("rollmesh-core = { path = \"/r/core\", version = \"0.1.0\" }\n"), "{text}");
        assert!(text.contains("rollmesh-web-registry = { path = \"registry\" }\nserde = \"1\"\n"), "{text}");
    }

    #[test]
    fn crate_without_a_workspace_has_the_repositorys_crates_by_path() {
        let manifest = "[package]\nname = \"a\"\nversion.workspace = true\nlicense.workspace = true\n\n[dependencies]\n\
                        rollmesh-core.workspace = true\n\n[dev-dependencies]\ntokio.workspace = true\n";
        let wanted = "[package]\nname = \"a\"\nversion = \"0.1.0\"\n\n[dependencies]\nrollmesh-core = { path = \"/r/core\" }\n\n";
        assert_eq!(crate_manifest(manifest, "/r"), wanted);
    }

    #[test]
    fn page_has_the_users_web_workers_and_the_repositorys_page() {
        let index = "<link href=\"web/Cargo.toml\"><link href=\"web/wasm/modules/Cargo.toml\">";
        assert_eq!(page(index, "/r"), "<link href=\"/r/web/Cargo.toml\"><link href=\"wasm/modules/Cargo.toml\">");
        let manifest = "[workspace]\n[package]\nname = \"my-env\"\n[dependencies]\nname = \"no\"\n";
        assert_eq!(package_name(manifest).as_deref(), Some("my-env"));
        assert!(registry_source("my-env").contains("my_env::registry()"));
    }

    #[test]
    fn cargo_reads_the_workspace_of_a_crate() {
        let stage = stage(&root().join("examples/own-env")).expect("it is written");
        let mut metadata = crate::workspace::cargo();
        metadata.args(["metadata", "--offline", "--no-deps", "--format-version", "1", "--manifest-path"]);
        let read = metadata.arg(stage.join("Cargo.toml")).output().expect("cargo starts");
        let text = String::from_utf8_lossy(&read.stdout);
        assert!(read.status.success(), "{}", String::from_utf8_lossy(&read.stderr));
        for name in ["\"name\":\"rollmesh-example-own-env\"", "\"name\":\"rollmesh_trainer\""] {
            assert!(text.contains(name), "{name} is not in {text}");
        }
        let page = fs::read_to_string(stage.join("index.html")).expect("a page");
        let files: Vec<_> = page.split("href=\"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
        assert!(files.contains(&"wasm/modules/Cargo.toml"), "{files:?}");
        for file in files {
            assert!(!file.starts_with('/') && stage.join(file).is_file(), "trunk finds no {file}");
        }
    }
}
