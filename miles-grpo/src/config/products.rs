//! Counts that are each within their limit and together are not.

use miles_core::plugin::limits::MAX_COMPLETIONS;

use super::limits::MAX_TOKENS;
use super::{ConfigErrors, ConfigIssue, EvaluationPlan, RunConfig, Why};

/// Products of counts that stand in the config.
pub(super) fn too_large(config: &RunConfig) -> Vec<ConfigIssue> {
    let (rollout, eval) = (&config.rollout, &config.eval);
    let prompts = ("rollout.prompts_per_step", rollout.prompts_per_step);
    let group = ("rollout.group_size", rollout.group_size);
    let tokens = ("rollout.max_new_tokens", rollout.max_new_tokens);
    let samples = ("eval.samples", eval.samples);
    [
        product(group, &[prompts], COMPLETIONS).or_else(|| product(tokens, &[prompts, group], TOKENS)),
        product(samples, &[tokens], TOKENS),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Refuses more completions, or tokens in them, than an evaluation of `prompts` held-out prompts may have.
///
/// # Errors
/// One issue of `eval.samples`.
pub(crate) fn check_held_out(plan: &EvaluationPlan, prompts: usize) -> Result<(), ConfigErrors> {
    let samples = ("eval.samples", plan.samples);
    let held_out = ("the prompts of data.eval", prompts);
    let tokens = ("rollout.max_new_tokens", plan.sampling.max_new_tokens);
    let issue = product(samples, &[held_out], COMPLETIONS).or_else(|| product(samples, &[held_out, tokens], TOKENS));
    issue.map_or(Ok(()), |issue| Err(ConfigErrors { issues: vec![issue] }))
}

/// The issue of a count whose product with `others` is larger than `limit`.
fn product(
    (key, value): (&str, usize),
    others: &[(&str, usize)],
    (limit, what): (u64, &'static str),
) -> Option<ConfigIssue> {
    let product = others.iter().fold(value as u128, |product, (_, count)| product.saturating_mul(*count as u128));
    let with: Vec<String> = others.iter().map(|(key, value)| format!("{key} = {value}")).collect();
    (product > u128::from(limit)).then(|| ConfigIssue {
        key: key.to_owned(),
        value: value.to_string(),
        why: Why::TooManyTogether { with: with.join(" and "), what, product, limit },
    })
}

const COMPLETIONS: (u64, &str) = (MAX_COMPLETIONS as u64, "completions");
const TOKENS: (u64, &str) = (MAX_TOKENS, "tokens of completions");
