//! Both families' spellings, frozen.

use super::*;
use crate::job::Host;

fn typed(line: &str) -> Typed {
    parse(&words(line)).unwrap()
}

fn host(name: &str, slots: Option<u32>) -> Host {
    Host { name: name.to_owned(), slots }
}

fn words(line: &str) -> Vec<String> {
    line.split(' ').map(str::to_owned).collect()
}

#[test]
fn both_families_mean_the_same() {
    for (open_mpi, hydra) in [
        ("-np 4 --host a:2,b:2 ./p -n 9", "-n 4 -hosts a:2,b:2 ./p -n 9"),
        ("-n 4 --map-by ppr:2:node --host a,b p", "-n 4 -ppn 2 -hosts a,b p"),
        ("-npernode 2 -H a,b p", "-perhost 2 -hosts a,b p"),
        ("-x K=v p", "-env K v p"),
        ("--tag-output p", "-prepend-rank p"),
        ("--output tag p", "-l p"),
        ("--output-filename f p", "-outfile-pattern f p"),
        ("--wdir /tmp p", "-wdir=/tmp p"),
        ("--stdin all p", "-s all p"),
        ("--bind-to core --oversubscribe p", "-genvall p"),
    ] {
        assert_eq!(typed(open_mpi), typed(hydra), "{open_mpi}");
    }
}

#[test]
fn programs_follow_each_other_with_options_of_their_own() {
    let typed = typed("-genv A 1 -n 1 -env A 2 ./first x : -n 2 -wdir /tmp ./second -n 3");
    let apps = &typed.job.apps;
    assert_eq!(apps[0].argv, ["./first", "x"]);
    assert_eq!(apps[0].env, [("A".into(), "1".into()), ("A".into(), "2".into())]);
    assert_eq!((apps[1].count, apps[1].folder.as_deref()), (Some(2), Some("/tmp")));
    assert_eq!(apps[1].argv, ["./second", "-n", "3"]);
    assert_eq!(apps[1].env, [("A".into(), "1".into())]);
}

#[test]
fn words_behind_dashes_are_the_programs() {
    assert_eq!(typed("-n 2 -- -odd --name").job.apps[0].argv, ["-odd", "--name"]);
}

#[test]
fn hosts_are_names_and_addresses() {
    let typed = typed("--host a:2,u@b.example,[fe80::1]:3,fe80::2 p");
    let expected = [host("a", Some(2)), host("u@b.example", None), host("fe80::1", Some(3)), host("fe80::2", None)];
    assert_eq!(typed.job.hosts, expected);
}

#[test]
fn what_is_not_understood_is_named() {
    for (line, error) in [
        ("--no-such p", "no option `--no-such`: `madrigal run --help` lists them"),
        ("-n", "-n wants N more"),
        ("-n two p", "-n two: a number is wanted, such as 2"),
        ("-env A", "-env wants VALUE more"),
        ("--host -oProxyCommand=x p", "--host -oProxyCommand=x: this is no name of a host"),
        ("--host a,,b p", "--host : this is no name of a host"),
        ("--map-by ppr:2:socket p", "--map-by ppr:2:socket: only ppr:N:node is understood"),
    ] {
        assert_eq!(parse(&words(line)).unwrap_err().to_string(), error, "{line}");
    }
}

#[test]
fn a_file_of_hosts_says_which_line_is_wrong() {
    let file = std::env::temp_dir().join(format!("madrigal-hosts-{}", std::process::id()));
    std::fs::write(&file, "# ours\na slots=2\n\nb:3 # theirs\n").unwrap();
    let name = file.to_str().unwrap();
    let found = parse(&[format!("--hostfile={name}"), "p".to_owned()]).unwrap();
    assert_eq!(found.job.hosts, [host("a", Some(2)), host("b", Some(3))]);
    std::fs::write(&file, "a\nb slot=2\n").unwrap();
    let error = parse(&["-f".to_owned(), name.to_owned()]).unwrap_err();
    assert!(
        error.to_string().ends_with(", line 2: `slot=2` is not understood: write HOST, HOST:2 or HOST slots=2"),
        "{error}"
    );
    std::fs::remove_file(&file).unwrap();
}
