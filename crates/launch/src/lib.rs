//! Starts the processes of one job on several hosts, joins them, and ends them together.
//!
//! ```text
//!  command_line  what users type, of both families of launchers, as one table
//!  job           programs, hosts and slots -> which rank goes where
//!  launcher      one for a job: agents, output, signals, the end                (here)
//!  agent         one for each host: starts processes, leaves nothing behind      (there)
//!  words frame   what the two send each other
//!  pmi           the server by which ranks of MPICH's family find each other
//! ```
//! A job starts in two phases: every agent reports that it *can* start its part, then all are started. One that cannot ends it for all,
//! with nothing started anywhere.
//!
//! ```text
//!  contacting --Hello--> checking --Able--> able --(all are able) Start--> running --Over--> over
//!  any but over --(deadline; the link breaks; Unable)--> the job ends; what its agent still runs ends with the link
//! ```
#![allow(unsafe_code)]

mod agent;
mod command_line;
mod frame;
mod job;
mod launcher;
mod pmi;
mod words;

pub use agent::{AgentError, Found, Programs, run as run_agent};
pub use command_line::{Input, Typed, TypedError, help, parse};
pub use job::{Host, Job, JobError};
pub use launcher::{LaunchError, run as run_job};
pub use words::{App, End};
