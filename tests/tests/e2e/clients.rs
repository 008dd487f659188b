//! Episodes that a page drives: those of the example, and the game that other tests play in process.

use std::{
    ffi::OsStr,
    fs,
    io::{BufRead as _, BufReader, Read as _},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::mpsc,
    thread,
};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::{
    DEADLINE,
    browser::{Browser, DESKTOP},
    built,
    dashboard::Dashboard,
};

/// The size of a small phone, on which the example's page must not be cut off.
const NARROW: (u32, u32) = (390, 844);

/// The hashes of the game of one agent, and of two, which do not depend on the driver:
/// `native-worker/tests/clients/episodes.rs` plays them in process.
const HASHES: [(&str, &str); 2] =
    [("single", "ea7cd3b04e6efe2ea7e46b1024240a86"), ("pair", "2c0eb4e725dcce19482ee66e21291f6d")];

/// A program that waits for clients. Dropping it kills it.
struct Program {
    child: Child,
    /// `http://HOST:PORT/`
    page: String,
    token: String,
}

impl Program {
    fn start<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>, assets: &Path) -> Self {
        let mut rollmesh = Command::new(built("ROLLMESH_BIN"));
        rollmesh.args(args).args(["--listen", "127.0.0.1:0", "--assets"]).arg(assets);
        let (stdin, stdout, stderr) = (Stdio::null(), Stdio::piped(), Stdio::piped());
        let mut child = rollmesh.stdin(stdin).stdout(stdout).stderr(stderr).spawn().expect("the binary starts");
        let (found, lines) = mpsc::channel();
        let stderr = BufReader::new(child.stderr.take().expect("it is piped"));
        // Reads until the end, so that the program never blocks on a full pipe.
        thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                eprintln!("rollmesh: {line}");
                // The receiver waits only for the first lines.
                _ = found.send(line);
            }
        });
        let said = |what: &str| loop {
            let line = lines.recv_timeout(DEADLINE).expect("the program says how clients join");
            if let Some(said) = line.strip_prefix(what) {
                return said.trim().to_owned();
            }
        };
        let page = said("clients").replace("ws://", "http://") + "/";
        Self { child, page, token: said("token") }
    }

    fn hub(&self) -> String {
        self.page.replace("http://", "ws://")
    }

    /// Waits for the end of the program, and returns the summary that it printed.
    fn summary(mut self) -> Value {
        let mut text = String::new();
        self.child.stdout.take().expect("it is piped").read_to_string(&mut text).expect("UTF-8");
        assert!(self.child.wait().expect("it can be waited for").success());
        serde_json::from_str(&text).expect("one JSON object")
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // The program may have exited by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

#[tokio::test(flavor = "multi_thread")]
async fn an_episode_from_a_page_ends_in_the_same_batches() {
    let browser = Browser::start().await;
    let games = repository().join("native-worker/tests/clients");
    for (game, hash) in HASHES {
        let folder = TempDir::new().expect("a directory for the page");
        let client = repository().join("examples/external/rollmesh_client.js");
        fs::copy(client, folder.path().join("rollmesh_client.js")).expect("the client");
        fs::copy(games.join("game.mjs"), folder.path().join("game.js")).expect("the game");
        fs::write(folder.path().join("page.html"), "<!doctype html><title>game</title>").expect("a page");
        let config = games.join(format!("{game}.json"));
        let args = ["sample", "--env-steps", "200", "--json", "--config"].map(OsStr::new);
        let program = Program::start(args.into_iter().chain([config.as_os_str()]), folder.path());
        browser.client.goto(&format!("{}page.html", program.page)).await.expect("the page loads");
        let script = "const [hub, token, done] = arguments;
            Promise.all([import('/rollmesh_client.js'), import('/game.js')])
                .then(([{ Client }, { play }]) => play(Client, hub, token))
                .then(() => done('played'), (error) => done(String(error)))";
        let played = browser.client.execute_async(script, vec![json!(program.hub()), json!(program.token)]).await;
        assert_eq!(played.expect("the game is played"), "played");
        assert_eq!(program.summary()["batch_hash"], hash, "{game}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_of_the_example_balances_a_pole() {
    let page = Dashboard::start().await;
    let folder = repository().join("examples/external");
    let config = folder.join("cart_pole.toml");
    let args = [OsStr::new("train"), OsStr::new("--no-dashboard"), OsStr::new("--config"), config.as_os_str()];
    let program = Program::start(args, &folder);
    let text =
        async |id: &str| page.run("return document.getElementById(arguments[0]).textContent", vec![json!(id)]).await;
    let number = async |id: &str| text(id).await.as_str().and_then(|text| text.replace(',', "").parse::<f64>().ok());

    // Without a token the page asks for one, and explains why an invalid one is refused.
    page.browser.client.goto(&format!("{}cart_pole.html", program.page)).await.expect("the page loads");
    page.wait("the form is there", async || {
        page.run("return !document.getElementById('connect').hidden", vec![]).await == true
    })
    .await;
    let wrong = "document.getElementById('token').value = 'ab'; document.querySelector('form button').click()";
    page.run(wrong, vec![]).await;
    page.wait("the mistake is named", async || text("connect-error").await == "a token has 64 hexadecimal digits")
        .await;

    // With a token in its address the page plays, and removes it from the address.
    page.browser.client.goto("about:blank").await.expect("an empty page");
    let url = format!("{}cart_pole.html#token={}", program.page, program.token);
    page.browser.client.goto(&url).await.expect("the page loads");
    page.wait("it is connected", async || text("status").await == "Connected").await;
    let url = page.browser.client.current_url().await.expect("it has an address");
    assert_eq!(url.as_str(), format!("{}cart_pole.html", program.page));
    page.wait("poles fall", async || number("episodes").await.is_some_and(|episodes| episodes > 50.0)).await;
    page.wait("the policy learns", async || number("mean").await.is_some_and(|mean| mean > 60.0)).await;

    // The user pushes the cart, and pauses by keyboard.
    let world = page.browser.client.find(fantoccini::Locator::Id("world")).await.expect("the picture is there");
    world.send_keys("\u{e014}").await.expect("it takes keys");
    world.send_keys(" ").await.expect("it takes keys");
    assert_eq!(text("pause").await, "Continue");
    world.send_keys(" ").await.expect("it takes keys");
    assert_eq!(text("pause").await, "Pause");

    for (theme, name) in [("light", "external"), ("dark", "external-dark")] {
        page.browser.prefer_colours(theme).await;
        page.browser.screenshot(name, DESKTOP).await;
        page.browser.emulate(NARROW).await;
        let overflow = "return document.documentElement.scrollWidth - document.documentElement.clientWidth";
        assert_eq!(page.run(overflow, vec![]).await, 0, "nothing is beyond the screen's edge");
        page.browser.screenshot(&format!("{name}-narrow"), NARROW).await;
        page.browser.emulate(DESKTOP).await;
    }
    page.assert_quiet_console().await;

    // The hub exits, and the page shows it.
    drop(program);
    page.wait("it is not connected", async || text("status").await == "Not connected").await;
}
