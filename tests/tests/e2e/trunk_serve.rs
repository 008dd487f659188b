//! `trunk serve`, as the README says, with and without a hub at its usual address.

use std::{
    net::TcpStream,
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

use tempfile::TempDir;
use tokio::time::{Instant, sleep};

use super::{LOOK_AGAIN, built, dashboard::Dashboard, program::Program};

/// The hub's usual address, to which Trunk.toml passes the socket on.
const HUB: &str = "127.0.0.1:7878";
const SERVER: &str = "127.0.0.1:18080";
/// The page is built already; trunk looks at everything again.
const PATIENCE: Duration = Duration::from_secs(600);

/// A running server. Dropping it ends it.
struct Trunk(Child);

impl Trunk {
    async fn serve(dist: &Path) -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let mut trunk = Command::new(built("ROLLMESH_TRUNK"));
        trunk.args([
            "serve",
            "--release",
            "--offline",
            "--no-autoreload",
            "--ignore",
            ".",
            "--port",
            "18080",
            "--dist",
        ]);
        // trunk takes the value of NO_COLOR for a boolean and refuses "1".
        let trunk =
            trunk.arg(dist).current_dir(root).env_remove("NO_COLOR").stdout(Stdio::null()).stderr(Stdio::null());
        let mut trunk = Self(trunk.spawn().expect("trunk starts"));
        let deadline = Instant::now() + PATIENCE;
        while TcpStream::connect(SERVER).is_err() {
            assert_eq!(trunk.0.try_wait().expect("it can be asked"), None, "trunk has ended");
            assert!(Instant::now() < deadline, "trunk does not serve");
            sleep(LOOK_AGAIN).await;
        }
        trunk
    }
}

impl Drop for Trunk {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_of_trunk_serve_trains_by_itself_and_follows_a_hub() {
    let page = Dashboard::start().await;
    let dist = TempDir::new().expect("a directory");
    let _trunk = Trunk::serve(dist.path()).await;
    page.go_to(&format!("http://{SERVER}/#env=CartPole-v1&num_slots=4&stop.env_steps=2000")).await;
    page.click("start-run").await;
    page.wait("the run has ended", async || page.text("weights-hash").await.is_some()).await;

    let hub = Program::start_at(HUB, "hub", ["--runs-dir", dist.path().to_str().expect("UTF-8")]);
    let token = hub.url().split_once('#').expect("the address has a token").1.to_owned();
    page.browser.client.goto("about:blank").await.expect("an empty page");
    page.go_to(&format!("http://{SERVER}/#{token}")).await;
    page.wait("the hub is there", async || page.text("banner").await.is_none()).await;
    page.wait("its runs may wait", async || page.text("saved-runs").await.is_some()).await;
}
