//! Reading one version back, every byte of it checked.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use safetensors::Dtype as Stored;

use super::super::StoreError;
use super::description::{self, Description, Form, TensorDescription};
use super::parts::{self, AMAX, CODES, OUTER, SCALES, part_name, stored_dtype, stored_parts};
use crate::checkpoint::raw::RawTensors;
use crate::digest::Digest;
use crate::format::{
    BlockScales, FormatError, FormatId, FormatRule, QuantizedParts, QuantizedTensor, TensorLayout, builtin_rule,
};
use crate::network::{Network, Parameter};
use crate::policy::{PolicyError, PolicyTensor, PolicyVersion, Snapshot};
use crate::precision::PrecisionMap;
use crate::registry;
use crate::tensor::DenseTensor;
use crate::{Error, Result};

/// What a version is read for.
pub(super) struct Reader<'a> {
    pub(super) network: &'a Arc<Network>,
    pub(super) map: &'a Arc<PrecisionMap>,
    /// Rules of formats that are neither built in nor registered.
    pub(super) rules: &'a [Arc<dyn FormatRule>],
}

impl Reader<'_> {
    /// The description of a version alone, checked against network and map.
    pub(super) fn describe(&self, dir: &Path, version: PolicyVersion) -> Result<(Description, Digest), StoreError> {
        Description::read(&dir.join(description::FILE), version, self.network, self.map)
    }

    /// A whole version. Every digest is computed again from the bytes read.
    pub(super) fn read(&self, dir: &Path, version: PolicyVersion) -> Result<Snapshot> {
        let (description, description_digest) = self.describe(dir, version).map_err(PolicyError::from)?;
        let file = TensorsFile::open(dir.join(parts::FILE)).map_err(PolicyError::from)?;
        file.check_description(dir, description_digest).map_err(PolicyError::from)?;
        let mut tensors = Vec::with_capacity(description.tensors.len());
        for (described, parameter) in description.tensors.iter().zip(&self.network.parameters) {
            tensors.push(Arc::new(self.tensor(&file, described, parameter)?));
        }
        file.check_nothing_else(self.network, &tensors).map_err(PolicyError::from)?;
        // Each digest was compared with the bytes as they were read.
        let digests = description.tensors.iter().map(|described| described.digest).collect();
        let (network, map) = (Arc::clone(self.network), Arc::clone(self.map));
        let snapshot = Snapshot::sealed(version, network, map, tensors, digests)?;
        let (expected, found) = (description.digest, snapshot.stamp().digest);
        if found != expected {
            let path = dir.join(description::FILE);
            return Err(PolicyError::from(StoreError::OtherPolicy { path, expected, found }).into());
        }
        Ok(snapshot)
    }

    fn tensor(&self, file: &TensorsFile, described: &TensorDescription, parameter: &Parameter) -> Result<PolicyTensor> {
        let tensor = match &described.form {
            Form::Dense { dtype } => {
                let bytes = file.whole(&parameter.name, stored_dtype(*dtype), &parameter.shape);
                let bytes = bytes.map_err(PolicyError::from)?;
                PolicyTensor::Dense(DenseTensor::new(*dtype, parameter.shape.clone(), bytes)?)
            }
            form @ Form::Quantized { format, .. } => {
                let assembled = self.with_rule(format, |rule| file.quantized(rule, form, parameter))?;
                PolicyTensor::Quantized(assembled)
            }
        };
        let (expected, found) = (described.digest, tensor.digest());
        if found != expected {
            return Err(PolicyError::from(file.damaged(parameter.name.clone(), expected, found)).into());
        }
        Ok(tensor)
    }

    fn with_rule<T>(&self, format: &FormatId, run: impl FnOnce(&dyn FormatRule) -> Result<T, StoreError>) -> Result<T> {
        let result = if let Some(rule) = builtin_rule(format) {
            run(rule)
        } else if let Some(rule) = self.rules.iter().find(|rule| rule.id() == *format) {
            run(rule.as_ref())
        } else {
            run(registry::format(format.as_str(), &serde_json::Value::Null)?.as_ref())
        };
        result.map_err(|error| Error::from(PolicyError::from(error)))
    }
}

/// The open file of a version's tensors.
struct TensorsFile {
    path: PathBuf,
    tensors: RawTensors,
}

impl TensorsFile {
    fn open(path: PathBuf) -> Result<Self, StoreError> {
        let tensors = RawTensors::open(&path).map_err(|error| StoreError::Container(Box::new(error)))?;
        Ok(TensorsFile { path, tensors })
    }

    /// The two files of a folder belong together, and the description is the one that was written.
    fn check_description(&self, dir: &Path, found: Digest) -> Result<(), StoreError> {
        let written = self.tensors.metadata().get(parts::DESCRIPTION_KEY).map(String::as_str);
        if written == Some(found.to_string().as_str()) {
            return Ok(());
        }
        let why = format!("its digest is {found}, `{}` was written beside {}", parts::FILE, written.unwrap_or("none"));
        Err(StoreError::BadDescription { path: dir.join(description::FILE), why })
    }

    /// Every array of the file belongs to one of the tensors read.
    fn check_nothing_else(&self, network: &Network, tensors: &[Arc<PolicyTensor>]) -> Result<(), StoreError> {
        let known: BTreeSet<String> = network
            .parameters
            .iter()
            .zip(tensors)
            .flat_map(|(parameter, tensor)| stored_parts(&parameter.name, tensor))
            .map(|part| part.name)
            .collect();
        match self.tensors.names().find(|name| !known.contains(*name)) {
            None => Ok(()),
            Some(name) => Err(self.bad_part(name, "all of it", "belongs to no tensor of the policy".to_owned())),
        }
    }

    fn quantized(
        &self,
        rule: &dyn FormatRule,
        form: &Form,
        parameter: &Parameter,
    ) -> Result<QuantizedTensor, StoreError> {
        let name = &parameter.name;
        let Form::Quantized { format, operand, axis, scope, partition, amax } = form else {
            return Err(self.bad_part(name, "form", "not quantized".to_owned()));
        };
        let (rows, cols) = parameter.rows_cols();
        let of_format = |source| StoreError::Format { path: self.path.clone(), source: Box::new(source) };
        let mut parts = QuantizedParts {
            format: format.clone(),
            operand: *operand,
            axis: *axis,
            scope: *scope,
            partition: *partition,
            rows,
            cols,
            codes: Vec::new(),
            scales: BlockScales::U8(Vec::new()),
            outer: Vec::new(),
            amax: Vec::new(),
        };
        let layout = layout(rule, &parts).map_err(of_format)?;
        parts.codes = self.part(name, CODES, Stored::U8, layout.codes_bytes)?;
        let scales = layout.scale_rows * layout.scale_cols;
        parts.scales = match layout.scale_kind {
            crate::format::ScaleKind::F32 => BlockScales::F32(floats(&self.part(name, SCALES, Stored::F32, scales)?)),
            _ => BlockScales::U8(self.part(name, SCALES, Stored::U8, scales)?),
        };
        if layout.outer_len > 0 {
            parts.outer = floats(&self.part(name, OUTER, Stored::F32, layout.outer_len)?);
        }
        if let Some(expected) = *amax {
            let bytes = self.part(name, AMAX, Stored::F32, layout.amax_len)?;
            let found = Digest::of(&bytes);
            if found != expected {
                return Err(self.damaged(part_name(name, AMAX).into_owned(), expected, found));
            }
            parts.amax = floats(&bytes);
        }
        QuantizedTensor::from_parts(rule, Some(name), parts).map_err(of_format)
    }

    fn part(&self, tensor: &str, part: &'static str, dtype: Stored, length: usize) -> Result<Vec<u8>, StoreError> {
        self.array(tensor, part, &part_name(tensor, part), dtype, &[length])
    }

    fn whole(&self, tensor: &str, dtype: Stored, shape: &[usize]) -> Result<Vec<u8>, StoreError> {
        self.array(tensor, "values", tensor, dtype, shape)
    }

    fn array(
        &self,
        tensor: &str,
        part: &'static str,
        name: &str,
        dtype: Stored,
        shape: &[usize],
    ) -> Result<Vec<u8>, StoreError> {
        let Some(found) = self.tensors.find(name) else {
            return Err(self.bad_part(tensor, part, "missing".to_owned()));
        };
        if found != (dtype, shape) {
            let why = format!("{} {:?}, expected {dtype} {shape:?}", found.0, found.1);
            return Err(self.bad_part(tensor, part, why));
        }
        self.tensors.read(name).map_err(|error| StoreError::Container(Box::new(error)))
    }

    fn bad_part(&self, tensor: &str, part: &'static str, why: String) -> StoreError {
        StoreError::BadPart { path: self.path.clone(), tensor: tensor.to_owned(), part, why }
    }

    fn damaged(&self, tensor: String, expected: Digest, found: Digest) -> StoreError {
        StoreError::Damaged { path: self.path.clone(), tensor, expected, found }
    }
}

fn layout(rule: &dyn FormatRule, parts: &QuantizedParts) -> Result<TensorLayout, FormatError> {
    rule.layout(parts.rows, parts.cols, &parts.spec())
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}
