//! Where the pools of a grid are kept: `[pools]` in grid.toml.
//!
//! ```toml
//! [pools]
//! keeper = "a1"
//! ```

use madrigal_document::{FileError, Table};

/// Where pools are kept.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PoolSettings {
    /// The host whose daemon keeps them: the first relay in the file, or its first host, unless the file names one.
    pub keeper: String,
}

impl PoolSettings {
    /// Reads the table, if there is one; `first` keeps the pools unless it says otherwise.
    pub(super) fn read(
        table: Option<&Table<'_>>,
        first: &str,
        is_host: impl Fn(&str) -> bool,
    ) -> Result<Self, FileError> {
        let mut settings = Self { keeper: first.to_owned() };
        let Some(table) = table else { return Ok(settings) };
        table.only(&["keeper"])?;
        if let Some(value) = table.get("keeper") {
            let name = value.text()?;
            if !is_host(name) {
                return Err(value.error(format!("the grid has no host `{name}`")));
            }
            name.clone_into(&mut settings.keeper);
        }
        Ok(settings)
    }
}
