//! The browser that the page is tested in.

use std::{env, path::PathBuf, process::Command};

use anyhow::{Result, bail};

use crate::{job::Job, tools::apt_install, workspace::find};

const DEBIAN_PACKAGES: &[&str] = &["chromium", "chromium-driver"];

/// A browser and the WebDriver server that goes with it.
pub(crate) struct Chromium {
    browser: PathBuf,
    driver: PathBuf,
}

impl Chromium {
    /// The one that the environment names, or the first on the PATH.
    pub(crate) fn locate() -> Option<Self> {
        let named = |variable: &str| env::var_os(variable).map(PathBuf::from).filter(|path| path.is_file());
        let browsers = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];
        let browser = named("CHROME").or_else(|| browsers.into_iter().find_map(find))?;
        let driver = named("CHROMEDRIVER").or_else(|| find("chromedriver"))?;
        Some(Self { browser, driver })
    }
}

/// Makes sure that there is one.
pub(crate) fn ensure(job: &Job) -> Result<()> {
    let installed = if Chromium::locate().is_none() { apt_install(job, DEBIAN_PACKAGES) } else { Ok(()) };
    let Some(chromium) = Chromium::locate() else {
        let reason = installed.err().map(|error| format!(" ({error:#})")).unwrap_or_default();
        bail!(
            "Chromium and chromedriver are not here and could not be installed{reason}.\n  \
             What to do: as root `apt-get install {}`, or set CHROME and CHROMEDRIVER to where they are",
            DEBIAN_PACKAGES.join(" ")
        );
    };
    let browser = job.output(Command::new(chromium.browser).arg("--version"))?;
    let driver = job.output(Command::new(chromium.driver).arg("--version"))?;
    job.note(format!("{}, {}", version_of(&browser), version_of(&driver)));
    Ok(())
}

/// The first words of what `--version` prints, such as `Chromium 140.0.7339.80`.
fn version_of(printed: &str) -> String {
    printed.split_whitespace().take(2).collect::<Vec<_>>().join(" ")
}
