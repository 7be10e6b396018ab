//! `madrigal exec` with real programs: its output, the variables that it sets, and an unchanged program.
//!
//! Features (docs/features.md): P2; B16 for what cannot be wrapped.

mod common;

use common::{Folder, exe, exec, madrigal, run};
use madrigal_tests::host::copy_program;
use madrigal_tests::trials::{need, skip};
use std::process::Command;

madrigal_tests::trials![
    no_program_is_wrong_usage,
    what_makes_no_sense_is_wrong_usage,
    values_in_the_environment_are_read_as_strictly,
    an_unknown_key_is_told_and_the_program_runs,
    a_missing_program_is_127_and_one_that_cannot_be_executed_126,
    a_script_without_a_first_line_runs_as_in_a_shell,
    the_program_keeps_process_id_exit_status_and_death_by_signal,
    the_program_inherits_what_it_would_without_us,
    the_library_is_preloaded_once_and_before_the_users_own,
    options_become_settings_and_verbose_tells_them,
    verbose_names_the_fabric_that_ranks_may_use,
    the_programs_options_are_left_alone,
    a_static_program_runs_plain_and_is_told_so,
    a_program_with_a_section_of_gos_is_told_as_one,
    a_rank_of_a_job_is_told_once_what_its_messages_go_by,
    a_go_program_is_told_what_goes_past_the_library,
    a_suid_program_is_told_and_runs,
    without_the_library_nothing_runs,
    an_unfit_directory_is_told_and_the_program_runs,
];

/// Runs it and wants this exit status and each of these texts on standard error.
fn refused(args: &[&str], status: i32, texts: &[&str]) {
    let (code, stdout, stderr) = run(&mut exec(args));
    assert_eq!((code, stdout.as_str()), (Some(status), ""), "{args:?}: {stderr}");
    for text in texts {
        assert!(stderr.contains(text), "{args:?}: no `{text}` in: {stderr}");
    }
}

fn no_program_is_wrong_usage() {
    refused(&[], 2, &["madrigal exec -- PROGRAM ARGUMENTS"]);
    refused(&["-v", "--"], 2, &["madrigal exec -- PROGRAM ARGUMENTS"]);
}

fn what_makes_no_sense_is_wrong_usage() {
    refused(&["--methods", "smh", "--", "true"], 2, &["no method `smh`", "shm, tcp"]);
    for ports in ["80-", "99999", "5-3", "http", ""] {
        refused(&["--only", ports, "--", "true"], 2, &["--only", "such as 80,8000-8010"]);
    }
    refused(&["--olny", "80", "--", "true"], 2, &["--only"]);
}

fn values_in_the_environment_are_read_as_strictly() {
    let (code, _, stderr) = run(exec(&["true"]).env("MADRIGAL_ONLY", "80-"));
    assert_eq!(code, Some(2));
    assert!(
        stderr.contains("MADRIGAL_ONLY=80-: not a list of ports") && stderr.contains("unset MADRIGAL_ONLY"),
        "{stderr}"
    );
}

fn an_unknown_key_is_told_and_the_program_runs() {
    let (code, stdout, stderr) =
        run(exec(&["--", "echo", "ran"]).env("MADRIGAL_FOO", "1").env("MADRIGAL_METHOD", "shm"));
    assert_eq!((code, stdout.as_str()), (Some(0), "ran\n"));
    assert!(stderr.contains("MADRIGAL_FOO is not known") && stderr.contains("MADRIGAL_SPIN_US"), "{stderr}");
    assert!(stderr.contains("did you mean MADRIGAL_METHODS?"), "{stderr}");
}

fn a_missing_program_is_127_and_one_that_cannot_be_executed_126() {
    let folder = Folder::new("refused");
    refused(&["--", "no-such-program-anywhere"], 127, &["no-such-program-anywhere: no such program in PATH="]);
    refused(&["--", "/no/such"], 127, &["/no/such: no such file"]);
    let text = folder.file("text", 0o644, "#!/bin/sh\n");
    refused(&["--", &text], 126, &["permission denied", &format!("chmod +x {text}")]);
    refused(&["--", "/"], 126, &["it is a directory"]);
    let orphan = folder.file("orphan", 0o755, "#!/no/such/interpreter\n");
    refused(&["--", &orphan], 127, &["interpreter"]);
    let noise = folder.file("noise", 0o755, "\0\u{1}\u{2}");
    refused(&["--", &noise], 126, &["neither a program nor a script"]);
}

fn a_script_without_a_first_line_runs_as_in_a_shell() {
    let folder = Folder::new("script");
    let script = folder.file("plain", 0o755, "echo \"$0 $1\"\n");
    assert_eq!(run(&mut exec(&["--", &script, "word"])).1, format!("{script} word\n"));
}

fn the_program_keeps_process_id_exit_status_and_death_by_signal() {
    let child = exec(&["--", "sh", "-c", "echo $$; exit 7"]).stdout(std::process::Stdio::piped()).spawn().unwrap();
    let pid = child.id();
    let output = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), format!("{pid}\n"));
    assert_eq!(output.status.code(), Some(7));
    let (code, ..) = run(&mut exec(&["--", "sh", "-c", "kill -TERM $$"]));
    assert_eq!(code, None);
}

/// Signals that are blocked and ignored, and descriptors that are closed, are the program's as they would be without us.
fn the_program_inherits_what_it_would_without_us() {
    let python = need("python3");
    let started = "import os, signal, sys\n\
                   signal.signal(signal.SIGPIPE, signal.SIG_IGN if 'ignore' in sys.argv else signal.SIG_DFL)\n\
                   signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])\n\
                   os.close(0)\n\
                   words = sys.argv[sys.argv.index('--') + 1:]\n\
                   os.execv(words[0], words)";
    let shown = ["grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status"];
    for how in ["ignore", "default"] {
        let state = |words: &[&str]| {
            let mut command = Command::new(&python);
            command.args(["-c", started, how, "--"]).args(words);
            run(&mut command)
        };
        let grep = need("grep");
        let plain = [&[grep.to_str().unwrap()], &shown[1..]].concat();
        let wrapped = [&[exe().to_str().unwrap(), "exec", "--"], &shown[..]].concat();
        let _ = madrigal();
        let (plain, wrapped) = (state(&plain), state(&wrapped));
        assert_eq!(plain.0, Some(0), "{plain:?}");
        assert_eq!(plain, wrapped);
    }
    let closed = "import os, sys; os.close(0); os.execv(sys.argv[1], sys.argv[1:])";
    let list = ["sh", "-c", "[ -e /proc/$$/fd/0 ] && echo open || echo closed"];
    let mut command = Command::new(&python);
    command.args(["-c", closed, exe().to_str().unwrap(), "exec", "--"]).args(list);
    assert_eq!(run(&mut command).1, "closed\n");
}

fn the_library_is_preloaded_once_and_before_the_users_own() {
    let show = ["--", "sh", "-c", "echo $LD_PRELOAD"];
    let own = run(&mut exec(&show)).1;
    let library = own.trim_end();
    assert!(library.starts_with('/') && library.ends_with("libmadrigal-syswrap.so"), "{library}");
    let (_, with_users, _) = run(exec(&show).env("LD_PRELOAD", "/no/a.so b.so"));
    assert_eq!(with_users, format!("{library}:/no/a.so:b.so\n"));
    let again = [&["--", exe().to_str().unwrap(), "exec"], &show[..]].concat();
    assert_eq!(run(&mut exec(&again)).1, own);
}

fn options_become_settings_and_verbose_tells_them() {
    let show = "echo $MADRIGAL_ONLY/$MADRIGAL_METHODS";
    let args = ["-v", "--only", "80,90-99", "--methods", "^shm", "--", "sh", "-c", show];
    let (code, stdout, stderr) = run(&mut exec(&args));
    assert_eq!((code, stdout.as_str()), (Some(0), "80,90-99/^shm\n"));
    for text in ["running /", "sh with", "MADRIGAL_ONLY=80,90-99", "MADRIGAL_METHODS=^shm", "LD_PRELOAD=/"] {
        assert!(stderr.contains(text), "no `{text}` in: {stderr}");
    }
    let (_, _, stderr) = run(&mut exec(&["--", "true"]));
    assert_eq!(stderr, "");
}

fn verbose_names_the_fabric_that_ranks_may_use() {
    let folder = Folder::new("fabric");
    for part in ["bin", "lib"] {
        std::fs::create_dir_all(folder.path(part)).unwrap();
    }
    let launcher = folder.file("bin/mpiexec", 0o755, "#!/bin/sh\n");
    folder.file("bin/hydra_pmi_proxy", 0o755, "");
    folder.file("lib/libmpi.so.12", 0o644, "libfabric.so");
    let told = |methods| run(exec(&["-v", "--methods", methods, "--", &launcher]).env_remove("FI_PROVIDER")).2;
    let text = told("shm,fabric:nosuch");
    assert!(text.contains("madrigal: fabric:nosuch: the libfabric of this host has no way: "), "{text}");
    assert!(!told("shm,tcp").contains("fabric:"));
    // As `madrigal info -d` has it.
    let (_, info, _) = run(madrigal().args(["info", "-d"]).env("MADRIGAL_METHODS", "fabric:tcp"));
    let works = info.lines().any(|line| line.contains("messages fabric:tcp") && line.contains(" ok "));
    let text = told("fabric:tcp");
    assert_eq!(text.contains("fabric:tcp: messages may go by libfabric's tcp"), works, "{text}{info}");
}

/// Without options of its own before it, a program's options are the program's.
fn the_programs_options_are_left_alone() {
    assert_eq!(run(&mut exec(&["echo", "-v", "--only", "--", "--help"])).1, "-v --only -- --help\n");
}

fn a_static_program_runs_plain_and_is_told_so() {
    let cc = need("cc");
    let folder = Folder::new("static");
    let source = folder.file(
        "p.c",
        0o644,
        "#include <stdio.h>\n#include <stdlib.h>\nint main(void) \
        { const char *p = getenv(\"LD_PRELOAD\"); puts(p ? p : \"none\"); return 3; }\n",
    );
    let built = Command::new(cc).args(["-static", "-o", &folder.path("p"), &source]).output().unwrap();
    if !built.status.success() {
        skip("no static C library here");
    }
    let (code, stdout, stderr) = run(&mut exec(&["--", &folder.path("p")]));
    assert_eq!((code, stdout.as_str()), (Some(3), "none\n"));
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    assert!(stderr.contains("p is statically linked") && stderr.contains("stay with TCP"), "{stderr}");
    let script = folder.file("s", 0o755, &format!("#!{}\n", folder.path("p")));
    let by_script = run(&mut exec(&["--", &script]));
    assert_eq!((by_script.0, by_script.2), (Some(3), stderr));
}

/// A program is Go's if it has a section that Go's linker writes.
fn a_program_with_a_section_of_gos_is_told_as_one() {
    let cc = need("cc");
    let folder = Folder::new("section");
    let source = folder.file("p.c", 0o644, "__attribute__((section(\".go.buildinfo\"))) char info[32] = \"x\";\nint main(void) { return info[0] != 'x'; }\n");
    for (name, flags, words) in
        [("dynamic", &[][..], "raw system calls"), ("static", &["-static"], "is statically linked")]
    {
        let built = Command::new(&cc).args(flags).args(["-o", &folder.path(name), &source]).output().unwrap();
        if !built.status.success() {
            skip("no static C library here");
        }
        let (code, _, stderr) = run(&mut exec(&["--", &folder.path(name)]));
        assert!(code == Some(0) && stderr.contains("is a Go program") && stderr.contains(words), "{code:?} {stderr}");
    }
}

/// Under a launcher that does not know our provider one line reports what is missing.
fn a_rank_of_a_job_is_told_once_what_its_messages_go_by() {
    let told = |key: &str, rank: &str, args: &[&str]| {
        let (code, _, stderr) = run(exec(args).env(key, rank).env_remove("FI_PROVIDER_PATH"));
        assert_eq!(code, Some(0), "{stderr}");
        stderr.lines().filter(|line| line.contains("madrigal exec -- mpirun ...")).count()
    };
    for key in ["PMI_RANK", "OMPI_COMM_WORLD_RANK"] {
        assert_eq!([told(key, "0", &["--", "true"]), told(key, "1", &["--", "true"])], [1, 0], "{key}");
    }
}

fn a_go_program_is_told_what_goes_past_the_library() {
    let go = need("go");
    let folder = Folder::new("go");
    let source =
        "package main\nimport (\"fmt\"; \"os\")\nfunc main() { fmt.Println(os.Getenv(\"LD_PRELOAD\") != \"\") }\n";
    let source = folder.file("p.go", 0o644, source);
    let printed = |name: &str, cgo: &str, flags: &[&str]| {
        let mut build = Command::new(&go);
        build.arg("build").args(flags).args(["-o", &folder.path(name), &source]);
        build.env("CGO_ENABLED", cgo).env("GOCACHE", folder.path("cache")).env("GOFLAGS", "");
        let built = build.output().unwrap();
        built.status.success().then(|| run(&mut exec(&["--", &folder.path(name)])))
    };
    let Some((_, stdout, stderr)) = printed("static", "0", &[]) else {
        skip("go builds nothing here");
    };
    assert_eq!(stdout, "false\n");
    assert!(stderr.contains("is a Go program, is statically linked"), "{stderr}");
    // Without C code in it even that may come out static.
    match printed("dynamic", "1", &["-ldflags=-linkmode=external"]) {
        Some((_, stdout, stderr)) if stdout == "true\n" => {
            assert!(stderr.contains("is a Go program") && stderr.contains("raw system calls"), "{stderr}");
        }
        _ => skip("go links nothing dynamically here"),
    }
}

fn a_suid_program_is_told_and_runs() {
    use std::os::unix::fs::{PermissionsExt as _, chown};
    let folder = Folder::new("suid");
    let program = if rustix::process::geteuid().is_root() {
        let copy = folder.path("true");
        copy_program(&need("true"), copy.as_ref());
        chown(&copy, Some(65534), None).unwrap();
        std::fs::set_permissions(&copy, std::fs::Permissions::from_mode(0o4755)).unwrap();
        copy
    } else {
        let su = need("su");
        su.to_str().unwrap().to_owned()
    };
    if rustix::thread::no_new_privs().unwrap_or(false)
        || rustix::fs::statvfs(&*program).is_ok_and(|f| f.f_flag.contains(rustix::fs::StatVfsMountFlags::NOSUID))
    {
        skip("SUID means nothing here");
    }
    let (code, _, stderr) = run(&mut exec(&["--", &program, "--help"]));
    assert_eq!(code, Some(0));
    assert!(stderr.contains("is SUID (it becomes user") && stderr.contains("stay with TCP"), "{stderr}");
}

fn without_the_library_nothing_runs() {
    let folder = Folder::new("alone");
    copy_program(exe(), folder.path("madrigal").as_ref());
    let (code, stdout, stderr) = run(Command::new(folder.path("madrigal")).args(["exec", "--", "echo", "ran"]));
    assert_eq!((code, stdout.as_str()), (Some(1), ""));
    assert!(stderr.contains("libmadrigal-syswrap.so") && stderr.contains("make install"), "{stderr}");
}

fn an_unfit_directory_is_told_and_the_program_runs() {
    let folder = Folder::new("unsafe");
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::set_permissions(&folder.0, std::fs::Permissions::from_mode(0o755)).unwrap();
    let (code, stdout, stderr) = run(exec(&["--", "echo", "ran"]).env("MADRIGAL_DIR", &folder.0));
    assert_eq!((code, stdout.as_str()), (Some(0), "ran\n"));
    assert!(stderr.contains("chmod 700") && stderr.contains(folder.0.to_str().unwrap()), "{stderr}");
    let (_, _, stderr) = run(exec(&["--methods", "tcp", "--", "true"]).env("MADRIGAL_DIR", &folder.0));
    assert_eq!(stderr, "");
}
