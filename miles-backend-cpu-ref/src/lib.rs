//! The CPU reference backend.
