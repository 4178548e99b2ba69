//! Names of stored tensors, as data: which role, layer and expert a Hugging Face name stands for, family by family.
//!
//! ```text
//! config.json -> Outline (family, layers, experts)  --+
//! stored headers (name, number type, shape)  ---------+--inventory--> Inventory (one parameter per tensor and expert)
//!                                                                     and a Place for each: stored tensor, slab, scales
//! ```
//!
//! A [`Family`] is a table of patterns ([`Family::patterns`] prints it). What a table does not have is an error that names
//! the tensor and the nearest pattern. Five of the families have a forward pass; for these a
//! [`Network`](crate::network::Network) and [`inventory`] describe the same parameters. For the others the inventory is
//! all that precision rules and a conversion need.
//!
//! | family | attention | experts as stored | predicted layers (MTP) |
//! |---|---|---|---|
//! | Llama, Qwen2, Qwen3 | grouped | none | none |
//! | Qwen3-MoE | grouped | one by one, or packed in halves | none |
//! | Qwen3-Next, Qwen3.5-MoE | grouped with a gate, or linear | one by one, or packed in halves | `mtp.*` |
//! | DeepSeek-V3 | latent | one by one, or packed in halves | `model.layers.{L}` behind the last |
//! | GLM-4.5 MoE | grouped | one by one, or packed in halves | `model.layers.{L}` behind the last |
//! | gpt-oss | grouped with sinks | packed, gate and up interleaved, transposed | none |

mod complete;
mod error;
mod expand;
mod family;
mod inventory;
mod outline;
mod parse;
mod place;
pub(crate) mod stored;
mod tables;

pub use error::NamesError;
pub use family::Family;
pub use inventory::{NamedInventory, inventory};
pub use outline::Outline;
pub use parse::{Kind, TensorName};
pub use place::{Place, Slab};
pub use stored::StoredTensor;

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
