//! Vocabulary of Madrigal.
#![forbid(unsafe_code)]

pub mod sync;
