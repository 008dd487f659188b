//! The page as a person uses it: looks for things by their `data-testid`, waits, clicks, types.

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
    /// Waits for its turn before it starts a browser: only one test at a time is past this.
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

    /// Waits until something is so; when it never is, leaves a screenshot and fails.
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

    /// Watches a value for a while: it must not change.
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

    /// Waits until a number is larger than it was.
    pub(crate) async fn wait_for_more(&self, id: &str, than: u64) {
        self.wait(&format!("{id} is more than {than}"), async || self.number(id).await > than).await;
    }

    pub(crate) async fn run(&self, script: &str, args: Vec<Value>) -> Value {
        let result = self.browser.client.execute(script, args).await;
        result.unwrap_or_else(|error| panic!("`{script}`: {error}"))
    }

    /// The text of an element; none if it is not there.
    pub(crate) async fn text(&self, id: &str) -> Option<String> {
        let script = "return document.querySelector(arguments[0])?.textContent ?? null";
        self.run(script, vec![json!(selector(id))]).await.as_str().map(str::to_owned)
    }

    /// What a field holds.
    pub(crate) async fn value(&self, id: &str) -> String {
        let script = "return document.querySelector(arguments[0]).value";
        self.run(script, vec![json!(selector(id))]).await.as_str().expect("a field").to_owned()
    }

    pub(crate) async fn attribute(&self, id: &str, name: &str) -> Option<String> {
        let script = "return document.querySelector(arguments[0])?.getAttribute(arguments[1]) ?? null";
        self.run(script, vec![json!(selector(id)), json!(name)]).await.as_str().map(str::to_owned)
    }

    /// A whole number with its thousands separated; 0 where there is none yet.
    pub(crate) async fn number(&self, id: &str) -> u64 {
        self.text(id).await.map_or(0, |text| count(&text))
    }

    /// Points of a curve.
    pub(crate) async fn points(&self, chart: &str) -> u64 {
        let points = self.attribute(&format!("chart-{chart}"), "data-points").await;
        points.expect("the chart is there").parse().expect("a number")
    }

    /// Clicks as a person does: on what is enabled, in sight and not covered.
    pub(crate) async fn click(&self, id: &str) {
        let selector = selector(id);
        self.click_at(&selector).await;
    }

    pub(crate) async fn click_at(&self, selector: &str) {
        // The driver takes elements below the header for visible.
        let scroll = "document.querySelector(arguments[0])?.scrollIntoView({ block: 'nearest' })";
        let try_it = async || {
            self.run(scroll, vec![json!(selector)]).await;
            let found = self.browser.client.find(Locator::Css(selector)).await;
            let Ok(element) = found else { return false };
            // It may be replaced in this moment, or still be covered: then there is another try.
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

    /// Chooses from a list, by what it says.
    pub(crate) async fn choose(&self, id: &str, label: &str) {
        let select = self.browser.client.find(Locator::Css(&selector(id))).await.expect("the choice is there");
        select.select_by_label(label).await.expect("it can be chosen");
    }

    /// Presses a key wherever the focus is. Keys sent to an element would be names of files for a choice of files.
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

    /// Waits until a worker has done more env steps than it had.
    pub(crate) async fn wait_for_steps_of(&self, worker: u64, than: u64) {
        let has_more = async || self.workers().await.get(&worker).is_some_and(|row| row.env_steps > than);
        self.wait(&format!("worker {worker} has done more than {than} env steps"), has_more).await;
    }

    /// Waits for the row of this tab; its worker's id.
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

    /// axe-core must find nothing in the page as it is now, in either theme; the light one is left.
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

    /// The console must have nothing to complain about.
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
