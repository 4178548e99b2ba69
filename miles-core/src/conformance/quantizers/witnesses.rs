//! The quantizer's bytes against the rule's and against golden bytes.

use super::Subject;
use super::inputs;
use crate::conformance::compare::{same, same_tensor};
use crate::conformance::golden::records;
use crate::conformance::grid::{Grid, LENGTHS, spec_name};
use crate::conformance::{Failure, Verdict};
use crate::format::{NonFinite, QuantizeSpec, Source, SourceDtype};

/// Golden bytes, for the rule and for the quantizer.
pub(super) fn golden_bytes(subject: &Subject<'_>) -> Verdict {
    for record in records(&subject.rule.id())? {
        let sources: Vec<Source<'_>> =
            record.sources.iter().map(|(grid, dtype)| grid.source(*dtype)).collect::<Result<_, _>>()?;
        let at = |failure: Failure| failure.at(&record.case);
        let of_rule = subject.rule.quantize_joint(&sources, &record.spec).map_err(crate::Error::from);
        record.check_outcome(subject.rule, of_rule).map_err(|failure| at(failure.at("the rule itself")))?;
        record.check_outcome(subject.rule, subject.quantizer.quantize(&sources, &record.spec)).map_err(at)?;
    }
    Ok(())
}

/// Every shape around block borders.
pub(super) fn shapes(subject: &Subject<'_>) -> Verdict {
    for rows in [0, 1, 2, 17, 33, 129] {
        for cols in LENGTHS {
            let grid = Grid::scattered(rows, cols, (rows * 1000 + cols) as u64);
            agree_on(subject, &format!("[{rows}, {cols}]"), &grid)?;
        }
    }
    Ok(())
}

/// Several threads' worth of rows, and lines longer than any block, in tensors that end in the middle of a block both ways.
pub(super) fn large(subject: &Subject<'_>) -> Verdict {
    for (rows, cols) in [(523, 1030), (3, 2048), (17, 4130), (2, 9026)] {
        agree_on(subject, &format!("[{rows}, {cols}]"), &Grid::scattered(rows, cols, cols as u64))?;
    }
    Ok(())
}

pub(super) fn ties(subject: &Subject<'_>) -> Verdict {
    agree_on_all(subject, inputs::ties())
}

pub(super) fn scales(subject: &Subject<'_>) -> Verdict {
    agree_on_all(subject, inputs::scale_borders())
}

pub(super) fn division(subject: &Subject<'_>) -> Verdict {
    agree_on_all(subject, inputs::arbitrary_maxima())
}

pub(super) fn magnitudes(subject: &Subject<'_>) -> Verdict {
    agree_on_all(subject, inputs::magnitudes())
}

pub(super) fn subnormals(subject: &Subject<'_>) -> Verdict {
    agree_on_all(subject, inputs::subnormals())
}

pub(super) fn zeros(subject: &Subject<'_>) -> Verdict {
    agree_on_all(subject, inputs::zeros())
}

pub(super) fn negative_zeros(subject: &Subject<'_>) -> Verdict {
    agree_on_all(subject, inputs::negative_zeros())
}

/// Both treatments of NaN and infinity; an error has to be the rule's, with its tensor, row, column and block.
pub(super) fn non_finite(subject: &Subject<'_>) -> Verdict {
    for (name, grid) in inputs::non_finite() {
        for spec in subject.specs() {
            for non_finite in [NonFinite::Error, NonFinite::Hardware] {
                let spec = spec.clone().with_non_finite(non_finite);
                agree(subject, &grid, SourceDtype::F32, &spec).map_err(|failure| failure.at(name))?;
            }
        }
    }
    Ok(())
}

fn agree_on_all(subject: &Subject<'_>, grids: Vec<(&str, Grid)>) -> Verdict {
    grids.iter().try_for_each(|(name, grid)| agree_on(subject, name, grid))
}

/// Quantizer and rule agree on a tensor by every spec, as F32 and as BF16, and on its transpose.
fn agree_on(subject: &Subject<'_>, name: &str, grid: &Grid) -> Verdict {
    let versions =
        [(grid.clone(), SourceDtype::F32), (grid.to_bf16(), SourceDtype::Bf16), (grid.transposed(), SourceDtype::F32)];
    for (version, dtype) in &versions {
        for spec in subject.specs() {
            agree(subject, version, *dtype, &spec).map_err(|failure| failure.at(format_args!("{name} {dtype:?}")))?;
        }
    }
    Ok(())
}

/// The same tensor or the same error, for a source in each storage that its number type has.
fn agree(subject: &Subject<'_>, grid: &Grid, dtype: SourceDtype, spec: &QuantizeSpec) -> Verdict {
    agree_on_sources(subject, &[grid.source(dtype)?], spec)?;
    if dtype == SourceDtype::F32 {
        return Ok(());
    }
    let bytes = grid.bf16_bytes();
    let in_place = Source::bf16(&bytes, grid.rows, grid.cols, Some(crate::conformance::grid::TENSOR))?;
    agree_on_sources(subject, &[in_place], spec).map_err(|failure| failure.at("from BF16 bytes"))
}

/// The same tensors or the same error, for sources that are quantized together.
pub(super) fn agree_on_sources(subject: &Subject<'_>, sources: &[Source<'_>], spec: &QuantizeSpec) -> Verdict {
    let of_rule = match sources {
        [source] => subject.rule.quantize(source, spec).map(|tensor| vec![tensor]),
        _ => subject.rule.quantize_joint(sources, spec),
    };
    let check = || match (of_rule, subject.quantizer.quantize(sources, spec)) {
        (Ok(expected), Ok(found)) => {
            same("the number of results", found.len(), sources.len())?;
            found.iter().zip(&expected).enumerate().try_for_each(|(index, (found, expected))| {
                same_tensor(found, expected).map_err(|failure| if index == 0 { failure } else { failure.at(index) })
            })
        }
        (Err(expected), Err(found)) => same("the error", found.to_string(), expected.to_string()),
        (Ok(_), Err(found)) => Err(Failure::new(format!("refused: {found}"))),
        (Err(expected), Ok(_)) => Err(Failure::new(format!("accepted, although {expected}"))),
    };
    check().map_err(|failure: Failure| failure.at(spec_name(spec)))
}
