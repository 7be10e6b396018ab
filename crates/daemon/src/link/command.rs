//! A command whose input and output carry a link: `via` in grid.toml, for instance `ssh {host} madrigal link`. Its standard error has the
//! reason of a failure.

use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::process::{Pid, Signal};

use crate::poll::Token;
use crate::socket::{self, Recv};

/// Bytes of standard error that are kept while the command runs: the last ones.
const STDERR_KEPT: usize = 300;

/// A command that runs.
pub(crate) struct LinkCommand {
    child: Child,
    pub(crate) stderr: OwnedFd,
    /// The token of `stderr`.
    pub(crate) token: Token,
    written: Vec<u8>,
}

impl LinkCommand {
    /// Starts a command in a process group of its own. Returns the socket that is its input and output.
    pub(crate) fn start(via: &str, token: Token) -> Result<(OwnedFd, Self), Errno> {
        let pair = || rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None);
        let ((ours, theirs), (stderr, output_of_errors)) = (pair()?, pair()?);
        let output = theirs.try_clone().map_err(|error| errno_of(&error))?;
        let mut command = Command::new("/bin/sh");
        command.args(["-c", via]).stdin(Stdio::from(theirs)).stdout(Stdio::from(output));
        command.stderr(Stdio::from(output_of_errors));
        let child = command.process_group(0).spawn().map_err(|error| errno_of(&error))?;
        Ok((ours, Self { child, stderr, token, written: Vec::new() }))
    }

    /// Reads what it has written to standard error.
    pub(crate) fn read_stderr(&mut self) {
        self.drain_stderr(STDERR_KEPT);
    }

    fn drain_stderr(&mut self, most: usize) {
        let mut buffer = [0; 1024];
        while let Ok(Recv::Bytes(count)) = socket::recv(&self.stderr, &mut buffer) {
            self.written.extend_from_slice(buffer.get(..count).unwrap_or_default());
            let surplus = self.written.len().saturating_sub(most);
            self.written.drain(..surplus);
        }
    }

    /// Why it failed: the last line that it wrote, or else its exit status, if it has exited.
    pub(crate) fn failure(&mut self) -> Option<String> {
        self.drain_stderr(usize::MAX);
        let exited = self.child.try_wait().ok().flatten();
        self.last_line().or_else(|| exited.map(|status| format!("the command ended: {status}")))
    }

    fn last_line(&self) -> Option<String> {
        let written = String::from_utf8_lossy(&self.written).into_owned();
        written.lines().map(str::trim).rfind(|line| !line.is_empty()).map(str::to_owned)
    }

    /// Sends SIGTERM to its process group. The caller has to wait for the child.
    pub(crate) fn terminate(self) -> Child {
        if let Some(group) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            // The child is not reaped yet: its number is not in use again.
            let _ = rustix::process::kill_process_group(group, Signal::TERM);
        }
        self.child
    }
}

fn errno_of(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}
