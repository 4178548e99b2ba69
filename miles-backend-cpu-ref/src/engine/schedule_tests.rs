//! The schedule alone: rows, slots and budgets, without a tensor.

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

fn advance(schedule: &mut Schedule) -> Step {
    let step = schedule.step();
    schedule.computed(&step);
    step
}

/// Runs a schedule whose completions need `lengths[prompt][sample]` tokens; returns every step.
fn run(schedule: &mut Schedule, lengths: &[Vec<usize>]) -> Vec<Step> {
    run_with(schedule, lengths, |_, _| ())
}

/// The same with something that happens before each step.
fn run_with(
    schedule: &mut Schedule,
    lengths: &[Vec<usize>],
    mut before: impl FnMut(usize, &mut Schedule),
) -> Vec<Step> {
    let mut drawn: Vec<Vec<usize>> = lengths.iter().map(|group| vec![0; group.len()]).collect();
    let mut steps = Vec::new();
    loop {
        let mut draw = |schedule: &mut Schedule, id: CompletionId| {
            drawn[id.prompt][id.sample] += 1;
            if drawn[id.prompt][id.sample] == lengths[id.prompt][id.sample] {
                schedule.finish(id);
            }
        };
        before(steps.len(), schedule);
        while let Some(started) = schedule.start() {
            draw(schedule, started);
        }
        let step = schedule.step();
        if step.is_empty() {
            break;
        }
        schedule.computed(&step);
        step.decode.iter().filter(|piece| piece.is_drawn_from).for_each(|piece| draw(schedule, piece.id));
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
        schedule.computed(&step);
        chunks.push((step.prefill[0].start, step.prefill[0].end, step.prefill[0].is_drawn_from));
    }
    assert_eq!(chunks, [(0, 4, false), (4, 8, false), (8, 10, true)]);
}

#[test]
fn short_prompts_share_one_forward_within_the_budget() {
    let step = schedule(&[(3, 1), (4, 1), (5, 1)], 8, 10).step();
    let spans: Vec<_> =
        step.prefill.iter().map(|chunk| (chunk.prompt, chunk.start, chunk.end, chunk.is_drawn_from)).collect();
    assert_eq!(spans, [(0, 0, 3, true), (1, 0, 4, true), (2, 0, 3, false)]);
}

#[test]
fn prompts_are_prefilled_only_for_free_slots() {
    let mut schedule = schedule(&[(2, 3), (2, 3), (2, 3)], 4, 100);
    assert_eq!(schedule.step().prefill.len(), 2, "three completions, then one of the second prompt");
    advance(&mut schedule);
    assert_eq!(start_all(&mut schedule), [id(0, 0), id(0, 1), id(0, 2), id(1, 0)]);
    assert!(schedule.all_started(0) && !schedule.all_started(1));
    assert!(schedule.step().prefill.is_empty(), "no slot is free");
    assert!(!schedule.finish(id(0, 1)));
    assert_eq!(schedule.start(), Some(id(1, 1)), "a finished completion's slot is used at once");
    let step = schedule.step();
    let decoding: Vec<_> = step.decode.iter().map(|piece| (piece.id, piece.start, piece.end)).collect();
    assert_eq!(decoding, [id(0, 0), id(0, 2), id(1, 0), id(1, 1)].map(|id| (id, 0, 1)));
    assert!(step.decode.iter().all(|piece| piece.is_drawn_from && piece.again == 0));
}

#[test]
fn the_last_completion_of_a_prompt_frees_it() {
    let mut schedule = schedule(&[(1, 2)], 4, 8);
    advance(&mut schedule);
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
            let prompts: Vec<_> = tokens.iter().zip(&lengths).map(|(&tokens, group)| (tokens, group.len())).collect();
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

#[test]
fn dropped_keys_are_computed_again_before_their_completion_goes_on() {
    let mut schedule = schedule(&[(6, 2), (3, 1)], 2, 4);
    while schedule.start().is_none() {
        advance(&mut schedule);
    }
    start_all(&mut schedule);
    for _ in 0..5 {
        advance(&mut schedule);
    }
    schedule.keys_dropped();
    assert_eq!(schedule.start(), None, "no slot, and its prompt is not there");
    let spans = |step: &Step| -> Vec<_> {
        let chunks = step.prefill.iter().map(|c| (c.prompt, None, c.start, c.end, c.again, c.is_drawn_from));
        let piece = |p: &Piece| (p.id.prompt, Some(p.id.sample), p.start, p.end, p.again, p.is_drawn_from);
        chunks.chain(step.decode.iter().map(piece)).collect()
    };
    // Six tokens were drawn of each completion and five of them computed; a forward may compute four more than one each.
    let expected = [
        vec![(0, None, 0, 4, 4, false)],
        vec![(0, None, 4, 6, 2, false)],
        vec![(0, Some(0), 0, 5, 5, false), (0, Some(1), 0, 1, 1, false)],
        vec![(0, Some(0), 5, 6, 0, true), (0, Some(1), 1, 6, 4, true)],
        vec![(0, Some(0), 6, 7, 0, true), (0, Some(1), 6, 7, 0, true)],
    ];
    for expected in expected {
        assert_eq!(spans(&advance(&mut schedule)), expected);
    }
}

#[test]
fn open_groups_begin_again_and_whole_ones_stay() {
    let mut schedule = schedule(&[(1, 1), (1, 2), (1, 2)], 2, 8);
    advance(&mut schedule);
    assert_eq!(start_all(&mut schedule), [id(0, 0), id(1, 0)]);
    schedule.finish(id(0, 0));
    assert_eq!(start_all(&mut schedule), [id(1, 1)]);
    schedule.finish(id(1, 0));
    schedule.keys_dropped();
    assert_eq!(schedule.begin_open_groups_again(), [1], "the first is whole, the last has not begun");
    assert!(schedule.step().decode.is_empty());
    let step = advance(&mut schedule);
    assert_eq!(step.prefill.iter().map(|c| (c.prompt, c.again)).collect::<Vec<_>>(), [(1, 1)]);
    assert_eq!(start_all(&mut schedule), [id(1, 0), id(1, 1)]);
    assert!(!schedule.is_done());
}

/// Whenever keys are dropped, every completion draws exactly its tokens, within the limits, and no token counts as
/// computed again that was not computed before.
#[test]
fn keys_may_be_dropped_before_any_forward() {
    let lengths = vec![vec![4, 2], vec![6], vec![1, 3, 5]];
    for (max_running, budget) in [(1, 1), (2, 3), (3, 5), (8, 100)] {
        let prompts = [(5, 2), (3, 1), (7, 3)];
        let undisturbed = run(&mut schedule(&prompts, max_running, budget), &lengths);
        for drops in [vec![1], vec![2, 3], (1..undisturbed.len()).collect()] {
            let mut schedule = schedule(&prompts, max_running, budget);
            let drop_some = |step: usize, schedule: &mut Schedule| {
                if drops.contains(&step) {
                    schedule.keys_dropped();
                }
            };
            let steps = run_with(&mut schedule, &lengths, drop_some);
            assert!(schedule.is_done());
            let rows = |again: bool| {
                let chunks = steps.iter().flat_map(|step| &step.prefill).map(|c| (c.end - c.start, c.again));
                let pieces = steps.iter().flat_map(|step| &step.decode).map(|p| (p.end - p.start, p.again));
                chunks.chain(pieces).map(|(rows, twice)| if again { twice } else { rows - twice }).sum::<usize>()
            };
            // Every prompt token, and every completion token but the last of each.
            assert_eq!(rows(false), 5 + 3 + 7 + (3 + 1) + 5 + (2 + 4));
            assert!(rows(true) > 0);
            for step in &steps {
                let chunks: usize = step.prefill.iter().map(|c| c.end - c.start).sum();
                let pieces: usize = step.decode.iter().map(|p| p.end - p.start - 1).sum();
                assert!(step.decode.len() <= max_running && chunks + pieces <= budget);
            }
        }
    }
}
