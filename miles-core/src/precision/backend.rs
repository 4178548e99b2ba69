//! Whether a backend can run a map.

use super::{PrecisionEntry, PrecisionError, PrecisionMap, TensorFormat};
use crate::format::FormatId;
use crate::network::Inventory;

/// Refuses a map with a format that is not among those that the backend of this name `can` do, native or emulated.
///
/// # Errors
/// [`PrecisionError::BackendLacks`], which names the first tensor, its group and rule, and the formats that would do.
pub fn check_backend(
    inventory: &Inventory,
    map: &PrecisionMap,
    backend: &str,
    can: &[FormatId],
) -> Result<(), PrecisionError> {
    let tensors = || inventory.parameters.iter().zip(map.entries());
    let lacks = |entry: &PrecisionEntry| matches!(&entry.format, TensorFormat::Quantized(id) if !can.contains(id));
    let Some((first, decided)) = tensors().find(|(_, entry)| lacks(entry)) else { return Ok(()) };
    let group = tensors().filter(|(parameter, entry)| {
        (parameter.role, &entry.format, &entry.rule) == (first.role, &decided.format, &decided.rule)
    });
    Err(PrecisionError::BackendLacks {
        backend: backend.into(),
        format: decided.format.to_string(),
        rule: decided.rule.as_str().into(),
        role: first.role,
        tensors: group.count(),
        tensor: first.name.clone(),
        can: can.iter().map(ToString::to_string).collect(),
    })
}
