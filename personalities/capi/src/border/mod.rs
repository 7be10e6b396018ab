//! The exported functions. Here, and only here, pointers of C's are looked behind.

mod arguments;
pub mod circuits;
pub mod engine;
pub mod errors;
mod guard;
pub mod links;
pub mod ops;
pub mod runtimes;
pub mod types;
