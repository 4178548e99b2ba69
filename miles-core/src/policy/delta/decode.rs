//! A delta out of bytes that anyone may have made.
//!
//! Nothing is allocated by a length that is claimed before the bytes are there: a count reserves nothing, and bytes are
//! copied from the slice at hand.

use super::encode::{DIGEST_BYTES, MAGIC};
use super::{Delta, DeltaError, DeltaPart, PartDelta, Run, TensorDelta};
use crate::checkpoint::limits::MAX_TENSORS;
use crate::digest::Digest;
use crate::policy::{PolicyStamp, PolicyVersion};

impl Delta {
    /// Reads what [`Delta::encode`] wrote. Whether it fits its base is for [`Delta::apply`] to say.
    ///
    /// # Errors
    /// [`DeltaError::Truncated`], [`DeltaError::OverLimit`], [`DeltaError::BadValue`] and [`DeltaError::Damaged`], each
    /// naming what is wrong.
    pub fn decode(bytes: &[u8]) -> Result<Self, DeltaError> {
        let Some((content, digest)) = bytes.split_last_chunk::<DIGEST_BYTES>() else {
            let (needed, left) = ((MAGIC.len() + DIGEST_BYTES) as u64, bytes.len() as u64);
            return Err(DeltaError::Truncated { what: "the header", needed, left });
        };
        let mut left = Left(content);
        let delta = left.delta()?;
        if !left.0.is_empty() {
            let found = format!("{} bytes after the last tensor", left.0.len());
            return Err(DeltaError::BadValue { what: "the end", found });
        }
        let (expected, found) = (Digest::from_bytes(*digest), Digest::of(content));
        if found == expected { Ok(delta) } else { Err(DeltaError::Damaged { expected, found }) }
    }
}

/// The bytes not read yet.
struct Left<'a>(&'a [u8]);

impl<'a> Left<'a> {
    fn delta(&mut self) -> Result<Delta, DeltaError> {
        let magic = self.array::<8>("the header")?;
        if magic != *MAGIC {
            return Err(DeltaError::BadValue {
                what: "the beginning",
                found: format!("{:?}", magic.escape_ascii().to_string()),
            });
        }
        let block_bytes = u32::from_le_bytes(self.array("the block size")?);
        if block_bytes == 0 {
            return Err(DeltaError::NoBlocks);
        }
        let base = self.stamp("the stamp of the base")?;
        let stamp = self.stamp("the stamp of the new version")?;
        let count = u32::from_le_bytes(self.array("the number of tensors")?);
        if count as usize > MAX_TENSORS {
            let (actual, limit) = (u64::from(count), MAX_TENSORS as u64);
            return Err(DeltaError::OverLimit { what: "number of tensors", actual, limit });
        }
        let tensors = (0..count).map(|_| self.tensor()).collect::<Result<_, _>>()?;
        Ok(Delta { base, stamp, block_bytes, tensors })
    }

    fn tensor(&mut self) -> Result<TensorDelta, DeltaError> {
        let length = u16::from_le_bytes(self.array("the length of a name")?);
        let name = self.bytes("the name of a tensor", length.into())?;
        let name = str::from_utf8(name).map_err(|_| {
            let found = format!("{:?}, no UTF-8", name.escape_ascii().to_string());
            DeltaError::BadValue { what: "the name of a tensor", found }
        })?;
        let digest = self.digest("the digest of a tensor")?;
        let [parts] = self.array("the number of parts")?;
        let parts = (0..parts).map(|_| self.part()).collect::<Result<_, _>>()?;
        Ok(TensorDelta { name: name.to_owned(), digest, parts })
    }

    fn part(&mut self) -> Result<PartDelta, DeltaError> {
        let [code] = self.array("the name of a part")?;
        let part = DeltaPart::ALL.get(usize::from(code)).copied();
        let part = part.ok_or_else(|| DeltaError::BadValue { what: "a part", found: format!("number {code}") })?;
        let length = u64::from_le_bytes(self.array("the length of a part")?);
        let runs = u32::from_le_bytes(self.array("the number of runs")?);
        let runs = (0..runs).map(|_| self.run()).collect::<Result<_, _>>()?;
        Ok(PartDelta { part, length, runs })
    }

    fn run(&mut self) -> Result<Run, DeltaError> {
        let offset = u64::from_le_bytes(self.array("the offset of a run")?);
        let length = u64::from_le_bytes(self.array("the length of a run")?);
        Ok(Run { offset, bytes: self.bytes("the bytes of a run", length)?.to_vec() })
    }

    fn stamp(&mut self, what: &'static str) -> Result<PolicyStamp, DeltaError> {
        let version = PolicyVersion(u64::from_le_bytes(self.array(what)?));
        Ok(PolicyStamp { version, digest: self.digest(what)? })
    }

    fn digest(&mut self, what: &'static str) -> Result<Digest, DeltaError> {
        Ok(Digest::from_bytes(self.array(what)?))
    }

    fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], DeltaError> {
        let Some((array, rest)) = self.0.split_first_chunk::<N>() else {
            return Err(DeltaError::Truncated { what, needed: N as u64, left: self.0.len() as u64 });
        };
        self.0 = rest;
        Ok(*array)
    }

    fn bytes(&mut self, what: &'static str, length: u64) -> Result<&'a [u8], DeltaError> {
        let left = self.0.len() as u64;
        let split = usize::try_from(length).ok().and_then(|length| self.0.split_at_checked(length));
        let Some((bytes, rest)) = split else {
            return Err(DeltaError::Truncated { what, needed: length, left });
        };
        self.0 = rest;
        Ok(bytes)
    }
}
