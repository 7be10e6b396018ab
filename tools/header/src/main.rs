//! The committed header is the one that the source gives. `MADRIGAL_HEADER=write cargo test -p madrigal-capi --test header` rewrites it.
//!
//! Features (docs/features.md): A1, B1.

use std::path::Path;

/// What the header is made of, in its order.
const FILES: &[&str] = &[
    "codes.rs",
    "border/types.rs",
    "border/errors.rs",
    "border/runtimes.rs",
    "border/links.rs",
    "border/ops.rs",
    "border/circuits.rs",
    "border/engine.rs",
];

#[test]
fn every_exported_function_is_in_a_file_of_the_header() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
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
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(root.join("cbindgen.toml")).expect("cbindgen.toml reads");
    let files = FILES.iter().map(|file| root.join("src").join(file));
    let builder = files.fold(cbindgen::Builder::new().with_config(config), cbindgen::Builder::with_src);
    let mut text = Vec::new();
    builder.generate().expect("the source reads").write(&mut text);
    let text = String::from_utf8(text).expect("UTF-8");
    let path = root.join("include/madrigal.h");
    if std::env::var_os("MADRIGAL_HEADER").is_some_and(|how| how == "write") {
        std::fs::write(&path, &text).expect("the header can be written");
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    let first = text.lines().zip(committed.lines()).find(|(source, header)| source != header);
    assert!(
        text == committed,
        "include/madrigal.h is out of date, first at {first:?}: type MADRIGAL_HEADER=write cargo test -p madrigal-capi --test header"
    );
}
