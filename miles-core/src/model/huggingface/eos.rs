//! Every token id that ends a completion.

use super::Keys;
use crate::model::ModelError;

/// The ids of `generation_config.json`, or those of `config.json` where it names none.
///
/// Either file may give one id or a list; all of a list count. Sorted, each once.
pub(super) fn ids(config: Keys<'_>, generation: Option<Keys<'_>>, vocab_size: usize) -> Result<Vec<u32>, ModelError> {
    let generated = match generation {
        Some(keys) => keys.ids("eos_token_id")?.map(|ids| (keys, ids)),
        None => None,
    };
    let (keys, mut ids) = match generated {
        Some(found) => found,
        None => (config, config.ids("eos_token_id")?.unwrap_or_default()),
    };
    if let Some(id) = ids.iter().find(|id| **id as usize >= vocab_size) {
        return Err(keys.contradiction("eos_token_id", format!("id {id} is outside the vocabulary of {vocab_size}")));
    }
    ids.sort_unstable();
    ids.dedup();
    Ok(ids)
}
