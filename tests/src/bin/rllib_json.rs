//! The program that `tests/peers/rllib_json.py` compares with the real RLlib.
//!
//! ```text
//! rllib_json rewrite IN OUT    read every line of a sample file and write it back, with the same columns compressed
//! rllib_json time FILE SECS    read and write a file's batches for SECS seconds each, with a thread per processor,
//!                              and print rows per second: by wall-clock time, and by CPU time, which other programs
//!                              do not affect
//! ```

use std::{
    env, error, fs,
    hint::black_box,
    io::Write as _,
    sync::{Arc, LazyLock},
    time::{Duration, Instant},
};

use rollmesh::offline::json::{JsonReader, JsonReaderOptions, JsonWriter, JsonWriterOptions};
use rollmesh_core::batch::AnyBatch;
use rollmesh_data::json::{COMPRESS_COLUMNS, encode_record};
use serde_json::json;

/// The allocator, which is that of the `rollmesh` program.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

type Result<T> = std::result::Result<T, Box<dyn error::Error>>;

fn main() -> Result<()> {
    let args: Vec<String> = env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["rewrite", from, to] => write(&read(from)?, &mut fs::File::create(to)?),
        ["time", file, seconds] => time(file, Duration::from_secs_f64(seconds.parse()?)),
        _ => Err("usage: rllib_json rewrite IN OUT | rllib_json time FILE SECS".into()),
    }
}

/// Returns all batches of a file.
fn read(path: &str) -> Result<Vec<AnyBatch>> {
    let mut batches = Vec::new();
    each(path, |batch| batches.push(batch))?;
    Ok(batches)
}

/// Calls a function for the batches of a file, as a worker reads them.
fn each(path: &str, mut take: impl FnMut(AnyBatch)) -> Result<()> {
    let mut reader = JsonReader::new(vec![path.into()], JsonReaderOptions::default())?.read_all_files();
    for batch in &mut reader {
        take(batch?);
    }
    if reader.corrupt_lines() > 0 { Err("there are lines that are no batches".into()) } else { Ok(()) }
}

/// Writes line by line, each in one call.
fn write(batches: &[AnyBatch], file: &mut fs::File) -> Result<()> {
    let mut line = Vec::new();
    for batch in batches {
        line.clear();
        encode_record(batch, &COMPRESS_COLUMNS, &mut line)?;
        line.push(b'\n');
        file.write_all(&line)?;
    }
    Ok(())
}

/// Returns this process's CPU time on Linux, and wall-clock time elsewhere.
fn busy() -> Result<Duration> {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    let Ok(stat) = fs::read_to_string("/proc/self/stat") else { return Ok(START.elapsed()) };
    // User and system time in hundredths of a second, the 12th and 13th field after the name in parentheses.
    let fields = stat.rsplit_once(')').ok_or("fields of /proc/self/stat")?.1.split_ascii_whitespace();
    let ticks: Vec<u64> = fields.skip(11).take(2).map(str::parse).collect::<std::result::Result<_, _>>()?;
    Ok(Duration::from_millis(10 * ticks.iter().sum::<u64>()))
}

fn time(path: &str, least: Duration) -> Result<()> {
    let batches = read(path)?;
    let rows: usize = batches.iter().map(AnyBatch::env_steps).sum();
    let per_second = |mut work: Box<dyn FnMut() -> Result<()> + '_>, tidy: &dyn Fn() -> Result<()>| {
        let (mut spent, mut clock, mut times) = (Duration::ZERO, Duration::ZERO, 0u32);
        while clock < least {
            let (start, began) = (busy()?, Instant::now());
            work()?;
            (spent, clock, times) = (spent + busy()? - start, clock + began.elapsed(), times + 1);
            tidy()?;
        }
        let rate = |span: Duration| (rows as f64 * f64::from(times) / span.as_secs_f64()).round();
        Result::Ok(json!({"clock": rate(clock), "busy": rate(spent)}))
    };
    let reading = per_second(Box::new(|| each(path, |batch| drop(black_box(batch)))), &|| Ok(()))?;
    let copies = format!("{path}.copies");
    let empty = || Ok(fs::remove_dir_all(&copies)?);
    // One file, as in the comparison.
    let options = JsonWriterOptions { max_file_size: 1 << 40, ..JsonWriterOptions::default() };
    let writer = || JsonWriter::new(&copies, options.clone());
    let one_by_one = || {
        let mut writer = writer()?;
        Ok(batches.iter().try_for_each(|batch| writer.append(batch))?)
    };
    let one_by_one = per_second(Box::new(one_by_one), &empty)?;
    let shared: Vec<Arc<AnyBatch>> = batches.iter().cloned().map(Arc::new).collect();
    let many = || Ok(writer()?.append_all(&mut shared.iter().cloned().collect())?);
    let writing = per_second(Box::new(many), &empty)?;
    println!("{}", json!({"rows": rows, "read": reading, "write": writing, "write_one_by_one": one_by_one}));
    Ok(())
}
