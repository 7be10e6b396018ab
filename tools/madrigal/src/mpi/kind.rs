//! Which MPI a launcher belongs to: by its real name, and by the programs and libraries it was installed with.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

macro_rules! kinds {
    ($($kind:ident = $name:literal,)*) => {
        /// Families of MPIs that use libfabric.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub(super) enum Kind { $($kind,)* }

        impl Kind {
            /// All of them.
            #[cfg(test)]
            pub(super) const ALL: &[Self] = &[$(Self::$kind,)*];

            pub(super) fn name(self) -> &'static str {
                match self { $(Self::$kind => $name,)* }
            }
        }
    };
}

kinds! {
    OpenMpi = "Open MPI",
    Mpich = "MPICH",
    Intel = "Intel MPI",
}

/// A launcher of MPI.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) kind: Kind,
    /// Why it cannot use libfabric.
    pub(super) unable: Option<&'static str>,
}

/// Names of launchers, links followed or not.
const LAUNCHERS: [&str; 8] =
    ["mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun", "mpirun.openmpi", "mpiexec.openmpi", "mpirun.mpich"];

/// What MPI this program launches, if it does.
pub(super) fn of(file: &Path) -> Option<Found> {
    let real = file.canonicalize().ok()?;
    let named = |path: &Path| path.file_name().and_then(OsStr::to_str).is_some_and(|name| LAUNCHERS.contains(&name));
    if !named(file) && !named(&real) {
        return None;
    }
    let bin = real.parent()?;
    let there = |name: &str| bin.join(name).exists();
    let is = |names: &[&str]| real.file_name().and_then(OsStr::to_str).is_some_and(|name| names.contains(&name));
    let kind = if is(&["orterun", "prterun"]) {
        Kind::OpenMpi
    } else if there("impi_info") {
        Kind::Intel
    } else if is(&["mpiexec.hydra"]) || (there("hydra_pmi_proxy") && !there("ompi_info")) {
        Kind::Mpich
    } else if there("ompi_info") {
        Kind::OpenMpi
    } else {
        return None;
    };
    let folders = libraries(bin.parent()?);
    let able = match kind {
        Kind::OpenMpi => has_plugin(&folders) || any_names(&folders, &["libmpi.so.40"], b"mca_mtl_ofi"),
        Kind::Mpich | Kind::Intel => any_names(&folders, &["libmpi.so.12", "libmpich.so.12"], b"libfabric.so"),
    };
    Some(Found { kind, unable: (!able).then_some("it was built without libfabric") })
}

/// Whether a launcher of Open MPI is one of those before version 5.
pub(super) fn is_orte(file: &Path) -> bool {
    file.canonicalize().is_ok_and(|real| real.file_name() == Some(OsStr::new("orterun")))
}

/// Where the libraries of an installation may be.
fn libraries(prefix: &Path) -> Vec<PathBuf> {
    let mut all: Vec<_> = ["lib", "lib64", "lib/release"].iter().map(|place| prefix.join(place)).collect();
    // Where Debian and its children put them.
    for entry in fs::read_dir(prefix.join("lib")).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().ends_with("-linux-gnu") {
            all.push(entry.path());
        }
    }
    all
}

/// Whether Open MPI's part for libfabric lies there as a file of its own.
fn has_plugin(folders: &[PathBuf]) -> bool {
    let places = ["openmpi", "openmpi/lib/openmpi", "openmpi/lib/openmpi3"];
    folders.iter().any(|folder| places.iter().any(|place| folder.join(place).join("mca_mtl_ofi.so").exists()))
}

/// Whether a library of one of these names has these bytes in it.
fn any_names(folders: &[PathBuf], names: &[&str], bytes: &[u8]) -> bool {
    let files = folders.iter().flat_map(|folder| names.iter().map(move |name| folder.join(name)));
    files.filter_map(|file| fs::read(file).ok()).any(|text| contains(&text, bytes))
}

fn contains(text: &[u8], bytes: &[u8]) -> bool {
    let (Some(&first), len) = (bytes.first(), bytes.len()) else { return true };
    let mut rest = text;
    while let Some(at) = rest.iter().position(|&b| b == first) {
        rest = &rest[at..];
        if rest.get(..len) == Some(bytes) {
            return true;
        }
        rest = &rest[1..];
    }
    false
}
