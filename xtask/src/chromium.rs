//! The browser in which the page is tested.

use std::{env, path::PathBuf, process::Command};

use anyhow::{Context as _, Result};

use crate::{job::Job, tools::apt_install, workspace::find};

const DEBIAN_PACKAGES: &[&str] = &["chromium", "chromium-driver"];

/// A browser and its WebDriver server.
pub(crate) struct Chromium {
    browser: PathBuf,
    driver: PathBuf,
}

impl Chromium {
    /// Returns the browser that the environment names, or the first on the PATH.
    pub(crate) fn locate() -> Result<Self> {
        let named = |variable: &str| env::var_os(variable).map(PathBuf::from).filter(|path| path.is_file());
        let mut browsers = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"].into_iter();
        let browser = named("CHROME").or_else(|| browsers.find_map(find)).context("there is no Chromium here")?;
        let driver = named("CHROMEDRIVER").or_else(|| find("chromedriver")).context("there is no chromedriver here")?;
        Ok(Self { browser, driver })
    }

    /// Sets the paths of both for a command: `CHROME` and `CHROMEDRIVER`.
    pub(crate) fn export<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command.env("CHROME", &self.browser).env("CHROMEDRIVER", &self.driver)
    }
}

/// Makes sure that a browser is installed.
pub(crate) fn ensure(job: &Job) -> Result<()> {
    if Chromium::locate().is_err() {
        apt_install(job, DEBIAN_PACKAGES).with_context(what_to_do)?;
    }
    let chromium = Chromium::locate().with_context(what_to_do)?;
    let browser = job.output(Command::new(chromium.browser).arg("--version"))?;
    let driver = job.output(Command::new(chromium.driver).arg("--version"))?;
    job.note(format!("{}, {}", version_of(&browser), version_of(&driver)));
    Ok(())
}

fn what_to_do() -> String {
    let packages = DEBIAN_PACKAGES.join(" ");
    format!("as root `apt-get install {packages}`, or set CHROME and CHROMEDRIVER to where they are")
}

/// Returns the first words of the output of `--version`, such as `Chromium 140.0.7339.80`.
fn version_of(printed: &str) -> String {
    printed.split_whitespace().take(2).collect::<Vec<_>>().join(" ")
}
