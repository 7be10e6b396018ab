//! Where a receive port is, for those that connect to it; and its name.

use core::fmt;
use core::str::FromStr;

use madrigal_base::node::NodeAddress;

use super::error::LONGEST_NAME;

/// Where a receive port or a mailbox is: its name, and the process it belongs to. As text, `NAME@` and the process's address in hexadecimal digits.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PortAddress {
    /// Its name.
    pub name: String,
    /// Its process.
    pub node: NodeAddress,
}

/// Why a text is no [`PortAddress`].
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("`{0}` is no address of a port or a mailbox: NAME@HEX, as these have it")]
pub struct AddressError(String);

impl fmt::Display for PortAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@", self.name)?;
        self.node.encode(NodeAddress::LONG).iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl FromStr for PortAddress {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let read = || {
            let (name, digits) = text.rsplit_once('@')?;
            let pairs = digits.as_bytes().chunks(2);
            let byte = |pair: &[u8]| u8::from_str_radix(core::str::from_utf8(pair).ok()?, 16).ok();
            let bytes: Vec<u8> = pairs.map(byte).collect::<Option<_>>()?;
            Some(Self { name: is_name(name).then(|| name.to_owned())?, node: NodeAddress::decode(&bytes).ok()? })
        };
        read().ok_or_else(|| AddressError(text.to_owned()))
    }
}

/// Whether a text is a name of a port, or of a mailbox.
pub(crate) fn is_name(name: &str) -> bool {
    !name.is_empty() && name.len() <= LONGEST_NAME && !name.chars().any(char::is_control)
}
