//! A conversion that is killed goes on where it was, and what comes out is the same.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use miles_core::checkpoint::StoredModel;
use miles_core::convert::{ConvertOptions, Progress, convert};
use miles_core::precision::Recipe;

use crate::files::Builtin;
use crate::support::{contents, map, options, partial, random_model};

const MODEL: &str = "MILES_TEST_CONVERT_MODEL";
const OUTPUT: &str = "MILES_TEST_CONVERT_OUTPUT";
const RECIPE: Recipe = Recipe::Nvfp4Dequantized;

fn small_files() -> ConvertOptions {
    ConvertOptions { max_shard_bytes: 2_000_000, ..options(2) }
}

fn converted(model: &Path, output: &Path, progress: &(dyn Fn(Progress) + Sync)) -> miles_core::Result<usize> {
    let model = StoredModel::open(model)?;
    let map = map(&model, RECIPE, &[]);
    Ok(convert(&model, &map, &Builtin, output, &small_files(), progress)?.resumed_units)
}

/// The process that is killed: this test, started by the next one, which names the directories.
#[test]
fn converts_what_the_environment_names() {
    let (Some(model), Some(output)) = (env::var_os(MODEL), env::var_os(OUTPUT)) else { return };
    // A pause after each unit, so that many moments lie within the work.
    converted(Path::new(&model), Path::new(&output), &|_| sleep(Duration::from_millis(2))).unwrap();
}

/// Starts the process, kills it after `delay`, and tells whether it was still at work.
fn kill_after(model: &Path, output: &Path, delay: Duration) -> bool {
    let mut child = Command::new(env::current_exe().unwrap())
        .args(["--exact", "killed::converts_what_the_environment_names"])
        .env(MODEL, model)
        .env(OUTPUT, output)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    sleep(delay);
    // On Unix this is SIGKILL.
    child.kill().unwrap();
    !child.wait().unwrap().success()
}

fn journal_lines(output: &Path) -> usize {
    fs::read_to_string(partial(output).join("journal")).map_or(0, |text| text.matches('\n').count().saturating_sub(1))
}

#[test]
fn killed_at_twenty_random_moments_the_output_is_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let (model, output) = (dir.path().join("model"), dir.path().join("output"));
    random_model("qwen3-moe", &model, &[("hidden_size", 256), ("moe_intermediate_size", 256), ("vocab_size", 4096)]);
    converted(&model, &output, &|_| {}).unwrap();
    let expected: BTreeMap<String, Vec<u8>> = contents(&output);
    fs::remove_dir_all(&output).unwrap();

    let (mut kills, mut resumed, mut seed) = (0, 0, 1_u64);
    while kills < 20 {
        for _ in 0..3 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            kills += usize::from(kill_after(&model, &output, Duration::from_millis(seed >> 57)));
        }
        if !output.exists() {
            let noted = journal_lines(&output);
            let gone_on = converted(&model, &output, &|_| {}).unwrap();
            assert!(gone_on <= noted, "{gone_on} units were finished, the journal has {noted}");
            resumed += gone_on;
        }
        assert!(contents(&output) == expected, "after {kills} kills");
        assert!(!partial(&output).exists());
        fs::remove_dir_all(&output).unwrap();
    }
    assert!(resumed > 0, "no kill was late enough for a unit to be finished");
}
