//! How fast a weight is quantized, in bytes read plus bytes written per second, beside memcpy and other programs.
//!
//! ```text
//! cargo run --release -p miles-backend-cpu-ref --example quantize_rates -- [PYTHON]
//! ```
//!
//! The tensor is a BF16 weight of 4096 x 4096 normal numbers. The lines take turns for a number of rounds, so that a
//! disturbance hits all of them alike; the best round of each counts, and the median stands beside it. `memcpy` copies a
//! buffer of the weight's size into another one, on as many threads, and counts both.
//!
//! With PYTHON (an interpreter with torch, torchao and ml_dtypes) `benches/quantize_peers.py` takes its turn in every
//! round too, in a process that stays alive and quantizes the same bytes.

use std::error::Error;
use std::io::{BufRead, BufReader, Lines, Write};
use std::num::NonZeroUsize;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use miles_backend_cpu_ref::CpuQuantizer;
use miles_backend_cpu_ref::kernel::{Compute, Isa};
use miles_core::format::{FormatId, NonFinite, QuantizeSpec, ScaleScope, Source};
use miles_core::number::bf16;
use miles_core::plugin::Quantizer;
use miles_core::random::{Coordinates, Stream, normal};

const ROWS: usize = 4096;
const COLS: usize = 4096;
const ROUNDS: usize = 40;
/// The scalar path is slow; it takes its turn in the first rounds only.
const SCALAR_ROUNDS: usize = 3;

fn main() -> Result<(), Box<dyn Error>> {
    let threads = NonZeroUsize::new(2).ok_or("no threads")?;
    let fast = Compute::new(threads)?;
    let scalar = Compute::from_parts(Isa::SCALAR, Arc::clone(fast.pool()));
    let weight = weight();
    let mut peers = std::env::args().nth(1).map(|python| Peers::start(&python, &weight, threads)).transpose()?;
    println!(
        "{ROWS} x {COLS} BF16 weight, {threads} threads, {}; best and median of {ROUNDS} rounds, bytes in + out",
        fast.isa().name()
    );

    let mut target = vec![[1_u8; 2]; weight.len()];
    let mut lines = vec![Line::new("memcpy", 4 * weight.len())];
    let works = works();
    let quantizers = [CpuQuantizer::new(fast.clone())?, CpuQuantizer::new(scalar)?];
    for round in 0..=ROUNDS {
        lines[0].add(round, copy(&fast, &weight, &mut target));
        let mut at = 1;
        for (kind, quantizer) in ["", " (scalar)"].iter().zip(&quantizers) {
            for (name, spec) in &works {
                if lines.len() == at {
                    lines.push(Line::new(&format!("{name}{kind}"), 0));
                }
                if kind.is_empty() || round <= SCALAR_ROUNDS {
                    let (seconds, written) = quantize(quantizer, &weight, spec)?;
                    lines[at].bytes = 2 * weight.len() + written;
                    lines[at].add(round, seconds);
                }
                at += 1;
            }
        }
        if let Some(peers) = &mut peers {
            peers.round(round, &mut lines, at)?;
        }
    }
    print_table(&lines);
    peers.map_or(Ok(()), Peers::stop)
}

/// Each format as it is used: tensor-scoped NVFP4 weights read the tensor twice.
fn works() -> Vec<(&'static str, QuantizeSpec)> {
    let activation = |format| QuantizeSpec::activation(format).with_non_finite(NonFinite::Error);
    vec![
        ("mxfp8 1x32", QuantizeSpec::weight(FormatId::mxfp8())),
        ("nvfp4 per row", QuantizeSpec::weight(FormatId::nvfp4()).with_scope(ScaleScope::Row)),
        ("nvfp4 per tensor", QuantizeSpec::weight(FormatId::nvfp4())),
        ("fp8-block 128x128", QuantizeSpec::weight(FormatId::fp8_block())),
        ("fp8-block 1x128", activation(FormatId::fp8_block())),
    ]
}

fn weight() -> Vec<[u8; 2]> {
    let draw = |index: usize| normal(5, Stream::Data, Coordinates { prompt: index as u64, ..Coordinates::default() });
    // One period of numbers is enough: no format looks farther than a row or a tile.
    let period: Vec<[u8; 2]> =
        (0..1 << 18).map(|index| bf16::encode(draw(index) as f32 * 0.02).to_le_bytes()).collect();
    period.iter().copied().cycle().take(ROWS * COLS).collect()
}

fn quantize(quantizer: &CpuQuantizer, weight: &[[u8; 2]], spec: &QuantizeSpec) -> Result<(f64, usize), Box<dyn Error>> {
    let source = Source::bf16(weight, ROWS, COLS, Some("weight"))?;
    let start = Instant::now();
    let made = quantizer.quantize(&[source], spec)?;
    Ok((start.elapsed().as_secs_f64(), made.iter().map(|tensor| tensor.size_bytes()).sum()))
}

fn copy(compute: &Compute, from: &[[u8; 2]], to: &mut [[u8; 2]]) -> f64 {
    let half = from.len() / compute.threads();
    let start = Instant::now();
    compute.pool().scope(|scope| {
        for (to, from) in to.chunks_mut(half).zip(from.chunks(half)) {
            scope.spawn(move |_| to.copy_from_slice(from));
        }
    });
    start.elapsed().as_secs_f64()
}

/// One line of the table.
struct Line {
    name: String,
    bytes: usize,
    seconds: Vec<f64>,
}

impl Line {
    fn new(name: &str, bytes: usize) -> Self {
        Line { name: name.to_owned(), bytes, seconds: Vec::new() }
    }

    /// Counts every round but the first.
    fn add(&mut self, round: usize, seconds: f64) {
        if round > 0 {
            self.seconds.push(seconds);
        }
    }

    fn best(&self) -> f64 {
        self.bytes as f64 / self.seconds.iter().copied().fold(f64::INFINITY, f64::min) * 1e-9
    }

    fn median(&self) -> f64 {
        let mut sorted = self.seconds.clone();
        sorted.sort_by(f64::total_cmp);
        sorted.get(sorted.len() / 2).map_or(0.0, |seconds| self.bytes as f64 / seconds * 1e-9)
    }
}

fn print_table(lines: &[Line]) {
    let memcpy = &lines[0];
    println!("{:<44}{:>8}{:>10}{:>10}{:>12}", "", "ms", "GB/s", "median", "of memcpy");
    for line in lines {
        println!(
            "{:<44}{:>8.2}{:>10.2}{:>10.2}{:>10.1} %",
            line.name,
            line.bytes as f64 / line.best() * 1e-6,
            line.best(),
            line.median(),
            100.0 * line.best() / memcpy.best()
        );
    }
}

/// The other programs, in one process that quantizes once for every line it is sent.
struct Peers {
    child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
    /// Holds the weight's file for as long as the process lives.
    _folder: tempfile::TempDir,
}

impl Peers {
    fn start(python: &str, weight: &[[u8; 2]], threads: NonZeroUsize) -> Result<Self, Box<dyn Error>> {
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("weight.bf16");
        std::fs::write(&file, weight.as_flattened())?;
        let mut command = Command::new(python);
        command.arg("benches/quantize_peers.py").arg(&file);
        command.args([ROWS.to_string(), COLS.to_string(), threads.to_string()]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let input = child.stdin.take().ok_or("no pipe to the peers")?;
        let output = BufReader::new(child.stdout.take().ok_or("no pipe from the peers")?).lines();
        Ok(Peers { child, input, output, _folder: folder })
    }

    /// One turn of every peer; their lines of the table start at `first`.
    fn round(&mut self, round: usize, lines: &mut Vec<Line>, first: usize) -> Result<(), Box<dyn Error>> {
        writeln!(self.input, "round")?;
        self.input.flush()?;
        let answer = self.output.next().ok_or("benches/quantize_peers.py ended early")??;
        let figures: Vec<(String, usize, f64)> = serde_json::from_str(&answer)?;
        for (index, (name, bytes, seconds)) in figures.into_iter().enumerate() {
            if lines.len() == first + index {
                lines.push(Line::new(&name, bytes));
            }
            lines[first + index].add(round, seconds);
        }
        // The peers' threads go on spinning for a moment after their work.
        std::thread::sleep(Duration::from_millis(20));
        Ok(())
    }

    fn stop(self) -> Result<(), Box<dyn Error>> {
        let Peers { mut child, input, .. } = self;
        drop(input);
        match child.wait()? {
            status if status.success() => Ok(()),
            status => Err(format!("benches/quantize_peers.py ended with {status}").into()),
        }
    }
}
