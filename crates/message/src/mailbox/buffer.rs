//! Bytes of a message, as their reader has them.

use core::fmt;
use core::ops::Deref;
use std::sync::Arc;

use madrigal_sys::sealed::{Found, Sealed};

/// Bytes that nobody changes: memory of this process, or a shared buffer. Clones are the same bytes; the last one frees them.
#[derive(Clone)]
pub struct Buffer(Memory);

#[derive(Clone)]
enum Memory {
    Own(Arc<Vec<u8>>),
    Shared(Arc<Sealed>),
}

impl Buffer {
    /// Whether it is memory that all processes have in common which read it: one copy, and put into a mailbox of this host by reference.
    pub fn is_shared(&self) -> bool {
        matches!(self.0, Memory::Shared(_))
    }

    /// Where others find it, if it is shared.
    pub(super) fn found(&self) -> Option<Found> {
        match &self.0 {
            Memory::Own(_) => None,
            Memory::Shared(sealed) => Some(sealed.found()),
        }
    }

    /// Maps the buffer that another process says it has. `None`: it is not there, or not on this host.
    pub(super) fn open(found: Found, size: u64) -> Option<Self> {
        let sealed = Sealed::open(found, usize::try_from(size).ok()?).ok()?;
        Some(Self(Memory::Shared(Arc::new(sealed))))
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Memory::Own(bytes) => bytes,
            Memory::Shared(sealed) => sealed.bytes(),
        }
    }
}

impl From<Vec<u8>> for Buffer {
    fn from(bytes: Vec<u8>) -> Self {
        Self(Memory::Own(Arc::new(bytes)))
    }
}

impl From<Sealed> for Buffer {
    fn from(sealed: Sealed) -> Self {
        Self(Memory::Shared(Arc::new(sealed)))
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes{}", self.len(), if self.is_shared() { ", shared" } else { "" })
    }
}
