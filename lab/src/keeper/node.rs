//! The first process of a host or a router: it sets the namespaces up, then waits for orphaned processes.

use std::fs;
use std::io::{self, Write as _};

use madrigal_sys::namespace::Signals;
use rustix::io::Errno;
use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind, mount_bind_recursive, mount_change, unmount,
};
use rustix::process::WaitOptions;

use crate::plan::Node;
use crate::state::OWN_DIRECTORY;

/// Where files are made that are then bound to their places.
const STAGE: &str = "/dev/shm";

/// What was tried, when the system refused.
type Refusal = (String, io::Error);

fn refused<E: Into<io::Error>>(what: impl Into<String>) -> impl FnOnce(E) -> Refusal {
    let what = what.into();
    move |error| (what, error.into())
}

/// Makes the mounts, the host name and the kernel settings of `node`; `hosts` is the text of its `/etc/hosts`.
pub(super) fn furnish(node: &Node, hosts: &str) -> Result<(), Refusal> {
    let quiet = MountFlags::NOSUID | MountFlags::NODEV;
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .map_err(refused("make mounts private"))?;
    mount("proc", "/proc", "proc", quiet | MountFlags::NOEXEC, None).map_err(refused("mount /proc"))?;
    mount("lab", STAGE, "tmpfs", quiet, Some(c"mode=0755")).map_err(refused("mount /dev/shm"))?;
    bind("hosts", hosts, "/etc/hosts")?;
    bind("hostname", &format!("{}\n", node.name), "/etc/hostname")?;
    // There is no name server here; without this, programs would query the machine's servers and wait.
    bind("resolv.conf", "options timeout:1 attempts:1\n", "/etc/resolv.conf")?;
    show_devices();
    unmount(STAGE, UnmountFlags::DETACH).map_err(refused("unmount the stage"))?;
    let size = node.shm.as_ref().map_or_else(String::new, |size| format!(",size={size}"));
    memory(STAGE, &format!("mode=1777{size}"))?;
    make_own_directory()?;
    for directory in &node.private {
        let mode = if directory.ends_with("tmp") { "mode=1777" } else { "mode=0755" };
        memory(directory, mode)?;
    }
    rustix::system::sethostname(node.name.as_bytes()).map_err(refused("set the host name"))?;
    node.sysctl.iter().try_for_each(|(key, value)| set(key, value))
}

/// Sockets and state of daemons are the host's own.
fn make_own_directory() -> Result<(), Refusal> {
    let above = "/run/user";
    if fs::metadata(above).is_err() {
        // A system without logins. Its programs find their folders in /run, empty.
        let all = fs::read_dir("/run").into_iter().flatten().flatten();
        let folders: Vec<_> = all.filter(|one| one.file_type().is_ok_and(|kind| kind.is_dir())).collect();
        memory("/run", "mode=0755")?;
        folders.iter().try_for_each(|folder| fs::create_dir(folder.path())).map_err(refused("make /run"))?;
        fs::create_dir(above).map_err(refused(above))?;
    }
    memory(above, "mode=0755")?;
    fs::create_dir(OWN_DIRECTORY)
        .and_then(|()| fs::set_permissions(OWN_DIRECTORY, std::os::unix::fs::PermissionsExt::from_mode(0o700)))
        .map_err(refused(OWN_DIRECTORY))
}

fn memory(path: &str, options: &str) -> Result<(), Refusal> {
    let options = std::ffi::CString::new(options).unwrap_or_default();
    mount("lab", path, "tmpfs", MountFlags::NOSUID | MountFlags::NODEV, Some(options.as_c_str()))
        .map_err(refused(format!("mount {path}")))
}

/// Puts a file of this text in the place of another, if there is one.
fn bind(name: &str, text: &str, place: &str) -> Result<(), Refusal> {
    let staged = format!("{STAGE}/{name}");
    fs::write(&staged, text).map_err(refused(format!("write {staged}")))?;
    match mount_bind(&staged, place) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err((format!("replace {place}"), errno.into())),
    }
}

/// Lets `/sys` show the devices of this host. Not every kernel allows it to a user; few programs need it.
fn show_devices() {
    let cgroups = format!("{STAGE}/cgroup");
    let kept = fs::create_dir(&cgroups).is_ok() && mount_bind_recursive("/sys/fs/cgroup", &cgroups).is_ok();
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    if mount("sysfs", "/sys", "sysfs", flags, None).is_ok() && kept {
        let _ = mount_bind_recursive(&cgroups, "/sys/fs/cgroup");
    }
}

fn set(key: &str, value: &str) -> Result<(), Refusal> {
    match fs::OpenOptions::new()
        .write(true)
        .open(format!("/proc/sys/{key}"))
        .and_then(|mut file| file.write_all(value.as_bytes()))
    {
        // A kernel without IPv6.
        Err(error) if error.kind() == io::ErrorKind::NotFound && key.starts_with("net/ipv6") => Ok(()),
        done => done.map_err(refused(format!("set {} to {value}", key.replace('/', ".")))),
    }
}

/// Waits for children for as long as this process lives.
pub(super) fn wait_for_children() -> Errno {
    let signals = Signals::of(&[libc_sigchld()]);
    if let Err(errno) = signals.block() {
        return errno;
    }
    loop {
        while let Ok(Some(_)) = rustix::process::wait(WaitOptions::NOHANG) {}
        if let Err(errno) = signals.wait() {
            return errno;
        }
    }
}

fn libc_sigchld() -> i32 {
    rustix::process::Signal::CHILD.as_raw()
}
