//! What a host needs of a grid, in one piece: sealed with a code, opened, put in place.
//!
//! Features (docs/features.md): D3, D7.

mod common;

use std::os::unix::fs::PermissionsExt as _;

use common::{Folder, Grid, day, name};
use madrigal_identity::{Authority, Credentials, HOUR, IdentityError, Kind, Moment, Parcel, ParcelError, Which};
use proptest::prelude::*;

const TEXT: &str = "[site.b]\nhosts.b1 = []\n";

fn parcel(ca: &Authority, host: &str) -> Parcel {
    ca.issue_host(&name(host), day()).unwrap().parcel(TEXT, Moment::now().plus(HOUR))
}

#[test]
fn a_host_is_furnished_by_a_line_and_its_code() {
    let (grid, home) = (Grid::new("lyon"), Folder::new());
    let (line, code) = parcel(&grid.ca, "b1").seal().unwrap();
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    assert!(line.chars().all(plain) && line.len() < 4000, "{}", line.len());
    assert_eq!((code.len(), code.split('-').count()), (24, 5), "{code}");
    // However it is typed.
    let typed = format!("  {} \n", code.to_lowercase().replace('-', " ").replace('0', "o").replace('1', "l"));
    let opened = Parcel::open(&format!("{line}\n"), &typed, Moment::now()).unwrap();
    let installed = opened.install(&home.0, false).unwrap();
    assert_eq!(installed.host, Some(name("b1")));
    assert_eq!(std::fs::read_to_string(home.0.join("grid.toml")).unwrap(), TEXT);
    let mode = |file: &str| std::fs::metadata(home.0.join(file)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(""), mode("host.pem"), mode("ca.pem")), (0o700, 0o600, 0o644));
    let credentials = Credentials::load_as(&home.0, Kind::Host).unwrap().unwrap();
    assert_eq!(credentials.own().to_string(), "host b1 of grid lyon");
}

#[test]
fn another_code_a_changed_line_and_a_late_one_are_refused() {
    let grid = Grid::new("lyon");
    let (one, other) = (parcel(&grid.ca, "b1").seal().unwrap(), parcel(&grid.ca, "b1").seal().unwrap());
    let open = |line: &str, code: &str, now| Parcel::open(line, code, now).map(drop).unwrap_err();
    let now = Moment::now();
    assert_eq!(open(&one.0, &other.1, now), ParcelError::Code);
    assert_eq!(open(&one.0, "", now), ParcelError::Code);
    let short = open(&one.0[..one.0.len() - 4], &one.1, now);
    assert!(matches!(short, ParcelError::Code | ParcelError::Nonsense), "{short}");
    for nonsense in ["", "m1", "m2.AAAA", "m1.A A", "hello"] {
        assert_eq!(open(nonsense, &one.1, now), ParcelError::Nonsense, "{nonsense}");
    }
    assert!(matches!(open(&one.0, &one.1, now.plus(2 * HOUR)), ParcelError::Late { .. }));
    // The key lies open in what goes over ssh only.
    let plain = parcel(&grid.ca, "b1").to_bytes();
    assert!(Parcel::from_bytes(&plain).is_ok() && Parcel::from_bytes(&plain[..plain.len() - 1]).is_err());
}

#[test]
fn a_line_is_one_that_a_command_takes() {
    let grid = Grid::new("lyon");
    let with = |length: usize| {
        let text = format!("{TEXT}#{}\n", "x".repeat(length));
        ca_parcel(&grid, &text)
            .seal()
            .map(|(line, code)| (line.len(), Parcel::open(&line, &code, Moment::now()).is_ok()))
    };
    let (length, opens) = with(80_000).unwrap();
    assert!(opens && length < 128 << 10, "{length}");
    assert!(matches!(with(100_000), Err(ParcelError::Long { length }) if length > 120_000));
    // By ssh it goes all the same.
    let plain = ca_parcel(&grid, &"#".repeat(1 << 20)).to_bytes();
    assert_eq!(Parcel::from_bytes(&plain).unwrap().description().len(), 1 << 20);
}

fn ca_parcel(grid: &Grid, text: &str) -> Parcel {
    grid.ca.issue_host(&name("b1"), day()).unwrap().parcel(text, Moment::now().plus(HOUR))
}

#[test]
fn files_that_are_none_are_refused_and_hold_up_nobody() {
    let (grid, home) = (Grid::new("lyon"), Folder::new());
    parcel(&grid.ca, "b1").install(&home.0, false).unwrap();
    for file in ["host.pem", "ca.pem", "revoked.pem", "grid.toml"] {
        let path = home.0.join(file);
        let before = std::fs::read(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        let outcome = parcel(&grid.ca, "b1").install(&home.0, false);
        if file == "revoked.pem" {
            // An unreadable list is replaced.
            assert!(outcome.is_ok() && path.metadata().unwrap().is_file());
            continue;
        }
        let outcome = outcome.map(drop).unwrap_err().to_string();
        assert!(outcome.contains("it is no regular file"), "{file}: {outcome}");
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, before).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    }
    std::fs::write(home.0.join("grid.toml"), vec![b'#'; (4 << 20) + 1]).unwrap();
    let outcome = parcel(&grid.ca, "b1").install(&home.0, false).map(drop).unwrap_err().to_string();
    assert!(outcome.contains("it is longer than 4 MiB"), "{outcome}");
}

#[test]
fn what_is_of_another_grid_or_host_stays() {
    let (lyon, nice, home) = (Grid::new("lyon"), Grid::new("nice"), Folder::new());
    parcel(&lyon.ca, "b1").install(&home.0, false).unwrap();
    let host = || std::fs::read(home.0.join("host.pem")).unwrap();
    let before = host();
    for other in [parcel(&nice.ca, "b1"), parcel(&lyon.ca, "b2")] {
        assert!(matches!(other.install(&home.0, false), Err(IdentityError::Exists { .. })));
        assert_eq!(host(), before);
    }
    // The same host gets a new one, and with --force any host gets any.
    parcel(&lyon.ca, "b1").install(&home.0, false).unwrap();
    assert_ne!(host(), before);
    parcel(&nice.ca, "c1").install(&home.0, true).unwrap();
    assert_eq!(Credentials::load_as(&home.0, Kind::Host).unwrap().unwrap().own().to_string(), "host c1 of grid nice");
}

#[test]
fn an_update_brings_the_list_and_the_description_and_no_older_list() {
    let (lyon, home) = (Grid::new("lyon"), Folder::new());
    let update = |text: &str| Parcel::update(&lyon.folder.0, text, Moment::now().plus(HOUR)).unwrap();
    // A host that gets a description of a grid is in it.
    assert!(matches!(update("x").install(&home.0, false), Err(IdentityError::Missing { .. })));
    parcel(&lyon.ca, "b1").install(&home.0, false).unwrap();
    let old = update("old");
    lyon.ca.issue_host(&name("a1"), day()).unwrap();
    lyon.ca.revoke(&Which::Host(name("a1"))).unwrap();
    let installed = update("new").install(&home.0, false).unwrap();
    let changed: Vec<_> = installed.changed.iter().map(|path| path.file_name().unwrap().to_str().unwrap()).collect();
    assert_eq!((installed.host, changed), (None, vec!["revoked.pem", "grid.toml"]));
    let list = std::fs::read(home.0.join("revoked.pem")).unwrap();
    old.install(&home.0, false).unwrap();
    assert_eq!(std::fs::read(home.0.join("revoked.pem")).unwrap(), list);
    assert_eq!(std::fs::read_to_string(home.0.join("grid.toml.old")).unwrap(), "new");
    assert!(update("old").install(&home.0, false).unwrap().changed.is_empty());
}

proptest! {
    #[test]
    fn noise_is_no_parcel(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let framed = [&b"madrigal-parcel 1\n"[..], &bytes].concat();
        prop_assert!(Parcel::from_bytes(&bytes).is_err() && Parcel::from_bytes(&framed).is_err());
    }
}
