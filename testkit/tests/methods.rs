//! From the table of drivers to `MADRIGAL_METHODS`: a driver that is requested by name is taken, and one that was not requested is among
//! those of the default.
//!
//! Features (docs/features.md): A8.

use madrigal::config::{Methods, Settings};
use madrigal::{DRIVERS, MESSAGE_DRIVERS, Runtime};
use madrigal_testkit::{place, tidy};

/// Carries nothing between processes, so it needs no method's name.
const INSIDE: &str = "loopback";

#[test]
fn a_driver_that_is_asked_for_by_name_is_taken() {
    let directory = place().directory;
    for driver in DRIVERS {
        let keys = [("MADRIGAL_METHODS", driver.name()), ("MADRIGAL_DIR", &directory)];
        let (settings, errors) = Settings::from_pairs(keys);
        assert!(errors.is_empty(), "{errors:?}");
        let runtime = Runtime::with_settings(&settings).unwrap();
        let server = runtime.serve("asked-for").unwrap();
        let card = server.card();
        assert_eq!(card.locators.iter().map(|at| at.scheme()).collect::<Vec<_>>(), [driver.name()]);
        let (link, choice) = runtime.dial(card).unwrap();
        assert_eq!(choice.path.to_string(), driver.name());
        link.wait().unwrap();
    }
    tidy();
}

#[test]
fn the_default_allows_every_driver() {
    let methods = Settings::default().methods;
    let names = DRIVERS.iter().map(|driver| driver.name()).chain(MESSAGE_DRIVERS.iter().map(|driver| driver.name()));
    for name in names.filter(|name| *name != INSIDE) {
        assert!(methods.allows(name), "nobody uses `{name}`");
    }
    let shown = madrigal::config::KEYS.iter().find(|key| key.name == "MADRIGAL_METHODS").unwrap().default;
    let readme = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../README.md")).unwrap();
    let row = format!("| `MADRIGAL_METHODS` | `{shown}` |");
    assert!(readme.contains(&row), "README.md, \"Settings\": no row that begins {row}");
    assert_eq!(Methods::parse(shown), Some(methods));
}
