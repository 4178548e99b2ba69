//! Every declared format is sampled from; every other one is refused.

use super::super::fixture::{Family, UNDECLARED, policy, undeclared_policy};
use super::super::wait::wait;
use super::super::{Failure, Suite};
use super::bench::{Bench, completions, generate, work};
use crate::precision::Recipe;

pub(super) fn add(suite: &mut Suite, bench: &Bench<'_>) {
    for recipe in [Recipe::Bf16, Recipe::Mxfp8, Recipe::Nvfp4Dequantized, Recipe::Fp8Block] {
        let format = recipe.format();
        let name = format!("formats/{}", format.as_ref().map_or("bf16", |format| format.as_str()));
        if format.is_some_and(|format| !bench.supports(&format)) {
            let load = || bench.loaded(Family::Dense, recipe);
            suite.refusal(name, load);
            continue;
        }
        suite.case(name, || {
            for family in Family::ALL {
                let engine = bench.loaded(family, recipe)?;
                let rollout = generate(engine.as_ref(), &work(family, 4))?;
                let tokens: usize = completions(&rollout).map(|completion| completion.tokens.len()).sum();
                Failure::unless(tokens == 40, || format!("{family}: {tokens} tokens, not 40"))?;
            }
            Ok(())
        });
    }
    suite.refusal(format!("formats/{UNDECLARED}"), || {
        let engine = bench.engine(bench.options(Family::Dense))?;
        wait(engine.load(policy(Family::Dense, Recipe::Bf16, 0)?))?;
        wait(engine.load(undeclared_policy(Family::Dense, 1)?))
    });
}
