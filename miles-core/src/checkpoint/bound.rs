//! Stored tensors bound to parameters: values, or codes and scales as they are stored, one parameter at a time.

use std::iter::repeat_n;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::bind::Binding;
use super::contract::{ContractSidecar, ContractTensor};
use super::contract_error::ContractError;
use super::error::CheckpointError;
use super::finite::first_non_finite;
use super::layout;
use super::reader::{StoredTensors, TensorRef};
use super::scales;
use crate::digest::Digest;
use crate::format::{FormatError, Partition, QuantizeSpec, QuantizedTensor};
use crate::model::huggingface::StoredLayout;
use crate::names::Slab;
use crate::network::{Inventory, ParamId, Parameter};
use crate::number::e4m3;
use crate::policy::PolicyTensor;
use crate::precision::TensorFormat;
use crate::tensor::{DenseTensor, Dtype};

/// The stored tensors of a directory, and which of them each parameter is read from.
#[derive(Debug)]
pub(crate) struct Bound {
    pub(super) stored: StoredTensors,
    pub(super) bindings: Vec<Binding>,
    /// What the directory says about itself, checked against its headers.
    contract: Option<Recorded>,
}

#[derive(Debug)]
pub(super) struct Recorded {
    dir: PathBuf,
    sidecar: ContractSidecar,
}

/// Codes of one parameter with their scales.
#[derive(Clone, Copy)]
struct Quantized {
    layout: StoredLayout,
    codes: TensorRef,
    scales: TensorRef,
    outer: Option<TensorRef>,
}

impl Bound {
    /// Takes what is bound, and checks the contract sidecar of the directory, if it has one, against it.
    pub(super) fn new(
        dir: &Path,
        inventory: &Inventory,
        stored: StoredTensors,
        bindings: Vec<Binding>,
    ) -> Result<Self, CheckpointError> {
        let contract = ContractSidecar::read(dir)?.map(|sidecar| Recorded { dir: dir.to_owned(), sidecar });
        let bound = Bound { stored, bindings, contract };
        if let Some(recorded) = &bound.contract {
            let parameters =
                inventory.ids().map(|id| (inventory.parameter(id), stored_format(&bound.bindings[id.index()])));
            recorded.sidecar.check_parameters(parameters).map_err(|source| recorded.error(source))?;
        }
        Ok(bound)
    }

    /// The sidecar of the directory.
    pub(crate) fn contract(&self) -> Option<&ContractSidecar> {
        self.contract.as_ref().map(|recorded| &recorded.sidecar)
    }

    /// How a parameter is stored; a variant by its name where the sidecar gives it.
    pub(crate) fn format(&self, id: ParamId, parameter: &Parameter) -> TensorFormat {
        match self.recorded(parameter) {
            Some((_, tensor)) => tensor.format.clone(),
            None => stored_format(&self.bindings[id.index()]),
        }
    }

    /// How a parameter is cut: whole, unless the sidecar says otherwise.
    pub(crate) fn partition(&self, parameter: &Parameter) -> Partition {
        self.recorded(parameter).map_or(Partition::WHOLE, |(recorded, tensor)| recorded.sidecar.partition(tensor))
    }

    /// Replaces `into` by the values of a parameter, row-major.
    pub(crate) fn read_f32(
        &self,
        id: ParamId,
        parameter: &Parameter,
        into: &mut Vec<f32>,
    ) -> Result<(), CheckpointError> {
        match self.bindings[id.index()] {
            Binding::Dense { tensor, dtype, slab } => self.dense(parameter, tensor, dtype, slab)?.read_f32(into),
            Binding::Quantized { layout, codes, scales, outer } => {
                let tensor = self.quantized(parameter, Quantized { layout, codes, scales, outer })?;
                *into = self.dequantize(parameter, codes, &tensor)?;
            }
        }
        Ok(())
    }

    /// A parameter as it is stored.
    pub(crate) fn read(&self, id: ParamId, parameter: &Parameter) -> Result<PolicyTensor, CheckpointError> {
        match self.bindings[id.index()] {
            Binding::Dense { tensor, dtype, slab } => {
                self.dense(parameter, tensor, dtype, slab).map(PolicyTensor::Dense)
            }
            Binding::Quantized { layout, codes, scales, outer } => {
                self.quantized(parameter, Quantized { layout, codes, scales, outer }).map(PolicyTensor::Quantized)
            }
        }
    }

    /// A parameter as it is stored, where it is stored in `dtype`.
    pub(crate) fn read_in(
        &self,
        id: ParamId,
        parameter: &Parameter,
        dtype: Dtype,
    ) -> Result<Option<DenseTensor>, CheckpointError> {
        match self.bindings[id.index()] {
            Binding::Dense { tensor, dtype: stored, slab } if stored == dtype => {
                self.dense(parameter, tensor, dtype, slab).map(Some)
            }
            _ => Ok(None),
        }
    }

    fn dense(
        &self,
        parameter: &Parameter,
        tensor: TensorRef,
        dtype: Dtype,
        slab: Option<Slab>,
    ) -> Result<DenseTensor, CheckpointError> {
        let element_bytes = dtype.element_bytes();
        let span = match slab {
            None => 0..parameter.elements(),
            Some(slab) => slab.span(),
        };
        // In its last place from the start: a vector would be copied into the shared slice.
        let mut bytes: Arc<[u8]> = repeat_n(0, span.len() * element_bytes).collect();
        if let Some(bytes) = Arc::get_mut(&mut bytes) {
            self.stored.read(tensor, (span.start * element_bytes) as u64, bytes)?;
        }
        if let Some(slab) = slab.filter(|slab| !slab.is_contiguous()) {
            bytes = slab.gather(&bytes, element_bytes).into();
        }
        if let Some((index, value)) = first_non_finite(dtype, &bytes) {
            return Err(self.non_finite(parameter, tensor, index, value));
        }
        let actual = bytes.len() / element_bytes;
        let tensor = DenseTensor::new(dtype, parameter.shape.clone(), bytes).map_err(|_| {
            let (tensor, expected) = (parameter.name.clone(), parameter.elements());
            CheckpointError::WrongLength { tensor, expected, actual }
        })?;
        self.check_digest(parameter, || tensor.digest())?;
        Ok(tensor)
    }

    fn quantized(
        &self,
        parameter: &Parameter,
        Quantized { layout, codes, scales, outer }: Quantized,
    ) -> Result<QuantizedTensor, CheckpointError> {
        let (rows, cols) = parameter.rows_cols();
        let code_bytes = self.stored.read_all(codes)?;
        if layout.has_e4m3_codes()
            && let Some(index) = code_bytes.iter().position(|code| e4m3::is_nan(*code))
        {
            return Err(self.non_finite(parameter, codes, index, f32::NAN));
        }
        // Its shape was checked at opening.
        let scale_cols = self.stored.info(scales).shape.last().copied().unwrap_or(1);
        let scale_dtype = self.stored.info(scales).dtype;
        let decoded = scales::decode(layout, scale_dtype, self.stored.read_all(scales)?, scale_cols);
        let block_scales = decoded.map_err(|bad| CheckpointError::Stored {
            path: self.stored.path(scales).to_owned(),
            source: bad.of(&parameter.name),
        })?;
        let outer = outer.map(|tensor| self.stored.read_all(tensor)).transpose()?.map(|bytes| scales::floats(&bytes));
        let format = match self.recorded(parameter).map(|(_, tensor)| &tensor.format) {
            Some(TensorFormat::Quantized(format)) => format.clone(),
            _ => layout.format(),
        };
        let spec = QuantizeSpec::weight(format).with_partition(self.partition(parameter));
        let tensor = layout::assemble(layout, &spec, &parameter.name, [rows, cols], code_bytes, block_scales, outer)
            .map_err(|source| self.format_error(scales, source))?;
        self.check_digest(parameter, || tensor.digest())?;
        Ok(tensor)
    }

    pub(super) fn recorded(&self, parameter: &Parameter) -> Option<(&Recorded, &ContractTensor)> {
        let recorded = self.contract.as_ref()?;
        Some((recorded, recorded.sidecar.tensors.get(&parameter.name)?))
    }

    /// Refuses a tensor whose digest is not the one of the sidecar.
    pub(crate) fn check_digest(
        &self,
        parameter: &Parameter,
        digest: impl FnOnce() -> Digest,
    ) -> Result<(), CheckpointError> {
        let Some((recorded, tensor)) = self.recorded(parameter) else { return Ok(()) };
        ContractSidecar::check_digest(&parameter.name, tensor.digest, digest()).map_err(|source| recorded.error(source))
    }

    fn format_error(&self, tensor: TensorRef, source: FormatError) -> CheckpointError {
        CheckpointError::Format { path: self.stored.path(tensor).to_owned(), source: Box::new(source) }
    }

    fn dequantize(
        &self,
        parameter: &Parameter,
        codes: TensorRef,
        tensor: &QuantizedTensor,
    ) -> Result<Vec<f32>, CheckpointError> {
        let values = layout::rule(tensor.format())
            .and_then(|rule| rule.dequantize(tensor))
            .map_err(|source| self.format_error(codes, source))?;
        match values.iter().position(|value| !value.is_finite()) {
            None => Ok(values),
            Some(index) => Err(self.non_finite(parameter, codes, index, values[index])),
        }
    }

    pub(super) fn non_finite(
        &self,
        parameter: &Parameter,
        tensor: TensorRef,
        index: usize,
        value: f32,
    ) -> CheckpointError {
        let (_, cols) = parameter.rows_cols();
        CheckpointError::NonFinite {
            path: self.stored.path(tensor).to_owned(),
            tensor: parameter.name.clone(),
            row: index / cols,
            column: index % cols,
            value,
        }
    }
}

impl Recorded {
    fn error(&self, source: ContractError) -> CheckpointError {
        CheckpointError::Contract { dir: self.dir.clone(), source: Box::new(source) }
    }
}

/// What the stored bytes show of a format.
fn stored_format(binding: &Binding) -> TensorFormat {
    match binding {
        Binding::Dense { dtype, .. } => TensorFormat::Dense(*dtype),
        Binding::Quantized { layout, .. } => TensorFormat::Quantized(layout.format()),
    }
}
