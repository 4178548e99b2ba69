//! The metrics of a step, each a pure function of what the stages made.
//!
//! | key | meaning |
//! |---|---|
//! | `rollout/reward_mean`, `rollout/reward_std` | over every judged completion (population deviation) |
//! | `rollout/response_tokens_mean` | tokens per completion |
//! | `rollout/truncated_fraction` | completions that the engine ended by length |
//! | `rollout/recomputed_tokens` | tokens whose keys and values were computed again for a new version |
//! | `rollout/aborted_completions`, `rollout/aborted_tokens` | completions that a new version threw away, and their tokens |
//! | `reward/errors` | completions that could not be judged |
//! | `train/loss`, `train/grad_norm`, `train/grad_norm/<part>` | mean over the step's optimizer steps |
//! | `train/learning_rate` | of the step |
//! | `train/mismatch_max_abs` | largest absolute difference of trainer and rollout logprob |
//! | `train/mismatch_k3` | k3 estimate of the divergence of the rollout distribution from the trainer's |
//! | `train/kl_ref` | k3 estimate of the divergence of the policy from the reference |
//! | `train/clip_fraction` | tokens whose ratio was clipped |
//! | `train/entropy` | mean entropy per token, in nats |
//! | `train/zero_std_groups` | groups whose rewards are all equal |
//! | `quantize/layer_NN/saturated` | finite activation elements beyond the largest magnitude of their block |
//! | `quantize/layer_NN/underflowed_blocks` | activation blocks of which nothing but zeros is left |
//! | `quantize/layer_NN/non_finite` | activation elements that are NaN or infinite |
//! | `quantize/elements`, `/blocks`, `/saturated`, ... | the same over all layers, and over what they are counted |
//! | `eval/accuracy` | mean reward on held-out prompts after the step, where it was evaluated |
//! | `eval/accuracy_before` | the same before the first step |
//! | `policy_version`, `policy_digest` | the version that the step published |
//! | `perf/...` | seconds per stage, tokens per second, peak memory: the only ones that differ between equal runs |

mod memory;
mod record;
mod values;

pub use memory::peak_rss_bytes;
pub use record::{StepFacts, deterministic, record};
pub use values::{Mismatch, Spread, entropy, kl_to_reference, mismatch, spread, truncated_fraction, zero_std_groups};

#[cfg(test)]
mod tests;
