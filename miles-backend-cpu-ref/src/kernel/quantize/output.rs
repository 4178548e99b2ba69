//! [`Output`]: result vectors that are written once instead of being cleared first.

use std::mem::MaybeUninit;

/// Room for a known number of elements, none of them written yet.
pub(crate) struct Output<T> {
    room: Vec<T>,
    len: usize,
}

impl<T: Copy> Output<T> {
    /// Room for `len` elements.
    pub fn new(len: usize) -> Self {
        Output { room: Vec::with_capacity(len), len }
    }

    /// The places to write.
    pub fn slots(&mut self) -> &mut [MaybeUninit<T>] {
        &mut self.room.spare_capacity_mut()[..self.len]
    }

    /// The elements.
    ///
    /// # Safety
    /// Every place of [`slots`](Self::slots) has been written.
    pub unsafe fn written(mut self) -> Vec<T> {
        // SAFETY: `len` is within the capacity, and the caller vouches for the elements.
        unsafe { self.room.set_len(self.len) };
        self.room
    }
}
