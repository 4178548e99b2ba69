//! Makes a checkpoint directory with random weights, of any configuration and size, without holding it in memory.
//!
//! ```console
//! cargo run --release --example make_random_model -- --config DIR --output DIR --shard-mb 2000
//! cargo run --release --example make_random_model -- --config DIR --output DIR num_hidden_layers=20 hidden_size=4096
//! ```
//!
//! The weights are BF16 normal numbers times 0.02, norms are 1, and what every router or head would compute is noise: the
//! directory is for measuring and for testing what reads directories. The same seed gives the same bytes.

use std::error::Error;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use miles_core::model::huggingface::HuggingFaceConfig;
use miles_core::network::{Network, Parameter, Role};
use miles_core::random::{Coordinates, Stream, normal};
use miles_examples::exit;
use serde_json::{Map, Value, json};

/// Makes a Hugging Face checkpoint directory with random weights.
#[derive(Parser)]
struct Arguments {
    /// Directory whose config.json describes the model
    #[arg(long, value_name = "DIR")]
    config: PathBuf,
    /// Directory to write; it must not exist
    #[arg(long, value_name = "DIR")]
    output: PathBuf,
    /// Largest file, in MB, unless one tensor alone is larger
    #[arg(long, value_name = "N", default_value_t = 2000)]
    shard_mb: u64,
    /// Seed of the weights
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Keys of config.json that are to have another value, given as JSON
    #[arg(value_name = "KEY=VALUE")]
    overrides: Vec<String>,
}

fn main() -> ExitCode {
    exit(run(&Arguments::parse()))
}

fn run(arguments: &Arguments) -> Result<(), Box<dyn Error>> {
    let config = changed(&arguments.config.join("config.json"), &arguments.overrides)?;
    let described = HuggingFaceConfig::from_json(&arguments.config.join("config.json"), config.clone())?;
    let network = Network::new(described.model());
    let noise = Noise::new(arguments.seed);
    fs::create_dir(&arguments.output).map_err(|error| format!("{}: {error}", arguments.output.display()))?;
    fs::write(arguments.output.join("config.json"), format!("{:#}\n", Value::Object(config)))?;
    let shards = shards(&network.parameters, arguments.shard_mb * 1_000_000);
    let mut weight_map = Map::new();
    let mut total_bytes = 0;
    for (index, shard) in shards.iter().enumerate() {
        let name = format!("model-{:05}-of-{:05}.safetensors", index + 1, shards.len());
        total_bytes += write_shard(&arguments.output.join(&name), shard, &noise)?;
        weight_map.extend(shard.iter().map(|parameter| (parameter.name.clone(), json!(name))));
    }
    let index = json!({ "metadata": { "total_size": total_bytes }, "weight_map": weight_map });
    fs::write(arguments.output.join("model.safetensors.index.json"), format!("{index:#}\n"))?;
    println!("{} tensors, {total_bytes} bytes, {} files", network.parameters.len(), shards.len());
    Ok(())
}

fn changed(path: &Path, overrides: &[String]) -> Result<Map<String, Value>, Box<dyn Error>> {
    let text = fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let mut config: Map<String, Value> = miles_core::json::from_str(&text)?;
    for text in overrides {
        let (key, value) = text.split_once('=').ok_or_else(|| format!("`{text}` is no KEY=VALUE"))?;
        config.insert(key.to_owned(), serde_json::from_str(value).map_err(|error| format!("`{text}`: {error}"))?);
    }
    Ok(config)
}

/// The parameters, in order, cut into files.
fn shards(parameters: &[Parameter], max_bytes: u64) -> Vec<Vec<&Parameter>> {
    let mut shards: Vec<Vec<&Parameter>> = vec![Vec::new()];
    let mut used = 0;
    for parameter in parameters {
        let bytes = 2 * parameter.elements() as u64;
        if used + bytes > max_bytes && used > 0 {
            shards.push(Vec::new());
            used = 0;
        }
        used += bytes;
        if let Some(shard) = shards.last_mut() {
            shard.push(parameter);
        }
    }
    shards
}

fn write_shard(path: &Path, shard: &[&Parameter], noise: &Noise) -> Result<u64, Box<dyn Error>> {
    let mut header = Map::new();
    let mut end = 0;
    for parameter in shard {
        let start = end;
        end += 2 * parameter.elements() as u64;
        let entry = json!({ "dtype": "BF16", "shape": parameter.shape, "data_offsets": [start, end] });
        header.insert(parameter.name.clone(), entry);
    }
    let mut text = Value::Object(header).to_string().into_bytes();
    text.resize(text.len().next_multiple_of(8), b' ');
    let mut file = BufWriter::with_capacity(1 << 22, File::create(path)?);
    file.write_all(&(text.len() as u64).to_le_bytes())?;
    file.write_all(&text)?;
    for (index, parameter) in shard.iter().enumerate() {
        noise.write(parameter, index as u64, &mut file)?;
    }
    file.flush()?;
    Ok(end)
}

/// A table of normal numbers in BF16, walked through from a place of each tensor's own.
struct Noise {
    table: Vec<u8>,
}

impl Noise {
    /// Prime, so that no row length of a matrix divides it and rows differ.
    const NUMBERS: u64 = 1_000_003;

    fn new(seed: u64) -> Self {
        let draw = |index| normal(seed, Stream::Data, Coordinates { prompt: index, ..Coordinates::default() });
        let bits = |index| ((0.02 * draw(index) as f32).to_bits() >> 16) as u16;
        Noise { table: (0..Self::NUMBERS).flat_map(|index| bits(index).to_le_bytes()).collect() }
    }

    fn write(&self, parameter: &Parameter, index: u64, file: &mut impl Write) -> std::io::Result<()> {
        let mut left = 2 * parameter.elements();
        if parameter.role == Role::Norm {
            let one = 0x3F80_u16.to_le_bytes();
            return file.write_all(&one.repeat(left / 2));
        }
        let mut at = 2 * (index.wrapping_mul(7919) % Self::NUMBERS) as usize;
        while left > 0 {
            let step = left.min(self.table.len() - at);
            file.write_all(&self.table[at..at + step])?;
            left -= step;
            at = 0;
        }
        Ok(())
    }
}
