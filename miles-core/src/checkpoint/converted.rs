//! The directory that a model becomes under a precision map, planned from headers alone.

use std::collections::BTreeMap;

use safetensors::Dtype as StoredDtype;

use super::directory::{Description, DirectoryPlan, common_layout, parameter_tensors};
use super::error::CheckpointError;
use super::input_scales::NEUTRAL;
use super::kept::kept_modules;
use super::layout::{constant_bytes, layout_of_spec};
use super::plan::{self, Piece, PlannedTensor};
use super::reader::TensorRef;
use super::{Mxfp8Layout, StoredModel};
use crate::model::huggingface::StoredLayout;
use crate::network::ParamId;
use crate::precision::{PrecisionMap, TensorFormat};
use crate::tensor::Dtype;

/// A directory to be written, and what its tensors are made from.
pub(crate) struct ConvertedDirectory {
    pub(crate) plan: DirectoryPlan,
    input_scales: BTreeMap<String, f32>,
}

impl StoredModel {
    /// Plans the directory of this model under `map`, which is over its [`inventory`](Self::inventory).
    pub(crate) fn converted(
        &self,
        map: &PrecisionMap,
        (max_shard_bytes, mxfp8): (u64, Mxfp8Layout),
    ) -> Result<ConvertedDirectory, CheckpointError> {
        let policy = self.inventory();
        let layout = common_layout(policy, |id| {
            let parameter = policy.parameter(id);
            let spec = map.weight_spec(id)?;
            Some(layout_of_spec(&parameter.name, &spec, parameter.rows_cols().into()))
        })?
        .map(|layout| mxfp8.named(layout));
        let mut tensors = Vec::new();
        for id in policy.ids() {
            tensors.extend(parameter_tensors(policy, id, dense_dtype(map, id), layout)?);
        }
        for id in self.all().ids().skip(policy.parameters.len()) {
            tensors.push(plan::dense(self.all().parameter(id), id, self.carried_dtype(id)));
        }
        for tensor in &mut tensors {
            tensor.name = self.spell(&tensor.name);
        }
        let mut kept = kept_modules(policy, self.beside(), |id| dense_dtype(map, id).is_some());
        kept.iter_mut().for_each(|module| *module = self.spell(module));
        for tensor in self.other() {
            let carried = self.carried(*tensor)?;
            kept.extend(carried.name.strip_suffix(".weight").filter(|_| carried.shape.len() > 1).map(str::to_owned));
            tensors.push(carried);
        }
        kept.sort_unstable();
        let embedding = policy.find("model.embed_tokens.weight").and_then(|id| dense_dtype(map, id));
        let description =
            Description { dtype: embedding.unwrap_or(Dtype::Bf16), layout: layout.map(|layout| (layout, kept)) };
        let input_scales = match layout {
            Some(StoredLayout::Nvfp4) => self.input_scales()?,
            _ => BTreeMap::new(),
        };
        let plan = DirectoryPlan::new(tensors, max_shard_bytes, self.config(), &description);
        Ok(ConvertedDirectory { plan, input_scales })
    }

    /// The number type in which a parameter beside the policy is carried along.
    pub(crate) fn carried_dtype(&self, id: ParamId) -> Dtype {
        match self.stored_format(id) {
            TensorFormat::Dense(dtype) => dtype,
            TensorFormat::Quantized(_) => Dtype::Bf16,
        }
    }

    /// A tensor that is copied byte for byte. Codes are refused: their scales would mean something else in a directory
    /// that declares another layout.
    fn carried(&self, tensor: TensorRef) -> Result<PlannedTensor, CheckpointError> {
        let info = self.bound().stored.info(tensor);
        if !matches!(info.dtype, StoredDtype::F32 | StoredDtype::F16 | StoredDtype::BF16) {
            return Err(CheckpointError::WrongDtype {
                path: self.bound().stored.path(tensor).to_owned(),
                tensor: info.name.clone(),
                expected: "F32, F16 or BF16",
                found: info.dtype.to_string(),
            });
        }
        let (name, dtype, shape) = (info.name.clone(), info.dtype, info.shape.clone());
        Ok(PlannedTensor { name, dtype, shape, pieces: vec![Piece::Other(tensor)] })
    }
}

impl ConvertedDirectory {
    /// The bytes of a part that does not depend on any value of the weight; `None` for any other part.
    pub(crate) fn constant(&self, model: &StoredModel, id: ParamId, part: &plan::StoredPart) -> Option<Vec<u8>> {
        let parameter = model.inventory().parameter(id);
        let input_scale = self.input_scales.get(&parameter.name).copied().unwrap_or(NEUTRAL);
        constant_bytes(part, parameter.rows_cols().into(), input_scale)
    }
}

fn dense_dtype(map: &PrecisionMap, id: ParamId) -> Option<Dtype> {
    match map.entry(id).format {
        TensorFormat::Dense(dtype) => Some(dtype),
        TensorFormat::Quantized(_) => None,
    }
}
