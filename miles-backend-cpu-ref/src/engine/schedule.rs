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
//!
//! When keys are dropped, because a new policy version made them useless, the same words cover the way back: prompts
//! with running completions are prefilled again, then each completion's tokens are computed again up to the one drawn
//! last, from which it goes on. Ordinary decoding is the case in which only that one token is left to compute.

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
    /// How many of them were computed before, for keys that were dropped.
    pub(super) again: usize,
    /// Whether the prompt ends with this chunk and a completion waits to draw its first token from it.
    pub(super) is_drawn_from: bool,
}

/// Consecutive drawn tokens of a running completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) id: CompletionId,
    pub(super) start: usize,
    pub(super) end: usize,
    /// How many of them were computed before, for keys that were dropped.
    pub(super) again: usize,
    /// Whether it ends with the token drawn last, so that the next one is drawn from it.
    pub(super) is_drawn_from: bool,
}

/// The rows of one forward: one per token of each chunk, then one per token of each piece.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) prefill: Vec<Chunk>,
    pub(super) decode: Vec<Piece>,
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
    /// Tokens of one forward beside one per decoding completion: of prompts, and of completions computed again.
    pub(super) prefill_tokens: usize,
}

/// Progress of a request.
#[derive(Clone, Debug)]
pub(super) struct Schedule {
    limits: Limits,
    prompts: Vec<Progress>,
    /// In the order of their starts, which is that of prompts and samples.
    running: Vec<Running>,
    /// First prompt with completions that have not started.
    next_start: usize,
}

#[derive(Clone, Copy, Debug)]
struct Progress {
    tokens: usize,
    prefilled: usize,
    /// How far it was ever prefilled.
    reached: usize,
    completions: usize,
    started: usize,
    finished: usize,
}

#[derive(Clone, Copy, Debug)]
struct Running {
    id: CompletionId,
    drawn: usize,
    computed: usize,
    /// How many of its tokens were ever computed.
    reached: usize,
}

impl Schedule {
    /// A request whose prompts have `(tokens, completions)`; prompts without completions are never prefilled.
    pub(super) fn new(prompts: impl IntoIterator<Item = (usize, usize)>, limits: Limits) -> Self {
        let fresh =
            |(tokens, completions)| Progress { tokens, prefilled: 0, reached: 0, completions, started: 0, finished: 0 };
        Schedule { limits, prompts: prompts.into_iter().map(fresh).collect(), running: Vec::new(), next_start: 0 }
    }

    /// Starts the next waiting completion, when its prompt is prefilled and a slot is free. It draws its first token at
    /// once.
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
        self.running.push(Running { id, drawn: 1, computed: 0, reached: 0 });
        Some(id)
    }

    /// Whether every completion of a prompt has started: its last row of logits is then no longer needed.
    pub(super) fn all_started(&self, prompt: usize) -> bool {
        self.prompts[prompt].started == self.prompts[prompt].completions
    }

    /// Whether every completion has finished.
    pub(super) fn is_done(&self) -> bool {
        self.running.is_empty() && self.prompts.iter().all(|prompt| prompt.started == prompt.completions)
    }

    /// The next forward; empty when nothing is left to compute.
    pub(super) fn step(&self) -> Step {
        let mut budget = self.limits.prefill_tokens;
        let decode = self.pieces(&mut budget);
        Step { prefill: self.chunks(budget), decode }
    }

    /// Records that a step was computed and that its completions draw their next token.
    pub(super) fn computed(&mut self, step: &Step) {
        for chunk in &step.prefill {
            let prompt = &mut self.prompts[chunk.prompt];
            prompt.prefilled = chunk.end;
            prompt.reached = prompt.reached.max(chunk.end);
        }
        let mut running = self.running.iter_mut();
        for piece in &step.decode {
            if let Some(running) = running.find(|running| running.id == piece.id) {
                running.computed = piece.end;
                running.reached = running.reached.max(piece.end);
                running.drawn += usize::from(piece.is_drawn_from);
            }
        }
    }

    /// Frees a completion's slot. True when it was its prompt's last one: the prompt's keys and values are then free.
    pub(super) fn finish(&mut self, id: CompletionId) -> bool {
        self.running.retain(|running| running.id != id);
        let prompt = &mut self.prompts[id.prompt];
        prompt.finished += 1;
        prompt.finished == prompt.completions
    }

    /// Records that no key or value is left: what is still needed of them is computed again.
    pub(super) fn keys_dropped(&mut self) {
        self.prompts.iter_mut().for_each(|prompt| prompt.prefilled = 0);
        self.running.iter_mut().for_each(|running| running.computed = 0);
    }

    /// Lets every prompt with started and unfinished completions begin again; returns those prompts.
    pub(super) fn begin_open_groups_again(&mut self) -> Vec<usize> {
        let is_open = |prompt: &Progress| prompt.started > 0 && prompt.finished < prompt.completions;
        let open: Vec<usize> = (0..self.prompts.len()).filter(|&index| is_open(&self.prompts[index])).collect();
        for &index in &open {
            (self.prompts[index].started, self.prompts[index].finished) = (0, 0);
        }
        // What runs is part of an open group.
        self.running.clear();
        self.next_start = open.first().map_or(self.next_start, |&first| first.min(self.next_start));
        open
    }

    /// What is left to compute of each running completion whose prompt is there: one token of each, and more within
    /// the budget.
    fn pieces(&self, budget: &mut usize) -> Vec<Piece> {
        let is_ready = |running: &&Running| {
            let prompt = &self.prompts[running.id.prompt];
            prompt.prefilled == prompt.tokens
        };
        let piece = |running: &Running| {
            let left = running.drawn - running.computed;
            let taken = left.min(1 + *budget);
            *budget -= taken - 1;
            let (start, end) = (running.computed, running.computed + taken);
            let again = running.reached.min(end) - running.reached.min(start);
            Piece { id: running.id, start, end, again, is_drawn_from: taken == left }
        };
        self.running.iter().filter(is_ready).map(piece).collect()
    }

    /// Chunks of prompts: of those whose completions run, and of waiting ones, as many as free slots can use.
    fn chunks(&self, mut budget: usize) -> Vec<Chunk> {
        let mut slots = self.limits.max_running - self.running.len();
        let mut chunks = Vec::new();
        let first = self.running.first().map_or(self.next_start, |running| running.id.prompt);
        for (index, prompt) in self.prompts.iter().enumerate().skip(first) {
            if budget == 0 || (slots == 0 && index > self.next_start) {
                break;
            }
            let waiting = prompt.completions - prompt.started;
            let is_needed = prompt.started > prompt.finished || (waiting > 0 && slots > 0);
            let left = prompt.tokens - prompt.prefilled;
            if is_needed && left > 0 {
                let taken = left.min(budget);
                let (start, end) = (prompt.prefilled, prompt.prefilled + taken);
                let again = prompt.reached.min(end) - prompt.reached.min(start);
                let is_drawn_from = taken == left && waiting > 0;
                chunks.push(Chunk { prompt: index, start, end, again, is_drawn_from });
                budget -= taken;
            }
            slots -= slots.min(waiting);
        }
        chunks
    }
}

#[cfg(test)]
#[path = "schedule_tests.rs"]
mod tests;
