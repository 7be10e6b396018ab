//! Madrigal for C, and for every language that can call C: `libmadrigal.so`, `madrigal.h`, `madrigal.pc`.
//!
//! The header is generated from this source (`tools/header`): the comment of an exported function is its contract. The exported
//! functions are in `border`; everything else is safe code about Rust's own types.
//!
//! ```text
//!   border      the exported functions: pointers become references, handles become objects, failures become codes
//!      |
//!   object      what a handle stands for, and the one table of them
//!      |
//!   runtime  link  listeners  dial  op  circuit  ports  lossy  mailboxes  pool  sources  watcher  why     the objects
//!      |
//!   launched    the other processes of a launcher's job
//!   table       handles: found without a lock, distinguished by kind and age
//!   failure     codes and their texts;  fork  detects a child of fork(2)
//! ```
//! Rules: nothing unwinds into C; a handle that was closed, never was, or is of another kind is an error, as is any call of a forked
//! child; nothing is printed, and no thread is made but the one of [`border::engine::mdg_fd`].
#![allow(unsafe_code)]
#![allow(clippy::missing_safety_doc, reason = "the comment of an exported function is its contract, for C")]

pub mod border;
mod circuit;
mod classes;
pub mod codes;
mod dial;
mod failure;
mod fork;
mod launched;
mod link;
mod listeners;
mod lossy;
mod mailboxes;
mod object;
mod op;
mod pool;
mod ports;
mod runtime;
mod slot;
mod sources;
mod table;
mod watcher;
mod why;
