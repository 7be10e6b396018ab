//! What is typed: exit statuses, signals, messages; several labs; and what happens when parts are killed.

use std::io::{BufRead as _, BufReader};
use std::process::Command;

use super::bed::{Bed, Home, Who, example, need_lab, run};
use super::common::bed::until;

fn kill(signal: &str, pid: &str) {
    assert!(Command::new("kill").args([signal, pid]).status().unwrap().success());
}

pub(crate) fn a_command_keeps_its_status_and_its_signals() {
    need_lab(Who::Me);
    let bed = Bed::up("docker0-twins.toml");
    assert_eq!(bed.exec("a1", &["sh", "-c", "exit 7"]).0, 7);
    assert_eq!(bed.exec("a1", &["sh", "-c", "kill -9 $$"]).0, 137);
    assert_eq!(bed.exec("a1", &["no-such-program"]).0, 127);
    assert_eq!(bed.exec("a1", &["/etc/hosts"]).0, 126);
    let (status, _, err) = bed.exec("a9", &["true"]);
    assert_eq!((status, err.trim()), (1, "madrigal: lab `docker0-twins` has no host `a9`; there are a1, a2, gw-a"));
    let mut child =
        bed.start("a1", &["sh", "-c", "trap 'echo term; exit 5' TERM; echo ready; while :; do sleep 0.01; done"]);
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "ready");
    kill("-TERM", &child.id().to_string());
    assert_eq!(lines.next().unwrap().unwrap(), "term");
    assert_eq!(child.wait().unwrap().code(), Some(5));
    // Who kills the command kills the other.
    let mut child = bed.start("a1", &["sh", "-c", "echo ready; exec sleep 1000"]);
    assert_eq!(BufReader::new(child.stdout.take().unwrap()).lines().next().unwrap().unwrap(), "ready");
    child.kill().unwrap();
    child.wait().unwrap();
    until("the end of the other", || {
        bed.exec("a1", &["sh", "-c", "! grep -l sleep /proc/[0-9]*/comm"]).0.eq(&0).then_some(())
    });
    bed.down();
}

pub(crate) fn a_shell_has_the_terminal() {
    need_lab(Who::Me);
    // Types what follows into a terminal in which `lab exec` runs; the status is the command's.
    const TYPE: &str = "import os, pty, signal, sys\n\
        signal.signal(signal.SIGINT, signal.SIG_DFL)\n\
        pid, fd = pty.fork()\n\
        if pid == 0: os.execv(sys.argv[2], sys.argv[2:])\n\
        seen = b''\n\
        for line in sys.argv[1].split('|'):\n    \
            while not seen.endswith((b'# ', b'$ ', b'ready\\r\\n')): seen += os.read(fd, 999)\n    \
            seen += b'.'; os.write(fd, b'\\x03' if line == '^C' else line.encode() + b'\\n')\n\
        while True:\n    \
            try: more = os.read(fd, 999)\n    \
            except OSError: break\n    \
            if not more: break\n    \
            seen += more\n\
        print(seen.decode()); sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))";
    let bed = Bed::up("docker0-twins.toml");
    let typed = |text: &str, command: &[&str]| {
        let lab = bed.home.lab(&[&["exec", "a1", "--"], command].concat());
        let mut python = Command::new("/usr/bin/python3");
        python.args(["-c", TYPE, text]).arg(lab.get_program()).args(lab.get_args()).env("PS1", "$ ");
        python.envs(lab.get_envs().filter_map(|(key, value)| Some((key, value?))));
        run(&mut python)
    };
    let (status, out, err) = typed("hostname|exit 3", &["sh"]);
    assert!(status == 3 && out.contains("a1\r\n") && !out.contains("annot"), "{out}{err}");
    let (status, out, err) = typed("^C", &["sh", "-c", "echo ready; exec sleep 1000"]);
    assert_eq!(status, 130, "{out}{err}");
    bed.down();
}

pub(crate) fn wrong_files_and_settings_are_told_by_line_and_key() {
    let home = Home::new(Who::Me);
    let file = std::env::temp_dir().join(format!("madrigal-lab-wrong-{}.toml", std::process::id()));
    std::fs::write(&file, "[site.a]\nnetwork = '10.1.0.0/24'\nhosts = ['a1']\n[link.ab]\nbetween = ['a', 'b']\n")
        .unwrap();
    let (status, _, err) = run(&mut home.lab(&["up", file.to_str().unwrap()]));
    std::fs::remove_file(&file).unwrap();
    assert_eq!(
        (status, err.trim()),
        (2, format!("madrigal: {}:5: link.ab.between: there is no site `b`; there are a", file.display()).as_str())
    );
    assert_eq!(run(&mut home.lab(&["up", "/no/such/file"])).0, 1);
    let (status, _, err) = run(&mut home.lab(&["exec", "a1", "--", "true"]));
    assert_eq!((status, err.trim()), (1, "madrigal: no lab is up; type: madrigal lab up FILE"));
    assert_eq!(run(&mut home.lab(&["down", "--name", "../x"])).0, 2);
}

pub(crate) fn settings_are_refused_with_an_example() {
    need_lab(Who::Me);
    let bed = Bed::up("nat-left.toml");
    let refused = |args: &[&str]| {
        let (status, _, err) = run(&mut bed.home.lab(&[&["set"], args].concat()));
        (status, err.trim().to_owned())
    };
    assert_eq!(refused(&["ba", "loss=5%"]), (1, "madrigal: lab `nat-left` has no link `ba`; there are ab".to_owned()));
    let (status, err) = refused(&["ab", "loss=5"]);
    assert!(status == 2 && err.contains("such as 5%"), "{err}");
    // Nothing is changed if one of them is wrong.
    assert_eq!(refused(&["ab", "loss=5%", "jitter=20ms"]).0, 1);
    assert!(bed.lab(&["set", "ab", "rate=1M"]).contains("rate=1M delay=15ms jitter=0 loss=0%"));
    bed.down();
}

pub(crate) fn several_labs_have_names() {
    need_lab(Who::Me);
    let home = Home::new(Who::Me);
    let file = example("docker0-twins.toml");
    let lab = |args: &[&str]| run(&mut home.lab(args));
    assert_eq!(lab(&["up", file.to_str().unwrap(), "--name", "one"]).0, 0);
    assert_eq!(lab(&["up", file.to_str().unwrap(), "--name", "two"]).0, 0);
    let (status, _, err) = lab(&["up", file.to_str().unwrap(), "--name", "two"]);
    assert!(status == 1 && err.contains("lab `two` is up already"), "{err}");
    let (status, _, err) = lab(&["exec", "a1", "--", "true"]);
    assert_eq!((status, err.trim()), (1, "madrigal: several labs are up: say which by --name: one, two"));
    assert_eq!(lab(&["exec", "--name", "one", "a1", "--", "sh", "-c", "echo $MADRIGAL_LAB"]).1, "one\n");
    assert_eq!(lab(&["down", "--name", "one"]).1, "lab `one` is down\n");
    assert_eq!(lab(&["exec", "a1", "--", "true"]).0, 0);
    assert_eq!(lab(&["down"]).1, "lab `two` is down\n");
}

pub(crate) fn what_is_killed_is_told_and_leaves_nothing() {
    need_lab(Who::Me);
    let bed = Bed::up("two-sites.toml");
    let pid = |list: &str, n: usize| bed.status()[list][n]["pid"].to_string();
    kill("-KILL", &pid("hosts", 2));
    kill("-KILL", &pid("links", 0));
    until("the end of b1 and ab", || {
        let status = bed.status();
        (status["hosts"][2]["up"] == false && status["links"][0]["up"] == false).then_some(())
    });
    assert!(bed.lab(&["status"]).contains("ENDED"));
    let (status, _, err) = bed.exec("b1", &["true"]);
    assert!(status == 1 && err.contains("`b1` of lab `two-sites` has ended"), "{err}");
    assert_eq!(bed.exec("b2", &["true"]).0, 0);
    bed.down();
    // The keeper takes all with it, for which `down` and `up` wait; and these remove what is left, a directory.
    for next in ["down", "up"] {
        let bed = Bed::up("two-sites.toml");
        let keeper = bed.status()["keeper"].to_string();
        kill("-KILL", &keeper);
        // The signal takes a moment to end it.
        let exe = std::path::PathBuf::from(format!("/proc/{keeper}/exe"));
        until("the end of the keeper", || std::fs::read_link(&exe).is_err().then_some(()));
        if next == "up" {
            bed.lab(&["up", example("two-sites.toml").to_str().unwrap()]);
            bed.down();
        } else {
            assert_eq!(bed.lab(&["down"]), "lab `two-sites` is down\n");
            assert_eq!(bed.lab(&["down"]), "no lab was up\n");
        }
    }
}
