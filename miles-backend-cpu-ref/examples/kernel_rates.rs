//! Measured rates of the kernels at the shapes of a 135 M parameter Llama (hidden 576, feed-forward 1536, vocabulary 49152).
//!
//! `cargo run --release -p miles-backend-cpu-ref --example kernel_rates`
//!
//! Decode rows rotate through enough copies of a weight that none stays in the cache; GB/s counts the packed weight once.

use std::error::Error;
use std::num::NonZeroUsize;
use std::time::Instant;

use miles_backend_cpu_ref::kernel::Compute;
use miles_backend_cpu_ref::kernel::attention::{Heads, History, SoftmaxRow, attention};
use miles_backend_cpu_ref::kernel::attention_backward::{AttentionForward, AttentionGradients, attention_backward};
use miles_backend_cpu_ref::kernel::backward::{input_gradient, weight_gradient};
use miles_backend_cpu_ref::kernel::linear::{Activations, linear};
use miles_backend_cpu_ref::kernel::pack::PackedWeight;

const FORMATS: [&str; 5] = ["f32", "bf16", "mxfp8", "nvfp4", "fp8-block"];
const SHAPES: [(&str, usize, usize); 5] =
    [("q/o", 576, 576), ("k/v", 192, 576), ("gate/up", 1536, 576), ("down", 576, 1536), ("lm_head", 49152, 576)];

fn main() -> Result<(), Box<dyn Error>> {
    let threads = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let compute = Compute::new(threads)?;
    println!("isa {}, {} threads", compute.isa().name(), compute.threads());
    println!(
        "{:<10} {:<9} {:>5} {:>6} {:>6} {:>10} {:>9} {:>8}",
        "format", "matrix", "m", "n", "k", "us", "GFLOP/s", "GB/s"
    );
    for format in FORMATS {
        for (name, n, k) in SHAPES {
            for m in [1, 8, 32, 1024] {
                if m * n <= 1024 * 1536 {
                    linear_rate(&compute, format, name, m, n, k);
                }
            }
        }
    }
    for (name, n, k) in SHAPES.into_iter().take(4) {
        gradient_rates(&compute, name, 1024, n, k);
    }
    attention_rates(&compute);
    Ok(())
}

fn gradient_rates(compute: &Compute, name: &str, m: usize, n: usize, k: usize) {
    let (dy, x, w) = (vec![0.5f32; m * n], vec![0.25f32; m * k], vec![0x3E80u16; n * k]);
    let flop = 2.0 * (m * n * k) as f64;
    let mut dx = vec![0.0; m * k];
    let seconds = best_seconds(compute, || input_gradient(compute, &dy, &w, [m, n, k], &mut dx));
    println!("{:<10} {name:<9} {m:>5} {n:>6} {k:>6} {:>10.1} {:>9.1}", "dX", seconds * 1e6, flop / seconds * 1e-9);
    let mut dw = vec![0.0; n * k];
    let seconds = best_seconds(compute, || weight_gradient(compute, &dy, &x, [m, n, k], &mut dw));
    println!("{:<10} {name:<9} {m:>5} {n:>6} {k:>6} {:>10.1} {:>9.1}", "dW", seconds * 1e6, flop / seconds * 1e-9);
}

/// Decode of one row over a long BF16 history, prefill of a sequence, and its gradients.
fn attention_rates(compute: &Compute) {
    let heads = Heads { query_heads: 9, kv_heads: 3, qk_dim: 64, v_dim: 64, scale: 0.125 };
    let positions = 512;
    let (keys, values) = (vec![0x3E80u16; heads.keys_len(positions)], vec![0x3E80u16; heads.values_len(positions)]);
    let history = History { keys: &keys[..], values: &values[..] };
    for rows in [1, positions] {
        let q = vec![0.25; rows * 9 * 64];
        let (mut out, mut softmax) = (q.clone(), vec![SoftmaxRow::default(); rows * 9]);
        let first_position = positions - rows;
        let pairs = (0..rows).map(|row| first_position + row + 1).sum::<usize>() * 9;
        let flop = (pairs * 64 * 4) as f64;
        let seconds = best_seconds(compute, || {
            attention(compute, &heads, &q, history, first_position, &mut out, Some(&mut softmax));
        });
        println!(
            "attention forward  {rows:>4} rows of {positions}: {:>9.1} us {:>7.1} GFLOP/s",
            seconds * 1e6,
            flop / seconds * 1e-9
        );
        let (mut dq, mut dk, mut dv) = (q.clone(), vec![0.0; keys.len()], vec![0.0; values.len()]);
        let forward = AttentionForward { q: &q, history, first_position, out: &out, softmax: &softmax };
        let seconds = best_seconds(compute, || {
            let gradients = AttentionGradients { dq: &mut dq, dk: &mut dk, dv: &mut dv };
            attention_backward(compute, &heads, &forward, &q, gradients);
        });
        println!(
            "attention backward {rows:>4} rows of {positions}: {:>9.1} us {:>7.1} GFLOP/s",
            seconds * 1e6,
            2.5 * flop / seconds * 1e-9
        );
    }
}

fn linear_rate(compute: &Compute, format: &str, name: &str, m: usize, n: usize, k: usize) {
    let first = pack(compute, format, n, k);
    let copies = if m > 32 { 1 } else { (128 << 20) / first.bytes() + 1 };
    let weights: Vec<PackedWeight> = std::iter::repeat_n(first, copies).collect();
    let values: Vec<f32> = (0..m * k).map(|i| (i % 31) as f32 * 0.0625 - 1.0).collect();
    let codes = vec![0x39u8; m * k];
    let scales = vec![0x3Au8; m * k.div_ceil(16)];
    let wide_scales = vec![0.5f32; m * k.div_ceil(128)];
    let token_scales = vec![0.5f32; m];
    let x = match format {
        "mxfp8" => Activations::Mxfp8 { codes: &codes, scales: &scales[..m * k.div_ceil(32)] },
        "nvfp4" => {
            Activations::Nvfp4 { codes: &codes[..m * k.div_ceil(2)], scales: &scales, token_scales: &token_scales }
        }
        "fp8-block" => Activations::Fp8Block { codes: &codes, scales: &wide_scales },
        _ => Activations::Values(&values),
    };
    let mut out = vec![0.0; m * n];
    let mut next = 0;
    let seconds = best_seconds(compute, || {
        linear(compute, x, m, &weights[next % copies], &mut out);
        next += 1;
    });
    let (flop, bytes) = (2.0 * (m * n * k) as f64, weights[0].bytes() as f64);
    println!(
        "{format:<10} {name:<9} {m:>5} {n:>6} {k:>6} {:>10.1} {:>9.1} {:>8.2}",
        seconds * 1e6,
        flop / seconds * 1e-9,
        bytes / seconds * 1e-9
    );
}

fn pack(compute: &Compute, format: &str, n: usize, k: usize) -> PackedWeight {
    match format {
        "f32" => PackedWeight::from_f32(compute, &vec![0.25; n * k], n, k),
        "bf16" => PackedWeight::from_bf16(compute, &vec![0x3E80; n * k], n, k),
        "mxfp8" => PackedWeight::from_mxfp8(compute, &vec![0x39; n * k], &vec![121; n * k.div_ceil(32)], n, k),
        "nvfp4" => PackedWeight::from_nvfp4(
            compute,
            &vec![0x39; n * k.div_ceil(2)],
            &vec![0x3A; n * k.div_ceil(16)],
            0.01,
            n,
            k,
        ),
        _ => PackedWeight::from_fp8_block(
            compute,
            &vec![0x39; n * k],
            &vec![0.01; n.div_ceil(128) * k.div_ceil(128)],
            128,
            n,
            k,
        ),
    }
}

/// Best mean of several rounds, each of at least 20 ms, run inside the pool as an engine would.
fn best_seconds(compute: &Compute, mut work: impl FnMut() + Send) -> f64 {
    compute.pool().install(|| {
        work();
        let once = Instant::now();
        work();
        let calls = (0.02 / once.elapsed().as_secs_f64()).ceil().max(1.0) as usize;
        let mut best = f64::INFINITY;
        for _ in 0..7 {
            let start = Instant::now();
            for _ in 0..calls {
                work();
            }
            best = best.min(start.elapsed().as_secs_f64() / calls as f64);
        }
        best
    })
}
