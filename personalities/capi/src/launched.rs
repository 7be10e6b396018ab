//! The addresses of all processes that one launcher started, which carries them by PMI-1: lines of `key=value` on the descriptor PMI_FD, of
//! MPICH's mpiexec and those made from it, and of `madrigal run`. A process without a launcher is a group of one.
//!
//! A launcher answers one library of a process, once.

use core::sync::atomic::{AtomicBool, Ordering};
use std::os::fd::BorrowedFd;

use madrigal::time;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::SendFlags;

use crate::codes::*;
use crate::failure::Failure;

/// The variables with rank and size: of PMI-1 (MPICH and those made from it, `madrigal run`), of Open MPI, of Slurm.
const PLACES: [[&str; 2]; 3] =
    [["PMI_RANK", "PMI_SIZE"], ["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"], ["SLURM_PROCID", "SLURM_NTASKS"]];

/// Bytes of a line, at most.
const LONGEST: usize = 64 << 10;

/// What every process of the job gives, by rank; `own` is ours.
pub(crate) fn exchange(own: &[u8], deadline: Option<u64>) -> Result<Vec<Vec<u8>>, Failure> {
    static ASKED: AtomicBool = AtomicBool::new(false);
    let Some(fd) = number("PMI_FD")? else {
        return if std::env::var_os("PMIX_NAMESPACE").is_some() {
            Err(unusable(
                "the launcher speaks PMIx only: bring the addresses of mdg_circuit_address() to all processes by an MPI",
            ))
        } else {
            Ok(vec![own.to_vec()])
        };
    };
    let (Some(rank), Some(size)) = (number("PMI_RANK")?, number("PMI_SIZE")?) else {
        return Err(unusable("the launcher gives PMI_FD, and no PMI_RANK or PMI_SIZE"));
    };
    if ASKED.swap(true, Ordering::Relaxed) {
        return Err(Failure::new(MDG_EBUSY, "the launcher was asked before, and answers once"));
    }
    // SAFETY: the launcher's descriptor, which is open as long as this process does not close it; a closed one is an error below.
    let launcher = Launcher { fd: unsafe { BorrowedFd::borrow_raw(fd) }, deadline, rest: Vec::new() };
    launcher.exchange(rank, size, own)
}

/// The rank of this process and the size of its job, as MPI's launchers and Slurm's srun give them; `None` without a launcher.
pub(crate) fn place() -> Result<Option<(u32, u32)>, Failure> {
    for [rank, size] in PLACES {
        if let (Some(rank), Some(size)) = (number(rank)?, number(size)?) {
            return Ok(Some((rank.unsigned_abs(), size.unsigned_abs())));
        }
    }
    Ok(None)
}

/// A variable of the environment that is a number.
fn number(name: &str) -> Result<Option<i32>, Failure> {
    let Ok(text) = std::env::var(name) else { return Ok(None) };
    let number = text.parse().ok().filter(|number| *number >= 0);
    number.map(Some).ok_or_else(|| unusable(&format!("{name} is `{text}`, and no number")))
}

fn unusable(text: &str) -> Failure {
    Failure::new(MDG_EUNUSABLE, text)
}

struct Launcher<'a> {
    fd: BorrowedFd<'a>,
    deadline: Option<u64>,
    /// What came behind the last line.
    rest: Vec<u8>,
}

impl Launcher<'_> {
    fn exchange(mut self, rank: i32, size: i32, own: &[u8]) -> Result<Vec<Vec<u8>>, Failure> {
        self.ask("init pmi_version=1 pmi_subversion=1", "response_to_init", "rc")?;
        let space = self.ask("get_my_kvsname", "my_kvsname", "kvsname")?;
        let text: String = own.iter().map(|byte| format!("{byte:02x}")).collect();
        self.ask(&format!("put kvsname={space} key=madrigal.address.{rank} value={text}"), "put_result", "rc")?;
        self.ask("barrier_in", "barrier_out", "cmd")?;
        let mut all = Vec::new();
        for node in 0..size {
            let request = format!("get kvsname={space} key=madrigal.address.{node}");
            let text = self.ask(&request, "get_result", "value")?;
            all.push(bytes(&text).ok_or_else(|| unusable(&format!("rank {node} has the address `{text}`")))?);
        }
        // No process ends while others still send requests.
        self.ask("barrier_in", "barrier_out", "cmd")?;
        self.ask("finalize", "finalize_ack", "cmd")?;
        Ok(all)
    }

    /// A request, and of its answer what has this key.
    fn ask(&mut self, request: &str, answer: &str, key: &str) -> Result<String, Failure> {
        self.write(&format!("cmd={request}\n"))?;
        let line = self.line()?;
        let value = |key: &str| {
            line.split_whitespace()
                .find_map(|pair| pair.split_once('=').filter(|(name, _)| *name == key))
                .map(|(_, value)| value)
        };
        match (value("cmd"), value("rc"), value(key)) {
            (Some(cmd), None | Some("0"), Some(value)) if cmd == answer => Ok(value.to_owned()),
            _ => Err(unusable(&format!("the launcher answered `{line}` to `{request}`"))),
        }
    }

    fn write(&self, mut text: &str) -> Result<(), Failure> {
        while !text.is_empty() {
            // The program must not get SIGPIPE for it.
            let sent = match rustix::net::send(self.fd, text.as_bytes(), SendFlags::NOSIGNAL) {
                Err(Errno::NOTSOCK) => rustix::io::write(self.fd, text.as_bytes()),
                sent => sent,
            };
            match sent {
                Ok(count) => text = text.get(count..).unwrap_or_default(),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => self.wait(PollFlags::OUT)?,
                Err(errno) => return Err(failed(errno)),
            }
        }
        Ok(())
    }

    /// The next line, without its end.
    fn line(&mut self) -> Result<String, Failure> {
        loop {
            if let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.rest.drain(..=end).collect();
                return Ok(String::from_utf8_lossy(&line).trim_end().to_owned());
            }
            if self.rest.len() > LONGEST {
                return Err(unusable("the launcher sends a line without end"));
            }
            self.wait(PollFlags::IN)?;
            let mut buffer = [0; 4096];
            match rustix::io::read(self.fd, &mut buffer) {
                Ok(0) => return Err(Failure::new(MDG_ELOST, "the launcher has closed PMI_FD")),
                Ok(count) => self.rest.extend_from_slice(buffer.get(..count).unwrap_or_default()),
                Err(Errno::INTR | Errno::AGAIN) => {}
                Err(errno) => return Err(failed(errno)),
            }
        }
    }

    /// Until the descriptor is ready.
    fn wait(&self, events: PollFlags) -> Result<(), Failure> {
        loop {
            let left = self.deadline.map(|at| at.saturating_sub(time::now_ns()));
            let timeout = left.map(|ns| Timespec {
                tv_sec: i64::try_from(ns / 1_000_000_000).unwrap_or(i64::MAX),
                tv_nsec: (ns % 1_000_000_000) as i64,
            });
            match poll(&mut [PollFd::new(&self.fd, events)], timeout.as_ref()) {
                Ok(0) => {
                    return Err(Failure::new(
                        MDG_ETIMEDOUT,
                        "not every process of the job has asked for the others in time",
                    ));
                }
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(failed(errno)),
            }
        }
    }
}

fn failed(errno: Errno) -> Failure {
    Failure::system(errno.raw_os_error(), "the launcher's descriptor, PMI_FD")
}

/// What hexadecimal digits stand for.
fn bytes(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes().chunks(2);
    digits
        .map(|two| u8::from_str_radix(core::str::from_utf8(two).ok().filter(|two| two.len() == 2)?, 16).ok())
        .collect()
}
