//! A driver of the page that acts like a user: finds elements by their `data-testid`, waits, clicks, types.

use std::{collections::BTreeMap, fs, time::Duration};

use fantoccini::{
    Locator,
    actions::{InputSource as _, KeyAction, KeyActions},
};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::{
    DEADLINE, LOOK_AGAIN,
    browser::{Browser, DESKTOP},
    built,
};

/// The dashboard in a browser.
pub(crate) struct Dashboard {
    pub(crate) browser: Browser,
}

/// A row of the table of workers.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct WorkerRow {
    pub(crate) id: u64,
    pub(crate) kind: String,
    pub(crate) env_steps: u64,
    pub(crate) is_this_tab: bool,
}

impl Dashboard {
    /// Starts a browser when no other test uses one.
    pub(crate) async fn start() -> Self {
        let dashboard = Self { browser: Browser::start().await };
        dashboard.browser.emulate(DESKTOP).await;
        dashboard
    }

    pub(crate) async fn go_to(&self, url: &str) {
        self.browser.client.goto(url).await.expect("the page loads");
        self.wait("the page is there", async || self.text("phase").await.is_some()).await;
    }

    pub(crate) async fn reload(&self) {
        self.browser.client.refresh().await.expect("the page loads again");
        self.wait("the page is there again", async || self.text("phase").await.is_some()).await;
    }

    /// Waits until a condition holds; saves a screenshot and fails if it does not before the deadline.
    pub(crate) async fn wait(&self, what: &str, is_so: impl AsyncFn() -> bool) {
        let deadline = Instant::now() + DEADLINE;
        while !is_so().await {
            if Instant::now() > deadline {
                self.browser.screenshot("failure", DESKTOP).await;
                let complaints = self.browser.complaints().await;
                panic!("waited in vain: {what}; see target/e2e/failure.png; console: {complaints:#?}");
            }
            sleep(LOOK_AGAIN).await;
        }
    }

    /// Asserts that a value does not change for a while.
    pub(crate) async fn stays(&self, what: &str, value: impl AsyncFn() -> u64) {
        // Ten times as long as the hub takes to send an update.
        let until = Instant::now() + Duration::from_secs(1);
        let before = value().await;
        while Instant::now() < until {
            assert_eq!(value().await, before, "{what}");
            sleep(LOOK_AGAIN).await;
        }
    }

    pub(crate) async fn wait_for(&self, id: &str, attribute: &str, value: &str) {
        let is_so = async || self.attribute(id, attribute).await.as_deref() == Some(value);
        self.wait(&format!("{attribute} of {id} is {value}"), is_so).await;
    }

    pub(crate) async fn wait_for_phase(&self, phase: &str) {
        self.wait_for("phase", "data-phase", phase).await;
    }

    /// Waits until a number is larger than the given one.
    pub(crate) async fn wait_for_more(&self, id: &str, than: u64) {
        self.wait(&format!("{id} is more than {than}"), async || self.number(id).await > than).await;
    }

    pub(crate) async fn run(&self, script: &str, args: Vec<Value>) -> Value {
        let result = self.browser.client.execute(script, args).await;
        result.unwrap_or_else(|error| panic!("`{script}`: {error}"))
    }

    /// Returns the text of an element, `None` without such an element.
    pub(crate) async fn text(&self, id: &str) -> Option<String> {
        let script = "return document.querySelector(arguments[0])?.textContent ?? null";
        self.run(script, vec![json!(selector(id))]).await.as_str().map(str::to_owned)
    }

    /// Returns the value of a field.
    pub(crate) async fn value(&self, id: &str) -> String {
        let script = "return document.querySelector(arguments[0]).value";
        self.run(script, vec![json!(selector(id))]).await.as_str().expect("a field").to_owned()
    }

    pub(crate) async fn attribute(&self, id: &str, name: &str) -> Option<String> {
        let script = "return document.querySelector(arguments[0])?.getAttribute(arguments[1]) ?? null";
        self.run(script, vec![json!(selector(id)), json!(name)]).await.as_str().map(str::to_owned)
    }

    /// Returns an integer whose thousands are separated; 0 if there is none yet.
    pub(crate) async fn number(&self, id: &str) -> u64 {
        self.text(id).await.map_or(0, |text| count(&text))
    }

    /// Returns the number of points of a curve.
    pub(crate) async fn points(&self, chart: &str) -> u64 {
        let points = self.attribute(&format!("chart-{chart}"), "data-points").await;
        points.expect("the chart is there").parse().expect("a number")
    }

    /// Clicks an element once it is enabled, in sight and not covered.
    pub(crate) async fn click(&self, id: &str) {
        let selector = selector(id);
        self.click_at(&selector).await;
    }

    pub(crate) async fn click_at(&self, selector: &str) {
        // The driver regards elements under the header as visible.
        let scroll = "document.querySelector(arguments[0])?.scrollIntoView({ block: 'nearest' })";
        let try_it = async || {
            self.run(scroll, vec![json!(selector)]).await;
            let found = self.browser.client.find(Locator::Css(selector)).await;
            let Ok(element) = found else { return false };
            // The element may be replaced at this moment, or still be covered; then the click is retried.
            matches!(element.is_enabled().await, Ok(true)) && element.click().await.is_ok()
        };
        self.wait(&format!("{selector} can be clicked"), try_it).await;
    }

    /// Replaces the text of a field.
    pub(crate) async fn fill(&self, id: &str, text: &str) {
        // The form of a run comes with the hub's schema.
        self.wait(&format!("{id} is there"), async || self.attribute(id, "data-testid").await.is_some()).await;
        let field = self.browser.client.find(Locator::Css(&selector(id))).await.expect("the field is there");
        field.clear().await.expect("it can be emptied");
        field.send_keys(text).await.expect("it takes text");
    }

    /// Chooses an entry of a list by its label.
    pub(crate) async fn choose(&self, id: &str, label: &str) {
        let select = self.browser.client.find(Locator::Css(&selector(id))).await.expect("the choice is there");
        select.select_by_label(label).await.expect("it can be chosen");
    }

    /// Presses a key at the focused element. Keys that are sent to a file input directly would be file names.
    pub(crate) async fn press(&self, key: impl Into<char>) {
        let value = key.into();
        let keys = KeyActions::new("keyboard".into());
        let keys = keys.then(KeyAction::Down { value }).then(KeyAction::Up { value });
        self.browser.client.perform_actions(keys).await.expect("the keyboard is there");
    }

    pub(crate) async fn workers(&self) -> BTreeMap<u64, WorkerRow> {
        let script = "return [...document.querySelectorAll('[data-testid=worker-row]')].map(row => ({
            id: Number(row.dataset.worker),
            kind: row.dataset.kind,
            steps: row.querySelector('[data-testid=worker-env-steps]').textContent,
            tab: row.querySelector('[data-testid=worker-this-tab]') !== null,
        }))";
        let rows = self.run(script, vec![]).await;
        let row = |row: &Value| WorkerRow {
            id: row["id"].as_u64().expect("workers have ids"),
            kind: row["kind"].as_str().expect("workers have a kind").to_owned(),
            env_steps: count(row["steps"].as_str().expect("a text")),
            is_this_tab: row["tab"] == true,
        };
        rows.as_array().expect("a list").iter().map(row).map(|row| (row.id, row)).collect()
    }

    pub(crate) async fn workers_of_kind(&self, kind: &str) -> Vec<WorkerRow> {
        self.workers().await.into_values().filter(|row| row.kind == kind).collect()
    }

    /// Waits until a worker has done more env steps than the given number.
    pub(crate) async fn wait_for_steps_of(&self, worker: u64, than: u64) {
        let has_more = async || self.workers().await.get(&worker).is_some_and(|row| row.env_steps > than);
        self.wait(&format!("worker {worker} has done more than {than} env steps"), has_more).await;
    }

    /// Waits for the row of this tab. Returns its worker's id.
    pub(crate) async fn own_row(&self) -> u64 {
        let own = async || self.workers().await.into_values().find(|row| row.is_this_tab);
        self.wait("this tab is among the workers", async || own().await.is_some()).await;
        let row = own().await.expect("it was there");
        assert_eq!(row.kind, "browser");
        row.id
    }

    /// Waits for a file that the browser saves, and returns its bytes.
    pub(crate) async fn saved(&self, name: &str) -> Vec<u8> {
        self.wait(&format!("{name} is saved"), async || self.browser.saved(name).is_some()).await;
        self.browser.saved(name).expect("it was there")
    }

    /// Asserts that axe-core finds no problem in the page in either theme. The light theme remains.
    pub(crate) async fn assert_accessible(&self, what: &str) {
        let axe = fs::read_to_string(built("ROLLMESH_AXE")).expect("the script of axe-core");
        self.run(&format!("{axe}; return true"), vec![]).await;
        let ask = "const done = arguments[0];
            axe.run(document, { resultTypes: ['violations'] }).then(
                found => done(found.violations.map(v => `${v.id}: ${v.help}: ${v.nodes.map(n => n.html).join(' ')}`)),
                error => done([String(error)]),
            )";
        for theme in ["dark", "light"] {
            self.browser.prefer_colours(theme).await;
            let found = self.browser.client.execute_async(ask, vec![]).await.expect("axe answers");
            assert_eq!(found, Value::Array(vec![]), "{what}, {theme}");
        }
    }

    /// Asserts that the console has no errors or warnings.
    pub(crate) async fn assert_quiet_console(&self) {
        let complaints = self.browser.complaints().await;
        assert!(complaints.is_empty(), "the console shows {complaints:#?}");
    }
}

pub(crate) fn selector(id: &str) -> String {
    format!("[data-testid='{id}']")
}

fn count(text: &str) -> u64 {
    let digits: String = text.chars().filter(|c| *c != ',').collect();
    digits.parse().unwrap_or(0)
}
