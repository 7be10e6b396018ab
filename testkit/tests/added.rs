//! Drivers from shared objects: what is loaded, what is refused and why, and what becomes of those that keep no rule.
//!
//! Features (docs/features.md): A8, D1.

use std::fs::Permissions;
use std::io::IoSlice;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use madrigal::locator::Locator;
use madrigal_plugin::Found;
use madrigal_progress::driver::{Connecting, Connection, Driver, Ends, Place, Read, Wrote};
use madrigal_testkit::added::{compile, compile_examples, make};

/// A directory of drivers, removed in the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("added-{name}-{}", std::process::id()));
        make(&path);
        Self(path)
    }

    /// With a driver of `tests/wrong.c`.
    fn wrong(name: &str, flags: &[&str]) -> Self {
        let folder = Self::new(name);
        compile(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/wrong.c")), flags, &folder.object());
        folder.describe(DESCRIPTION);
        folder
    }

    fn object(&self) -> PathBuf {
        self.0.join("libwrong.so")
    }

    fn describe(&self, text: &str) {
        std::fs::write(self.0.join("wrong.toml"), text).unwrap();
    }

    fn chmod(&self, file: &str, mode: u32) {
        std::fs::set_permissions(self.0.join(file), Permissions::from_mode(mode)).unwrap();
    }

    fn found(&self) -> Found {
        Found::read(&self.0, |name| name == "tcp")
    }

    /// Why the one driver there cannot be used, which is the same for whoever tries.
    fn refused(&self) -> String {
        let found = self.found();
        let [driver] = found.drivers() else { panic!("{:?}", found.refused()) };
        let why = driver.usable(&Place::default()).unwrap_err();
        let at = "wrong://a".parse().unwrap();
        let listen = driver.listen(&at, &Place::default()).err().unwrap().to_string();
        assert_eq!(listen, format!("cannot listen at wrong://a: {why}"));
        let connect = driver.connect(&at, &Place::default()).err().unwrap().to_string();
        assert_eq!(connect, format!("cannot connect to wrong://a: {why}"));
        why
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

const DESCRIPTION: &str = "name = 'wrong'\nfile = 'libwrong.so'\nabi = 1\nreach = 'host'\naddress = 'name'\n";

fn has(text: &str, part: &str) {
    assert!(text.contains(part), "`{part}` is not in `{text}`");
}

/// For what a wrong driver does not name.
const UNUSED: &str = "-Wno-unused-function";

#[test]
fn what_is_no_driver_of_this_version_is_refused() {
    for (name, flags, why) in [
        ("version", &["-DABI=7"][..], "a driver of version 7; this Madrigal loads version 1"),
        ("size", &["-DSIZE=48"], "its `madrigal_driver` says that it has 48 bytes; version 1 has "),
        ("short", &["-DSHORT", UNUSED], "its `madrigal_driver` has 40 bytes; version 1 has "),
        ("absent", &["-DABSENT", UNUSED], "it defines no `madrigal_driver` that others see"),
        ("computed", &["-DCOMPUTED", UNUSED], "its `madrigal_driver` is not in the file"),
        ("name", &["-DNAME=\"other\""], "its driver is called `other`, not `wrong`"),
        ("flags", &["-DFLAGS=64"], "it has flags that version 1 has not: 0x40, 0x0"),
        ("write", &["-DWRITE=0"], "it has no `write`"),
        (
            "packets",
            &["-DPACKET=(void(*)(struct madrigal_connection*))close_connection"],
            "it has neither `read` alone",
        ),
        ("undefined", &["-DUNDEFINED", UNUSED], "undefined symbol: nobody_defines"),
    ] {
        has(&Folder::wrong(name, flags).refused(), why);
    }
}

#[test]
fn what_is_no_shared_object_is_refused() {
    let folder = Folder::wrong("objects", &[]);
    let whole = std::fs::read(folder.object()).unwrap();
    let write = |bytes: &[u8]| std::fs::write(folder.object(), bytes).unwrap();
    // Cut off at every length that says something of the format, and at many others.
    for len in (0..whole.len()).step_by(97).chain([1, 4, 16, 63, 64, whole.len() - 1]) {
        write(&whole[..len]);
        has(&folder.refused(), "libwrong.so: ");
    }
    // The mark of the order of bytes (elf(5), EI_DATA).
    let mut other = whole.clone();
    other[5] = 3 - other[5];
    write(&other);
    has(&folder.refused(), "libwrong.so: ");
    write(b"#!/bin/sh\necho no driver\n");
    has(&folder.refused(), "no shared object");
    std::fs::remove_file(folder.object()).unwrap();
    has(&folder.refused(), "No such file or directory");
    std::fs::create_dir(folder.object()).unwrap();
    has(&folder.refused(), "is no regular file");
    std::fs::remove_dir(folder.object()).unwrap();
    let fifo = std::process::Command::new("mkfifo").arg(folder.object()).status().unwrap();
    assert!(fifo.success());
    has(&folder.refused(), "is no regular file");
}

#[test]
fn what_others_may_write_is_refused() {
    let folder = Folder::wrong("modes", &[]);
    for mode in [0o777, 0o775, 0o702] {
        folder.chmod("libwrong.so", mode);
        has(&folder.refused(), "libwrong.so (chmod go-w ");
    }
    folder.chmod("libwrong.so", 0o755);
    folder.chmod("wrong.toml", 0o666);
    has(&folder.refused(), "others may write to ");
    folder.chmod("wrong.toml", 0o644);
    let usable = |place: &str| {
        let place = Place { directory: place.to_owned(), ..Place::default() };
        folder.found().drivers()[0].usable(&place)
    };
    assert_eq!(usable("/tmp/there"), Ok(()));
    assert_eq!(usable("/tmp/unusable"), Err("there is no such network".to_owned()));
    has(&usable("/tmp/endless").unwrap_err(), "wrote a text that does not end");
    has(&usable("/tmp/positive").unwrap_err(), "returned a number where 0 or an error belongs");
    if std::os::unix::fs::chown(folder.object(), Some(12345), None).is_ok() {
        has(&folder.refused(), "belongs to user 12345, not to ");
        std::os::unix::fs::chown(folder.object(), Some(0), None).unwrap();
    }
    folder.chmod(".", 0o777);
    has(&folder.found().refused()[0], "others may write to ");
    assert!(folder.found().drivers().is_empty());
}

#[test]
fn a_description_that_is_wrong_is_told_by_who_uses_it() {
    let folder = Folder::wrong("descriptions", &[]);
    folder.describe(&DESCRIPTION.replace("abi = 1", "abi = 2"));
    has(&folder.refused(), "wrong.toml:3: abi: this Madrigal loads drivers of version 1");
    folder.describe(&"x".repeat(20_000));
    has(&folder.refused(), "is longer than 16384 bytes");
    for name in ["tcp", "No-Name", "averyveryverylongnameofadriverthatnobodytypes"] {
        std::fs::write(folder.0.join(format!("{name}.toml")), DESCRIPTION).unwrap();
    }
    let found = folder.found();
    assert_eq!(found.drivers().iter().map(|driver| driver.name()).collect::<Vec<_>>(), ["wrong"]);
    assert_eq!(found.refused().len(), 3, "{:?}", found.refused());
    has(&found.refused()[2], "tcp.toml: the name is taken");
    has(&Found::read(Path::new("relative"), |_| false).refused()[0], "is no absolute path");
    has(&Found::read(Path::new("/nonexistent/drivers"), |_| false).refused()[0], "No such file");
}

/// What a driver returns that it must not is an error that names the rule.
#[test]
fn results_that_are_none_are_errors() {
    let folder = Folder::wrong("results", &[]);
    let found = folder.found();
    let driver: &dyn Driver = &found.drivers()[0];
    let place = Place::default();
    let at = |how: &str| format!("wrong://{how}").parse::<Locator>().unwrap();
    for (how, rule) in [
        ("listen-positive", "the driver returned a number where 0 or an error belongs"),
        ("listen-huge", "the driver returned a number that is neither a result nor an error"),
        ("listen-nothing", "the driver made no listener, and returned no error"),
        ("listen-endless", "the driver wrote a text that does not end"),
        ("listen-nowhere", "the driver wrote an address that is none"),
        ("listen-none", "the driver has no descriptor"),
        ("listen-closed", "the driver gave a descriptor that is not open"),
    ] {
        let error = driver.listen(&at(how), &place).err().unwrap().to_string();
        assert_eq!(error, format!("cannot listen at wrong://{how}: {rule}"));
    }
    for (how, rule) in [
        ("connect-nothing", "its driver made no connection, and returned no error"),
        ("connect-none", "its driver has no descriptor"),
    ] {
        let error = driver.connect(&at(how), &place).err().unwrap().to_string();
        assert_eq!(error, format!("cannot connect to wrong://{how}: {rule}"));
    }
    let Connecting::Pending(mut pending) = driver.connect(&at("connect-pending"), &place).unwrap() else { panic!() };
    has(&pending.poll().err().unwrap().to_string(), "has no `connected`, and returned EINPROGRESS");
    for (how, rule) in [
        ("accept-nothing", "its driver made no connection, and returned no error"),
        ("accept-peer", "its driver wrote an address that is none"),
    ] {
        let error = driver.listen(&at(how), &place).unwrap().accept().err().unwrap().to_string();
        assert_eq!(error, format!("cannot accept at wrong://{how}: {rule}"));
    }
    for (how, rule) in [
        ("read-more", "its driver read more bytes than it was asked for"),
        ("read-huge", "its driver returned a number that is neither a result nor an error"),
    ] {
        let Ends::Bytes(mut rx, _) = connection(driver, &at(how)).ends else { panic!() };
        let error = rx.read(&mut [0; 8]).unwrap_err();
        assert_eq!((error.errno(), error.to_string()), (71, format!("cannot read from wrong://{how}: {rule}")));
    }
    for (how, rule) in [
        ("write-nothing", "its driver wrote nothing, and returned no error"),
        ("write-more", "its driver wrote more bytes than it was given"),
    ] {
        let Ends::Bytes(_, mut tx) = connection(driver, &at(how)).ends else { panic!() };
        let error = tx.write(&[IoSlice::new(b"abc")]).unwrap_err();
        assert_eq!((error.errno(), error.to_string()), (71, format!("cannot write to wrong://{how}: {rule}")));
    }
}

fn connection(driver: &dyn Driver, to: &Locator) -> Connection {
    match driver.connect(to, &Place::default()).unwrap() {
        Connecting::Done(connection) => connection,
        Connecting::Pending(_) => panic!("it is decided at once"),
    }
}

fn is_loaded(folder: &Folder) -> bool {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.contains(&format!("{}/libunixstream.so", folder.0.display()))
}

/// Whatever is left of a connection keeps its driver loaded, and the last thing that goes unloads it.
#[test]
fn a_driver_is_loaded_while_anything_of_it_lives() {
    let folder = Folder::new("lives");
    compile_examples(&folder.0);
    let found = folder.found();
    let driver: &dyn Driver = &found.drivers()[1];
    let place = Place { directory: folder.0.display().to_string(), ..Place::default() };
    assert!(!is_loaded(&folder), "loaded unasked");
    assert_eq!(driver.usable(&place), Ok(()));
    assert!(!is_loaded(&folder), "nothing needs it");
    let at = driver.address_for("lives").unwrap();
    let mut listener = driver.listen(&at, &place).unwrap();
    let near = match driver.connect(&at, &place).unwrap() {
        Connecting::Done(near) => near,
        Connecting::Pending(_) => panic!("it is decided at once"),
    };
    let far = listener.accept().unwrap().unwrap();
    drop(listener);
    let Ends::Bytes(near_rx, mut near_tx) = near.ends else { panic!() };
    let Ends::Bytes(mut far_rx, far_tx) = far.ends else { panic!() };
    drop((near_rx, near.signal, far.signal, far_tx));
    assert!(is_loaded(&folder));
    assert_eq!(near_tx.write(&[IoSlice::new(b"still")]), Ok(Wrote::Bytes(5)));
    assert_eq!(far_rx.read(&mut [0; 8]), Ok(Read::Bytes(5)));
    drop(far_rx);
    assert!(is_loaded(&folder), "an end of it lives");
    drop(near_tx);
    assert!(!is_loaded(&folder), "nothing of it lives");
}
