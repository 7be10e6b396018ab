//! What several commands read the same way.

use madrigal::network::Ports;

/// Ports and ranges of them.
pub(super) fn ports(text: &str) -> Result<String, String> {
    let wrong = "give ports and ranges from low to high, such as 80,8000-8010";
    let read = Ports::parse(text).filter(|_| !text.trim().is_empty());
    read.map(|_| text.to_owned()).ok_or_else(|| wrong.to_owned())
}
