//! [`Archive`]: several files in one fuzz input.
//!
//! ```text
//! offset  size  field, repeated until the input ends
//!      0     1  index into the target's file names, modulo their number
//!      1     2  n, u16 little endian; more than what is left means all of it
//!      3     n  content
//! ```

/// Files cut out of one input; a name may come twice, the later content counts.
pub struct Archive<'a> {
    /// Name and content.
    pub files: Vec<(&'static str, &'a [u8])>,
}

impl<'a> Archive<'a> {
    /// Cuts `bytes` into files called by `names`.
    #[must_use]
    pub fn parse(mut bytes: &'a [u8], names: &[&'static str]) -> Self {
        let mut files = Vec::new();
        while let [index, low, high, rest @ ..] = bytes {
            let length = usize::from(u16::from_le_bytes([*low, *high])).min(rest.len());
            let (content, tail) = rest.split_at(length);
            files.push((names[usize::from(*index) % names.len()], content));
            bytes = tail;
        }
        Archive { files }
    }
}
