//! A differential fuzzer of SysWrap: random programs of some processes and threads, run plain and wrapped, and compared.
//!
//! ```text
//!  generate --program--> run --transcript--> compare --difference--> shrink --program--> c
//!                         |                     |
//!                 play (processes)            rules
//! ```
//! `program`, `op`, `via` are a program as data; `share` is the page its processes share; `play` (a program of its own) is one
//! process. Only `rules` lists what may differ; `allowed` decides where each rule holds.

mod allowed;
pub mod c;
pub mod compare;
pub mod found;
pub mod generate;
pub mod hunt;
pub mod op;
pub mod pattern;
pub mod program;
pub mod raw;
pub mod rng;
pub mod rules;
pub mod run;
pub mod share;
pub mod shrink;
pub mod via;
