//! Recomputing logprobs, updating the master weights, publishing versions.

use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::Loss;
use super::rollout::operand_unsupported;
use crate::Result;
use crate::format::QuantizeCounts;
use crate::network::ParamId;
use crate::policy::{PolicyContext, PolicyStamp, PolicyTensor, Snapshot};
use crate::precision::PartitionPlan;

/// Trains the master weights of one policy.
///
/// A version's weights are quantized exactly once, in [`Trainer::publish`]; the same bytes are what the next forward
/// multiplies. After an [`Trainer::update`] nothing but `publish` may be called until the new version exists.
pub trait Trainer: Send {
    /// Trainer logprobs and entropies of every completion token, from the trainer's own packed batches.
    ///
    /// # Errors
    /// If the batch was sampled from another policy than `policy` (for the current one), or does not fit the network.
    fn score(&mut self, policy: ScoredPolicy, batch: &TrainBatch) -> Result<Vec<SampleScores>>;

    /// One optimizer step on the whole batch: forward, loss, backward, gradient clipping, update of the master
    /// weights. The result does not depend on how the batch is cut into micro-batches.
    ///
    /// # Errors
    /// If the batch was sampled from another policy than the current one, or a gradient is not finite (the master
    /// weights are then unchanged).
    fn update(&mut self, batch: &TrainBatch, loss: &dyn Loss, learning_rate: f64) -> Result<UpdateReport>;

    /// Quantizes the master weights as a new version and makes it current. The first call makes the version that the
    /// reference policy keeps.
    ///
    /// # Errors
    /// If a weight is not finite or the ledger fails.
    fn publish(&mut self, context: PolicyContext<'_>) -> Result<Arc<Snapshot>>;

    /// Writes master weights and optimizer state into `directory` (which exists and is empty).
    ///
    /// # Errors
    /// If writing fails.
    fn save(&self, directory: &Path) -> Result<()>;

    /// Reads what [`Trainer::save`] wrote; the caller publishes afterwards.
    ///
    /// # Errors
    /// If a file is missing or does not fit the network.
    fn restore(&mut self, directory: &Path) -> Result<()>;

    /// One tensor of the current version as the forward pass multiplies it, read back from wherever it lies (packed,
    /// swizzled, on a device): codes and scales, or the decoded F32 values where the format is emulated.
    ///
    /// # Errors
    /// `Unsupported` unless the trainer overrides it; if no version is published.
    fn operand(&self, id: ParamId) -> Result<PolicyTensor> {
        let _ = id;
        Err(operand_unsupported("trainer"))
    }
}

/// Number type of activations and of what the recipe calls BF16.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ActivationDtype {
    /// Every operation's result is rounded to BF16.
    Bf16,
    /// Nothing is rounded.
    F32,
}

/// Number type of the master weights.
///
/// Both keep one high-precision copy of the policy and no other: the weights that an update starts from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MasterDtype {
    /// 4 bytes per weight; an update is rounded to the nearest F32.
    #[default]
    F32,
    /// 2 bytes per weight; an update, which is mostly smaller than half a step of BF16, is rounded stochastically, so that
    /// what rounding takes away in one step it gives back in another (Zamirai et al., 2020). The draws are keyed by seed,
    /// step, tensor and element.
    Bf16,
}

/// AdamW (Loshchilov and Hutter, 2019) with F32 master weights and F32 moments.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AdamW {
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Added to the root of the second moment.
    pub eps: f64,
    /// Decoupled weight decay; norms and biases are not decayed.
    pub weight_decay: f64,
}

/// Options of a trainer.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainerOptions {
    /// Activation type.
    pub activations: ActivationDtype,
    /// Optimizer.
    pub optimizer: AdamW,
    /// Largest norm of the whole gradient; larger ones are scaled down (`None`: never).
    pub max_grad_norm: Option<f64>,
    /// Most tokens (prompt and completion) in one micro-batch; a longer single sample is a micro-batch of its own.
    pub micro_batch_tokens: usize,
    /// Whether routers are trained.
    pub train_router: bool,
    /// Number type of the master weights.
    pub masters: MasterDtype,
    /// Seed of the trainer's own random numbers (stochastic rounding).
    pub seed: u64,
    /// Worker threads; `None` uses every core.
    pub threads: Option<usize>,
}

/// Which policy a batch is scored with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScoredPolicy {
    /// The newest published version.
    Current,
    /// The first published version of the run.
    Reference,
}

/// One completion to train on. Token ids in, never text.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainSample {
    /// Prompt and completion ids.
    pub tokens: Vec<u32>,
    /// How many of them are the prompt (at least 1).
    pub prompt_tokens: usize,
    /// Logprob of each completion token at sampling time.
    pub rollout_logprobs: Vec<f32>,
    /// Logprob of each completion token under the reference policy, where it was computed.
    pub reference_logprobs: Option<Vec<f32>>,
    /// Advantage of the completion.
    pub advantage: f32,
}

impl TrainSample {
    /// Number of completion tokens.
    #[must_use]
    pub fn completion_tokens(&self) -> usize {
        self.tokens.len() - self.prompt_tokens
    }
}

/// Completions and the policy that they were sampled from.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainBatch {
    samples: Vec<TrainSample>,
    stamp: PolicyStamp,
    temperature: f32,
}

impl TrainBatch {
    /// Checks that every sample has a prompt, a completion and one logprob per completion token.
    ///
    /// # Errors
    /// If one has not; the error names the sample.
    pub fn new(samples: Vec<TrainSample>, stamp: PolicyStamp, temperature: f32) -> Result<Self, TrainError> {
        for (index, sample) in samples.iter().enumerate() {
            if sample.prompt_tokens == 0 || sample.prompt_tokens >= sample.tokens.len() {
                return Err(TrainError::EmptySample {
                    index,
                    tokens: sample.tokens.len(),
                    prompt_tokens: sample.prompt_tokens,
                });
            }
            let reference = sample.reference_logprobs.as_ref().map_or(sample.completion_tokens(), Vec::len);
            for logprobs in [sample.rollout_logprobs.len(), reference] {
                if logprobs != sample.completion_tokens() {
                    return Err(TrainError::LengthMismatch {
                        index,
                        completion_tokens: sample.completion_tokens(),
                        logprobs,
                    });
                }
            }
        }
        Ok(TrainBatch { samples, stamp, temperature })
    }

    /// The samples.
    #[must_use]
    pub fn samples(&self) -> &[TrainSample] {
        &self.samples
    }

    /// The policy that they were sampled from.
    #[must_use]
    pub fn stamp(&self) -> PolicyStamp {
        self.stamp
    }

    /// Temperature of the distribution whose logprobs are compared (1 for a greedy rollout).
    #[must_use]
    pub fn temperature(&self) -> f32 {
        self.temperature
    }

    /// Completion tokens of all samples.
    #[must_use]
    pub fn completion_tokens(&self) -> usize {
        self.samples.iter().map(TrainSample::completion_tokens).sum()
    }
}

/// Scores of one sample's completion tokens.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SampleScores {
    /// Logprob of each token, at the batch's temperature.
    pub logprobs: Vec<f32>,
    /// Entropy of the distribution that each token was drawn from, in nats.
    pub entropies: Vec<f32>,
}

/// What one optimizer step did.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct UpdateReport {
    /// Trainer logprobs and entropies before the update, one per sample.
    pub scores: Vec<SampleScores>,
    /// Loss over the whole batch.
    pub loss: f64,
    /// Tokens whose ratio was clipped.
    pub clipped_tokens: usize,
    /// Norm of the whole gradient before clipping.
    pub grad_norm: f64,
    /// Norm per part of the network (`embedding`, `layers.0`, ..., `norm`, `head`), in order.
    pub part_grad_norms: Vec<(String, f64)>,
    /// Micro-batches that the batch was cut into.
    pub micro_batches: usize,
    /// What quantizing the activations of the training forward did, per layer in order; `None` is the head. Layers
    /// without a quantized activation are left out.
    pub activation_counts: Vec<(Option<usize>, QuantizeCounts)>,
}

/// What can go wrong in a trainer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrainError {
    /// A sample without prompt or without completion.
    #[error("sample {index}: {tokens} tokens of which {prompt_tokens} are the prompt; both parts need at least one")]
    EmptySample {
        /// Sample.
        index: usize,
        /// Tokens in all.
        tokens: usize,
        /// Prompt tokens.
        prompt_tokens: usize,
    },
    /// Logprobs that do not belong to the tokens.
    #[error("sample {index}: {logprobs} logprobs for {completion_tokens} completion tokens")]
    LengthMismatch {
        /// Sample.
        index: usize,
        /// Completion tokens.
        completion_tokens: usize,
        /// Logprobs.
        logprobs: usize,
    },
    /// A token id outside the vocabulary.
    #[error("sample {index}: token id {id} is outside the vocabulary of {vocab_size}")]
    TokenOutOfRange {
        /// Sample.
        index: usize,
        /// The id.
        id: u32,
        /// Vocabulary size.
        vocab_size: usize,
    },
    /// A sample longer than the context.
    #[error("sample {index}: {tokens} tokens exceed the context of {context_tokens}")]
    ContextExceeded {
        /// Sample.
        index: usize,
        /// Its tokens.
        tokens: usize,
        /// Context length.
        context_tokens: usize,
    },
    /// A forward was asked for between an update and the publication of its version.
    #[error("`{operation}` was called before any version was published for the current master weights")]
    Unpublished {
        /// Call.
        operation: &'static str,
    },
    /// A gradient that is not finite.
    #[error("the gradient of `{tensor}` is not finite; the master weights were not changed")]
    NonFiniteGradient {
        /// Tensor.
        tensor: String,
    },
    /// State that was saved under another partition plan.
    #[error("{file}: the state was saved with {saved}, the trainer has {trainer}")]
    PartitionMismatch {
        /// File.
        file: String,
        /// Plan when it was saved.
        saved: PartitionPlan,
        /// Plan of the trainer's map.
        trainer: PartitionPlan,
    },
    /// Saved state that does not fit.
    #[error("{file}: {why}")]
    State {
        /// File.
        file: String,
        /// What does not fit.
        why: String,
    },
}
