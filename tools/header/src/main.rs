//! Writes `personalities/capi/include/madrigal.h` out of the source of libmadrigal. Its tests fail where the committed one differs.
//!
//! Features (docs/features.md): A1, B1.

use std::path::{Path, PathBuf};

/// What the header is made of, in its order.
const FILES: &[&str] = &[
    "codes.rs",
    "border/types.rs",
    "border/errors.rs",
    "border/runtimes.rs",
    "border/links.rs",
    "border/ops.rs",
    "border/circuits.rs",
    "border/ports.rs",
    "border/lossy.rs",
    "border/mailboxes.rs",
    "border/pools.rs",
    "border/engine.rs",
];

fn main() -> std::io::Result<()> {
    std::fs::write(committed(), from_source())
}

fn capi() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../personalities/capi")
}

fn committed() -> PathBuf {
    capi().join("include/madrigal.h")
}

/// # Panics
/// If the source or `cbindgen.toml` cannot be read.
fn from_source() -> String {
    let config = cbindgen::Config::from_file(capi().join("cbindgen.toml")).expect("cbindgen.toml reads");
    let files = FILES.iter().map(|file| capi().join("src").join(file));
    let builder = files.fold(cbindgen::Builder::new().with_config(config), cbindgen::Builder::with_src);
    let mut text = Vec::new();
    builder.generate().expect("the source reads").write(&mut text);
    String::from_utf8(text).expect("UTF-8")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_exported_function_is_in_a_file_of_the_header() {
        let src = capi().join("src");
        for folder in [src.clone(), src.join("border")] {
            for entry in std::fs::read_dir(folder).expect("a folder") {
                let path = entry.expect("an entry").path();
                let exports =
                    path.is_file() && std::fs::read_to_string(&path).expect("a text").contains("#[unsafe(no_mangle)]");
                let name = path.strip_prefix(&src).expect("below it").to_string_lossy().into_owned();
                assert!(!exports || FILES.contains(&name.as_str()), "{name} exports and is not in FILES");
            }
        }
    }

    #[test]
    fn the_committed_header_is_what_the_source_says() {
        let (source, header) = (from_source(), std::fs::read_to_string(committed()).unwrap_or_default());
        let first = source.lines().zip(header.lines()).find(|(source, header)| source != header);
        assert!(
            source == header,
            "include/madrigal.h is out of date, first at {first:?}: type cargo run --release -p madrigal-header"
        );
    }
}
