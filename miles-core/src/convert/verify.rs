//! Recomputes every digest of a converted directory from its bytes.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use super::budget::Budget;
use super::error::ConvertError;
use super::stream::CHUNK_BYTES;
use super::{ConvertOptions, Progress};
use crate::Result;
use crate::checkpoint::reader::TensorRef;
use crate::checkpoint::{CheckpointError, ContractError, ContractSidecar, StoredModel};
use crate::digest::Digest;
use crate::error::Error;
use crate::network::ParamId;
use crate::policy::FileDigest;
use crate::tensor::DenseTensor;

/// A directory whose bytes are those of its contract.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verified {
    /// The contract.
    pub contract: ContractSidecar,
    /// Tensors that were hashed.
    pub tensors: usize,
    /// Files that were hashed.
    pub files: usize,
    /// Bytes of these files.
    pub bytes: u64,
}

/// Checks a directory against its contract sidecar: that the digests of the sidecar follow from each other, that every
/// tensor has its digest, and that every file has its own. `options` give threads and budget.
///
/// # Errors
/// [`ConvertError::NoContract`] without a sidecar, [`CheckpointError::Contract`] with the first tensor or file that
/// differs, and whatever keeps the directory from being read.
pub fn verify(dir: &Path, options: &ConvertOptions, progress: &(dyn Fn(Progress) + Sync)) -> Result<Verified> {
    let model = StoredModel::open(dir)?;
    let Some(contract) = model.bound().contract().cloned() else {
        return Err(ConvertError::NoContract { dir: dir.to_owned() }.into());
    };
    let failed = |source| CheckpointError::Contract { dir: dir.to_owned(), source: Box::new(source) };
    let items = items(&model, &contract).map_err(failed)?;
    let budget = Budget::new(options.budget_bytes);
    let check = |item: &Item| -> Result<()> {
        let _held = budget.take(item.need_bytes(&model).min(options.budget_bytes));
        item.check(&model, &contract)
    };
    in_parallel(&items, options.threads.get(), check, |done_units| {
        let (done_bytes, total_bytes) = (done_units as u64, items.len() as u64);
        progress(Progress { done_bytes, total_bytes, done_units, units: items.len() });
    })?;
    let files = items.iter().filter(|item| matches!(item, Item::File(_))).count();
    let bytes = contract.files.values().map(|file| file.bytes).sum();
    Ok(Verified { tensors: items.len() - files, files, bytes, contract })
}

/// Something with a digest.
enum Item {
    /// A parameter; its digest is checked whenever it is read.
    Parameter(ParamId),
    /// A parameter beside the policy.
    Beside(ParamId),
    Other(TensorRef),
    File(String),
}

/// Everything that the contract lists, tensors first: an error about a tensor says more than one about its file.
fn items(model: &StoredModel, contract: &ContractSidecar) -> Result<Vec<Item>, ContractError> {
    let policy = model.inventory().parameters.len();
    let mut items: Vec<Item> = model.inventory().ids().map(Item::Parameter).collect();
    items.extend(model.all().ids().skip(policy).map(Item::Beside));
    items.extend(model.other().iter().copied().map(Item::Other));
    for item in &items[policy..] {
        let name = item.name(model);
        if !contract.beside.contains_key(name) {
            return Err(ContractError::TensorSet { tensor: name.to_owned(), place: "in the directory, but not here" });
        }
    }
    let found = |name: &String| items[policy..].iter().any(|item| item.name(model) == name);
    if let Some(name) = contract.beside.keys().find(|name| !found(name)) {
        return Err(ContractError::TensorSet { tensor: name.clone(), place: "listed here, but not in the directory" });
    }
    items.extend(contract.files.keys().cloned().map(Item::File));
    Ok(items)
}

impl Item {
    fn name<'a>(&'a self, model: &'a StoredModel) -> &'a str {
        match self {
            Item::Parameter(id) | Item::Beside(id) => &model.all().parameter(*id).name,
            Item::Other(tensor) => model.bound().name(*tensor),
            Item::File(name) => name,
        }
    }

    fn need_bytes(&self, model: &StoredModel) -> u64 {
        match self {
            Item::Parameter(id) | Item::Beside(id) if model.bound().in_one_piece(*id).is_none() => {
                2 * model.bound().source_bytes(*id, model.all().parameter(*id))
            }
            _ => CHUNK_BYTES as u64,
        }
    }

    fn check(&self, model: &StoredModel, contract: &ContractSidecar) -> Result<()> {
        let failed = |source| CheckpointError::Contract { dir: model.dir().to_owned(), source: Box::new(source) };
        match self {
            Item::Parameter(id) => match hashed_in_chunks(model, *id)? {
                Some(digest) => Ok(model.bound().check_digest(model.all().parameter(*id), || digest)?),
                None => Ok(model.read_stored(*id).map(drop)?),
            },
            Item::Beside(id) => {
                let digest = match hashed_in_chunks(model, *id)? {
                    Some(digest) => digest,
                    None => model.read_stored(*id)?.digest(),
                };
                let name = self.name(model);
                Ok(ContractSidecar::check_digest(name, contract.beside[name], digest).map_err(failed)?)
            }
            Item::Other(tensor) => {
                let digest = model.bound().hash_bytes(*tensor, CHUNK_BYTES)?;
                let name = self.name(model);
                Ok(ContractSidecar::check_digest(name, contract.beside[name], digest).map_err(failed)?)
            }
            Item::File(name) => {
                let (path, recorded) = (model.dir().join(name), contract.files[name]);
                if !path.is_file() {
                    return Err(failed(ContractError::MissingFile { file: name.clone() }).into());
                }
                let found = FileDigest::of(&path)?;
                if found == recorded {
                    return Ok(());
                }
                let error = ContractError::FileDigest {
                    file: name.clone(),
                    recorded_bytes: recorded.bytes,
                    recorded: recorded.digest,
                    found_bytes: found.bytes,
                    found: found.digest,
                };
                Err(failed(error).into())
            }
        }
    }
}

/// The digest of a parameter that is stored in high precision in one piece, without holding it; `None` for any other.
fn hashed_in_chunks(model: &StoredModel, id: ParamId) -> Result<Option<Digest>, CheckpointError> {
    let Some(dtype) = model.bound().in_one_piece(id) else { return Ok(None) };
    let parameter = model.all().parameter(id);
    let mut hasher = DenseTensor::hasher(dtype, &parameter.shape);
    let (elements, step) = (parameter.elements(), CHUNK_BYTES / dtype.element_bytes());
    let mut chunk = vec![0; step.min(elements) * dtype.element_bytes()];
    for first in (0..elements).step_by(step) {
        let chunk = &mut chunk[..step.min(elements - first) * dtype.element_bytes()];
        model.bound().read_elements(id, parameter, first, chunk)?;
        hasher.update(chunk);
    }
    Ok(Some(hasher.finalize().into()))
}

/// Does `check` for every item and reports the error of the first one that fails.
fn in_parallel<T: Sync>(
    items: &[T],
    threads: usize,
    check: impl Fn(&T) -> Result<()> + Sync,
    done: impl Fn(usize) + Sync,
) -> Result<()> {
    let (next, finished, failed) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicBool::new(false));
    let first_error: Mutex<Option<(usize, Error)>> = Mutex::new(None);
    let work = || {
        while !failed.load(Ordering::Relaxed) {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(index) else { return };
            if let Err(error) = check(item) {
                let mut first = first_error.lock().unwrap_or_else(PoisonError::into_inner);
                if first.as_ref().is_none_or(|(other, _)| index < *other) {
                    *first = Some((index, error));
                }
                failed.store(true, Ordering::Relaxed);
                return;
            }
            done(finished.fetch_add(1, Ordering::Relaxed) + 1);
        }
    };
    thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
    first_error.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), |(_, error)| Err(error))
}
