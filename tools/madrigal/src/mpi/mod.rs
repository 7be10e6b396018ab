//! Launchers of MPI: what each needs to use our provider of libfabric, so that nothing else has to be typed.
//!
//! Only variables are set, and none that the user has set: the user's environment and command line have priority. An MPI without libfabric
//! is left as it is; its sockets are handled like any program's.

mod fabric;
mod kind;

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::Path;

use kind::Kind;

use crate::environment::Environment;
use crate::settings;

/// Where libfabric looks for providers.
const PROVIDERS: &str = "FI_PROVIDER_PATH";
/// The list of variables that Open MPI passes to other hosts: since version 5, ...
const TAKEN_ALONG: &str = "OMPI_MCA_mca_base_env_list";
/// ... and before, where the other one and `-x` exclude each other. A list from a file ([`TUNE`]) would be lost beside this one.
const TAKEN_ALONG_4: &str = "OMPI_MCA_mca_base_env_list_internal";
/// The options that name such a file to Open MPI's launcher.
const TUNE: [&str; 2] = ["-tune", "--tune"];
/// The variable that restricts all of libfabric, also where we use it ourselves.
const FILTER: &str = "FI_PROVIDER";

/// Prepares the environment for a launcher of MPI with the arguments `words`. Returns what was done, for `--verbose`; nothing for other
/// programs.
pub(crate) fn prepare(file: &Path, words: &[OsString], provider: Option<&Path>, env: &mut Environment) -> Vec<String> {
    let Some(found) = kind::of(file) else { return Vec::new() };
    if let Some(why) = found.unable {
        return vec![format!("{}: {why}: it is left to its sockets", found.kind.name())];
    }
    let Some(folder) = provider.and_then(Path::parent) else {
        return vec![format!("{}: no libmadrigal-fi.so: build it with `make build`", found.kind.name())];
    };
    let more = |env: &mut Environment| match found.kind {
        Kind::OpenMpi => take_along(file, words, env),
        Kind::Mpich | Kind::Intel => None,
    };
    vec![settle(found.kind, folder, env, more)]
}

/// The same for one rank of our own launcher: its MPI is not known yet.
pub(crate) fn prepare_rank(provider: Option<&Path>, env: &mut Environment) -> Vec<String> {
    let Some(folder) = provider.and_then(Path::parent) else {
        return vec!["MPI: no libmadrigal-fi.so: build it with `make build`".to_owned()];
    };
    [Kind::Mpich, Kind::Intel].map(|kind| settle(kind, folder, env, |_| None)).to_vec()
}

/// Sets the wanted variables that are not set, and those of `more`. Returns what was done.
fn settle(
    kind: Kind,
    folder: &Path,
    env: &mut Environment,
    more: impl FnOnce(&mut Environment) -> Option<String>,
) -> String {
    let mut set = Vec::new();
    let mut kept = Vec::new();
    let methods = settings::read(&env.0).0.methods;
    for &(key, value) in wanted(kind) {
        match env.get(key) {
            Some(theirs) if !theirs.is_empty() => kept.push(format!("{key}={}", theirs.display())),
            _ => {
                let below = if key == FILTER { fabric::below(&methods) } else { Vec::new() };
                let value = core::iter::once(value.to_owned()).chain(below).collect::<Vec<_>>().join(",");
                env.set(key, Some(value.clone().into()));
                set.push(format!("{key}={value}"));
            }
        }
    }
    set.push(format!("{PROVIDERS}={}", add_folder(folder, env).display()));
    set.extend(more(env));
    let kept = if kept.is_empty() { String::new() } else { format!("; kept {}", kept.join(" ")) };
    format!("{}: set {}{kept}", kind.name(), set.join(" "))
}

/// The number of a rank in its job, which launchers set for each that they start; the first one that is set counts.
pub(crate) const RANKS: [&str; 3] = ["PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK"];
/// Its number on its host.
const LOCAL_RANK: &str = "MPI_LOCALRANKID";

/// For the first rank of a job whose launcher does not know our provider: a text about what is missing, and what to type.
pub(crate) fn rank_alone(env: &Environment, provider: Option<&Path>) -> Option<String> {
    // Only rank 0 reports it.
    let rank = RANKS.iter().chain(&[LOCAL_RANK]).find_map(|key| env.get(key).filter(|value| !value.is_empty()));
    let ours = provider.and_then(Path::parent)?.as_os_str().as_bytes();
    let is_configured =
        env.get(PROVIDERS).unwrap_or_default().as_bytes().split(|&b| b == b':').any(|part| part == ours);
    let text = "this is a rank of an MPI job: its sockets are looked after, its messages go as the MPI sends them; for those type \
                madrigal exec -- mpirun ... in place of mpirun ... madrigal exec";
    (rank.is_some_and(|rank| rank == "0") && !is_configured).then(|| text.to_owned())
}

/// By which providers of libfabric's the messages of a launcher's ranks go, as far as that is known here.
pub(crate) fn fabrics(file: &Path, env: &Environment) -> Vec<String> {
    let able = kind::of(file).is_some_and(|found| found.unable.is_none());
    if able { fabric::described(&settings::read(&env.0).0.methods) } else { Vec::new() }
}

/// Where a resource manager started us, launchers have ways of their own to other hosts.
const MANAGERS: [&str; 6] = ["SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "LOADL_STEP_ID", "SGE_ROOT", "HYDRA_LAUNCHER"];

/// Makes a launcher of MPI run `remote` instead of ssh, unless the user has set a command. Returns what was done, as above.
pub(crate) fn reach_out(file: &Path, remote: Option<&Path>, env: &mut Environment) -> Vec<String> {
    let (Some(found), Some(remote)) = (kind::of(file), remote) else { return Vec::new() };
    if MANAGERS.iter().any(|name| env.get(name).is_some_and(|value| !value.is_empty())) {
        return Vec::new();
    }
    let keys: &[&str] = match found.kind {
        Kind::OpenMpi => &["OMPI_MCA_plm_rsh_agent", "PRTE_MCA_plm_ssh_agent"],
        Kind::Mpich => &["HYDRA_LAUNCHER_EXEC"],
        Kind::Intel => &["I_MPI_HYDRA_BOOTSTRAP_EXEC"],
    };
    let mut set = Vec::new();
    for key in keys {
        if env.get(key).is_none_or(OsStr::is_empty) {
            env.set(key, Some(remote.into()));
            set.push(format!("{key}={}", remote.display()));
        }
    }
    if set.is_empty() { set } else { vec![format!("{}: set {}", found.kind.name(), set.join(" "))] }
}

/// The variables that make it use the provider `madrigal`, also for messages inside a host.
fn wanted(kind: Kind) -> &'static [(&'static str, &'static str)] {
    match kind {
        Kind::OpenMpi => &[
            ("OMPI_MCA_pml", "cm"),
            ("OMPI_MCA_mtl", "ofi"),
            ("OMPI_MCA_opal_common_ofi_provider_include", "madrigal"),
            // So that a rank knows the others from the start, and can reach out to one that cannot reach it.
            ("OMPI_MCA_mpi_add_procs_cutoff", "1048576"),
            // So that a launcher notices a host that is cut off before its ranks make it send there: after that it would not notice it.
            ("OMPI_MCA_oob_tcp_keepalive_time", "5"),
            ("OMPI_MCA_oob_tcp_keepalive_intvl", "2"),
            ("OMPI_MCA_oob_tcp_keepalive_probes", "5"),
            ("PRTE_MCA_oob_tcp_keepalive_time", "5"),
            ("PRTE_MCA_oob_tcp_keepalive_intvl", "2"),
            ("PRTE_MCA_oob_tcp_keepalive_probes", "5"),
        ],
        Kind::Mpich => &[("MPIR_CVAR_CH4_NETMOD", "ofi"), ("MPIR_CVAR_NOLOCAL", "1"), (FILTER, "madrigal")],
        Kind::Intel => &[
            ("I_MPI_FABRICS", "ofi"),
            ("I_MPI_OFI_PROVIDER", "madrigal"),
            // With one-sided operations of any provider it reports a wrong size of dynamic windows.
            ("MPIR_CVAR_CH4_OFI_ENABLE_RMA", "0"),
        ],
    }
}

/// Adds our folder behind the user's folders.
fn add_folder(folder: &Path, env: &mut Environment) -> OsString {
    let theirs = env.get(PROVIDERS).unwrap_or_default().as_bytes();
    let ours = folder.as_os_str().as_bytes();
    let all: Vec<&[u8]> =
        theirs.split(|&b| b == b':').filter(|part| !part.is_empty() && *part != ours).chain([ours]).collect();
    let value = OsString::from_vec(all.join(&b':'));
    env.set(PROVIDERS, Some(value.clone()));
    value
}

/// Open MPI passes its own variables to ranks on other hosts; ours must be named. Returns what was set.
fn take_along(file: &Path, words: &[OsString], env: &mut Environment) -> Option<String> {
    let is_orte = kind::is_orte(file);
    let key = if is_orte { TAKEN_ALONG_4 } else { TAKEN_ALONG };
    let has_file = is_orte && words.iter().any(|word| TUNE.iter().any(|tune| word == tune));
    if has_file || env.get(key).is_some_and(|theirs| !theirs.is_empty()) {
        return None;
    }
    let ours = |key: &OsStr| key == PROVIDERS || key.as_bytes().starts_with(b"MADRIGAL_");
    let names: Vec<&[u8]> =
        env.0.iter().map(|(key, _)| key).filter(|key| ours(key)).map(|key| key.as_bytes()).collect();
    let value = OsString::from_vec(names.join(&b';'));
    env.set(key, Some(value.clone()));
    Some(format!("{key}={}", value.display()))
}

#[cfg(test)]
mod tests;
