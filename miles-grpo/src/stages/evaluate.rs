//! Held-out evaluation: the live policy on prompts that are never trained on.

use miles_core::plugin::RolloutEngine;
use miles_core::policy::PolicyStamp;

use super::{Judge, RolloutRequest, reward, rollout};
use crate::Result;
use crate::config::EvaluationPlan;
use crate::data::PromptSet;

/// Mean reward over every held-out completion (the share of right ones, for rewards of 0 and 1); `None` when not one
/// could be judged.
///
/// # Errors
/// Whatever sampling or judging reports.
pub async fn evaluate(
    engine: &dyn RolloutEngine,
    judge: Judge<'_>,
    prompts: &PromptSet,
    plan: &EvaluationPlan,
    (seed, step): (u64, u64),
    live: PolicyStamp,
) -> Result<Option<f64>> {
    let indices: Vec<usize> = (0..prompts.len()).collect();
    let request = RolloutRequest {
        prompts,
        indices: &indices,
        completions: plan.samples,
        sampling: &plan.sampling,
        // Held-out prompts have the same indices as training prompts; another seed keeps their draws apart.
        seed: seed ^ HELD_OUT,
        step,
    };
    let sampled = rollout::sample(engine, request, live).await?;
    let rewarded = reward::judge(judge, prompts, sampled).await?;
    let (sum, count) =
        rewarded.rewards().fold((0.0, 0usize), |(sum, count), reward| (sum + f64::from(reward), count + 1));
    Ok((count > 0).then(|| sum / count as f64))
}

const HELD_OUT: u64 = 0x6865_6c64_5f6f_7574;
