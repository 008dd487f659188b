//! What `tests/peers/rllib_json.py` runs beside the real RLlib.
//!
//! ```text
//! rllib_json rewrite IN OUT    read every line of a sample file and write it again, with what was compressed compressed
//! rllib_json time FILE SECS    read and write a file's batches for so many seconds, and print rows per second of the
//!                              processor's time, which other programs do not take away
//! ```

use std::{
    env, error, fs,
    hint::black_box,
    io::{BufRead as _, BufReader, Write as _},
    sync::LazyLock,
    time::{Duration, Instant},
};

use rollmesh_core::{
    batch::AnyBatch,
    offline::{COMPRESS_COLUMNS, JsonLimits, JsonLines, encode_record},
};

/// As the program has it.
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

/// All batches of a file.
fn read(path: &str) -> Result<Vec<AnyBatch>> {
    let mut batches = Vec::new();
    each(path, |batch| batches.push(batch))?;
    Ok(batches)
}

/// The batches of a file, read line by line as a worker does.
fn each(path: &str, mut take: impl FnMut(AnyBatch)) -> Result<()> {
    let mut file = BufReader::with_capacity(256 << 10, fs::File::open(path)?);
    let mut lines = JsonLines::strict(JsonLimits::default());
    let mut line = Vec::new();
    while file.read_until(b'\n', &mut line)? > 0 {
        lines.read(&line)?.into_iter().for_each(&mut take);
        line.clear();
    }
    Ok(())
}

/// Writes line by line, each as a whole.
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

/// The processor's time that this process has had, on Linux; of a clock elsewhere.
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
    let copy = format!("{path}.copy");
    let per_second = |mut work: Box<dyn FnMut() -> Result<()> + '_>| {
        let (start, mut times) = (busy()?, 0u32);
        while busy()? < start + least {
            work()?;
            times += 1;
        }
        Result::Ok(rows as f64 * f64::from(times) / (busy()? - start).as_secs_f64())
    };
    let reading = per_second(Box::new(|| each(path, |batch| drop(black_box(batch)))))?;
    let mut file = fs::File::create(&copy)?;
    let writing = per_second(Box::new(|| write(&batches, &mut file)))?;
    fs::remove_file(&copy)?;
    println!("{{\"rows\": {rows}, \"read_rows_per_s\": {reading:.0}, \"write_rows_per_s\": {writing:.0}}}");
    Ok(())
}
