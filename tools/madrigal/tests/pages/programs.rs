//! Scenes on this machine: what is installed below a prefix, an MPI, certificates, scripts that are done in a moment.

use madrigal_tests::host;
use madrigal_tests::trials::need_all;

use super::lines::root;
use super::table::Entry;
use super::terminal::{Terminal, shows};

/// Somebody for whom what `make` takes from target/release is that of these tests; where README.md's line installs it.
fn with_builds() -> (Terminal, String) {
    let mut terminal = Terminal::new();
    terminal.export(&format!("MAKEFLAGS='-- RELEASE={}'", host::release_for_c().display()));
    let prefix = format!("{}/.local", terminal.home_of("user"));
    (terminal, prefix)
}

/// What stands in the home of who reads those pages.
const EXAMPLES: [&str; 7] = [
    "examples/c/hello.c",
    "personalities/classic/examples/ring.c",
    "examples/python/parameters.py",
    "examples/python/workers.py",
    "examples/drivers/unixsocket.h",
    "examples/drivers/unixstream.c",
    "examples/drivers/unixstream.toml",
];

/// What the pages of C, of old interfaces, of Python and of the provider show, below a prefix in a home of our own. The package for
/// Python is that of the tree: `pip` would build it.
pub(crate) fn installed(lines: &[Entry]) {
    need_all(&["make", "cc", "pkg-config", "python3", "fi_info"]);
    let (mut terminal, prefix) = with_builds();
    for example in EXAMPLES {
        let text = std::fs::read_to_string(root().join(example)).unwrap();
        terminal.file(example.rsplit('/').next().unwrap(), &text);
    }
    terminal.export(&format!("PYTHONPATH={}/personalities/python/src", root().display()));
    terminal.export(&format!("MADRIGAL_LIBRARY={prefix}/lib/libmadrigal.so.0"));
    for entry in lines {
        println!("{}", entry.line.place());
        let line = entry.line.typed().replace("PREFIX/", &format!("{prefix}/"));
        let said = terminal.types(&line);
        for shown in &entry.shown {
            assert!(shows(&said, shown), "$ {line}\nno `{shown}` in\n{said}");
        }
        match entry.line.page.as_str() {
            "README.md" => {
                assert_eq!(terminal.types("$HOME/.local/bin/madrigal exec -- echo installed"), "installed\n")
            }
            "docs/c-api.md" if line == "./a.out" => assert_eq!(said, "who is there?\n"),
            "docs/personalities.md" if line.starts_with("madrigal run") => {
                assert_eq!(said, "4 ranks, and their sum is 6\n");
            }
            _ => {}
        }
    }
}

/// A program of four ranks.
const PROGRAM: &str = "#include <mpi.h>\n#include <stdio.h>\nint main(int argc, char **argv)\n{\n    int rank, sum;\n    \
    MPI_Init(&argc, &argv);\n    MPI_Comm_rank(MPI_COMM_WORLD, &rank);\n    \
    MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);\n    if (rank == 0)\n        printf(\"sum %d\\n\", sum);\n    \
    return MPI_Finalize();\n}\n";

/// Jobs of an MPI on this host. For those that want other hosts (`lab/jobs.rs` has such) or a fabric a script stands in for the launcher.
pub(crate) fn mpi(lines: &[Entry]) {
    need_all(&["make", "mpirun.openmpi", "mpicc.openmpi"]);
    let (mut terminal, prefix) = with_builds();
    terminal.types(&format!("make install PREFIX={prefix}"));
    terminal.export(&format!("PATH={prefix}/bin:$PATH"));
    terminal.file("program.c", PROGRAM);
    terminal.types("mpicc.openmpi -o program program.c");
    terminal.export("OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1");
    let (here, others): (Vec<&Entry>, Vec<&Entry>) =
        lines.iter().partition(|entry| entry.line.typed().contains(" -n 4 "));
    for entry in here {
        let said = terminal.plays(entry);
        assert!(said.contains("sum 6\n") && said.contains("opal_common_ofi_provider_include=madrigal"), "{said}");
    }
    terminal.stands_in("mpirun", "echo launched \"$@\", ${MADRIGAL_METHODS:-all}");
    for entry in others {
        let said = terminal.plays(entry);
        let (settings, line) = entry.line.typed().split_once("madrigal exec -- mpirun ").unwrap();
        let methods = settings.trim().strip_prefix("MADRIGAL_METHODS=").unwrap_or("all");
        assert_eq!(said, format!("launched {line}, {methods}\n"));
    }
}

/// Does what scp does, where hosts are folders.
const SCP: &str = "[ \"$1\" != -p ] || shift\nfor last in \"$@\"; do :; done\n\
    while [ $# -gt 1 ]; do cp -p \"$1\" \"HOMES${last%%:*}/${last#*:}\" || exit; shift; done";
/// What ssh does there.
const SSH: &str = "mkdir -p HOMES$1; cd HOMES$1; shift; exec sh -c \"$*\"";

/// docs/identity.md: the machine of the CA, ann's, and a host, each with a home. Scripts stand in for ssh and scp.
pub(crate) fn identity(lines: &[Entry]) {
    let mut terminal = Terminal::new();
    let homes = terminal.home_of("");
    terminal.stands_in("ssh", &SSH.replace("HOMES", &homes));
    terminal.stands_in("scp", &SCP.replace("HOMES", &homes));
    for entry in lines {
        let line = entry.line.typed();
        terminal.at_home(if line.starts_with("madrigal login") { "ann" } else { "ca" });
        if line.starts_with("scp ") {
            // The list goes to a host of the grid, which has its certificate.
            let said = terminal.types("madrigal ca issue --host a1");
            brings(&mut terminal, &said, "a1");
        }
        let said = terminal.plays(entry);
        if let Some((_, who)) = line.strip_prefix("madrigal ca issue ").and_then(|rest| rest.split_once(' ')) {
            brings(&mut terminal, &said, who);
        }
        if line.starts_with("scp ") {
            let [there, here] = ["a1", "ca"].map(|name| format!("{homes}{name}/.config/madrigal/revoked.pem"));
            assert_eq!(std::fs::read(there).unwrap(), std::fs::read(here).unwrap());
        }
    }
    terminal.at_home("ann");
    assert_eq!(terminal.once("madrigal login --status", "").0, 1, "ann has logged out");
}

/// Types the command that `ca issue` prints.
fn brings(terminal: &mut Terminal, said: &str, host: &str) {
    let line = said.lines().find_map(|line| line.strip_prefix("  ssh ")).expect("what to type");
    terminal.types(&format!("ssh {}", line.replace("HOST", host)));
}

/// Scripts that are done in a moment.
pub(crate) fn scripts(lines: &[Entry]) {
    need_all(&["python3"]);
    let mut terminal = Terminal::new();
    for entry in lines {
        assert!(!terminal.plays(entry).is_empty());
    }
}
