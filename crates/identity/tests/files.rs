//! The files: their access rights, what is never replaced, and the texts of errors.
//!
//! Features (docs/features.md): B10, D7.

mod common;

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use common::{Folder, Grid, day, future, name, past};
use madrigal_identity::{
    Authority, Credentials, HOST, IDENTITY, Kind, LOGIN, TRUST, USER, Which, directory, login, logout, status,
};

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o777
}

fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn error(dir: &Path) -> String {
    Credentials::load(dir).err().expect("nobody should use this").to_string()
}

#[test]
fn keys_are_for_their_owner_only() {
    let grid = Grid::new("lyon");
    let (dir, _) = grid.logged_in("ann");
    let host = grid.host("b1", day());
    for dir in [grid.dir(), &grid.dir().join("ca"), &dir, &host] {
        assert_eq!(mode(dir), 0o700, "{}", dir.display());
    }
    for file in [grid.dir().join("ca/key.pem"), dir.join(IDENTITY), dir.join(LOGIN), dir.join(USER), host.join(HOST)] {
        assert_eq!(mode(&file), 0o600, "{}", file.display());
        assert!(fs::read_to_string(&file).unwrap().starts_with("-----BEGIN PRIVATE KEY-----\n"));
    }
    for mode in [0o640, 0o604, 0o660, 0o666, 0o644] {
        let key = host.join(HOST);
        chmod(&key, mode);
        let wanted = format!("{}: others may read it (mode {mode:o}): type chmod 600 {}", key.display(), key.display());
        assert_eq!(error(&host), wanted);
        chmod(&key, 0o600);
    }
    chmod(&host.join(HOST), 0o400);
    assert!(Credentials::load(&host).is_ok());
    for file in [grid.dir().join("ca/key.pem"), dir.join(IDENTITY)] {
        chmod(&file, 0o644);
    }
    assert!(Authority::open(grid.dir()).err().unwrap().to_string().contains("type chmod 600"));
    assert!(login(&dir, None, 60).err().unwrap().to_string().contains("type chmod 600"));
}

#[test]
fn what_is_trusted_nobody_else_may_change() {
    let grid = Grid::new("lyon");
    let host = grid.host("b1", day());
    for (path, bad, good) in
        [(host.join(TRUST), 0o666, "644"), (host.clone(), 0o777, "700"), (host.clone(), 0o720, "700")]
    {
        let before = mode(&path);
        chmod(&path, bad);
        let text = error(&host);
        assert!(text.contains("others may write it") && text.contains(&format!("type chmod {good} ")), "{text}");
        chmod(&path, before);
    }
    assert!(Credentials::load(&host).is_ok());
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(host.join(TRUST), Some(65534), None).unwrap();
        let text = error(&host);
        assert!(text.contains("it belongs to user 65534, and you are user 0"), "{text}");
    }
}

#[test]
fn nothing_is_replaced_unasked() {
    let grid = Grid::new("lyon");
    let key = || fs::read(grid.dir().join("ca/key.pem")).unwrap();
    let before = key();
    let again = Authority::create(grid.dir(), &name("lyon"), day(), false).err().unwrap().to_string();
    assert!(again.contains("ca/key.pem: the key of a CA is there already: add --force"), "{again}");
    assert_eq!(key(), before);
    let host = grid.host("b1", day());
    let member = Authority::create(&host, &name("nice"), day(), false).err().unwrap().to_string();
    assert!(member.contains("the certificate of grid lyon is there already"), "{member}");
    let issued = grid.ca.issue_host(&name("b2"), day()).unwrap();
    assert!(
        issued
            .install(&host, false)
            .err()
            .unwrap()
            .to_string()
            .contains("host.pem: a certificate with its key is there")
    );
    let other = Grid::new("nice").ca.issue_user(&name("ann"), day()).unwrap().install(&host, false);
    assert!(other.err().unwrap().to_string().contains("ca.pem: the certificate of another CA is there"));

    let fresh = Authority::create(grid.dir(), &name("lyon"), day(), true).unwrap();
    assert_ne!(key(), before);
    assert!(fresh.issued().unwrap().is_empty());
    let aside = fs::read_dir(grid.dir()).unwrap().filter_map(Result::ok);
    let aside =
        aside.map(|e| e.path()).find(|p| p.to_string_lossy().contains("ca-until-")).expect("the old one is kept");
    assert_eq!(fs::read(aside.join("key.pem")).unwrap(), before);
}

#[test]
fn errors_name_the_file_and_what_to_type() {
    let empty = Folder::new();
    assert!(error(&empty.0).contains("ca.pem: there is no certificate of a grid: ask whoever runs the CA"));
    let grid = Grid::new("lyon");
    assert!(
        error(grid.dir())
            .ends_with("type madrigal login, or get this host a certificate with madrigal ca issue --host NAME")
    );
    assert!(login(grid.dir(), None, 60).unwrap_err().to_string().contains("type madrigal login --user NAME"));
    let ann = grid.user("ann", day());
    assert!(
        login(&ann, Some(&name("bob")), 60).unwrap_err().to_string().contains("it is of identity ann of grid lyon")
    );
    let old = grid.user("old", past());
    let text = login(&old, None, 60).unwrap_err().to_string();
    assert!(text.contains("identity.pem: expired: the certificate of identity old of grid lyon ended at"), "{text}");
    let host = grid.host("b1", future());
    assert!(error(&host).contains("host.pem: not yet valid: the certificate of host b1"));
    let host = grid.host("b1", day());
    for (file, text, words) in [
        (HOST, "", "it holds no key"),
        (HOST, "-----BEGIN X-----\nAAAA\n-----END X-----\n", "neither key nor certificate"),
        (TRUST, "-----BEGIN X-----\nAAAA\n-----END X-----\n", "it holds no CERTIFICATE"),
        (TRUST, "noise", "ca.pem: "),
        ("revoked.pem", "-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n", "it is no revocation list"),
    ] {
        let before = fs::read(host.join(file)).unwrap();
        fs::write(host.join(file), text).unwrap();
        let error = error(&host);
        assert!(error.contains(words) && error.contains(&host.join(file).display().to_string()), "{error}");
        fs::write(host.join(file), before).unwrap();
    }
    let other = Grid::new("lyon");
    fs::copy(other.dir().join("revoked.pem"), host.join("revoked.pem")).unwrap();
    assert!(error(&host).contains("revoked.pem: the grid's CA did not sign it"));
}

#[test]
fn a_key_of_another_certificate_is_found() {
    let grid = Grid::new("lyon");
    let (a, b) = (grid.host("a1", day()), grid.host("b1", day()));
    let [a_text, b_text] = [&a, &b].map(|dir| fs::read_to_string(dir.join(HOST)).unwrap());
    let cut = |text: &str| text.find("-----BEGIN CERTIFICATE").unwrap();
    fs::write(a.join(HOST), format!("{}{}", &a_text[..cut(&a_text)], &b_text[cut(&b_text)..])).unwrap();
    assert!(error(&a).contains("the key in it is not the certificate's"));
}

#[test]
fn the_host_goes_first_and_a_login_stands_in() {
    let grid = Grid::new("lyon");
    let (dir, _) = grid.logged_in("ann");
    grid.ca.issue_host(&name("b1"), day()).unwrap().install(&dir, false).unwrap();
    let own = || Credentials::load(&dir).unwrap().own().to_string();
    assert_eq!(own(), "host b1 of grid lyon");
    grid.ca.issue_host(&name("b1"), past()).unwrap().install(&dir, true).unwrap();
    assert_eq!(own(), "user ann of grid lyon");
    assert!(logout(&dir).unwrap() && !logout(&dir).unwrap());
    assert!(error(&dir).contains("host.pem: expired"));
}

#[test]
fn books_and_status_tell_what_there_is() {
    let grid = Grid::new("lyon");
    let (dir, ann) = grid.logged_in("ann");
    grid.host("b1", day());
    login(grid.dir(), Some(&name("bob")), 600).unwrap();
    let shown = |grid: &Grid| {
        let entry = |e: madrigal_identity::Entry| format!("{} {} {}", e.kind, e.name, e.revoked.is_some());
        grid.ca.issued().unwrap().into_iter().map(entry).collect::<Vec<_>>()
    };
    assert_eq!(shown(&grid), ["identity ann false", "host b1 false", "login bob false"]);
    assert_eq!(grid.ca.revoke(&Which::User(name("bob"))).unwrap().len(), 1);
    assert_eq!(grid.ca.revoke(&Which::User(name("bob"))).unwrap().len(), 0);
    assert_eq!(shown(&grid), ["identity ann false", "host b1 false", "login bob true"]);
    let nobody = grid.ca.revoke(&Which::Host(name("bob"))).unwrap_err().to_string();
    assert_eq!(nobody, "the CA has issued no certificate for host bob: `madrigal ca list` shows what it has");

    let (name, held) = status(&dir).unwrap();
    assert_eq!(name.as_str(), "lyon");
    let kinds: Vec<_> = held.iter().map(|h| (h.kind, h.problem.is_none())).collect();
    assert_eq!(kinds, [("identity", true), ("user", true)]);
    assert_eq!(held[1].serial.as_deref(), Some(&*ann.own().serial));
    let (_, held) = status(grid.dir()).unwrap();
    let problems: Vec<_> = held.iter().map(|h| (h.kind, h.problem.as_ref().map(ToString::to_string))).collect();
    assert_eq!(problems[0], ("ca", None));
    assert!(
        problems[1].1.as_ref().unwrap().contains("user.pem: revoked: the certificate of login bob"),
        "{problems:?}"
    );
}

#[test]
fn the_directory_is_where_the_documentation_says() {
    let with = |pairs: &'static [(&str, &str)]| {
        let found = directory(|name| pairs.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned()));
        found.map(|path| path.display().to_string()).map_err(|error| error.to_string())
    };
    assert_eq!(with(&[("HOME", "/h")]).unwrap(), "/h/.config/madrigal");
    assert_eq!(with(&[("HOME", "/h"), ("XDG_CONFIG_HOME", "/x")]).unwrap(), "/x/madrigal");
    assert_eq!(with(&[("HOME", "/h"), ("XDG_CONFIG_HOME", "x")]).unwrap(), "/h/.config/madrigal");
    assert_eq!(with(&[("HOME", "/h"), ("MADRIGAL_CONFIG_DIR", "~/m")]).unwrap(), "/h/m");
    assert_eq!(with(&[("MADRIGAL_CONFIG_DIR", "/m")]).unwrap(), "/m");
    assert!(with(&[("MADRIGAL_CONFIG_DIR", "m")]).unwrap_err().contains("MADRIGAL_CONFIG_DIR=m"));
    assert!(with(&[]).unwrap_err().contains("set MADRIGAL_CONFIG_DIR"));
}

#[test]
fn of_two_that_make_a_grid_at_once_one_does() {
    let folder = Folder::new();
    let made = std::thread::scope(|scope| {
        let one = || Authority::create(&folder.0, &name("lyon"), day(), false).map(drop);
        let all: Vec<_> = (0..8).map(|_| scope.spawn(one)).collect();
        all.into_iter().map(|one| one.join().unwrap()).filter(Result::is_ok).count()
    });
    assert_eq!(made, 1);
    // Its key is that of the certificate that is trusted.
    let ca = Authority::open(&folder.0).unwrap();
    ca.issue_host(&name("a1"), day()).unwrap().install(&folder.0, false).unwrap();
    assert!(Credentials::load_as(&folder.0, Kind::Host).unwrap().is_some());
}
