//! Copies between the memories of two processes by one system call (process_vm_readv(2)), tested by use: what a process may do to another
//! depends on namespaces, user, security modules and sandboxes, and no rule predicts it.

use core::sync::atomic::{AtomicU64, Ordering};

use madrigal_progress::message::SingleCopy;
use madrigal_sys::raw::{self, Piece};
use madrigal_sys::{Errno, process};

/// Pieces handed to the kernel at once.
const BATCH: usize = 64;

/// What peers read to know that they reached this process and no other of the same number.
pub(super) struct Nonce(Box<[AtomicU64; 2]>);

impl Nonce {
    /// A fresh one.
    pub(super) fn new() -> Self {
        Self(Box::new([AtomicU64::new(process::random()), AtomicU64::new(process::random())]))
    }

    /// Where it lies.
    pub(super) fn address(&self) -> u64 {
        self.0.as_ptr().addr() as u64
    }

    /// What it is.
    pub(super) fn value(&self) -> [u64; 2] {
        self.0.each_ref().map(|word| word.load(Ordering::Relaxed))
    }
}

/// Whether the memory of process `pid` can be read and written, and belongs to the process that sent the nonce. `Err`: why not.
pub(super) fn probe(pid: u32, nonce_at: u64, nonce: [u64; 2]) -> Result<(), String> {
    if pid == 0 {
        return Err("the peer is in another pid namespace".to_owned());
    }
    let refused = |errno: Errno| format!("process_vm_readv: {}", madrigal_base::error::Os(errno.raw_os_error()));
    let mut seen = [0u64; 2];
    let (here, there) = ([piece(seen.as_mut_ptr().addr() as u64, 16)], [piece(nonce_at, 16)]);
    // SAFETY: `seen` is writable for 16 bytes.
    let read = unsafe { raw::process_vm(pid, &here, &there, false) }.map_err(refused)?;
    if read != 16 || seen != nonce {
        return Err("another process has the peer's number here".to_owned());
    }
    // It is the same value again, so nothing changes.
    // SAFETY: `seen` is readable for 16 bytes.
    let written = unsafe { raw::process_vm(pid, &here, &there, true) }.map_err(refused)?;
    if written == 16 { Ok(()) } else { Err("process_vm_writev wrote too little".to_owned()) }
}

/// Copies between `local` and `remote` of process `pid`; `write`: from here to there.
///
/// # Safety
/// The local pieces are valid for the copy: readable; if written, no other thread uses them meanwhile.
pub(super) unsafe fn copy(pid: u32, local: &[(u64, usize)], remote: &[(u64, usize)], write: bool) -> SingleCopy {
    let (mut local, mut remote) = (Pieces::new(local), Pieces::new(remote));
    loop {
        let (here, there) = (local.batch(), remote.batch());
        let (Some(here), Some(there)) = (here.list(), there.list()) else { return SingleCopy::Done };
        // SAFETY: the caller's contract.
        match unsafe { raw::process_vm(pid, here, there, write) } {
            Ok(n @ 1..) => {
                local.skip(n);
                remote.skip(n);
            }
            Err(Errno::INTR) => {}
            Ok(0) | Err(_) => return SingleCopy::Failed,
        }
    }
}

fn piece(address: u64, len: usize) -> Piece {
    Piece { address: address as usize, len }
}

/// Pieces still to be copied.
struct Pieces<'a> {
    rest: &'a [(u64, usize)],
    /// Bytes of the first piece that were copied.
    at: usize,
}

/// A few of them, in the kernel's form.
struct Batch {
    pieces: [Piece; BATCH],
    len: usize,
}

impl Batch {
    fn list(&self) -> Option<&[Piece]> {
        self.pieces.get(..self.len).filter(|list| !list.is_empty())
    }
}

impl<'a> Pieces<'a> {
    fn new(all: &'a [(u64, usize)]) -> Self {
        let mut pieces = Self { rest: all, at: 0 };
        pieces.skip(0);
        pieces
    }

    fn batch(&self) -> Batch {
        let mut batch = Batch { pieces: [piece(0, 0); BATCH], len: 0 };
        let mut at = self.at;
        for (to, &(address, len)) in batch.pieces.iter_mut().zip(self.rest) {
            *to = piece(address.wrapping_add(at as u64), len - at);
            at = 0;
            batch.len += 1;
        }
        batch
    }

    /// `n` bytes were copied. Pieces with nothing left are skipped from now on.
    fn skip(&mut self, n: usize) {
        self.at += n;
        while let Some((&(_, len), rest)) = self.rest.split_first()
            && self.at >= len
        {
            (self.at, self.rest) = (self.at - len, rest);
        }
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn pieces_of_any_length_become_one_copy() {
        let from: Vec<u8> = (0..1000u32).map(|i| i as u8).collect();
        let mut to = vec![0u8; 1000];
        let base = to.as_mut_ptr().addr() as u64;
        let local: Vec<_> = (0..100).map(|i| (base + 10 * i, 10)).chain([(base, 0)]).collect();
        let start = from.as_ptr().addr() as u64;
        let remote = [(start, 1), (start + 1, 0), (start + 1, 333), (start + 334, 666)];
        // SAFETY: `to` is ours and long enough.
        let done = unsafe { copy(process::own_pid(), &local, &remote, false) };
        assert_eq!((done, to == from), (SingleCopy::Done, true));
        // SAFETY: as above; the far side is no memory at all.
        let done = unsafe { copy(process::own_pid(), &local, &[(16, 1000)], false) };
        assert_eq!(done, SingleCopy::Failed);
    }

    #[test]
    fn the_wrong_process_is_noticed() {
        let nonce = Nonce::new();
        let own = process::own_pid();
        assert_eq!(probe(own, nonce.address(), nonce.value()), Ok(()));
        assert!(probe(own, nonce.address(), [1, 2]).unwrap_err().contains("another process"));
        assert!(probe(0, nonce.address(), nonce.value()).unwrap_err().contains("namespace"));
        assert!(probe(own, 8, nonce.value()).is_err());
    }
}
