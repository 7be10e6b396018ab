//! Fields of calls between processes: numbers, little endian, and texts behind their length in two bytes.

/// Takes numbers and texts off the front of bytes.
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl<'a> Reader<'a> {
    /// Whether nothing is left.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// So many bytes.
    pub(crate) fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (front, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(front)
    }

    /// The next bytes.
    pub(crate) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (front, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*front)
    }

    /// A number of 4 bytes.
    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    /// A number of 8 bytes.
    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// A text of at most 65,535 bytes.
    pub(crate) fn short_text(&mut self) -> Option<String> {
        let length = usize::from(u16::from_le_bytes(self.array()?));
        String::from_utf8(self.bytes(length)?.to_vec()).ok()
    }
}

/// Writes a text as [`Reader::short_text`] reads it; what is longer is cut.
pub(crate) fn write_text(bytes: &mut Vec<u8>, text: &str) {
    let text = text.get(..text.floor_char_boundary(usize::from(u16::MAX))).unwrap_or_default();
    bytes.extend(u16::try_from(text.len()).unwrap_or(0).to_le_bytes());
    bytes.extend(text.as_bytes());
}
