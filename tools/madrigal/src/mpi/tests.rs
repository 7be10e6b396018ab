//! Installations made of empty files.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use super::kind::{self, Found};
use super::*;

/// A folder of files, removed at the end.
struct Tree(PathBuf);

impl Tree {
    fn new(name: &str, files: &[(&str, &str)]) -> Self {
        let root = std::env::temp_dir().join(format!("madrigal-mpi-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        for (file, text) in files {
            let path = root.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        Self(root)
    }

    fn kind(&self, launcher: &str) -> Option<Found> {
        kind::of(&self.0.join(launcher))
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn able(kind: Kind) -> Option<Found> {
    Some(Found { kind, unable: None })
}

#[test]
fn launchers_are_known_by_their_neighbours() {
    let fabric = "..\0libfabric.so.1\0..";
    let mpich = Tree::new("mpich", &[("bin/mpiexec", ""), ("bin/hydra_pmi_proxy", ""), ("lib/libmpi.so.12", fabric)]);
    assert_eq!(mpich.kind("bin/mpiexec"), able(Kind::Mpich));
    assert_eq!(mpich.kind("bin/hydra_pmi_proxy"), None);
    let intel = Tree::new(
        "intel",
        &[("bin/mpirun", ""), ("bin/impi_info", ""), ("bin/hydra_pmi_proxy", ""), ("lib/libmpi.so.12", fabric)],
    );
    assert_eq!(intel.kind("bin/mpirun"), able(Kind::Intel));
    let five = Tree::new("ompi5", &[("bin/mpirun", ""), ("bin/ompi_info", ""), ("lib/libmpi.so.40", "mmca_mtl_ofi_c")]);
    assert_eq!(five.kind("bin/mpirun"), able(Kind::OpenMpi));
    let other = Tree::new("other", &[("bin/mpirun", "")]);
    assert_eq!(other.kind("bin/mpirun"), None);
}

#[test]
fn both_may_live_in_one_folder_and_one_may_know_no_libfabric() {
    let arch = "lib/x86_64-linux-gnu";
    let plugin = format!("{arch}/openmpi/lib/openmpi3/mca_mtl_ofi.so");
    let mpich = format!("{arch}/libmpich.so.12");
    let files = [
        ("bin/orterun", ""),
        ("bin/ompi_info", ""),
        ("bin/mpiexec.hydra", ""),
        ("bin/hydra_pmi_proxy", ""),
        (plugin.as_str(), ""),
        (mpich.as_str(), "libucp.so.0"),
    ];
    let debian = Tree::new("debian", &files);
    let link = |to: &str, name: &str| {
        std::os::unix::fs::symlink(debian.0.join("bin").join(to), debian.0.join("bin").join(name)).unwrap()
    };
    link("orterun", "mpirun.openmpi");
    link("mpirun.openmpi", "mpirun");
    link("mpiexec.hydra", "mpiexec");
    assert_eq!(debian.kind("bin/mpirun"), able(Kind::OpenMpi));
    let found = debian.kind("bin/mpiexec").unwrap();
    assert_eq!((found.kind, found.unable.is_some()), (Kind::Mpich, true));
}

#[test]
fn the_page_has_every_mpi_and_what_is_set_for_it() {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/ofi.md")).unwrap();
    for kind in Kind::ALL {
        let row = page.lines().find(|line| line.starts_with(&format!("| {} ", kind.name())));
        let row = row.unwrap_or_else(|| panic!("docs/ofi.md: no row for {}", kind.name()));
        for (key, value) in wanted(*kind) {
            assert!(row.contains(&format!("{key}={value}")), "docs/ofi.md: no {key}={value} in the row {row}");
        }
    }
}

fn environment(pairs: &[(&str, &str)]) -> Environment {
    Environment(pairs.iter().map(|(key, value)| (OsString::from(key), OsString::from(value))).collect())
}

#[test]
fn what_the_user_set_stays() {
    let tree = Tree::new("set", &[("bin/mpirun", ""), ("bin/ompi_info", ""), ("lib/openmpi/mca_mtl_ofi.so", "")]);
    let provider = Path::new("/p/lib/libmadrigal-fi.so");
    let mut env = environment(&[("OMPI_MCA_pml", "ob1"), ("FI_PROVIDER_PATH", "/theirs"), ("MADRIGAL_METHODS", "shm")]);
    let told = prepare(&tree.0.join("bin/mpirun"), &[], Some(provider), &mut env);
    assert_eq!(told.len(), 1);
    assert!(told[0].contains("kept OMPI_MCA_pml=ob1") && told[0].contains("set OMPI_MCA_mtl=ofi"), "{told:?}");
    assert_eq!(env.get("OMPI_MCA_pml"), Some("ob1".as_ref()));
    assert_eq!(env.get("FI_PROVIDER_PATH"), Some("/theirs:/p/lib".as_ref()));
    assert_eq!(env.get(TAKEN_ALONG), Some("FI_PROVIDER_PATH;MADRIGAL_METHODS".as_ref()));
    prepare(&tree.0.join("bin/mpirun"), &[], Some(provider), &mut env);
    assert_eq!(env.get("FI_PROVIDER_PATH"), Some("/theirs:/p/lib".as_ref()));
    let mut env = environment(&[]);
    assert!(prepare(Path::new("/bin/sh"), &[], Some(provider), &mut env).is_empty());
    assert!(prepare(&tree.0.join("bin/mpirun"), &[], None, &mut env)[0].contains("make build"));
    assert!(env.0.is_empty());
}

#[test]
fn what_is_taken_along_leaves_the_users_own_ways_open() {
    let plugin = "lib/x86_64-linux-gnu/openmpi/lib/openmpi3/mca_mtl_ofi.so";
    let tree = Tree::new("along", &[("bin/orterun", ""), ("bin/ompi_info", ""), (plugin, "")]);
    std::os::unix::fs::symlink("orterun", tree.0.join("bin/mpirun")).unwrap();
    let taken = |given: &[(&str, &str)], words: &[&str]| {
        let mut env = environment(given);
        let words: Vec<OsString> = words.iter().map(OsString::from).collect();
        prepare(&tree.0.join("bin/mpirun"), &words, Some(Path::new("/p/lib/libmadrigal-fi.so")), &mut env);
        [TAKEN_ALONG, TAKEN_ALONG_4].map(|key| env.get(key).map(OsStr::to_owned))
    };
    // That version ends at once where `-x` is beside the public list.
    assert_eq!(taken(&[], &["-x", "FOO", "true"]), [None, Some("FI_PROVIDER_PATH".into())]);
    assert_eq!(taken(&[(TAKEN_ALONG, "FOO")], &["true"]), [Some("FOO".into()), Some("FI_PROVIDER_PATH".into())]);
    assert_eq!(taken(&[(TAKEN_ALONG_4, "FOO")], &["true"]), [None, Some("FOO".into())]);
    assert_eq!(taken(&[], &["-n", "2", "--tune", "file", "true"]), [None, None]);
}

#[test]
fn providers_below_us_are_let_through_and_told() {
    let tree =
        Tree::new("below", &[("bin/mpiexec", ""), ("bin/hydra_pmi_proxy", ""), ("lib/libmpi.so.12", "libfabric.so")]);
    let launcher = tree.0.join("bin/mpiexec");
    let provider = Some(Path::new("/p/lib/libmadrigal-fi.so"));
    let filter = |methods: &str, theirs: &str| {
        let mut env = environment(&[("MADRIGAL_METHODS", methods), (FILTER, theirs)]);
        prepare(&launcher, &[], provider, &mut env);
        env.get(FILTER).map(OsStr::to_owned)
    };
    assert_eq!(filter("shm,tcp", ""), Some("madrigal".into()));
    assert_eq!(filter("shm,fabric:nosuch;ofi_rxm,tcp", ""), Some("madrigal,nosuch".into()));
    assert_eq!(filter("fabric:nosuch", "verbs"), Some("verbs".into()));
    let told = |methods| fabrics(&launcher, &environment(&[("MADRIGAL_METHODS", methods)]));
    assert_eq!(told("shm,tcp"), [""; 0]);
    let [text] = &told("fabric:nosuch")[..] else { panic!("{:?}", told("fabric:nosuch")) };
    assert!(text.starts_with("fabric:nosuch: the libfabric of this host has no way: "), "{text}");
    assert!(fabrics(Path::new("/bin/sh"), &environment(&[("MADRIGAL_METHODS", "fabric:nosuch")])).is_empty());
}

#[test]
fn a_launcher_runs_our_command_for_other_hosts_unless_it_was_told_another() {
    let tree =
        Tree::new("remote", &[("bin/mpiexec", ""), ("bin/hydra_pmi_proxy", ""), ("lib/libmpi.so.12", "libfabric")]);
    let remote = Some(Path::new("/run/madrigal-remote"));
    let set = |given: &[(&str, &str)], remote| {
        let mut env = environment(given);
        let told = reach_out(&tree.0.join("bin/mpiexec"), remote, &mut env);
        assert_eq!(told.is_empty(), env.0.len() == given.len(), "{told:?}");
        env.get("HYDRA_LAUNCHER_EXEC").map(OsStr::to_owned)
    };
    assert_eq!(set(&[], remote), Some("/run/madrigal-remote".into()));
    assert_eq!(set(&[], None), None);
    assert_eq!(set(&[("HYDRA_LAUNCHER_EXEC", "rsh")], remote), Some("rsh".into()));
    assert_eq!(set(&[("SLURM_JOB_ID", "7")], remote), None);
    assert!(reach_out(Path::new("/bin/sh"), remote, &mut environment(&[])).is_empty());
}

#[test]
fn a_rank_whose_launcher_knows_nothing_of_us_is_told() {
    let ours = Path::new("/opt/madrigal/lib/libfabric/libmadrigal-fi.so");
    let told = |variables: &[(&str, &str)], provider| {
        let env = Environment(variables.iter().map(|(key, value)| (key.into(), value.into())).collect());
        rank_alone(&env, provider)
    };
    for key in ["PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "MPI_LOCALRANKID"] {
        assert!(told(&[(key, "0")], Some(ours)).unwrap().contains("madrigal exec -- mpirun"), "{key}");
    }
    let known = [("PMI_RANK", "0"), ("FI_PROVIDER_PATH", "/usr/lib:/opt/madrigal/lib/libfabric")];
    assert_eq!((told(&[], Some(ours)), told(&known, Some(ours)), told(&[("PMI_RANK", "0")], None)), (None, None, None));
    assert_eq!(told(&[("PMI_RANK", "1")], Some(ours)), None, "once a job");
}
