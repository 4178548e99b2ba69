//! Stores a checkpoint in every layout that other programs read, and shows that each is the policy it was made from.

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use miles_core::checkpoint::Checkpoint;
use miles_examples::exit;
use miles_examples::layouts::{LAYOUTS, Storage, store};

/// Stores the linear layers of a checkpoint as codes, once in every layout, and reads each directory back.
///
/// The embedding, the head, norms, routers and layers whose rows a format's groups do not divide stay as they are. Per
/// layout there is
///
///   OUTPUT/NAME/                     the directory
///   OUTPUT/NAME.logits.safetensors   input_ids I32 [2, 23]; F32 [2, 23, V] logits of the dequantized weights in F32,
///                                    and logits_of_codes with activations quantized too
///   OUTPUT/NAME.values/              with --values: the dequantized weights as F32
///
/// and one line: tensors stored as codes, bytes, and whether digests and logits came back as they were, to the bit.
/// `tests/oracle/loaders.py` compares the directories with what other programs read from them.
#[derive(Parser)]
#[command(verbatim_doc_comment)]
struct Options {
    /// Checkpoint directory.
    #[arg(long)]
    model: PathBuf,
    /// Directory to make; existing layouts in it are replaced.
    #[arg(long)]
    output: PathBuf,
    /// Layouts, by name; all of them when left out.
    #[arg(long, value_delimiter = ',')]
    layouts: Vec<String>,
    /// Leave the dequantized weights too.
    #[arg(long)]
    values: bool,
}

fn main() -> ExitCode {
    exit(run(&Options::parse()))
}

fn run(options: &Options) -> Result<(), Box<dyn Error>> {
    let known = || LAYOUTS.map(|(name, ..)| name).join(", ");
    if let Some(unknown) = options.layouts.iter().find(|name| LAYOUTS.iter().all(|(known, ..)| known != name)) {
        return Err(format!("unknown layout `{unknown}` (known: {})", known()).into());
    }
    let checkpoint = Checkpoint::open(&options.model)?;
    std::fs::create_dir_all(&options.output)?;
    let mut differing = Vec::new();
    for (name, format, mxfp8) in LAYOUTS {
        if !options.layouts.is_empty() && !options.layouts.iter().any(|wanted| wanted == name) {
            continue;
        }
        let storage = Storage { name, format: format.parse()?, mxfp8, values: options.values };
        let Some(stored) = store(&checkpoint, &storage, &options.output)? else {
            println!("{name:24} no layer has rows of whole groups");
            continue;
        };
        let equal = |same: bool| if same { "equal" } else { "DIFFERENT" };
        println!(
            "{name:24} tensors={} bytes={} digests={} logits_of_codes={} logits={}",
            stored.tensors,
            stored.bytes,
            equal(stored.same_digests),
            equal(stored.same_logits_of_codes),
            equal(stored.same_logits),
        );
        if !(stored.same_digests && stored.same_logits_of_codes && stored.same_logits) {
            differing.push(name);
        }
    }
    if differing.is_empty() { Ok(()) } else { Err(format!("not what was stored: {}", differing.join(", ")).into()) }
}
