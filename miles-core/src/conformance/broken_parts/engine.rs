//! A rollout engine with one defect.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use async_trait::async_trait;

use super::{defects, swaps};
use crate::network::ParamId;
use crate::plugin::{
    Backend, CancelToken, EngineFactory, EngineOptions, GenerateRequest, Rollout, RolloutEngine, RolloutError,
};
use crate::policy::{PolicyStamp, PolicyTensor, Snapshot};
use crate::{Error, Result};

defects! {
    /// What is wrong with a rollout engine.
    EngineDefect {
        /// O15: a sample depends on how many prompts share its batch.
        NeighbourDependent => "sampling/neighbours",
        /// A sample depends on the number of worker threads.
        ThreadDependent => "sampling/threads",
        /// A sample depends on how many requests came before.
        CountsCalls => "sampling/repeatable",
        /// Draws the same for every seed.
        IgnoresTheSeed => "sampling/coordinates",
        /// Draws the same for seeds, steps and keys whose low 32 bits are the same.
        CoordinatesIn32Bits => "sampling/coordinates",
        /// Draws the same for steps whose lowest byte is the same.
        StepInAByte => "sampling/coordinates",
        /// O15: a sample depends on the first prompt of a request that has ten or more.
        CrowdDependent => "sampling/crowd",
        /// Temperatures below 0.5 are 0.5.
        ClampsTheTemperature => "sampling/temperature",
        /// Gives prompts back without their ids.
        LosesPromptIds => "sampling/shape",
        /// Gives no logprob for the last token.
        LosesLogprobs => "sampling/shape",
        /// Gives the first completion of a prompt alone.
        LosesCompletions => "sampling/shape",
        /// O14: reports logprobs that are not divided by the temperature.
        UnscaledLogprobs => "sampling/temperature",
        /// Reports logprobs of the distribution that top-k left.
        TruncatedLogprobs => "sampling/truncation",
        /// Reports probabilities in place of logprobs.
        Probabilities => "sampling/shape",
        /// O10, O11: keeps the first weights and claims the newest.
        KeepsTheOldWeights => "versions/cache",
        /// Shows the operands of the first version that was loaded.
        StaleOperands => "versions/operand",
        /// Says that every token is of the version after the live one.
        WrongTokenVersions => "versions/stamp",
        /// O7: a load that fails leaves nothing live.
        UnloadsOnFailure => "versions/refused_load",
        /// Takes a snapshot in a format that it cannot read, and goes on with the old one.
        TakesAnyFormat => "formats/conformance-undeclared",
        /// O11: goes on after a swap with new weights over keys and values of the old version.
        OldKeysAfterASwap => "swaps/continue",
        /// Says after a swap that tokens are of the new version, and goes on with the old one.
        OldWeightsAfterASwap => "swaps/continue",
        /// Gives each token the version of the token before.
        LabelsOneTokenLate => "swaps/continue",
        /// Names one policy for tokens of several.
        NamesTheNewestOnly => "swaps/continue",
        /// Goes on with running completions where their groups should begin again.
        MixesGroups => "swaps/abort-and-resubmit",
        /// O7: a load that fails leaves the tensors that were read before the failure.
        HalfLoads => "swaps/refused_load",
        /// O17: stops at the first end-of-sequence id only.
        OneEosId => "ending/eos",
        /// Never looks at the cancel token.
        IgnoresCancel => "ending/cancelled_before",
        /// Leaves out prompts that want no completion.
        DropsEmptyGroups => "refusals/empty",
        /// Shortens completions until they fit the context.
        ShortensToFit => "refusals/context",
        /// Takes token ids modulo the vocabulary.
        WrapsTokenIds => "refusals/vocabulary",
    }
}

/// The backend with a defect in its engines.
#[must_use]
pub fn with_broken_engine(backend: &Backend, defect: EngineDefect) -> Backend {
    let make = Arc::clone(&backend.engine);
    let engine = move |options: EngineOptions| {
        let (threads, vocab_size) = (options.threads, options.network.config.vocab_size as u32);
        let options = swaps::options(defect, options);
        let broken = BrokenEngine {
            inner: make(options.clone())?,
            make: Arc::clone(&make),
            options,
            live: Mutex::new(None),
            first: OnceLock::new(),
            defect,
            threads,
            vocab_size,
            claimed: Mutex::new(None),
            calls: AtomicU64::new(0),
            unloaded: AtomicBool::new(false),
        };
        Ok(Arc::new(broken) as Arc<dyn RolloutEngine>)
    };
    Backend { engine: Arc::new(engine), ..backend.clone() }
}

struct BrokenEngine {
    inner: Arc<dyn RolloutEngine>,
    make: EngineFactory,
    options: EngineOptions,
    live: Mutex<Option<Arc<Snapshot>>>,
    first: OnceLock<Arc<Snapshot>>,
    defect: EngineDefect,
    threads: Option<usize>,
    vocab_size: u32,
    claimed: Mutex<Option<PolicyStamp>>,
    calls: AtomicU64,
    unloaded: AtomicBool,
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl RolloutEngine for BrokenEngine {
    async fn load(&self, snapshot: Arc<Snapshot>) -> Result<()> {
        let stamp = snapshot.stamp();
        if self.defect == EngineDefect::KeepsTheOldWeights && self.inner.loaded().is_some() {
            *self.claimed.lock().unwrap_or_else(PoisonError::into_inner) = Some(stamp);
            return Ok(());
        }
        match (self.inner.load(Arc::clone(&snapshot)).await, self.defect) {
            (Ok(()), _) => {
                self.first.get_or_init(|| Arc::clone(&snapshot));
                *self.live.lock().unwrap_or_else(PoisonError::into_inner) = Some(snapshot);
                Ok(())
            }
            (Err(error), EngineDefect::HalfLoads) => {
                let live = self.live.lock().unwrap_or_else(PoisonError::into_inner).clone();
                if let Some((live, half)) = live.and_then(|live| Some((live.stamp(), swaps::half(&live, &snapshot)?))) {
                    self.inner.load(half).await?;
                    *self.claimed.lock().unwrap_or_else(PoisonError::into_inner) = Some(live);
                }
                Err(error)
            }
            (Err(Error::Unsupported { .. }), EngineDefect::TakesAnyFormat) => Ok(()),
            (Err(error), EngineDefect::UnloadsOnFailure) => {
                self.unloaded.store(true, Ordering::Release);
                Err(error)
            }
            (result, _) => result,
        }
    }

    fn loaded(&self) -> Option<PolicyStamp> {
        if self.unloaded.load(Ordering::Acquire) {
            return None;
        }
        let claimed = *self.claimed.lock().unwrap_or_else(PoisonError::into_inner);
        claimed.or_else(|| self.inner.loaded())
    }

    async fn generate(&self, request: &GenerateRequest, cancel: &CancelToken) -> Result<Rollout> {
        if self.unloaded.load(Ordering::Acquire) {
            return Err(RolloutError::NothingLoaded.into());
        }
        let first = self.live.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        let changed = self.changed(request, call);
        let never = CancelToken::default();
        let cancel = if self.defect == EngineDefect::IgnoresCancel { &never } else { cancel };
        let mut rollout = match (self.inner.generate(&changed, cancel).await, self.defect) {
            (Err(Error::Rollout(RolloutError::ContextExceeded { .. })), EngineDefect::ShortensToFit) => {
                self.shortened(changed, cancel).await?
            }
            (result, _) => result?,
        };
        self.change_rollout(&mut rollout, request);
        if let Some(first) = first {
            swaps::spoil(self.defect, &mut rollout, request, &first, (&self.make, &self.options)).await?;
        }
        Ok(rollout)
    }

    fn operand(&self, id: ParamId) -> Result<PolicyTensor> {
        match self.first.get() {
            Some(first) if self.defect == EngineDefect::StaleOperands => Ok(first.tensor(id).as_ref().clone()),
            _ => self.inner.operand(id),
        }
    }
}

impl BrokenEngine {
    fn changed(&self, request: &GenerateRequest, call: u64) -> GenerateRequest {
        let mut changed = request.clone();
        match self.defect {
            EngineDefect::NeighbourDependent => changed.seed ^= request.prompts.len() as u64,
            EngineDefect::ThreadDependent => changed.seed ^= self.threads.unwrap_or(1) as u64,
            EngineDefect::CountsCalls => changed.seed ^= call,
            EngineDefect::IgnoresTheSeed => changed.seed = 0,
            EngineDefect::CoordinatesIn32Bits => {
                (changed.seed, changed.step) = (u64::from(changed.seed as u32), u64::from(changed.step as u32));
                changed.prompts.iter_mut().for_each(|prompt| prompt.key = u64::from(prompt.key as u32));
            }
            EngineDefect::StepInAByte => changed.step &= 0xFF,
            EngineDefect::CrowdDependent if request.prompts.len() >= 10 => changed.seed ^= request.prompts[0].key,
            EngineDefect::ClampsTheTemperature if changed.sampling.temperature > 0.0 => {
                changed.sampling.temperature = changed.sampling.temperature.max(0.5);
            }
            EngineDefect::OneEosId => changed.sampling.eos_token_ids.truncate(1),
            EngineDefect::WrapsTokenIds => {
                let ids = changed.prompts.iter_mut().flat_map(|prompt| &mut prompt.tokens);
                ids.for_each(|id| *id %= self.vocab_size);
            }
            _ => {}
        }
        changed
    }

    /// The request with the longest completion length that the engine takes.
    async fn shortened(&self, mut request: GenerateRequest, cancel: &CancelToken) -> Result<Rollout> {
        loop {
            request.sampling.max_new_tokens = (request.sampling.max_new_tokens - 1).min(1000);
            if request.sampling.max_new_tokens == 0 {
                request.prompts.pop();
                request.sampling.max_new_tokens = 1;
            }
            match self.inner.generate(&request, cancel).await {
                Err(Error::Rollout(RolloutError::ContextExceeded { .. })) => {}
                result => return result,
            }
        }
    }

    fn change_rollout(&self, rollout: &mut Rollout, request: &GenerateRequest) {
        if self.defect == EngineDefect::DropsEmptyGroups {
            rollout.groups.retain(|group| !group.completions.is_empty());
        }
        let groups = rollout.groups.iter_mut();
        match self.defect {
            EngineDefect::LosesPromptIds => groups.for_each(|group| group.prompt_tokens.clear()),
            EngineDefect::LosesCompletions => groups.for_each(|group| group.completions.truncate(1)),
            EngineDefect::CoordinatesIn32Bits => {
                groups.zip(&request.prompts).for_each(|(group, prompt)| group.key = prompt.key);
            }
            EngineDefect::ClampsTheTemperature if request.sampling.temperature > 0.0 => {
                rollout.logprob_temperature = request.sampling.temperature;
            }
            _ => {}
        }
        let claimed = *self.claimed.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(claimed) = claimed {
            (rollout.stamp, rollout.stamps) = (claimed, vec![claimed]);
        }
        let stamp = rollout.stamp;
        for completion in rollout.groups.iter_mut().flat_map(|group| &mut group.completions) {
            if claimed.is_some() {
                completion.versions.fill(stamp.version);
            }
            let logprobs = completion.logprobs.iter_mut();
            match self.defect {
                EngineDefect::WrongTokenVersions => completion.versions.fill(stamp.version.next()),
                EngineDefect::UnscaledLogprobs if request.sampling.temperature > 0.0 => {
                    logprobs.for_each(|logprob| *logprob *= request.sampling.temperature);
                }
                EngineDefect::LosesLogprobs => drop(completion.logprobs.pop()),
                EngineDefect::TruncatedLogprobs if request.sampling.top_k == 1 => completion.logprobs.fill(0.0),
                EngineDefect::Probabilities => logprobs.for_each(|logprob| *logprob = logprob.exp()),
                _ => {}
            }
        }
    }
}
