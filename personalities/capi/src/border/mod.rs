//! The exported functions. Pointers from C are dereferenced only here.

mod arguments;
pub mod circuits;
pub mod engine;
pub mod errors;
mod guard;
pub mod links;
pub mod lossy;
pub mod mailboxes;
pub mod ops;
pub mod pools;
pub mod ports;
pub mod runtimes;
pub mod types;
