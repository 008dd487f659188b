//! A headless Chromium with one window, with commands beyond WebDriver.

use std::{
    fs,
    path::{Path, PathBuf},
};

use fantoccini::{Client, ClientBuilder, wd::WebDriverCompatibleCommand};
use hyper_util::client::legacy::connect::HttpConnector;
use serde_json::{Map, Value, json};
use tempfile::TempDir;
use tokio::sync::{Mutex, MutexGuard};

use super::{
    DEADLINE,
    driver::{Driver, chromium},
};

/// Allows one browser at a time, since several would only slow each other down.
static TURN: Mutex<()> = Mutex::const_new(());

/// The width and height of the window, in CSS pixels.
pub(crate) const DESKTOP: (u32, u32) = (1280, 900);
/// The size of a small phone's screen.
pub(crate) const PHONE: (u32, u32) = (360, 780);

/// A browser with a new profile. Dropping it closes it.
pub(crate) struct Browser {
    pub(crate) client: Client,
    // The fields are dropped in this order.
    _driver: Driver,
    profile: TempDir,
    _turn: MutexGuard<'static, ()>,
}

impl Browser {
    pub(crate) async fn start() -> Self {
        let turn = TURN.lock().await;
        let profile = TempDir::new().expect("a directory for the profile");
        let driver = Driver::start();
        let client = ClientBuilder::new(HttpConnector::new())
            .capabilities(capabilities(profile.path()))
            .connect(&driver.url())
            .await
            .expect("Chromium starts; CHROME says which");
        Self { client, _driver: driver, profile, _turn: turn }
    }

    /// Returns the console's errors and warnings since the last call.
    pub(crate) async fn complaints(&self) -> Vec<String> {
        let log = self.vendor("se/log", json!({ "type": "browser" })).await;
        let entries = log.as_array().expect("a list of entries").iter();
        let is_complaint = |entry: &&Value| matches!(entry["level"].as_str(), Some("SEVERE" | "WARNING"));
        entries.filter(is_complaint).map(|entry| entry["message"].as_str().unwrap_or_default().to_owned()).collect()
    }

    /// Emulates a screen of this size, independently of the size of the window.
    pub(crate) async fn emulate(&self, (width, height): (u32, u32)) {
        let is_phone = width < 600;
        let metrics = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": is_phone });
        self.devtools("Emulation.setDeviceMetricsOverride", metrics).await;
        self.devtools("Emulation.setTouchEmulationEnabled", json!({ "enabled": is_phone })).await;
    }

    /// Shows pages in a theme, `light` or `dark`.
    pub(crate) async fn prefer_colours(&self, theme: &str) {
        let features = json!([{ "name": "prefers-color-scheme", "value": theme }]);
        self.devtools("Emulation.setEmulatedMedia", json!({ "features": features })).await;
    }

    /// Saves the whole page, at the width of a screen, as `target/e2e/NAME.png`.
    pub(crate) async fn screenshot(&self, name: &str, screen: (u32, u32)) {
        let height = self.client.execute("return document.documentElement.scrollHeight", vec![]).await;
        let height = height.expect("the page has a height").as_u64().expect("in pixels") as u32;
        self.emulate((screen.0, height.max(screen.1))).await;
        // Waits two frames: one to lay out and draw, and one to be sure that it is done.
        let drawn = "const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(() => done(null)))";
        self.client.execute_async(drawn, vec![]).await.expect("frames go by");
        let png = self.client.screenshot().await.expect("a picture");
        self.emulate(screen).await;
        let folder = screenshots();
        fs::create_dir_all(&folder).expect("a directory for screenshots");
        fs::write(folder.join(format!("{name}.png")), png).expect("screenshots can be written");
    }

    /// Freezes the page with its Web Workers, as browsers do with tabs that are hidden for long, and lets it continue.
    pub(crate) async fn freeze_and_thaw(&self) {
        for state in ["frozen", "active"] {
            self.devtools("Page.setWebLifecycleState", json!({ "state": state })).await;
        }
    }

    /// Limits the network to this bandwidth in Mbit/s, with 10 ms of latency.
    pub(crate) async fn limit_network(&self, mbit_per_s: u32) {
        let bytes_per_s = mbit_per_s * 125_000;
        let conditions = json!({ "offline": false, "latency": 10, "downloadThroughput": bytes_per_s, "uploadThroughput": bytes_per_s });
        self.devtools("Network.enable", json!({})).await;
        self.devtools("Network.emulateNetworkConditions", conditions).await;
    }

    /// Touches the page with fingers at these places, moves each to its next place in ten steps, and lifts them.
    pub(crate) async fn touch(&self, fingers: &[[(f64, f64); 2]]) {
        const STEPS: u32 = 10;
        let dispatch = async |kind: &str, part: Option<f64>| {
            let point = |(id, [from, to]): (usize, &[(f64, f64); 2]), part: f64| {
                let at = |from: f64, to: f64| from + (to - from) * part;
                json!({ "id": id, "x": at(from.0, to.0), "y": at(from.1, to.1) })
            };
            let points: Vec<Value> = part
                .map(|part| fingers.iter().enumerate().map(|finger| point(finger, part)).collect())
                .unwrap_or_default();
            self.devtools("Input.dispatchTouchEvent", json!({ "type": kind, "touchPoints": points })).await;
        };
        dispatch("touchStart", Some(0.0)).await;
        for step in 1..=STEPS {
            dispatch("touchMove", Some(f64::from(step) / f64::from(STEPS))).await;
        }
        dispatch("touchEnd", None).await;
    }

    /// Returns the bytes of a file that the browser has saved, `None` before.
    pub(crate) fn saved(&self, name: &str) -> Option<Vec<u8>> {
        // The browser gives the file this name when it is complete.
        fs::read(downloads(self.profile.path()).join(name)).ok()
    }

    /// Returns the bytes of the page's JavaScript heap after a garbage collection.
    pub(crate) async fn script_heap(&self) -> u64 {
        self.devtools("HeapProfiler.collectGarbage", json!({})).await;
        let usage = self.devtools("Runtime.getHeapUsage", json!({})).await;
        usage["usedSize"].as_f64().expect("bytes") as u64
    }

    async fn devtools(&self, command: &str, params: Value) -> Value {
        self.vendor("goog/cdp/execute", json!({ "cmd": command, "params": params })).await
    }

    async fn vendor(&self, path: &'static str, body: Value) -> Value {
        let answer = self.client.issue_cmd(Vendor { path, body }).await;
        answer.unwrap_or_else(|error| panic!("{path}: {error}"))
    }
}

fn capabilities(profile: &Path) -> Map<String, Value> {
    let mut args = vec![
        "--headless".to_owned(),
        "--disable-gpu".to_owned(),
        "--disable-quic".to_owned(),
        "--disable-background-networking".to_owned(),
        "--disable-component-update".to_owned(),
        "--disable-sync".to_owned(),
        "--no-first-run".to_owned(),
        format!("--window-size={},{}", DESKTOP.0, DESKTOP.1),
        format!("--user-data-dir={}", profile.display()),
    ];
    if is_root() {
        args.push("--no-sandbox".to_owned());
    }
    let capabilities = json!({
        "browserName": "chrome",
        "goog:chromeOptions": {
            "binary": chromium(),
            "args": args,
            "prefs": { "download.default_directory": downloads(profile), "download.prompt_for_download": false },
        },
        "goog:loggingPrefs": { "browser": "ALL" },
        "timeouts": { "script": DEADLINE.as_millis() as u64 },
    });
    let Value::Object(capabilities) = capabilities else { unreachable!("it is written as an object") };
    capabilities
}

/// Returns the directory in which the browser saves files.
fn downloads(profile: &Path) -> PathBuf {
    profile.join("downloads")
}

/// Returns whether the user is root, for whom Chromium does not start with its sandbox.
fn is_root() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    status.lines().any(|line| line.starts_with("Uid:") && line.split_whitespace().nth(2) == Some("0"))
}

fn screenshots() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("e2e")
}

/// A command that only chromedriver knows.
#[derive(Debug)]
struct Vendor {
    path: &'static str,
    body: Value,
}

impl WebDriverCompatibleCommand for Vendor {
    fn endpoint(&self, base: &url::Url, session: Option<&str>) -> Result<url::Url, url::ParseError> {
        base.join(&format!("session/{}/{}", session.unwrap_or_default(), self.path))
    }

    fn method_and_body(&self, _: &url::Url) -> (http::Method, Option<String>) {
        (http::Method::POST, Some(self.body.to_string()))
    }
}
