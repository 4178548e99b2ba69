//! Stored policies and the ledgers that vouch for them.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test stops at the first surprise")]

mod damage;
mod edited;
mod exported;
mod flips;
mod rebuilt;
