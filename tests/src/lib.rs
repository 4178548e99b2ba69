//! Holds no code of its own: every promise is a file beside `src`.
