//! Unmodified MPIs between hosts of two sites of a lab, started by their own launchers under `madrigal exec`: the launcher's connections and
//! the ranks' messages go through the daemons. MPICH is the wheel that `tests/mpi/setup` fetches, Open MPI Debian's.
//!
//! Features (docs/features.md): B4, B18, L7.

use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use madrigal_tests::host;
use madrigal_tests::trials::skip;

use super::bed::{Bed, Who, example, need_lab};
use super::common;
use super::daemons::{ALLOW, two_sites};
use super::grid::Grid;

/// Stands in for ssh between hosts.
const AGENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/mpi/bed/agent.py");

/// An MPI: its compiler, its launcher and first arguments.
pub(crate) struct Mpi {
    name: &'static str,
    compiler: String,
    pub(crate) launcher: String,
    words: &'static [&'static str],
    hosts: &'static str,
}

/// Everything that a job needs on the hosts of a lab: an installation of ours, and an agent on each host that starts programs on request.
pub(crate) struct Site {
    folder: PathBuf,
    agents: Vec<Child>,
}

impl Site {
    pub(crate) fn new(bed: &Bed, hosts: &[&str]) -> Self {
        let folder = Path::new(&bed.home.folder()).join("site");
        // Open MPI's folder of a session is named by host and process, which are the same in labs side by side: a folder for each.
        for place in ["bin", "lib/libfabric", "tmp"] {
            std::fs::create_dir_all(folder.join(place)).unwrap();
        }
        let built = host::release();
        let exe = folder.join("bin/madrigal");
        std::fs::hard_link(common::exe(), &exe).or_else(|_| std::fs::copy(common::exe(), &exe).map(drop)).unwrap();
        symlink(built.join("libmadrigal_syswrap.so"), folder.join("lib/libmadrigal-syswrap.so")).unwrap();
        symlink(built.join("libmadrigal_ofi.so"), folder.join("lib/libfabric/libmadrigal-fi.so")).unwrap();
        let mut site = Self { folder, agents: Vec::new() };
        hosts.iter().for_each(|host| site.serve(bed, host));
        site
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.folder.join(name).to_str().unwrap().to_owned()
    }

    fn serve(&mut self, bed: &Bed, host: &str) {
        let settings = format!(
            "BED_SETTINGS={{\"folder\":\"/\",\"environment\":{{\"PATH\":\"/usr/bin:/bin\",\"HOME\":\"/root\",\"TMPDIR\":\"{}\",\"BED_HOSTS\":\"{}\"}}}}",
            self.path("tmp"),
            self.path("")
        );
        let socket = self.path(&format!("{host}.sock"));
        let mut child = bed.start(host, &["env", &settings, "/usr/bin/python3", AGENT, "serve", &socket]);
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n", "{host}");
        self.agents.push(child);
    }

    /// The MPIs, which have to be here.
    pub(crate) fn mpis(&self) -> Vec<Mpi> {
        let wheel = common::exe().parent().unwrap().parent().unwrap().join("mpi/mpich/bin");
        let wheel = |program: &str| wheel.join(program).to_str().unwrap().to_owned();
        let debian: &[&str] = &["--allow-run-as-root", "--mca", "mpi_warn_on_fork", "0"];
        let all = [
            ("mpich", wheel("mpicc"), wheel("mpiexec"), &[][..], "-hosts"),
            ("openmpi", "/usr/bin/mpicc.openmpi".to_owned(), "/usr/bin/mpirun.openmpi".to_owned(), debian, "--host"),
        ];
        let mpi = |(name, compiler, launcher, words, hosts): (_, String, String, _, _)| {
            if !Path::new(&compiler).exists() || !Path::new(&launcher).exists() {
                skip(format!("no {name}: run tests/mpi/setup --light"));
            }
            Mpi { name, compiler, launcher, words, hosts }
        };
        all.map(mpi).into()
    }

    /// A program of the tests built for an MPI.
    fn build(&self, mpi: &Mpi, program: &str) -> String {
        let built = self.path(&format!("{}-{program}", mpi.name));
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/lab").join(program).with_extension("c");
        assert!(Command::new(&mpi.compiler).args(["-O1", "-o", &built]).arg(source).status().unwrap().success());
        built
    }

    /// What is typed on the first of some hosts to run a program of the tests with a rank on each; two where one is named twice.
    pub(crate) fn words(&self, mpi: &Mpi, hosts: &[&str], with: &[&str], job: [&str; 2]) -> Vec<String> {
        let agent = format!("MADRIGAL_AGENT=/usr/bin/python3 {AGENT}");
        let (folder, exe) = (format!("BED_HOSTS={}", self.path("")), self.path("bin/madrigal"));
        let own = format!("TMPDIR={}", self.path("tmp"));
        let (on, ranks, program) = (hosts.join(","), hosts.len().to_string(), self.build(mpi, job[0]));
        let head = ["timeout", "100", "env", &agent, &folder, &own];
        let launch = [&exe, "exec", "--", &mpi.launcher, "-n", &ranks, mpi.hosts, &on];
        let all = [&head, with, &launch, mpi.words, &[&program, job[1]]].concat();
        all.into_iter().map(str::to_owned).collect()
    }

    /// Runs the job with a rank on each of some hosts, started on the first: exit status and all output.
    fn run(&self, bed: &Bed, mpi: &Mpi, hosts: &[&str], with: &[&str]) -> (i32, String) {
        let words = self.words(mpi, hosts, with, ["job", &self.path("bin/madrigal")]);
        let (status, out, err) = bed.exec(hosts[0], &words.iter().map(String::as_str).collect::<Vec<_>>());
        (status, out + &err)
    }

    /// The job does what it should, and its ranks reach each other by these hosts, also if the other rank queried its daemon first.
    fn works(&self, bed: &Bed, mpi: &Mpi, hops: &[&str]) {
        let (here, there) = (hops[0], hops[hops.len() - 1]);
        let (status, told) = self.run(bed, mpi, &[here, there], &[]);
        let back: Vec<&str> = hops.iter().rev().copied().collect();
        let by =
            [hops, &back[..]].map(|hops| told.contains(&format!("  through the daemon: {} (TLS)", hops.join(", "))));
        let both = told.matches("  through the daemon: ").count();
        assert!(
            status == 0 && told.contains("sums are right") && by.contains(&true) && both == 2,
            "{}: {told}",
            mpi.launcher
        );
    }

    /// Jobs of every MPI started on the first of some hosts, with a rank on each, which reach those of other hosts through their daemons.
    pub(crate) fn try_all(&self, bed: &Bed, hosts: &[&str]) {
        for mpi in &self.mpis() {
            let (status, told) = self.run(bed, mpi, hosts, &[]);
            let through = told.matches("  through the daemon: ").count();
            // With more than two ranks, each reports the ranks that it reached until then.
            let all = through == 2 || (hosts.len() > 2 && through > 2);
            assert!(status == 0 && told.contains("sums are right") && all, "{}, {hosts:?}: {told}", mpi.name);
        }
    }

    pub(crate) fn end(mut self) {
        for agent in &mut self.agents {
            let _ = agent.kill();
            let _ = agent.wait();
        }
    }
}

/// Jobs of every MPI on a1 and b1 of an example, whose ranks meet by these hops.
fn meet(lab: &str, hops: &[&str]) {
    need_lab(Who::Me);
    let (bed, _) = Bed::up_with(Who::Me, &example(lab), &["--with-daemons"]);
    let site = Site::new(&bed, &["a1", "b1"]);
    for mpi in site.mpis() {
        site.works(&bed, &mpi, hops);
    }
    site.end();
    bed.down();
}

pub(crate) fn ranks_of_two_sites_behind_nat_meet_by_a_relay() {
    meet("two-sites.toml", &["a1", "r", "b1"]);
}

pub(crate) fn ranks_meet_through_a_one_way_firewall() {
    meet("one-way-firewall.toml", &["b1", "a1"]);
}

pub(crate) fn ranks_of_ipv6_meet_ranks_of_ipv4() {
    meet("ipv6-only.toml", &["a1", "r", "b1"]);
}

pub(crate) fn ranks_of_networks_that_overlap_meet_on_three_hosts() {
    need_lab(Who::Me);
    let (bed, _) = Bed::up_with(Who::Me, &example("overlapping.toml"), &["--with-daemons"]);
    let site = Site::new(&bed, &["a1", "b1", "r"]);
    // The launcher's host is one whose address another one has, and one whose address is its own.
    for hosts in [&["a1", "a1", "b1", "r"][..], &["r", "b1", "a1"]] {
        site.try_all(&bed, hosts);
    }
    site.end();
    bed.down();
}

pub(crate) fn ranks_that_cannot_meet_say_what_was_tried() {
    need_lab(Who::Me);
    // The launcher's port may be connected to, those of ranks may not.
    let file = two_sites().replace(ALLOW, "allow = '6000-6019'\n");
    let grid = Grid::up("two-sites.toml", &format!("trusted = true\n{file}"), &["r", "a1", "b1"]);
    grid.linked("a1", "r");
    grid.linked("b1", "r");
    let site = Site::new(&grid.bed, &["a1", "b1"]);
    let with = ["MPIEXEC_PORT_RANGE=6000:6019", "MADRIGAL_PORTS=6100-6119"];
    for mpi in site.mpis().iter().filter(|mpi| mpi.hosts == "-hosts") {
        let (mut status, mut told) = site.run(&grid.bed, mpi, &["a1", "b1"], &with);
        // A launcher that ends a job may lose all output: such a run has no result.
        for _ in 0..2 {
            if status != 0 && ["cannot reach", "Abort("].iter().all(|word| !told.contains(word)) {
                (status, told) = site.run(&grid.bed, mpi, &["a1", "b1"], &with);
            }
        }
        assert!(status != 0 && !told.contains("sums are right"), "{told}");
        // A dead end for connection attempts: there is never an answer.
        let printed = told.lines().find(|line| line.contains("through the daemon: ")).unwrap_or_default();
        for part in [": no answer (ETIMEDOUT), ", "lets nobody connect to port 61", "s it did not connect to us"] {
            assert!(printed.contains(part), "{part}: {told}");
        }
    }
    site.end();
    grid.down();
}
