//! A delta as bytes.
//!
//! ```text
//! size      field (numbers are little endian)
//!    8      "miles-d1"
//!    4      bytes of a block, u32
//!   40      stamp of the base: version, u64, and digest
//!   40      stamp of the new version
//!    4      number of changed tensors, u32; for each:
//!    2+n        bytes of its name, u16, and the name
//!   32          digest of the new tensor
//!    1          number of changed parts; for each:
//!    1              part: 0 dense elements, 1 codes, 2 block scales, 3 outer scales, 4 amax values
//!    8              bytes of the whole new part, u64
//!    4              number of runs, u32; for each:
//!    8+8+n              offset, u64, number of bytes, u64, and the bytes
//!   32      BLAKE3 of all bytes before
//! ```

use super::{Delta, DeltaError};
use crate::digest::Digest;
use crate::policy::PolicyStamp;

pub(super) const MAGIC: &[u8; 8] = b"miles-d1";
pub(super) const DIGEST_BYTES: usize = 32;

impl Delta {
    /// The bytes to send or store. [`Delta::decode`] is the way back.
    ///
    /// # Errors
    /// [`DeltaError::OverLimit`] for a name or a count that the encoding has no room for.
    pub fn encode(&self) -> Result<Vec<u8>, DeltaError> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(self.block_bytes.to_le_bytes());
        stamp(&mut bytes, self.base);
        stamp(&mut bytes, self.stamp);
        bytes.extend(count::<u32>("number of tensors", self.tensors.len(), u32::MAX.into())?.to_le_bytes());
        for tensor in &self.tensors {
            bytes.extend(count::<u16>("length of a name", tensor.name.len(), u16::MAX.into())?.to_le_bytes());
            bytes.extend(tensor.name.as_bytes());
            bytes.extend(tensor.digest.as_bytes());
            bytes.push(count("number of parts", tensor.parts.len(), u8::MAX.into())?);
            for part in &tensor.parts {
                bytes.push(part.part as u8);
                bytes.extend(part.length.to_le_bytes());
                bytes.extend(count::<u32>("number of runs", part.runs.len(), u32::MAX.into())?.to_le_bytes());
                for run in &part.runs {
                    bytes.extend(run.offset.to_le_bytes());
                    bytes.extend((run.bytes.len() as u64).to_le_bytes());
                    bytes.extend(&run.bytes);
                }
            }
        }
        let digest = Digest::of(&bytes);
        bytes.extend(digest.as_bytes());
        Ok(bytes)
    }
}

fn stamp(bytes: &mut Vec<u8>, stamp: PolicyStamp) {
    bytes.extend(stamp.version.0.to_le_bytes());
    bytes.extend(stamp.digest.as_bytes());
}

fn count<T: TryFrom<usize>>(what: &'static str, actual: usize, limit: u64) -> Result<T, DeltaError> {
    T::try_from(actual).map_err(|_| DeltaError::OverLimit { what, actual: actual as u64, limit })
}
