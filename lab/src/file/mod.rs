//! The file a lab is described in, and the grid it describes.
//!
//! ```text
//!  madrigal_document   a TOML document as tables and values that know their line and their key
//!  grid                what may stand in it, and whether it goes together
//!  parts               what it describes
//! ```

mod grid;
mod parts;

pub use madrigal_document::FileError;
pub use parts::{Firewall, Forward, Grid, Host, Site, Switch, WanLink};

/// Reads the grid that `text` describes; `file` is named in errors.
pub fn read(file: &str, text: &str) -> Result<Grid, FileError> {
    grid::read(&madrigal_document::Document::new(file, text))
}

#[cfg(test)]
mod tests;
