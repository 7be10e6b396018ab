//! `madrigal ca` and `madrigal login`, by the real command.
//!
//! Features (docs/features.md): B10, D3, D7.

mod common;

use std::process::Command;

use common::{Folder, exe, run};
use serde_json::Value;

/// The command, without the library that these commands have no need of.
fn madrigal() -> Command {
    let mut command = Command::new(exe());
    command.env_remove("MADRIGAL_CONFIG_DIR");
    command
}

/// A home of its own, with the command run in it.
struct Home {
    folder: Folder,
}

impl Home {
    fn new(what: &str) -> Self {
        Self { folder: Folder::new(what) }
    }

    fn run(&self, args: &[&str]) -> (Option<i32>, String, String) {
        let mut command = madrigal();
        command
            .args(args)
            .env("HOME", &self.folder.0)
            .env_remove("XDG_CONFIG_HOME")
            .env("USER", "Ann!")
            .env("LOGNAME", "ann");
        run(&mut command)
    }

    fn good(&self, args: &[&str]) -> String {
        let (code, stdout, stderr) = self.run(args);
        assert_eq!((code, stderr.as_str()), (Some(0), ""), "{args:?}: {stdout}");
        stdout
    }

    fn json(&self, args: &[&str]) -> Value {
        serde_json::from_str(&self.good(&[args, &["--json"]].concat())).unwrap()
    }

    fn bad(&self, code: i32, args: &[&str], words: &[&str]) {
        let (found, stdout, stderr) = self.run(args);
        assert_eq!(found, Some(code), "{args:?}: {stdout}{stderr}");
        assert!(words.iter().all(|word| stderr.contains(word)), "{args:?}: {stderr}");
    }

    fn path(&self, file: &str) -> String {
        self.folder.path(&format!(".config/madrigal/{file}"))
    }

    fn chmod(&self, file: &str, mode: u32) {
        use std::os::unix::fs::PermissionsExt as _;
        std::fs::set_permissions(self.path(file), std::fs::Permissions::from_mode(mode)).unwrap();
    }

    /// As scp -p would.
    fn bring(&self, from: &str) {
        std::fs::create_dir_all(self.path("")).unwrap();
        self.chmod("", 0o700);
        for entry in std::fs::read_dir(from).unwrap() {
            let entry = entry.unwrap();
            std::fs::copy(entry.path(), self.path(entry.file_name().to_str().unwrap())).unwrap();
        }
    }
}

#[test]
fn a_grid_from_its_making_to_a_login_on_another_machine() {
    let (home, laptop, far) = (Home::new("ca"), Home::new("laptop"), Home::new("far"));
    home.bad(1, &["login"], &["ca.pem: there is no certificate of a grid", "madrigal ca init GRID"]);
    let made = home.good(&["ca", "init", "lyon"]);
    assert!(made.contains("grid lyon, until 20") && made.contains("Next: madrigal ca issue --host NAME"), "{made}");

    let given = home.good(&["ca", "issue", "--host", "b1"]);
    assert!(
        given.contains("host b1 of grid lyon, until")
            && given.contains("scp -p ")
            && given.contains(" b1:.config/madrigal/"),
        "{given}"
    );
    let given = home.json(&["ca", "issue", "--user", "ann", "--days", "30"]);
    assert_eq!(
        (&given["kind"], &given["name"], &given["signed_by"]),
        (&"identity".into(), &"ann".into(), &"ca".into())
    );

    laptop.bring(given["directory"].as_str().unwrap());
    laptop.bad(1, &["login", "--status"], &[]);
    let greeting = laptop.good(&["login"]);
    let twelve_hours = |text: &str| text.contains("12 h 0 min") || text.contains("11 h 5");
    assert!(greeting.starts_with("user ann of grid lyon, until 20") && twelve_hours(&greeting), "{greeting}");
    let status = laptop.json(&["login", "--status"]);
    assert_eq!((&status["ok"], &status["grid"]), (&true.into(), &"lyon".into()), "{status}");
    let user = status["held"].as_array().unwrap().iter().find(|held| held["kind"] == "user").unwrap();
    assert_eq!((&user["name"], &user["ok"], &user["problem"]), (&"ann".into(), &true.into(), &Value::Null));
    let left = user["seconds_left"].as_i64().unwrap();
    assert!((12 * 3600 - 300..=12 * 3600).contains(&left), "{left}");
    assert!(twelve_hours(&laptop.good(&["login", "--status"])));
    assert_eq!(laptop.json(&["login", "--renew"])["renewed"], false);

    // One login, another site: its daemon's certificate, signed by the login, no longer than that lasts.
    let given = laptop.json(&["ca", "issue", "--host", "c1"]);
    assert_eq!(
        (&given["signed_by"], given["not_after"].as_i64() <= user["not_after"].as_i64()),
        (&"login".into(), true)
    );
    far.bring(given["directory"].as_str().unwrap());
    let table = far.good(&["login", "--status"]);
    assert!(table.contains("host  c1") && !table.contains("nobody is logged in"), "{table}");
    assert!(laptop.good(&["login", "--end"]).contains("logged out"));
    laptop.bad(1, &["ca", "issue", "--host", "c2"], &["login.pem: there is no login: type madrigal login"]);
}

#[test]
fn who_logs_in_need_not_be_told_by_the_environment() {
    let home = Home::new("cron");
    home.good(&["ca", "init", "lyon"]);
    let name = String::from_utf8(Command::new("id").arg("-un").output().unwrap().stdout).unwrap();
    let mut command = madrigal();
    command
        .arg("login")
        .env("HOME", &home.folder.0)
        .env_remove("XDG_CONFIG_HOME")
        .env_remove("USER")
        .env_remove("LOGNAME");
    let (code, stdout, stderr) = run(&mut command);
    assert!(code == Some(0) && stdout.starts_with(&format!("user {} of grid lyon", name.trim())), "{stdout}{stderr}");
}

#[test]
fn what_is_taken_back_is_told() {
    let home = Home::new("revoke");
    home.good(&["ca", "init", "lyon"]);
    home.good(&["ca", "issue", "--host", "b1", "--here"]);
    let greeting = home.good(&["login"]);
    assert!(greeting.starts_with("user ann of grid lyon"), "the first name that can be one: {greeting}");
    let taken = home.good(&["ca", "revoke", "--host", "b1"]);
    assert!(taken.starts_with("revoked: host b1, serial ") && taken.contains("revoked.pem to every host"), "{taken}");
    let list = home.json(&["ca", "list"]);
    let kinds: Vec<_> =
        list.as_array().unwrap().iter().map(|e| (e["kind"].as_str().unwrap(), e["revoked"].is_i64())).collect();
    assert_eq!(kinds, [("host", true), ("login", false)]);
    let (code, table, _) = home.run(&["login", "--status"]);
    assert!(
        code == Some(0)
            && table.contains("NOT good: ")
            && table.contains("host.pem: revoked: the certificate of host b1"),
        "{table}"
    );
    home.bad(1, &["ca", "revoke", "--host", "b2"], &["the CA has issued no certificate for host b2"]);
    home.bad(1, &["ca", "revoke", "--serial", "xyz"], &["no certificate for serial"]);
}

#[test]
fn nothing_is_replaced_and_no_open_key_is_used() {
    let home = Home::new("modes");
    home.good(&["ca", "init", "lyon"]);
    let key = std::fs::read(home.path("ca/key.pem")).unwrap();
    home.bad(1, &["ca", "init", "nice"], &["ca/key.pem: the key of a CA is there already", "--force"]);
    assert_eq!(std::fs::read(home.path("ca/key.pem")).unwrap(), key);
    home.good(&["ca", "issue", "--host", "b1"]);
    home.bad(
        1,
        &["ca", "issue", "--host", "b1"],
        &["host.pem: a certificate with its key is there already", "--force"],
    );
    assert_eq!(home.json(&["ca", "list"]).as_array().unwrap().len(), 1, "what was refused is not in the books");
    home.chmod("ca/key.pem", 0o644);
    home.bad(1, &["ca", "list"], &["ca/key.pem: others may read it (mode 644): type chmod 600 "]);
    home.chmod("ca/key.pem", 0o600);
    home.chmod("", 0o777);
    home.bad(1, &["login"], &["others may write it (mode 777): type chmod 700 "]);
}

#[test]
fn what_makes_no_sense_is_refused_with_usage() {
    let home = Home::new("usage");
    home.bad(2, &["ca", "init", "Lyon"], &["`Lyon` is no name: give up to 63 of a-z"]);
    home.bad(2, &["ca", "init", "../x"], &["is no name"]);
    home.bad(2, &["ca", "issue"], &["--host <NAME>"]);
    home.bad(2, &["ca", "issue", "--host", "a", "--user", "b"], &["cannot be used with"]);
    home.bad(2, &["login", "--hours", "0"], &["0 is not in 1..=720"]);
    home.bad(2, &["login", "--renew", "--status"], &["cannot be used with"]);
    home.bad(1, &["ca", "issue", "--host", "a"], &["ca.pem: there is no certificate of a grid"]);
    home.bad(1, &["ca", "issue", "--user", "a"], &["ca/key.pem: there is no key of a CA: type madrigal ca init GRID"]);
    let mut command = madrigal();
    let (code, _, stderr) = run(command.args(["login"]).env("MADRIGAL_CONFIG_DIR", "here"));
    assert!(code == Some(1) && stderr.contains("MADRIGAL_CONFIG_DIR=here: not a path from / or ~/"), "{stderr}");
}
