//! What stands beside a shared object: `NAME.toml`, the description of a driver.
//!
//! ```toml
//! name = "mydriver"            # as the file is called: a word of lower-case letters and digits, the scheme of its locators
//! file = "libmydriver.so"      # in the same directory
//! abi = 1                      # MADRIGAL_DRIVER_ABI of the header it was compiled with
//! reach = "host"               # process, host or network
//! address = "name"             # or "inet": ADDRESS:PORT
//! one_user = true              # joins processes of one user only, which the driver sees to; false unless given
//! ```

use madrigal_base::ids::Reach;
use madrigal_document::{Document, FileError, Table, Value};

use crate::abi;

/// A description.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Description {
    /// The name of the shared object.
    pub(crate) file: String,
    pub(crate) reach: Reach,
    pub(crate) form: Form,
    pub(crate) one_user: bool,
}

/// What stands behind `NAME://`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Form {
    Name,
    Inet,
}

impl Description {
    /// Reads the text of `NAME.toml`, which stands at `path`.
    pub(crate) fn parse(path: &str, name: &str, text: &str) -> Result<Self, FileError> {
        Document::new(path, text).read(|top| {
            top.only(&["name", "file", "abi", "reach", "address", "one_user"])?;
            let called = needed(&top, "name")?;
            if called.text()? != name {
                return Err(called.error(format!("must be `{name}`, as the file is called")));
            }
            let version = needed(&top, "abi")?;
            if version.number()? != u64::from(abi::VERSION) {
                return Err(version.error(format!("this Madrigal loads drivers of version {}", abi::VERSION)));
            }
            let one_user = top.get("one_user").map(|value| value.flag()).transpose()?.unwrap_or(false);
            Ok(Self { file: file(&top)?, reach: reach(&top)?, form: form(&top)?, one_user })
        })
    }
}

fn needed<'a>(top: &Table<'a>, key: &str) -> Result<Value<'a>, FileError> {
    top.get(key).ok_or_else(|| top.error(format!("`{key}` is missing")))
}

fn file(top: &Table<'_>) -> Result<String, FileError> {
    let value = needed(top, "file")?;
    let name = value.text()?;
    let plain = !name.is_empty() && name != "." && name != ".." && !name.contains(['/', '\0']);
    if plain { Ok(name.to_owned()) } else { Err(value.error("must be the name of a file of this directory")) }
}

fn reach(top: &Table<'_>) -> Result<Reach, FileError> {
    let value = needed(top, "reach")?;
    match value.text()? {
        "process" => Ok(Reach::Process),
        "host" => Ok(Reach::Host),
        "network" => Ok(Reach::Network),
        _ => Err(value.error("must be process, host or network")),
    }
}

fn form(top: &Table<'_>) -> Result<Form, FileError> {
    let value = needed(top, "address")?;
    match value.text()? {
        "name" => Ok(Form::Name),
        "inet" => Ok(Form::Inet),
        _ => Err(value.error("must be name or inet")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "name = 'a'\nfile = 'a.so'\nabi = 1\nreach = 'host'\naddress = 'name'\n";

    #[test]
    fn a_description_reads_as_documented() {
        let wanted = Description { file: "a.so".into(), reach: Reach::Host, form: Form::Name, one_user: false };
        assert_eq!(Description::parse("a.toml", "a", GOOD), Ok(wanted));
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line() {
        for (from, to, said) in [
            ("'a'", "'b'", "a.toml:1: name: must be `a`, as the file is called"),
            ("'a.so'", "'../a.so'", "a.toml:2: file: must be the name of a file of this directory"),
            ("abi = 1", "abi = 2", "a.toml:3: abi: this Madrigal loads drivers of version 1"),
            ("'host'", "'moon'", "a.toml:4: reach: must be process, host or network"),
            ("'name'", "'street'", "a.toml:5: address: must be name or inet"),
            ("abi = 1\n", "", "a.toml:1: `abi` is missing"),
            ("abi", "abo", "a.toml:3: abo: there is no such key; did you mean `abi`?"),
        ] {
            let error = Description::parse("a.toml", "a", &GOOD.replacen(from, to, 1)).unwrap_err();
            assert_eq!(error.to_string(), said);
        }
    }
}
