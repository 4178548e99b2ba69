//! Where kernels run: the instruction set and the thread pool, both chosen once by the caller.
//!
//! Neither changes a bit of any result; they are values passed in, never read from the environment.

use std::num::NonZeroUsize;
use std::sync::Arc;

use rayon::prelude::*;
use rayon::{ThreadPool, ThreadPoolBuildError, ThreadPoolBuilder};

/// An instruction set that is known to exist on this machine.
///
/// The AVX2 value can only come from [`Isa::detect`], so holding one proves that the processor has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Isa(Set);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Set {
    Scalar,
    #[cfg(target_arch = "x86_64")]
    Avx2Fma,
}

impl Isa {
    /// The build target's own baseline: runs everywhere and is the reference for the others.
    pub const SCALAR: Isa = Isa(Set::Scalar);

    /// The best instruction set of this machine.
    #[must_use]
    pub fn detect() -> Isa {
        #[cfg(target_arch = "x86_64")]
        if std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma") {
            return Isa(Set::Avx2Fma);
        }
        Isa::SCALAR
    }

    /// A short name for reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self.0 {
            Set::Scalar => "scalar",
            #[cfg(target_arch = "x86_64")]
            Set::Avx2Fma => "avx2+fma",
        }
    }

    /// Whether hand-written AVX2 code may be called.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn has_avx2_fma(self) -> bool {
        self.0 == Set::Avx2Fma
    }

    /// Runs `body` compiled for this instruction set.
    ///
    /// The body and all it calls must be `#[inline(always)]`, otherwise they keep the baseline instructions (slower, same bits).
    #[inline(always)]
    pub(crate) fn run<R>(self, body: impl FnOnce() -> R) -> R {
        match self.0 {
            Set::Scalar => body(),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: `Set::Avx2Fma` is only made by `Isa::detect` after both features were found.
            Set::Avx2Fma => unsafe { run_avx2_fma(body) },
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn run_avx2_fma<R>(body: impl FnOnce() -> R) -> R {
    body()
}

/// An instruction set and a thread pool.
#[derive(Clone, Debug)]
pub struct Compute {
    isa: Isa,
    pool: Arc<ThreadPool>,
}

impl Compute {
    /// The best instruction set of this machine and a pool of `threads` threads of its own.
    ///
    /// # Errors
    /// When the operating system refuses the threads.
    pub fn new(threads: NonZeroUsize) -> Result<Compute, ThreadPoolBuildError> {
        let pool = ThreadPoolBuilder::new().num_threads(threads.get()).build()?;
        Ok(Compute { isa: Isa::detect(), pool: Arc::new(pool) })
    }

    /// A given instruction set and a shared pool.
    #[must_use]
    pub fn from_parts(isa: Isa, pool: Arc<ThreadPool>) -> Compute {
        Compute { isa, pool }
    }

    /// The instruction set.
    #[must_use]
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// The thread pool; a caller that runs many kernels in a row saves wake-ups by doing so inside [`ThreadPool::install`].
    #[must_use]
    pub fn pool(&self) -> &Arc<ThreadPool> {
        &self.pool
    }

    /// The number of threads.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.pool.current_num_threads()
    }

    /// Runs `work` once per task, on the pool when there is more than one.
    pub(crate) fn for_each<T: Send>(&self, tasks: Vec<T>, work: impl Fn(T) + Send + Sync) {
        if tasks.len() <= 1 || self.threads() == 1 {
            tasks.into_iter().for_each(work);
        } else {
            self.pool.install(|| tasks.into_par_iter().with_max_len(1).for_each(work));
        }
    }

    /// Runs `work(first_row, rows)` over pieces of `data` cut at multiples of `cols`; a piece is worth about
    /// [`PIECE_ELEMENTS`] elements, so short inputs stay on the calling thread.
    pub(crate) fn for_row_pieces<T: Send>(
        &self,
        data: &mut [T],
        cols: usize,
        work: impl Fn(usize, &mut [T]) + Send + Sync,
    ) {
        let rows_per_piece = (PIECE_ELEMENTS / cols.max(1)).max(1);
        let pieces = data.chunks_mut((rows_per_piece * cols).max(1)).enumerate();
        self.for_each(pieces.collect(), |(index, piece)| work(index * rows_per_piece, piece));
    }
}

/// Elements of a row-wise piece of work: large enough to hide the cost of handing it to another thread.
pub(crate) const PIECE_ELEMENTS: usize = 16 * 1024;
