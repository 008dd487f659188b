//! Answers conformance cases: JSON lines in, JSON lines out. See [`rollmesh_tests::conformance`].
//!
//! ```text
//! cargo run --release -p rollmesh-tests --bin conformance < cases.jsonl > results.jsonl
//! ```

use std::io::{self, BufRead as _, Write as _};

fn main() -> io::Result<()> {
    let mut out = io::BufWriter::new(io::stdout().lock());
    for line in io::stdin().lock().split(b'\n') {
        let line = line?;
        let line = String::from_utf8_lossy(&line);
        if !line.trim().is_empty() {
            writeln!(out, "{}", rollmesh_tests::conformance::answer(&line))?;
        }
    }
    out.flush()
}
