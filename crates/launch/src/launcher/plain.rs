//! Words of others.

/// Text of other programs, on one line that no terminal obeys.
pub(super) fn plain(text: &str) -> String {
    text.chars().take(400).map(|c| if c.is_control() { '?' } else { c }).collect()
}
