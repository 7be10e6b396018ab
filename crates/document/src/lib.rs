//! A TOML document as tables and values that know where they stand, so that every error names its line and its key. The meaning of the keys
//! is up to the readers: the lab, the daemon.
#![forbid(unsafe_code)]

use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// What is wrong in a file, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}:{line}: {key}{text}")]
pub struct FileError {
    file: String,
    line: usize,
    /// With `: ` behind it, or empty.
    key: String,
    text: String,
}

/// The text of a file.
pub struct Document<'a> {
    file: &'a str,
    text: &'a str,
}

impl<'a> Document<'a> {
    /// `text`; `file` is named in errors.
    pub fn new(file: &'a str, text: &'a str) -> Self {
        Self { file, text }
    }

    fn error(&self, span: &Range<usize>, key: &str, text: impl Into<String>) -> FileError {
        let before = self.text.as_bytes().iter().take(span.start);
        let line = 1 + before.filter(|&&byte| byte == b'\n').count();
        let key = if key.is_empty() { String::new() } else { format!("{}: ", harmless(key)) };
        FileError { file: self.file.to_owned(), line, key, text: harmless(&text.into()) }
    }

    /// Hands the table of the whole document to `with`.
    pub fn read<T>(&self, with: impl FnOnce(Table<'_>) -> Result<T, FileError>) -> Result<T, FileError> {
        let wrong = |error: toml::de::Error| self.error(&error.span().unwrap_or_default(), "", error.message());
        let parsed = DeTable::parse(self.text).map_err(wrong)?;
        with(Table { document: self, path: String::new(), span: 0..0, table: parsed.get_ref() })
    }
}

/// A text on one line, without characters that a terminal obeys: the file may come from anywhere.
fn harmless(text: &str) -> String {
    let hidden =
        |c| matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}');
    let mut line = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() || hidden(c) { line.extend(c.escape_debug()) } else { line.push(c) }
    }
    line
}

/// A table of the document.
#[derive(Clone)]
pub struct Table<'a> {
    document: &'a Document<'a>,
    path: String,
    span: Range<usize>,
    table: &'a DeTable<'a>,
}

/// A value of a table.
#[derive(Clone)]
pub struct Value<'a> {
    document: &'a Document<'a>,
    path: String,
    value: &'a Spanned<DeValue<'a>>,
}

impl<'a> Table<'a> {
    /// An error that is about the whole table.
    pub fn error(&self, text: impl Into<String>) -> FileError {
        self.document.error(&self.span, &self.path, text)
    }

    /// Refuses keys other than these.
    pub fn only(&self, known: &[&str]) -> Result<(), FileError> {
        for (key, value) in self.entries() {
            if !known.contains(&key) {
                let text = match nearest(key, known) {
                    Some(near) => format!("there is no such key; did you mean `{near}`?"),
                    None => format!("there is no such key; there are {}", known.join(", ")),
                };
                return Err(value.error(text));
            }
        }
        Ok(())
    }

    /// What stands in the table, in the order of the file.
    pub fn entries(&self) -> Vec<(&'a str, Value<'a>)> {
        let mut entries: Vec<_> = self.table.iter().collect();
        entries.sort_by_key(|(key, _)| key.span().start);
        let value = |(key, value): (&'a Spanned<_>, _)| {
            let key: &'a std::borrow::Cow<'a, str> = key.get_ref();
            let dot = if self.path.is_empty() { "" } else { "." };
            (key.as_ref(), Value { document: self.document, path: format!("{}{dot}{key}", self.path), value })
        };
        entries.into_iter().map(value).collect()
    }

    /// The value of a key, if it is there.
    pub fn get(&self, wanted: &str) -> Option<Value<'a>> {
        self.entries().into_iter().find(|(key, _)| *key == wanted).map(|(_, value)| value)
    }

    /// The tables below a key, in the order of the file.
    pub fn tables(&self, key: &str) -> Result<Vec<(&'a str, Table<'a>)>, FileError> {
        let Some(below) = self.get(key) else { return Ok(Vec::new()) };
        below.table()?.entries().into_iter().map(|(name, value)| Ok((name, value.table()?))).collect()
    }
}

impl<'a> Value<'a> {
    /// An error that is about this value.
    pub fn error(&self, text: impl Into<String>) -> FileError {
        self.document.error(&self.value.span(), &self.path, text)
    }

    /// A table.
    pub fn table(&self) -> Result<Table<'a>, FileError> {
        match self.value.get_ref() {
            DeValue::Table(table) => {
                Ok(Table { document: self.document, path: self.path.clone(), span: self.value.span(), table })
            }
            _ => Err(self.error("must be a table")),
        }
    }

    /// A text.
    pub fn text(&self) -> Result<&'a str, FileError> {
        self.value.get_ref().as_str().ok_or_else(|| self.error("must be a text in quotes"))
    }

    /// True or false.
    pub fn flag(&self) -> Result<bool, FileError> {
        self.value.get_ref().as_bool().ok_or_else(|| self.error("must be true or false"))
    }

    /// A whole number.
    pub fn number(&self) -> Result<u64, FileError> {
        let number = match self.value.get_ref() {
            DeValue::Integer(number) => u64::from_str_radix(number.as_str(), number.radix()).ok(),
            _ => None,
        };
        number.ok_or_else(|| self.error("must be a whole number"))
    }

    /// A text, a number or a flag, as text.
    pub fn plain(&self) -> Result<String, FileError> {
        match self.value.get_ref() {
            DeValue::String(text) => Ok(text.to_string()),
            DeValue::Integer(number) => Ok(number.as_str().to_owned()),
            DeValue::Float(number) => Ok(number.as_str().to_owned()),
            DeValue::Boolean(flag) => Ok(flag.to_string()),
            _ => Err(self.error("must be a text in quotes, or a number")),
        }
    }

    /// The elements of an array; a value that is none stands for an array of itself.
    pub fn list(&self) -> Vec<Value<'a>> {
        let element = |value| Value { document: self.document, path: self.path.clone(), value };
        match self.value.get_ref().as_array() {
            Some(array) => array.iter().map(element).collect(),
            None => vec![self.clone()],
        }
    }
}

/// The known key nearest to what was written, if one is near.
fn nearest<'k>(written: &str, known: &[&'k str]) -> Option<&'k str> {
    let distance = |key: &str| {
        let mut row: Vec<usize> = (0..=key.len()).collect();
        for (i, a) in written.bytes().enumerate() {
            let mut before = i;
            if let Some(first) = row.first_mut() {
                *first = i + 1;
            }
            for (j, b) in key.bytes().enumerate() {
                let here = (before + usize::from(a != b)).min(row[j] + 1).min(row[j + 1] + 1);
                before = std::mem::replace(&mut row[j + 1], here);
            }
        }
        row.last().copied().unwrap_or(0)
    };
    known.iter().copied().map(|key| (distance(key), key)).min().filter(|(far, _)| *far <= 2).map(|(_, key)| key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_file_says_forges_no_line_and_no_escape_code() {
        let text = "[\"a\\n\\u001b[2J\\u202e\"]\n'x\ty' = 1\n";
        let read = |key: &'static str| {
            Document::new("f", text).read(|top| {
                let (_, table) = top.entries().remove(0);
                table.table()?.only(&[key])
            })
        };
        let error = read("z").unwrap_err().to_string();
        assert_eq!(error, r"f:2: a\n\u{1b}[2J\u{202e}.x\ty: there is no such key; there are z");
        let error = Document::new("f", "a = 'b\u{1b}").read(|_| Ok(())).unwrap_err().to_string();
        assert!(error.starts_with("f:1: ") && !error.contains(char::is_control), "{error}");
    }
}
