//! The table: how each command line of the pages is run, or why it is only checked.

use super::lines::{Line, inline, lines, pages};

/// What becomes of a line.
#[derive(Debug)]
pub(crate) enum How {
    /// It is typed, in the scene of that name.
    Played(&'static str),
    /// It is not run, for this reason. What it names is there (`checked.rs`).
    Checked(&'static str),
    /// That file types it.
    Elsewhere(&'static str),
    /// It is no command, nor is what follows in its block; or it is one that is not there, and the page says so.
    Shown(&'static str),
}
use How::{Checked, Elsewhere, Played, Shown};

/// A page, how lines of it begin, and what becomes of them. Where several rows fit a line, the longest counts.
type Row = (&'static str, &'static str, How);

const BUILDS: &str = "it builds everything: minutes";
const PART: &str = "this test is a part of it";
const PIECE: &str = "it builds and runs tests of a package; `make test` runs all of them";
const LONG: &str = "it takes minutes, and wants a quiet machine";
const JOBS: &str = "it takes minutes, and MPIs that setup fetches; `make test` runs the short ones";
const GUIDE: &str = "tools/madrigal/tests/lab/guide.rs";

/// By page.
pub(crate) const TABLE: &[Row] = &[
    ("ARCHITECTURE.md", "personalities/syswrap ", Shown("the map")),
    ("ARCHITECTURE.md", "Mux (streams", Shown("the stack of a link")),
    ("ARCHITECTURE.md", "madrigal info --clean", Shown("planned once, and not there")),
    ("CONTRIBUTING.md", "make test", Checked(PART)),
    ("CONTRIBUTING.md", "make check", Checked(PART)),
    ("CONTRIBUTING.md", ".ci/run", Checked(PART)),
    ("CONTRIBUTING.md", ".ci/bare", Checked("it builds a Debian, and runs all tests there")),
    ("CONTRIBUTING.md", "tests/mutants/run.py", Checked("it builds each fault: half an hour")),
    ("CONTRIBUTING.md", "tests/mutants/run.py --check", Played("scripts")),
    ("CONTRIBUTING.md", "python3 -m unittest discover tests/mutants", Played("scripts")),
    ("CONTRIBUTING.md", "cargo test ", Checked(PIECE)),
    ("CONTRIBUTING.md", "tests/mpi/run.py", Checked(JOBS)),
    ("CONTRIBUTING.md", "cargo run --release -p madrigal-header", Checked("it writes into the tree")),
    ("CONTRIBUTING.md", "MADRIGAL_TEST_RANDOM=1 cargo test ", Checked(PIECE)),
    ("CONTRIBUTING.md", "ANY_TIME=all semantics ", Checked("the program is of another package, and may not be built")),
    ("CONTRIBUTING.md", "make models", Checked(LONG)),
    ("CONTRIBUTING.md", "make fuzz", Checked(LONG)),
    ("README.md", "madrigal exec -- redis-", Played("exec")),
    ("README.md", "$ madrigal why", Played("exec")),
    ("README.md", "make demo", Checked("it builds, and fetches redis where there is none")),
    ("README.md", "make test", Checked(PART)),
    ("README.md", "make install", Played("installed")),
    ("README.md", "a1$ madrigal", Elsewhere(GUIDE)),
    ("README.md", "b1$ madrigal", Elsewhere(GUIDE)),
    ("README.md", "madrigal lab ", Played("lab")),
    ("README.md", "madrigal lab exec a1 -- madrigal exec ", Played("lab_with_daemons")),
    ("bench/README.md", "cargo build", Checked(BUILDS)),
    ("bench/README.md", "make bench", Checked(LONG)),
    ("bench/README.md", "bench/run.py", Checked(LONG)),
    ("bench/README.md", "bench/run.py --list", Played("scripts")),
    ("docs/adapters.md", "`adoc` below `tls`", Shown("what is said of a stack that makes no sense")),
    ("docs/c-api.md", "make install-c", Played("installed")),
    ("docs/c-api.md", "export ", Played("installed")),
    ("docs/c-api.md", "cc hello.c", Played("installed")),
    ("docs/c-api.md", "./a.out", Played("installed")),
    ("docs/daemon.md", "madrigal ", Played("daemon")),
    ("docs/daemon.md", "redis-cli ", Played("daemon")),
    ("docs/daemon.md", "madrigal exec ", Played("lab_with_daemons")),
    ("docs/daemon.md", "trusted = true", Shown("a grid.toml")),
    ("docs/daemon.md", "[pools]", Shown("a part of a grid.toml")),
    ("docs/daemon.md", "[rule.backup]", Shown("a part of a grid.toml")),
    ("docs/daemon.md", "a1 to b1:", Shown("what `madrigal why A B` says")),
    ("docs/daemon.md", "systemctl --user ", Checked("it would change the services of whoever runs the tests")),
    ("docs/daemon.md", "loginctl ", Checked("it would change the login of whoever runs the tests")),
    ("docs/drivers/fabric.md", "MADRIGAL_METHODS=shm,fabric:verbs madrigal exec ", Played("mpi")),
    ("docs/drivers/plugin.md", "name = ", Shown("a description")),
    ("docs/drivers/plugin.md", "cc ", Played("installed")),
    ("docs/drivers/plugin.md", "export ", Played("installed")),
    ("docs/drivers/plugin.md", "madrigal ", Played("installed")),
    ("docs/drivers/plugin.md", "cargo test ", Checked(PIECE)),
    ("docs/drivers/tcp.md", "cannot reach node ", Shown("what is said of a peer")),
    ("docs/identity.md", "madrigal ", Played("identity")),
    ("docs/identity.md", "scp ", Played("identity")),
    ("docs/lab.md", "madrigal lab ", Played("lab")),
    ("docs/lab.md", "madrigal lab up examples/two-sites.toml --with-daemons", Played("lab_with_daemons")),
    ("docs/lab.md", "madrigal lab exec a1 -- madrigal ", Played("lab_with_daemons")),
    ("docs/lab.md", "madrigal lab exec a1 -- redis-cli ", Played("lab_with_daemons")),
    ("docs/lab.md", "madrigal lab exec b1 -- redis-server ", Played("lab_with_daemons")),
    ("docs/ofi.md", "make build && sudo make install", Checked(BUILDS)),
    ("docs/ofi.md", "madrigal exec ", Played("mpi")),
    ("docs/ofi.md", "$ FI_PROVIDER_PATH=PREFIX/lib/libfabric fi_info ", Played("installed")),
    ("docs/ofi.md", "madrigal: node ", Shown("what is said of a peer")),
    ("docs/personalities.md", "make install-c", Played("installed")),
    ("docs/personalities.md", "export ", Played("installed")),
    ("docs/personalities.md", "cc ring.c", Played("installed")),
    ("docs/personalities.md", "madrigal run ", Played("installed")),
    ("docs/python.md", "pip install", Checked(BUILDS)),
    ("docs/python.md", "make wheel", Checked(BUILDS)),
    ("docs/python.md", "$ madrigal run ", Played("installed")),
    ("docs/run.md", "madrigal run ", Played("run")),
    ("docs/rust.md", "cargo test ", Checked(PIECE)),
    ("docs/suites.md", "tests/suites/run.py", Checked("it fetches and builds suites of others, and runs them: hours")),
    ("docs/suites.md", "tests/suites/run.py --list", Played("scripts")),
    ("docs/two-sites.md", "a1$ madrigal", Elsewhere(GUIDE)),
    ("docs/two-sites.md", "a2$ madrigal", Elsewhere(GUIDE)),
    ("docs/two-sites.md", "b1$ madrigal", Elsewhere(GUIDE)),
    ("tests/churn/README.md", "PROGRAM server ", Shown("the arguments of a program of ours")),
    ("tests/mpi/README.md", "tests/mpi/", Checked(JOBS)),
    ("tests/mpi/README.md", "fabtests, of the release", Shown("how others' suites are built")),
];

/// A command line of a page, how it is run, and the part of its output that the page shows below it.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) line: Line,
    pub(crate) how: &'static How,
    pub(crate) shown: Vec<String>,
}

/// The row that a line belongs to.
fn row(line: &Line) -> Option<&'static Row> {
    let fits = |row: &&Row| row.0 == line.page && line.text().starts_with(row.1.trim_end());
    TABLE.iter().filter(fits).max_by_key(|row| row.1.len())
}

/// Every command line, and what is wrong: lines that no row speaks of, rows that speak of no line.
pub(crate) fn entries() -> (Vec<Entry>, Vec<String>) {
    let (mut all, mut wrong): (Vec<Entry>, Vec<String>) = (Vec::new(), Vec::new());
    for line in pages().iter().flat_map(|page| lines(page)) {
        let below = all.last_mut().filter(|last| (&last.line.page, last.line.block) == (&line.page, line.block));
        match (row(&line), below) {
            (Some((_, _, how)), _) => all.push(Entry { line, how, shown: Vec::new() }),
            (None, Some(last)) if !line.is_command() && (matches!(last.how, Shown(_)) || last.line.has_prompt()) => {
                last.shown.push(line.whole);
            }
            (None, _) => wrong.push(format!("{}: no row of the table says how it is run", line.place())),
        }
    }
    let between: Vec<Line> = pages().iter().flat_map(|page| inline(page)).collect();
    for (page, begin, how) in TABLE {
        let used = |line: &Line| row(line).is_some_and(|row| std::ptr::eq(&row.2, how));
        if !all.iter().map(|entry| &entry.line).chain(&between).any(used) {
            wrong.push(format!("no line of {page} that begins with `{begin}` is left"));
        }
    }
    (all, wrong)
}

/// The commands between backticks, but for those that the table calls none.
pub(crate) fn between_backticks() -> Vec<Line> {
    let shown = |line: &Line| row(line).is_some_and(|row| matches!(row.2, Shown(_)));
    pages().iter().flat_map(|page| inline(page)).filter(|line| !shown(line)).collect()
}

/// The lines of a scene, in the order of the pages.
pub(crate) fn of_scene(name: &str) -> Vec<Entry> {
    entries().0.into_iter().filter(|entry| matches!(entry.how, Played(scene) if *scene == name)).collect()
}
