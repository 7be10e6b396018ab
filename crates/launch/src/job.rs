//! What runs where: programs, hosts with their slots, and which rank goes to which host.

use crate::words::App;

/// A host, and how many ranks it takes before the next one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// As ssh knows it.
    pub name: String,
    /// `None`: not given.
    pub slots: Option<u32>,
}

/// Several ranks that run one program on one host, or more of them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Job {
    /// In the order of their ranks.
    pub apps: Vec<App>,
    /// In the order in which they are filled; empty: this one.
    pub hosts: Vec<Host>,
    /// Ranks on each host, where that was given.
    pub per_host: Option<u32>,
}

/// Why a job cannot be laid out.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum JobError {
    /// Nothing to run.
    #[error("no program to run: type the program and its arguments: madrigal run -n 2 PROGRAM ARGUMENTS")]
    NoProgram,
    /// Too many ranks.
    #[error("a job has {0} processes, and at most {MOST} are started")]
    TooMany(u64),
    /// More than the hosts may have.
    #[error("{0} processes do not fit: {1} hosts with {2} each: name more hosts, or leave out the number per host")]
    NoRoom(u64, usize, u32),
    /// A program of no processes.
    #[error("a program is to run 0 times: type -n 1, or more")]
    None,
}

/// Processes of a job, at most.
const MOST: u64 = 65_536;

/// A rank's program and host, by their places in the job's lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) app: u32,
    pub(crate) host: u32,
}

impl Job {
    /// The hosts, this one where none is named.
    pub(crate) fn hosts_or_here(&self) -> Vec<Host> {
        match self.hosts.is_empty() {
            true => vec![Host { name: "localhost".to_owned(), slots: None }],
            false => self.hosts.clone(),
        }
    }

    /// Where each rank goes, in the order of ranks: each host is filled up to its slots, then the next one; and where all are full, from
    /// the first one again.
    pub(crate) fn places(&self) -> Result<Vec<Place>, JobError> {
        if self.apps.is_empty() || self.apps.iter().any(|app| app.argv.is_empty()) {
            return Err(JobError::NoProgram);
        }
        let hosts = self.hosts_or_here();
        let room = |host: &Host| self.per_host.or(host.slots).unwrap_or(1).max(1);
        let slots: u64 = hosts.iter().map(|host| u64::from(room(host))).sum();
        let count = |app: &App| app.count.map_or(slots, u64::from);
        if self.apps.iter().any(|app| count(app) == 0) {
            return Err(JobError::None);
        }
        let all = self.apps.iter().map(count).sum();
        if all > MOST {
            return Err(JobError::TooMany(all));
        }
        if let Some(each) = self.per_host.filter(|_| all > slots) {
            return Err(JobError::NoRoom(all, hosts.len(), each));
        }
        // Of one host without slots all are: it is as large as the job.
        let order = hosts.iter().zip(0..).flat_map(|(host, h)| std::iter::repeat_n(h, room(host) as usize));
        let apps = self.apps.iter().zip(0..).flat_map(|(app, a)| std::iter::repeat_n(a, count(app) as usize));
        Ok(apps.zip(order.cycle()).map(|(app, host)| Place { app, host }).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(counts: &[Option<u32>], hosts: &[(&str, Option<u32>)], per_host: Option<u32>) -> Job {
        let app = |&count| App { argv: vec!["p".to_owned()], count, ..App::default() };
        let hosts = hosts.iter().map(|&(name, slots)| Host { name: name.to_owned(), slots }).collect();
        Job { apps: counts.iter().map(app).collect(), hosts, per_host }
    }

    fn hosts_of(job: &Job) -> Vec<u32> {
        job.places().unwrap().iter().map(|place| place.host).collect()
    }

    #[test]
    fn hosts_are_filled_one_after_the_other() {
        let two = [("a", Some(2)), ("b", Some(1))];
        assert_eq!(hosts_of(&job(&[None], &two, None)), [0, 0, 1]);
        assert_eq!(hosts_of(&job(&[Some(5)], &two, None)), [0, 0, 1, 0, 0]);
        assert_eq!(hosts_of(&job(&[Some(3)], &[("a", None), ("b", None)], None)), [0, 1, 0]);
        assert_eq!(hosts_of(&job(&[Some(4)], &[("a", None), ("b", None)], Some(2))), [0, 0, 1, 1]);
        assert_eq!(hosts_of(&job(&[Some(4)], &[], None)), [0, 0, 0, 0]);
    }

    #[test]
    fn programs_follow_each_other() {
        let places = job(&[Some(1), Some(2)], &[("a", None)], None).places().unwrap();
        assert_eq!(places.iter().map(|place| place.app).collect::<Vec<_>>(), [0, 1, 1]);
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        assert_eq!(job(&[], &[], None).places(), Err(JobError::NoProgram));
        assert_eq!(job(&[Some(0)], &[], None).places(), Err(JobError::None));
        assert_eq!(
            job(&[Some(u32::MAX), Some(9)], &[], None).places(),
            Err(JobError::TooMany(u64::from(u32::MAX) + 9))
        );
        assert_eq!(job(&[Some(5)], &[("a", None)], Some(2)).places(), Err(JobError::NoRoom(5, 1, 2)));
    }
}
