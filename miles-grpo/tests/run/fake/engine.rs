//! Samples from the fake model; every draw is a function of its coordinates.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use miles_core::Result;
use miles_core::plugin::{
    CancelToken, Completion, CompletionGroup, EngineOptions, FinishReason, GenerateRequest, PromptRequest, Rollout,
    RolloutEngine, RolloutError, RolloutStats,
};
use miles_core::policy::{PolicyStamp, Snapshot};
use miles_core::random::{Coordinates, Stream, uniform};

use super::Probe;
use super::policy::FakePolicy;

pub struct FakeEngine {
    loaded: Mutex<Option<(PolicyStamp, Arc<FakePolicy>)>>,
    context_tokens: usize,
    probe: Probe,
}

impl FakeEngine {
    pub fn new(options: EngineOptions, probe: Probe) -> Self {
        FakeEngine { loaded: Mutex::new(None), context_tokens: options.context_tokens, probe }
    }

    fn complete(
        &self,
        policy: &FakePolicy,
        stamp: PolicyStamp,
        asked: &GenerateRequest,
        prompt: &PromptRequest,
        sample: usize,
    ) -> Completion {
        let (sampling, mut tokens) = (&asked.sampling, prompt.tokens.clone());
        let temperature = if sampling.temperature == 0.0 { 1.0 } else { sampling.temperature };
        let mut completion =
            Completion { tokens: Vec::new(), logprobs: Vec::new(), versions: Vec::new(), finish: FinishReason::Length };
        for token in 0..sampling.max_new_tokens {
            let logprobs = policy.logprobs(&tokens, temperature);
            let at = Coordinates { step: asked.step, prompt: prompt.key, sample: sample as u32, token: token as u32 };
            let id = match sampling.temperature == 0.0 {
                true => (0..logprobs.len()).max_by(|&a, &b| logprobs[a].total_cmp(&logprobs[b])).unwrap(),
                false => draw(&logprobs, uniform(asked.seed, Stream::Sampling, at)),
            };
            tokens.push(id as u32);
            completion.tokens.push(id as u32);
            completion.logprobs.push(logprobs[id]);
            completion.versions.push(stamp.version);
            if sampling.eos_token_ids.contains(&(id as u32)) {
                completion.finish = FinishReason::Eos;
                break;
            }
        }
        self.probe.sampled.lock().unwrap().push(completion.tokens.clone());
        completion
    }
}

fn draw(logprobs: &[f32], uniform: f64) -> usize {
    let mut sum = 0.0;
    for (id, logprob) in logprobs.iter().enumerate() {
        sum += f64::from(*logprob).exp();
        if uniform < sum {
            return id;
        }
    }
    logprobs.len() - 1
}

#[async_trait]
impl RolloutEngine for FakeEngine {
    async fn load(&self, snapshot: Arc<Snapshot>) -> Result<()> {
        *self.loaded.lock().unwrap() = Some((snapshot.stamp(), Arc::new(FakePolicy::of(&snapshot))));
        Ok(())
    }

    fn loaded(&self) -> Option<PolicyStamp> {
        self.loaded.lock().unwrap().as_ref().map(|(stamp, _)| *stamp)
    }

    async fn generate(&self, asked: &GenerateRequest, _cancel: &CancelToken) -> Result<Rollout> {
        let (stamp, policy) = self.loaded.lock().unwrap().clone().ok_or(RolloutError::NothingLoaded)?;
        assert!(asked.prompts.iter().all(|p| p.tokens.len() + asked.sampling.max_new_tokens <= self.context_tokens));
        let group = |prompt: &PromptRequest| CompletionGroup {
            key: prompt.key,
            prompt_tokens: prompt.tokens.clone(),
            completions: (0..prompt.completions).map(|s| self.complete(&policy, stamp, asked, prompt, s)).collect(),
        };
        let groups: Vec<CompletionGroup> = asked.prompts.iter().map(group).collect();
        let generated_tokens = groups.iter().flat_map(|group| &group.completions).map(|c| c.tokens.len()).sum();
        let logprob_temperature = if asked.sampling.temperature == 0.0 { 1.0 } else { asked.sampling.temperature };
        let stats = RolloutStats { generated_tokens, ..RolloutStats::default() };
        Ok(Rollout { groups, stamp, stamps: vec![stamp], logprob_temperature, stats })
    }
}
