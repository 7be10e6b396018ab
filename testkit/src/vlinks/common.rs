//! What cases read and write by.

use madrigal::error::ReadError;
use madrigal::{Filled, VLink};

pub(super) type ReadOutcome = Result<Filled, ReadError>;

pub(crate) fn send(link: &VLink, bytes: &[u8]) {
    assert_eq!(link.write(bytes.to_vec()).wait().expect("writes"), bytes);
}

/// Reads exactly that many bytes.
pub(crate) fn receive(link: &VLink, len: usize) -> Vec<u8> {
    let mut all = Vec::new();
    while all.len() < len {
        let filled = link.read(vec![0; len - all.len()]).wait().expect("reads");
        assert_ne!(filled.len, 0, "the end came early");
        all.extend_from_slice(filled.bytes());
    }
    all
}

/// Reads to the end.
pub(super) fn drain(link: &VLink) -> Result<Vec<u8>, ReadError> {
    let mut all = Vec::new();
    loop {
        let filled = link.read(vec![0; 1000]).wait()?;
        if filled.len == 0 {
            return Ok(all);
        }
        all.extend_from_slice(filled.bytes());
    }
}
