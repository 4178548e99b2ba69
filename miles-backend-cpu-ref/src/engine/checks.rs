//! Requests that cannot be computed.

use miles_core::network::Network;
use miles_core::plugin::limits::MAX_COMPLETIONS;
use miles_core::plugin::{GenerateRequest, RolloutError};

/// Refuses prompts that cannot be computed.
///
/// # Errors
/// More completions than a request may have; a prompt without tokens, with an id outside the vocabulary, or that leaves no room for the longest completion.
pub(super) fn check_prompts(
    request: &GenerateRequest,
    network: &Network,
    context_tokens: usize,
) -> Result<(), RolloutError> {
    let counts = request.prompts.iter().map(|prompt| prompt.completions);
    let completions = counts.fold(0, usize::saturating_add);
    if completions > MAX_COMPLETIONS {
        return Err(RolloutError::TooManyCompletions { completions, limit: MAX_COMPLETIONS });
    }
    let (vocab_size, max_new_tokens) = (network.config.vocab_size, request.sampling.max_new_tokens);
    for prompt in &request.prompts {
        let (key, prompt_tokens) = (prompt.key, prompt.tokens.len());
        if prompt.tokens.is_empty() {
            return Err(RolloutError::EmptyPrompt { key });
        }
        check_tokens(&prompt.tokens, vocab_size)?;
        if prompt_tokens.saturating_add(max_new_tokens) > context_tokens {
            return Err(RolloutError::ContextExceeded { key, prompt_tokens, max_new_tokens, context_tokens });
        }
    }
    Ok(())
}

/// Refuses token ids outside the vocabulary.
///
/// # Errors
/// Names the first such id.
pub(super) fn check_tokens(tokens: &[u32], vocab_size: usize) -> Result<(), RolloutError> {
    match tokens.iter().find(|&&id| id as usize >= vocab_size) {
        None => Ok(()),
        Some(&id) => Err(RolloutError::TokenOutOfRange { id, vocab_size }),
    }
}
