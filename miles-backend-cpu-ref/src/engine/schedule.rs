//! Continuous batching: which prompt chunks and which completions the next forward computes.
//!
//! Decisions only, no tensors, so that they can be tested alone. A completion occupies one of `max_running` slots from
//! its first token to its last; the slot is free for the next one at once. Prompts are prefilled in request order, in
//! chunks that fill the token budget of a forward, and only as far ahead as there are free slots. All completions of a
//! prompt start from its one prefill.
//!
//! ```text
//! prompt:      waiting -> prefilling (chunks) -> ready -> released (its last completion finished)
//! completion:  waiting ------------------------> running -> finished
//! ```

/// Which completion: indices of the prompt in the request and of the completion in its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct CompletionId {
    pub(super) prompt: usize,
    pub(super) sample: usize,
}

/// Consecutive tokens of a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Chunk {
    pub(super) prompt: usize,
    pub(super) start: usize,
    pub(super) end: usize,
    /// Whether the prompt ends with this chunk.
    pub(super) last: bool,
}

/// The rows of one forward: one per token of each chunk, then one per decoding completion.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) prefill: Vec<Chunk>,
    pub(super) decode: Vec<CompletionId>,
}

impl Step {
    pub(super) fn is_empty(&self) -> bool {
        self.prefill.is_empty() && self.decode.is_empty()
    }
}

/// Bounds of one forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limits {
    /// Completions that decode at the same time.
    pub(super) max_running: usize,
    /// Prompt tokens of one forward.
    pub(super) prefill_tokens: usize,
}

/// Progress of a request.
#[derive(Clone, Debug)]
pub(super) struct Schedule {
    limits: Limits,
    prompts: Vec<Progress>,
    running: Vec<CompletionId>,
    /// First prompt with completions that have not started.
    next_start: usize,
}

#[derive(Clone, Copy, Debug)]
struct Progress {
    tokens: usize,
    prefilled: usize,
    completions: usize,
    started: usize,
    finished: usize,
}

impl Schedule {
    /// A request whose prompts have `(tokens, completions)`; prompts without completions are never prefilled.
    pub(super) fn new(prompts: impl IntoIterator<Item = (usize, usize)>, limits: Limits) -> Self {
        let fresh = |(tokens, completions)| Progress { tokens, prefilled: 0, completions, started: 0, finished: 0 };
        Schedule { limits, prompts: prompts.into_iter().map(fresh).collect(), running: Vec::new(), next_start: 0 }
    }

    /// Starts the next waiting completion, when its prompt is prefilled and a slot is free.
    pub(super) fn start(&mut self) -> Option<CompletionId> {
        while self.prompts.get(self.next_start).is_some_and(|prompt| prompt.started == prompt.completions) {
            self.next_start += 1;
        }
        let prompt = self.prompts.get_mut(self.next_start)?;
        if prompt.prefilled < prompt.tokens || self.running.len() == self.limits.max_running {
            return None;
        }
        let id = CompletionId { prompt: self.next_start, sample: prompt.started };
        prompt.started += 1;
        self.running.push(id);
        Some(id)
    }

    /// Whether every completion of a prompt has started: its last row of logits is then no longer needed.
    pub(super) fn all_started(&self, prompt: usize) -> bool {
        self.prompts[prompt].started == self.prompts[prompt].completions
    }

    /// The next forward; empty when nothing is left to compute.
    pub(super) fn step(&self) -> Step {
        Step { prefill: self.prefill(), decode: self.running.clone() }
    }

    /// Records that a chunk was computed.
    pub(super) fn prefilled(&mut self, chunk: Chunk) {
        self.prompts[chunk.prompt].prefilled = chunk.end;
    }

    /// Frees a completion's slot. True when it was its prompt's last one: the prompt's keys and values are then free.
    pub(super) fn finish(&mut self, id: CompletionId) -> bool {
        self.running.retain(|running| *running != id);
        let prompt = &mut self.prompts[id.prompt];
        prompt.finished += 1;
        prompt.finished == prompt.completions
    }

    /// Chunks of waiting prompts, as many as free slots can use and the budget holds.
    fn prefill(&self) -> Vec<Chunk> {
        let mut slots = self.limits.max_running - self.running.len();
        let mut budget = self.limits.prefill_tokens;
        let mut chunks = Vec::new();
        for (index, prompt) in self.prompts.iter().enumerate().skip(self.next_start) {
            if slots == 0 || budget == 0 {
                break;
            }
            let left = prompt.tokens - prompt.prefilled;
            if prompt.completions > 0 && left > 0 {
                let taken = left.min(budget);
                let (start, end) = (prompt.prefilled, prompt.prefilled + taken);
                chunks.push(Chunk { prompt: index, start, end, last: taken == left });
                budget -= taken;
            }
            slots -= slots.min(prompt.completions - prompt.started);
        }
        chunks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule(prompts: &[(usize, usize)], max_running: usize, prefill_tokens: usize) -> Schedule {
        Schedule::new(prompts.iter().copied(), Limits { max_running, prefill_tokens })
    }

    fn id(prompt: usize, sample: usize) -> CompletionId {
        CompletionId { prompt, sample }
    }

    fn start_all(schedule: &mut Schedule) -> Vec<CompletionId> {
        std::iter::from_fn(|| schedule.start()).collect()
    }

    /// Runs a schedule whose completions need `lengths[prompt][sample]` tokens; returns every step.
    fn run(schedule: &mut Schedule, lengths: &[Vec<usize>]) -> Vec<Step> {
        let mut drawn: Vec<Vec<usize>> = lengths.iter().map(|group| vec![0; group.len()]).collect();
        let mut steps = Vec::new();
        loop {
            let mut draw = |schedule: &mut Schedule, id: CompletionId| {
                drawn[id.prompt][id.sample] += 1;
                if drawn[id.prompt][id.sample] == lengths[id.prompt][id.sample] {
                    schedule.finish(id);
                }
            };
            while let Some(started) = schedule.start() {
                draw(schedule, started);
            }
            let step = schedule.step();
            if step.is_empty() {
                break;
            }
            step.prefill.iter().for_each(|&chunk| schedule.prefilled(chunk));
            step.decode.iter().for_each(|&id| draw(schedule, id));
            steps.push(step);
        }
        assert_eq!(drawn, lengths, "every completion drew exactly its tokens");
        steps
    }

    #[test]
    fn a_prompt_longer_than_the_budget_is_prefilled_in_chunks() {
        let mut schedule = schedule(&[(10, 2)], 4, 4);
        let mut chunks = Vec::new();
        while schedule.start().is_none() {
            let step = schedule.step();
            assert_eq!(step.prefill.len(), 1);
            schedule.prefilled(step.prefill[0]);
            chunks.push((step.prefill[0].start, step.prefill[0].end, step.prefill[0].last));
        }
        assert_eq!(chunks, [(0, 4, false), (4, 8, false), (8, 10, true)]);
    }

    #[test]
    fn short_prompts_share_one_forward_within_the_budget() {
        let step = schedule(&[(3, 1), (4, 1), (5, 1)], 8, 10).step();
        let spans: Vec<_> =
            step.prefill.iter().map(|chunk| (chunk.prompt, chunk.start, chunk.end, chunk.last)).collect();
        assert_eq!(spans, [(0, 0, 3, true), (1, 0, 4, true), (2, 0, 3, false)]);
    }

    #[test]
    fn prompts_are_prefilled_only_for_free_slots() {
        let mut schedule = schedule(&[(2, 3), (2, 3), (2, 3)], 4, 100);
        assert_eq!(schedule.step().prefill.len(), 2, "three completions, then one of the second prompt");
        schedule.step().prefill.into_iter().for_each(|chunk| schedule.prefilled(chunk));
        assert_eq!(start_all(&mut schedule), [id(0, 0), id(0, 1), id(0, 2), id(1, 0)]);
        assert!(schedule.all_started(0) && !schedule.all_started(1));
        assert!(schedule.step().prefill.is_empty(), "no slot is free");
        assert!(!schedule.finish(id(0, 1)));
        assert_eq!(schedule.start(), Some(id(1, 1)), "a finished completion's slot is used at once");
        assert_eq!(schedule.step().decode, [id(0, 0), id(0, 2), id(1, 0), id(1, 1)]);
    }

    #[test]
    fn the_last_completion_of_a_prompt_frees_it() {
        let mut schedule = schedule(&[(1, 2)], 4, 8);
        schedule.step().prefill.into_iter().for_each(|chunk| schedule.prefilled(chunk));
        start_all(&mut schedule);
        assert!(!schedule.finish(id(0, 1)));
        assert!(schedule.finish(id(0, 0)));
        assert!(schedule.step().is_empty());
    }

    #[test]
    fn every_completion_runs_within_the_limits() {
        let lengths = vec![vec![1, 5, 2], vec![3], vec![], vec![7, 1, 1, 4], vec![2, 2]];
        let tokens = [5, 1, 9, 13, 4];
        for max_running in [1, 2, 3, 7, 64] {
            for budget in [1, 4, 100] {
                let prompts: Vec<_> =
                    tokens.iter().zip(&lengths).map(|(&tokens, group)| (tokens, group.len())).collect();
                let steps = run(&mut schedule(&prompts, max_running, budget), &lengths);
                for step in &steps {
                    assert!(step.decode.len() <= max_running);
                    assert!(step.prefill.iter().map(|chunk| chunk.end - chunk.start).sum::<usize>() <= budget);
                }
                let prefilled: usize = steps.iter().flat_map(|step| &step.prefill).map(|c| c.end - c.start).sum();
                assert_eq!(prefilled, 5 + 1 + 13 + 4, "each prompt once, the one without completions never");
            }
        }
    }
}
