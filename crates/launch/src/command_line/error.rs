//! What was typed wrongly.

/// Why it was not understood.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum TypedError {
    /// No such option.
    #[error("no option `{0}`: `madrigal run --help` lists them")]
    Unknown(String),
    /// An option without its value.
    #[error("{0} wants {1} more")]
    Missing(String, &'static str),
    /// A value without meaning.
    #[error("{option} {value}: {why}")]
    Value {
        /// As it was typed.
        option: String,
        /// The same.
        value: String,
        /// And what is wanted.
        why: String,
    },
    /// A line of a file of hosts.
    #[error("{file}, line {line}: {why}")]
    HostFile {
        /// Its name.
        file: String,
        /// Counted from 1.
        line: usize,
        /// What is wrong with it.
        why: String,
    },
    /// A file that cannot be read.
    #[error("{0}: {1}")]
    File(String, String),
}

pub(super) fn number(option: &str, value: &str) -> Result<u32, TypedError> {
    value.parse().map_err(|_| wrong(option, value, "a number is wanted, such as 2"))
}

pub(super) fn wrong(option: &str, value: &str, why: &str) -> TypedError {
    TypedError::Value { option: option.to_owned(), value: value.to_owned(), why: why.to_owned() }
}
