//! What a job may leave on a host: processes that its ranks have started, and shared memory of an MPI that was killed.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

use rustix::process::{Signal, WaitOptions};

/// Where shared memory with a name is, and how the names of MPICH's begin.
const SHARED: &str = "/dev/shm";
const MPICHS: &str = "mpich_shm_";
/// How long killed processes are waited for.
const PATIENCE: Duration = Duration::from_secs(3);

pub(super) struct Left {
    since: SystemTime,
}

impl Left {
    /// What is there from now on may be of this job.
    pub(super) fn now() -> Self {
        Self { since: SystemTime::now() }
    }

    pub(super) fn remove(&self) {
        kill_children();
        self.remove_memory();
    }

    /// Removes segments that no process maps any more: another job's are in use.
    fn remove_memory(&self) {
        let files = fs::read_dir(SHARED).into_iter().flatten().flatten().filter(|entry| {
            let ours = entry.metadata().is_ok_and(|data| {
                data.uid() == rustix::process::geteuid().as_raw() && data.modified().is_ok_and(|at| at >= self.since)
            });
            ours && entry.file_name().to_string_lossy().starts_with(MPICHS)
        });
        for file in files.map(|entry| entry.path()) {
            if !is_mapped(&file) {
                let _ = fs::remove_file(file);
            }
        }
    }
}

/// Kills all descendants: a child whose parent is gone is ours (prctl(2), PR_SET_CHILD_SUBREAPER).
fn kill_children() {
    let began = Instant::now();
    while began.elapsed() < PATIENCE {
        let children = children();
        if children.is_empty() {
            return;
        }
        for pid in children.into_iter().filter_map(super::source::group) {
            let _ = rustix::process::kill_process(pid, Signal::KILL);
        }
        std::thread::sleep(Duration::from_millis(1));
        while let Ok(Some(_)) = rustix::process::wait(WaitOptions::NOHANG) {}
    }
}

/// Of this thread, the only one.
fn children() -> Vec<u32> {
    let text = fs::read_to_string("/proc/thread-self/children").unwrap_or_default();
    text.split_whitespace().filter_map(|word| word.parse().ok()).collect()
}

fn is_mapped(file: &std::path::Path) -> bool {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let maps =
        processes.map(|entry| entry.path().join("maps")).filter_map(|maps: PathBuf| fs::read_to_string(maps).ok());
    let name = file.to_string_lossy().into_owned();
    maps.into_iter().any(|text| text.lines().any(|line| line.ends_with(&name)))
}
