//! Shared memory between two processes of one user on one host.
#![allow(unsafe_code)]

pub mod arena;
pub mod layout;
pub mod ring;
