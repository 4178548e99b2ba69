//! What a rule says about itself: its name, and its largest code.

use crate::conformance::compare::{same, same_tensor};
use crate::conformance::grid::{Grid, decoded, fitting, specs};
use crate::conformance::{Failure, Verdict};
use crate::format::{FormatRule, QuantizeSpec, QuantizedParts, QuantizedTensor, builtin_rule, counts};
use crate::registry::{self, RegistryError};

/// A rule under the name of a built-in format has that format's bytes; a name that is registered makes a rule of that
/// name.
pub(in crate::conformance) fn name(rule: &dyn FormatRule) -> Verdict {
    let id = rule.id();
    same("the name asked for again", rule.id(), id.clone())?;
    let Some(builtin) = builtin_rule(&id) else {
        return match registry::format(id.as_str(), &serde_json::Value::Null) {
            Ok(made) => same("the name of the rule that is registered under it", made.id(), id),
            // Registering is a choice, and so is needing options.
            Err(crate::Error::Registry(RegistryError::Unknown { .. } | RegistryError::BadOptions { .. })) => Ok(()),
            Err(error) => Err(Failure::from(error).at("what is registered under the name")),
        };
    };
    for spec in specs(&id) {
        for shape in [(34, 130), (130, 258)] {
            let Ok((rows, cols)) = fitting(builtin, &spec, shape) else { continue };
            let grid = Grid::scattered(rows, cols, 5);
            same_tensor(&grid.quantize(rule, &spec)?, &grid.quantize(builtin, &spec)?)
                .map_err(|failure| failure.at(format_args!("`{id}` is built in, and has other bytes")))?;
        }
    }
    Ok(())
}

/// No code byte decodes to more than the largest code, and that to a number. A rule that rotates decodes blocks of codes,
/// so a code has no magnitude of its own there.
pub(super) fn largest_code(rule: &dyn FormatRule, spec: &QuantizeSpec) -> Verdict {
    let Some(largest) = counts::largest_code(rule).filter(|_| !rule.code_dependence().block) else { return Ok(()) };
    let (rows, cols) = fitting(rule, spec, (4, 64))?;
    let tensor = Grid::uniform(rows, cols, 7).quantize(rule, spec)?;
    let with_code = |code: u8| -> Result<Vec<f32>, Failure> {
        let parts = tensor.to_parts();
        let parts = QuantizedParts { codes: vec![code; parts.codes.len()], ..parts };
        decoded(rule, &QuantizedTensor::from_parts(rule, None, parts)?)
    };
    let limits = with_code(largest)?;
    let bad = limits.iter().find(|limit| !(limit.is_finite() && **limit != 0.0));
    Failure::unless(bad.is_none(), || format!("the largest code {largest:#04x} decodes to {bad:?}"))?;
    for code in 0..=u8::MAX {
        // A byte that the rule refuses is no code of it, and one that is no number has no magnitude.
        let Ok(values) = with_code(code) else { continue };
        let beyond = values.iter().zip(&limits).find(|(value, limit)| value.is_finite() && value.abs() > limit.abs());
        Failure::unless(beyond.is_none(), || {
            format!("code {code:#04x} decodes to more than the largest code {largest:#04x}: {beyond:?}")
        })?;
    }
    Ok(())
}
