//! Quantized formats.
