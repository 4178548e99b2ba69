//! Which stored bytes each parameter of the network is read from. Strict: every parameter has exactly one source and
//! every stored tensor one use, or the checkpoint is refused with the names.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;

use safetensors::Dtype as StoredDtype;

use super::error::CheckpointError;
use super::kept;
use super::layout::{StoredPart, StoredParts, stored_parts};
use super::packed::orientations;
use super::reader::{StoredTensors, TensorRef};
use super::scales::floats;
use super::stored_error::StoredError;
use super::{names, tied};
use crate::format::Packing;
use crate::model::huggingface::{HuggingFaceConfig, StoredLayout};
use crate::names::{NamedInventory, Slab};
use crate::network::{Inventory, Mlp, Network, ParamId, Parameter};
use crate::tensor::Dtype;

/// Where one parameter is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Binding {
    /// In high precision, as a tensor of its own or as part of a packed one.
    Dense { tensor: TensorRef, dtype: Dtype, slab: Option<Slab> },
    /// As codes and scales; the layout is a canonical one, since their names are found.
    Quantized { layout: StoredLayout, codes: TensorRef, scales: TensorRef, outer: Option<TensorRef> },
}

/// Binds every parameter, in `ParamId` order.
pub(super) fn bind(
    dir: &Path,
    config: &HuggingFaceConfig,
    network: &Network,
    stored: &StoredTensors,
) -> Result<Vec<Binding>, CheckpointError> {
    let free = by_canonical_name(stored)?;
    let mut binder = Binder { stored, layout: config.layout(), kept: config.kept_modules(), free };
    let (layers, predicted) = (network.config.layer_count(), config.predicted_layers());
    binder.free.retain(|name, _| !names::is_ignored(name, layers, predicted));
    if network.config.tie_word_embeddings
        && let Some(&embedding) = binder.free.get(&network.parameter(network.embedding).name)
        && let Some(head) = binder.free.remove(tied::HEAD)
    {
        tied::check(stored, head, embedding)?;
    }
    let mut packed = binder.packed(network)?;
    let mut bindings = Vec::with_capacity(network.parameters.len());
    let mut missing = Vec::new();
    for (id, parameter) in network.ids().zip(&network.parameters) {
        let binding = match packed.remove(&id) {
            Some(binding) => Some(binding),
            None => binder.single(parameter)?,
        };
        match binding {
            Some(binding) => bindings.push(binding),
            None => missing.push(parameter.name.clone()),
        }
    }
    if !missing.is_empty() {
        binder.check_orphans(network)?;
        return Err(CheckpointError::MissingTensors { dir: dir.to_owned(), tensors: missing });
    }
    binder.check_all_used(dir, network)?;
    Ok(bindings)
}

/// Binds the parameters of a family whose names are all that is known of it, or those that a network leaves aside: the
/// `wanted` parameters of `named`, in `ParamId` order. `refs` are the stored tensors that `named` was made from, `free`
/// those that may be used, by canonical name.
pub(super) fn bind_named(
    dir: &Path,
    (layout, kept): (Option<StoredLayout>, &[String]),
    named: &NamedInventory,
    wanted: impl Fn(&Parameter) -> bool,
    refs: &[TensorRef],
    stored: &StoredTensors,
    free: BTreeMap<String, TensorRef>,
) -> Result<Vec<Binding>, CheckpointError> {
    let mut binder = Binder { stored, layout, kept, free };
    let mut bindings = Vec::new();
    let mut packed = HashSet::new();
    for (parameter, place) in named.inventory.parameters.iter().zip(&named.places) {
        if !wanted(parameter) {
            continue;
        }
        let tensor = refs[place.tensor];
        if place.slab.is_some() {
            packed.insert(names::canonical(&stored.info(tensor).name));
            bindings.push(Binding::Dense { tensor, dtype: binder.dense_dtype(tensor)?, slab: place.slab });
            continue;
        }
        // Its name was parsed from a stored one, so that it is there.
        let missing = || CheckpointError::MissingTensors { dir: dir.to_owned(), tensors: vec![parameter.name.clone()] };
        bindings.push(binder.single(parameter)?.ok_or_else(missing)?);
    }
    binder.free.retain(|name, _| !packed.contains(name));
    binder.check_all_used(dir, &named.inventory)?;
    Ok(bindings)
}

/// Every stored tensor by its canonical name.
pub(super) fn by_canonical_name(stored: &StoredTensors) -> Result<BTreeMap<String, TensorRef>, CheckpointError> {
    let mut tensors = BTreeMap::new();
    for tensor in stored.all() {
        let name = names::canonical(&stored.info(tensor).name);
        if let Some(first) = tensors.insert(name.clone(), tensor) {
            return Err(CheckpointError::DuplicateTensor {
                tensor: name,
                first: stored.path(first).to_owned(),
                second: stored.path(tensor).to_owned(),
            });
        }
    }
    Ok(tensors)
}

struct Binder<'a> {
    stored: &'a StoredTensors,
    layout: Option<StoredLayout>,
    /// Modules that are said to be in high precision.
    kept: &'a [String],
    /// Stored tensors that have no use yet, by canonical name.
    free: BTreeMap<String, TensorRef>,
}

impl Binder<'_> {
    /// Parameters that lie in packed experts.
    fn packed(&mut self, network: &Network) -> Result<BTreeMap<ParamId, Binding>, CheckpointError> {
        let mut bindings = BTreeMap::new();
        for (index, layer) in network.layers.iter().enumerate() {
            let Mlp::Moe(moe) = &layer.mlp else { continue };
            let (gate_up_name, down_name) = names::packed_experts(index);
            // One without the other stays free and is reported as unexpected, the rest as missing.
            let (Some(&gate_up), Some(&down)) = (self.free.get(&gate_up_name), self.free.get(&down_name)) else {
                continue;
            };
            self.free.remove(&gate_up_name);
            self.free.remove(&down_name);
            let Some(first) = moe.gates.first() else { continue };
            let (inner, hidden) = network.parameter(first.weight).rows_cols();
            let described = |tensor| (self.stored.info(tensor), self.stored.path(tensor));
            let sizes = [moe.gates.len(), inner, hidden];
            let [gate_up_is, down_is] = orientations(described(gate_up), described(down), sizes)?;
            let (gate_up_dtype, down_dtype) = (self.dense_dtype(gate_up)?, self.dense_dtype(down)?);
            for (expert, ((gate, up), down_linear)) in moe.gates.iter().zip(&moe.ups).zip(&moe.downs).enumerate() {
                let (halves, alone) = ((gate_up_is, Packing::GateUpHalves), (down_is, Packing::Single));
                for (linear, projection, tensor, dtype, packed, shape) in [
                    (gate, 0, gate_up, gate_up_dtype, halves, [inner, hidden]),
                    (up, 1, gate_up, gate_up_dtype, halves, [inner, hidden]),
                    (down_linear, 0, down, down_dtype, alone, [hidden, inner]),
                ] {
                    let slab = Some(Slab::new(expert, projection, packed, shape));
                    bindings.insert(linear.weight, Binding::Dense { tensor, dtype, slab });
                }
            }
        }
        Ok(bindings)
    }

    /// A parameter stored under its own name, or packed under its own name; `None` when it is missing.
    fn single(&mut self, parameter: &Parameter) -> Result<Option<Binding>, CheckpointError> {
        let Some(tensor) = self.free.remove(&parameter.name) else {
            return self.packed_codes(parameter);
        };
        let dtype = self.stored.info(tensor).dtype;
        let may_be_codes = matches!(dtype, StoredDtype::F8_E4M3 | StoredDtype::U8 | StoredDtype::I8);
        if !may_be_codes || parameter.shape.len() != 2 {
            let dtype = self.dense_dtype(tensor)?;
            self.check_shape(tensor, &parameter.shape)?;
            return Ok(Some(Binding::Dense { tensor, dtype, slab: None }));
        }
        let Some(layout) = self.layout else {
            return Err(CheckpointError::UndeclaredLayout {
                path: self.stored.path(tensor).to_owned(),
                tensor: parameter.name.clone(),
                dtype: dtype.to_string(),
            });
        };
        let parts = self.parts(parameter, tensor, layout)?;
        self.quantized(parameter, tensor, layout, parts).map(Some)
    }

    /// A parameter whose codes have another name than its values would have.
    fn packed_codes(&mut self, parameter: &Parameter) -> Result<Option<Binding>, CheckpointError> {
        let Some(layout) = self.layout.filter(|layout| layout.int4_group().is_some()) else {
            return Ok(None);
        };
        let name = parameter.name.strip_suffix(".weight").map(|base| format!("{base}.weight_packed"));
        let Some(tensor) = name.and_then(|name| self.free.remove(&name)) else {
            return Ok(None);
        };
        let parts = self.parts(parameter, tensor, layout)?;
        self.quantized(parameter, tensor, layout, parts).map(Some)
    }

    fn parts(
        &self,
        parameter: &Parameter,
        codes: TensorRef,
        layout: StoredLayout,
    ) -> Result<StoredParts, CheckpointError> {
        if let Some(entry) = kept::listed(self.kept, &parameter.name) {
            let (tensor, entry) = (parameter.name.clone(), entry.to_owned());
            return Err(self.contradiction(codes, StoredError::KeptModuleHasCodes { tensor, entry }));
        }
        let (rows, cols) = parameter.rows_cols();
        stored_parts(layout, rows, cols).map_err(|source| self.format_error(codes, source))
    }

    fn quantized(
        &mut self,
        parameter: &Parameter,
        codes: TensorRef,
        layout: StoredLayout,
        parts: StoredParts,
    ) -> Result<Binding, CheckpointError> {
        self.check_part(codes, &parts.codes)?;
        let scales = self.scale(parameter, codes, &parts.scales)?;
        let outer = parts.outer.map(|part| self.scale(parameter, codes, &part)).transpose()?;
        if let Some(part) = parts.extents {
            let extents = self.scale(parameter, codes, &part)?;
            self.check_extents(extents, parameter.rows_cols().into())?;
        }
        // Present or not: activations are scaled per token here. A writer takes it over from the directory.
        if let Some(part) = parts.input
            && let Some(input) = self.free.remove(&scale_name(parameter, &part))
        {
            self.check_part(input, &part)?;
            self.check_input_scale(input)?;
        }
        Ok(Binding::Quantized { layout: layout.canonical(), codes, scales, outer })
    }

    fn scale(
        &mut self,
        parameter: &Parameter,
        codes: TensorRef,
        part: &StoredPart,
    ) -> Result<TensorRef, CheckpointError> {
        let name = scale_name(parameter, part);
        let Some(scale) = self.free.remove(&name) else {
            return Err(CheckpointError::MissingScale {
                path: self.stored.path(codes).to_owned(),
                tensor: parameter.name.clone(),
                scale: name,
            });
        };
        self.check_part(scale, part)?;
        Ok(scale)
    }

    fn check_part(&self, tensor: TensorRef, part: &StoredPart) -> Result<(), CheckpointError> {
        let info = self.stored.info(tensor);
        if !part.dtypes.contains(&info.dtype) {
            let expected = match part.dtypes[0] {
                StoredDtype::F8_E4M3 => "F8_E4M3",
                StoredDtype::F32 => "F32",
                StoredDtype::I8 => "I8",
                StoredDtype::I32 => "I32",
                StoredDtype::I64 => "I64",
                _ => "U8",
            };
            return Err(self.wrong_dtype(tensor, expected));
        }
        // A scalar is stored as `[]` or as `[1]`.
        let scalar = |shape: &[usize]| matches!(shape, [] | [1]);
        let is_scalar = scalar(&part.shape) && scalar(&info.shape);
        if is_scalar { Ok(()) } else { self.check_shape(tensor, &part.shape) }
    }

    fn check_extents(&self, tensor: TensorRef, expected: [usize; 2]) -> Result<(), CheckpointError> {
        let bytes = self.stored.read_all(tensor)?;
        let found: Vec<i64> = bytes.as_chunks().0.iter().map(|bytes| i64::from_le_bytes(*bytes)).collect();
        if found.iter().map(|size| usize::try_from(*size)).eq(expected.map(Ok)) {
            return Ok(());
        }
        let name = self.stored.info(tensor).name.clone();
        Err(self.contradiction(tensor, StoredError::Extents { tensor: name, expected, found }))
    }

    fn check_input_scale(&self, tensor: TensorRef) -> Result<(), CheckpointError> {
        match floats(&self.stored.read_all(tensor)?).as_slice() {
            [value] if !(value.is_finite() && *value > 0.0) => {
                let name = self.stored.info(tensor).name.clone();
                Err(self.contradiction(tensor, StoredError::InputScale { tensor: name, value: *value }))
            }
            _ => Ok(()),
        }
    }

    fn dense_dtype(&self, tensor: TensorRef) -> Result<Dtype, CheckpointError> {
        match self.stored.info(tensor).dtype {
            StoredDtype::F32 => Ok(Dtype::F32),
            StoredDtype::F16 => Ok(Dtype::F16),
            StoredDtype::BF16 => Ok(Dtype::Bf16),
            _ => Err(self.wrong_dtype(tensor, "F32, F16 or BF16")),
        }
    }

    fn check_shape(&self, tensor: TensorRef, expected: &[usize]) -> Result<(), CheckpointError> {
        let info = self.stored.info(tensor);
        if info.shape == expected {
            return Ok(());
        }
        Err(CheckpointError::WrongShape {
            path: self.stored.path(tensor).to_owned(),
            tensor: info.name.clone(),
            expected: expected.to_vec(),
            found: info.shape.clone(),
        })
    }

    /// Refuses tensors that are left over.
    fn check_all_used(&self, dir: &Path, inventory: &Inventory) -> Result<(), CheckpointError> {
        self.check_orphans(inventory)?;
        if self.free.is_empty() {
            return Ok(());
        }
        let tensors = self.free.values().map(|tensor| self.stored.info(*tensor).name.clone()).collect();
        Err(CheckpointError::UnexpectedTensors { dir: dir.to_owned(), tensors })
    }

    /// Refuses scales that are left over.
    fn check_orphans(&self, inventory: &Inventory) -> Result<(), CheckpointError> {
        if self.free.is_empty() {
            return Ok(());
        }
        let stored_names: HashSet<String> =
            self.stored.all().map(|tensor| names::canonical(&self.stored.info(tensor).name)).collect();
        for (name, scale) in &self.free {
            let Some(tensor) = names::scaled_tensor(name) else { continue };
            let is_stored = stored_names.contains(&tensor);
            let state = if is_stored { "in high precision" } else { "missing" };
            if is_stored || inventory.find(&tensor).is_some() {
                return Err(CheckpointError::OrphanScale {
                    path: self.stored.path(*scale).to_owned(),
                    scale: self.stored.info(*scale).name.clone(),
                    tensor,
                    state,
                });
            }
        }
        Ok(())
    }

    fn wrong_dtype(&self, tensor: TensorRef, expected: &'static str) -> CheckpointError {
        let info = self.stored.info(tensor);
        CheckpointError::WrongDtype {
            path: self.stored.path(tensor).to_owned(),
            tensor: info.name.clone(),
            expected,
            found: info.dtype.to_string(),
        }
    }

    fn contradiction(&self, tensor: TensorRef, source: StoredError) -> CheckpointError {
        CheckpointError::Stored { path: self.stored.path(tensor).to_owned(), source }
    }

    fn format_error(&self, tensor: TensorRef, source: crate::format::FormatError) -> CheckpointError {
        CheckpointError::Format { path: self.stored.path(tensor).to_owned(), source: Box::new(source) }
    }
}

fn scale_name(parameter: &Parameter, part: &StoredPart) -> String {
    let base = parameter.name.strip_suffix(".weight").unwrap_or(&parameter.name);
    format!("{base}{}", part.suffix)
}
