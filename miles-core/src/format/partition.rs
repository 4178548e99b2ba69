//! [`Partition`]: how a matrix is cut into shards that are quantized apart.
//!
//! Expert tensor parallelism gives each rank a slice of every expert matrix, and each rank quantizes what it holds. A
//! scale that covers the whole matrix then covers one shard only, so the cut decides bytes and belongs to the spec:
//!
//! ```text
//! whole     [rows, cols]     one outer scale
//! rows x 2  [rows / 2, cols] one outer scale per shard, stacked
//! cols x 2  [rows, cols / 2] one outer scale per shard, side by side; the reduction dimension itself is cut
//! ```
//!
//! Shards are of equal size and are cut between blocks, never through one. Block scales and per-row outer scales of a
//! `rows` cut are then those of the whole matrix; an outer scale of the tensor is the shard's own (as it is on a rank
//! that never sees the rest).

use std::fmt;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::{FormatError, FormatId};

/// Which dimension of a `[rows, cols]` matrix is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cut {
    /// Each shard has some of the rows.
    Rows,
    /// Each shard has some of the columns.
    Cols,
}

/// How a matrix is cut, and whether the tensor at hand is all of it or one shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Partition {
    cut: Cut,
    shards: u16,
    /// The shard at hand; `None`: all of them, joined.
    shard: Option<u16>,
}

impl Partition {
    /// Not cut at all.
    pub const WHOLE: Self = Self { cut: Cut::Rows, shards: 1, shard: None };

    /// All of a matrix, quantized as `shards` equal shards. One shard is [`WHOLE`](Self::WHOLE).
    ///
    /// # Errors
    /// [`FormatError::NoShards`] for 0 shards.
    pub const fn new(cut: Cut, shards: u16) -> Result<Self, FormatError> {
        match shards {
            0 => Err(FormatError::NoShards),
            1 => Ok(Self::WHOLE),
            _ => Ok(Self { cut, shards, shard: None }),
        }
    }

    /// Shard number `shard` of this cut: the source is that slice alone. The one shard of a whole matrix is the whole.
    ///
    /// # Errors
    /// [`FormatError::NoSuchShard`] when there are not that many.
    pub const fn shard(self, shard: u16) -> Result<Self, FormatError> {
        if shard >= self.shards {
            return Err(FormatError::NoSuchShard { shard, shards: self.shards });
        }
        if self.is_whole() { Ok(self) } else { Ok(Self { shard: Some(shard), ..self }) }
    }

    /// Which dimension is cut.
    #[must_use]
    pub const fn cut(self) -> Cut {
        self.cut
    }

    /// Number of shards that the whole matrix has.
    #[must_use]
    pub const fn shards(self) -> u16 {
        self.shards
    }

    /// The shard that the tensor at hand is; `None` when it is the whole matrix.
    #[must_use]
    pub const fn shard_index(self) -> Option<u16> {
        self.shard
    }

    /// Whether the matrix is not cut.
    #[must_use]
    pub const fn is_whole(self) -> bool {
        self.shards == 1
    }

    /// Number of shards within the tensor at hand.
    #[must_use]
    pub const fn shards_here(self) -> usize {
        if self.shard.is_some() { 1 } else { self.shards as usize }
    }

    /// The shard, among those of the tensor at hand, that (`row`, `col`) of a `[rows, cols]` tensor belongs to.
    ///
    /// Call it after [`check`](Self::check) of the same shape.
    #[must_use]
    pub fn shard_of(self, row: usize, col: usize, rows: usize, cols: usize) -> usize {
        match self.cut {
            Cut::Rows => row / (rows / self.shards_here()).max(1),
            Cut::Cols => col / (cols / self.shards_here()).max(1),
        }
    }

    /// Rows and columns of shard number `shard` among those of a `[rows, cols]` tensor at hand.
    #[must_use]
    pub const fn range(self, shard: usize, rows: usize, cols: usize) -> (Range<usize>, Range<usize>) {
        match self.cut {
            Cut::Rows => {
                let height = rows / self.shards_here();
                (shard * height..(shard + 1) * height, 0..cols)
            }
            Cut::Cols => {
                let width = cols / self.shards_here();
                (0..rows, shard * width..(shard + 1) * width)
            }
        }
    }

    /// Refuses a `[rows, cols]` tensor at hand that does not fall into equal shards of whole blocks, each block being
    /// `block_rows` x `block_cols`.
    ///
    /// # Errors
    /// [`FormatError::UnevenShards`].
    pub fn check(
        self,
        format: &FormatId,
        (rows, cols): (usize, usize),
        (block_rows, block_cols): (usize, usize),
    ) -> Result<(), FormatError> {
        if self.is_whole() {
            return Ok(());
        }
        let (length, block) = match self.cut {
            Cut::Rows => (rows, block_rows),
            Cut::Cols => (cols, block_cols),
        };
        if length % (self.shards_here() * block) == 0 {
            return Ok(());
        }
        Err(FormatError::UnevenShards { format: format.clone(), partition: self, length, block })
    }
}

impl Default for Partition {
    fn default() -> Self {
        Self::WHOLE
    }
}

impl fmt::Display for Partition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_whole() {
            return f.write_str("whole");
        }
        let cut = match self.cut {
            Cut::Rows => "rows",
            Cut::Cols => "columns",
        };
        match self.shard {
            None => write!(f, "{cut} x {}", self.shards),
            Some(shard) => write!(f, "shard {shard} of {cut} x {}", self.shards),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_shard_is_the_whole_and_no_shard_is_refused() {
        assert_eq!(Partition::new(Cut::Cols, 1).unwrap(), Partition::WHOLE);
        assert_eq!(Partition::WHOLE.shard(0).unwrap(), Partition::WHOLE);
        assert_eq!(Partition::new(Cut::Cols, 0), Err(FormatError::NoShards));
        let two = Partition::new(Cut::Cols, 2).unwrap();
        assert_eq!(two.shard(2), Err(FormatError::NoSuchShard { shard: 2, shards: 2 }));
        assert_eq!(two.shard(1).unwrap().to_string(), "shard 1 of columns x 2");
    }

    #[test]
    fn shards_are_equal_and_cut_between_blocks() {
        let (format, four) = (FormatId::nvfp4(), Partition::new(Cut::Cols, 4).unwrap());
        assert!(four.check(&format, (5, 64), (1, 16)).is_ok());
        let error = four.check(&format, (5, 96), (1, 16)).unwrap_err();
        assert!(error.to_string().contains("columns x 4"), "{error}");
        assert_eq!(four.range(2, 5, 64), (0..5, 32..48));
        assert_eq!(four.shard_of(3, 47, 5, 64), 2);
        // A rank that holds one shard sees a narrow tensor of its own.
        let third = four.shard(2).unwrap();
        assert!(third.check(&format, (5, 16), (1, 16)).is_ok());
        assert_eq!((third.shards_here(), third.shard_of(3, 15, 5, 16)), (1, 0));
    }
}
