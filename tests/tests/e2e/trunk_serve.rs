//! `trunk serve`, as docs/how-to/build.md says, with and without a hub. A separate step of the test suite runs this,
//! because trunk builds the page.

use std::{
    env,
    fs::{self, File},
    net::{SocketAddr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use tempfile::TempDir;
use tokio::time::{Instant, sleep};

use super::{LOOK_AGAIN, built, dashboard::Dashboard, program::Program};

/// The hub's default address, to which Trunk.toml forwards the socket.
const HUB: &str = "127.0.0.1:7878";
/// The prefix of variables that only trunk gets, since the page is compiled with another environment than the tests.
const TRUNK_ENV: &str = "ROLLMESH_TRUNK_ENV_";
/// The time for trunk to check the page, which is built already.
const PATIENCE: Duration = Duration::from_secs(600);

/// Returns an address at which no server listens.
fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a free port")
}

/// A running server. Dropping it stops it.
struct Trunk {
    process: Child,
    address: SocketAddr,
    log: PathBuf,
}

impl Trunk {
    /// Serves the page from a folder, with the repository's configuration except for the hub's address.
    async fn serve(folder: &Path, hub: SocketAddr) -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().expect("the repository");
        let (config, log, address) = (folder.join("Trunk.toml"), folder.join("trunk.log"), free_address());
        fs::write(&config, configuration(&root, hub)).expect("a file");
        let output = || Stdio::from(File::options().create(true).append(true).open(&log).expect("a file"));
        let mut trunk = Command::new(built("ROLLMESH_TRUNK"));
        trunk.args(["serve", "--release", "--offline", "--no-autoreload", "--config"]).arg(config);
        trunk
            .arg("--ignore")
            .arg(&root)
            .args(["--port", &address.port().to_string(), "--dist"])
            .arg(folder.join("dist"));
        for (name, value) in env::vars() {
            match name.strip_prefix(TRUNK_ENV) {
                Some(name) if value.is_empty() => _ = trunk.env_remove(name),
                Some(name) => _ = trunk.env(name, value),
                None => {}
            }
        }
        // trunk parses NO_COLOR as a boolean and refuses "1".
        let trunk = trunk.current_dir(root).env_remove("NO_COLOR").stdout(output()).stderr(output());
        let process = trunk.spawn().expect("trunk starts");
        let mut trunk = Self { process, address, log };
        trunk.wait_until_it_serves().await;
        trunk
    }

    async fn wait_until_it_serves(&mut self) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let log = || fs::read_to_string(&self.log).unwrap_or_default();
            if let Some(status) = self.process.try_wait().expect("it can be asked") {
                panic!("trunk has ended with {status}:\n{}", log());
            }
            if TcpStream::connect(self.address).is_ok() {
                return;
            }
            assert!(Instant::now() < deadline, "trunk does not serve:\n{}", log());
            sleep(LOOK_AGAIN).await;
        }
    }
}

impl Drop for Trunk {
    fn drop(&mut self) {
        // The server may have exited by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Returns Trunk.toml for another folder, with a hub at this address.
fn configuration(root: &Path, hub: SocketAddr) -> String {
    let path = root.join("Trunk.toml");
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut config: toml::Table = text.replace(HUB, &hub.to_string()).parse().expect("TOML");
    assert!(text.contains(HUB) && config.remove("watch").is_some(), "{text}");
    config["build"]["target"] = root.join("index.html").to_str().expect("UTF-8").into();
    config.to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_of_trunk_serve_trains_by_itself_and_follows_a_hub() {
    let page = Dashboard::start().await;
    let (folder, address) = (TempDir::new().expect("a directory"), free_address());
    let trunk = Trunk::serve(folder.path(), address).await;
    page.go_to(&format!("http://{}/#env=CartPole-v1&num_slots=4&stop.env_steps=2000", trunk.address)).await;
    page.click("start-run").await;
    page.wait("the run has ended", async || page.text("weights-hash").await.is_some()).await;

    let runs = folder.path().join("runs");
    let hub = Program::start_at(&address.to_string(), "hub", ["--runs-dir", runs.to_str().expect("UTF-8")]);
    let token = hub.url().split_once('#').expect("the address has a token").1.to_owned();
    page.browser.client.goto("about:blank").await.expect("an empty page");
    page.go_to(&format!("http://{}/#{token}", trunk.address)).await;
    page.wait("the hub is there", async || page.text("banner").await.is_none()).await;
    page.wait("its runs may wait", async || page.text("saved-runs").await.is_some()).await;
}
