//! Every folder of a driver is in the table and has a page; nothing else is.
//!
//! Features (docs/features.md): A8.

use std::collections::BTreeSet;
use std::path::Path;

/// The page of drivers that users add, which are in no table.
const ADDED: &str = "plugin";

fn names(folder: &str, pick: impl Fn(&std::fs::DirEntry) -> Option<String>) -> BTreeSet<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    std::fs::read_dir(folder).unwrap().filter_map(|entry| pick(&entry.unwrap())).collect()
}

#[test]
fn folders_table_and_pages_are_the_same_list() {
    let text = |entry: &std::fs::DirEntry| entry.file_name().into_string().unwrap();
    let folders = names("src", |entry| entry.path().is_dir().then(|| text(entry)));
    let pages = names("../../docs/drivers", |entry| text(entry).strip_suffix(".md").map(str::to_owned));
    let streams = madrigal_drivers::DRIVERS.iter().map(|driver| driver.name().to_owned());
    let messages = madrigal_drivers::MESSAGE_DRIVERS.iter().map(|driver| driver.name().to_owned());
    let table: BTreeSet<_> = streams.chain(messages).collect();
    assert_eq!(folders, table, "folders of crates/drivers/src against the tables in lib.rs");
    let with_added: BTreeSet<_> = table.into_iter().chain([ADDED.to_owned()]).collect();
    assert_eq!(pages, with_added, "pages of docs/drivers against the tables in lib.rs");
}

#[test]
fn a_name_finds_its_driver() {
    for driver in madrigal_drivers::DRIVERS {
        assert_eq!(madrigal_drivers::driver(driver.name()).unwrap().name(), driver.name());
    }
    assert!(madrigal_drivers::driver("carrier-pigeon").is_none());
    for driver in madrigal_drivers::MESSAGE_DRIVERS {
        assert_eq!(madrigal_drivers::message_driver(driver.name()).unwrap().name(), driver.name());
    }
    assert_eq!(madrigal_drivers::message_driver("fabric:tcp").unwrap().name(), "fabric:tcp");
    assert!(madrigal_drivers::message_driver("carrier-pigeon").is_none());
}
