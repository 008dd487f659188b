//! The process of the WebDriver server.

use std::{
    env,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    path::PathBuf,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use super::LOOK_AGAIN;

/// The time within which the server must end its browsers and exit.
const GRACE: Duration = Duration::from_secs(5);

/// A running chromedriver. Dropping it, also in a panic, ends it and the browsers that it has started.
pub(crate) struct Driver {
    child: Child,
    port: u16,
}

impl Driver {
    pub(crate) fn start() -> Self {
        let program = named("CHROMEDRIVER", "/usr/bin/chromedriver");
        let mut child = Command::new(&program)
            .arg("--port=0")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start {}: {error}; set CHROMEDRIVER", program.display()));
        let stdout = child.stdout.take().expect("it is piped");
        let mut driver = Self { child, port: 0 };
        let mut lines = BufReader::new(stdout).lines().map_while(Result::ok);
        driver.port = lines.find_map(|line| port(&line)).expect("chromedriver prints its port");
        // Reads until the end, so that the server never blocks on a full pipe.
        thread::spawn(move || lines.for_each(drop));
        driver
    }

    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Requests the server to end its browsers and to exit.
    fn shut_down(&self) -> std::io::Result<()> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, self.port));
        let mut stream = TcpStream::connect_timeout(&address, GRACE)?;
        stream.set_read_timeout(Some(GRACE))?;
        write!(stream, "GET /shutdown HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
        stream.read_to_end(&mut Vec::new()).map(drop)
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        // The loop below detects whether the server exits.
        let _ = self.shut_down();
        let deadline = Instant::now() + GRACE;
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < deadline {
            thread::sleep(LOOK_AGAIN);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the path of the browser.
pub(crate) fn chromium() -> PathBuf {
    named("CHROME", "/usr/bin/chromium")
}

fn named(variable: &str, usual: &str) -> PathBuf {
    env::var_os(variable).map_or_else(|| usual.into(), PathBuf::from)
}

/// Reads the port from `ChromeDriver was started successfully on port 34567.`
fn port(line: &str) -> Option<u16> {
    line.split_once("successfully on port ")?.1.trim_end_matches('.').parse().ok()
}
