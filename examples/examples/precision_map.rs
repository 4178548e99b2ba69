//! Which tensor of a checkpoint has which format, and why.
//!
//! ```console
//! cargo run --release --example precision_map -- --model DIR --recipe nvfp4-dequantized
//! cargo run --release --example precision_map -- --model DIR --rules RULES.toml --json
//! cargo run --release --example precision_map -- --model DIR --recipe mxfp8 --why model.layers.0.mlp.up_proj.weight
//! ```
//!
//! A rules file holds either `[[rules]]` alone, which go in front of the recipe's, or a whole list with `name` and
//! `backward` in its place. Only headers are read, so this works for every family whose names are known, with a forward
//! pass or without, at any size. A rule of the file that decides nothing is warned of on standard error.

use std::error::Error;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use miles_core::checkpoint::StoredModel;
use miles_core::network::Inventory;
use miles_core::precision::{
    MapDocument, PartitionAxis, PartitionPlan, PrecisionTable, Recipe, Rule, RuleList, resolve_list,
};
use miles_core::registry::nearest;
use miles_examples::contract::quickstart_model;
use serde::Deserialize;

/// Prints the precision map of a checkpoint, grouped; or every tensor as JSON; or the rule that decided one tensor.
#[derive(Parser)]
struct Arguments {
    /// Hugging Face checkpoint directory, of any family whose names are known [default: the quickstart's model]
    #[arg(long, value_name = "DIR")]
    model: Option<PathBuf>,
    /// Precision recipe
    #[arg(long, value_name = "NAME", default_value = "nvfp4-dequantized")]
    recipe: Recipe,
    /// TOML file with `[[rules]]` to go before the recipe's, or with a whole list under a `name`
    #[arg(long, value_name = "FILE")]
    rules: Option<PathBuf>,
    /// Shards that each routed expert is cut into, every one quantized apart
    #[arg(long, value_name = "N", default_value_t = 1)]
    expert_tensor_parallel: u16,
    /// Prints every tensor, the totals and the digest as one JSON object
    #[arg(long)]
    json: bool,
    /// Prints which rule decided this tensor, and which later ones match it too
    #[arg(long, value_name = "TENSOR", conflicts_with = "json")]
    why: Option<String>,
    /// Prints the list of rules as TOML, ready to be edited and given to --rules
    #[arg(long, conflicts_with_all = ["json", "why"])]
    list: bool,
}

/// What stands before a recipe's rules.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Overrides {
    rules: Vec<Rule>,
}

fn main() -> ExitCode {
    miles_examples::exit(run(&Arguments::parse()))
}

fn run(arguments: &Arguments) -> Result<(), Box<dyn Error>> {
    let model = StoredModel::open(&arguments.model.clone().unwrap_or_else(quickstart_model))?;
    let inventory = model.inventory();
    let (list, own) = rule_list(arguments, inventory)?;
    if arguments.list {
        print!("{}", toml::to_string(&list)?);
        return Ok(());
    }
    let plan = PartitionPlan::new(arguments.expert_tensor_parallel, PartitionAxis::Intermediate)?;
    let map = resolve_list(inventory, &list, &[], plan)?;
    for rule_use in list.uses(inventory).into_iter().take(own) {
        if let Some(cause) = rule_use.no_effect() {
            eprintln!("warning: {} decides nothing: {cause}", rule_use.rule);
        }
    }
    if let Some(name) = &arguments.why {
        let id = inventory.find(name).ok_or_else(|| unknown_tensor(inventory, name))?;
        let entry = map.entry(id);
        print!("{}", list.why(inventory, id)?);
        println!("  format {}, backward {}", entry.format, entry.backward.name());
    } else if arguments.json {
        println!("{}", serde_json::to_string_pretty(&MapDocument::new(inventory, &map))?);
    } else {
        print!("{} ({}): {}", model.dir().display(), model.family().name(), PrecisionTable::new(inventory, &map));
    }
    Ok(())
}

/// The recipe's rules, with those of a file before them or in their place; and how many are the file's. Those of a recipe are
/// for every family, and not each has a use in one.
fn rule_list(arguments: &Arguments, inventory: &Inventory) -> Result<(RuleList, usize), Box<dyn Error>> {
    let recipe = arguments.recipe.list(inventory);
    let Some(path) = &arguments.rules else { return Ok((recipe, 0)) };
    let in_file = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let text = fs::read_to_string(path).map_err(|error| in_file(&error))?;
    let table: toml::Table = toml::from_str(&text).map_err(|error| in_file(&error))?;
    if table.contains_key("name") {
        let list: RuleList = toml::from_str(&text).map_err(|error| in_file(&error))?;
        let own = list.rules.len();
        return Ok((list, own));
    }
    let overrides: Overrides = toml::from_str(&text).map_err(|error| in_file(&error))?;
    Ok((recipe.with_overrides(&overrides.rules), overrides.rules.len()))
}

fn unknown_tensor(inventory: &Inventory, name: &str) -> String {
    let nearest = nearest(name, inventory.names()).map(|name| format!("; did you mean `{name}`?")).unwrap_or_default();
    format!("the model has no tensor `{name}`{nearest}")
}
