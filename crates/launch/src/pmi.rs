//! A server of PMI-1, by which the ranks of MPICH and of MPIs made from it find each other: lines of `key=value` in, lines out.
//!
//! No I/O: the carrier of the lines calls [`Server::line`]. A value holds no blank; `cmd` (or `mcmd`, for a request of several lines) comes
//! first. Requests come from the job's own processes, which may send anything: a line is bounded, and so is what is kept.
//!
//! Source: the Simple PMI wire protocol, as MPICH's `src/pmi` speaks it (version 1.1).

use std::collections::HashMap;

/// Bytes of a line, at most; of the key space, per rank.
pub(crate) const LINE: usize = 64 << 10;
const SPACE_PER_RANK: usize = 4 << 20;
/// The limits that `get_maxes` reports.
const MAXES: &str = "kvsname_max=256 keylen_max=64 vallen_max=4096";

/// What a request leads to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// A line for a rank, without its end.
    Answer(u32, String),
    /// The rank joined: it is one of an MPI job from here on.
    Joined(u32),
    /// The rank has no more to do with the others, and may end.
    Finalized(u32),
    /// All ranks must end, and this is the status of the job.
    Abort { rank: u32, status: i32, message: String },
    /// It did not speak PMI-1. The rank is sent nothing more.
    Broken(u32, String),
}

/// The state of a job of so many ranks.
pub(crate) struct Server {
    name: String,
    /// Of each rank, which of the programs it runs.
    apps: Vec<u32>,
    pairs: HashMap<String, String>,
    kept: usize,
    waiting: Vec<bool>,
    published: HashMap<String, String>,
    /// Lines of a request that has not ended, of each rank.
    open: Vec<Option<String>>,
}

impl Server {
    /// `name` is of this job alone on each of its hosts: MPICH names its shared memory by it. `mapping`: which rank is on which host.
    pub(crate) fn new(name: String, apps: Vec<u32>, mapping: String) -> Self {
        let size = apps.len();
        let pairs = HashMap::from([("PMI_process_mapping".to_owned(), mapping)]);
        let (waiting, open) = (vec![false; size], vec![None; size]);
        Self { name, apps, pairs, kept: 0, waiting, published: HashMap::new(), open }
    }

    /// A line of a rank's, without its end.
    pub(crate) fn line(&mut self, rank: u32, line: &str) -> Vec<Effect> {
        let Some(open) = self.open.get_mut(rank as usize) else { return Vec::new() };
        if let Some(request) = open {
            if line.trim() != "endcmd" {
                if request.len() + line.len() > LINE {
                    return vec![Effect::Broken(rank, "a request of too many lines".to_owned())];
                }
                request.push(' ');
                request.push_str(line);
                return Vec::new();
            }
            *open = None;
            // Processes that processes start are not ours to start yet.
            return vec![Effect::Answer(rank, "cmd=spawn_result rc=-1 errcodes=-1".to_owned())];
        }
        let pairs = Request::parse(line);
        match pairs.command() {
            Some(("mcmd", "spawn")) => {
                self.open[rank as usize] = Some(String::new());
                Vec::new()
            }
            Some(("cmd", command)) => self.command(rank, command, &pairs),
            _ => vec![Effect::Broken(rank, format!("`{}` is no request of PMI-1", clipped(line)))],
        }
    }

    fn command(&mut self, rank: u32, command: &str, request: &Request<'_>) -> Vec<Effect> {
        let answer = |text: String| vec![Effect::Answer(rank, text)];
        let size = self.apps.len();
        match command {
            "init" => vec![
                Effect::Joined(rank),
                Effect::Answer(rank, "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0".to_owned()),
            ],
            "get_maxes" => answer(format!("cmd=maxes {MAXES} rc=0")),
            "get_appnum" => answer(format!("cmd=appnum appnum={} rc=0", self.apps[rank as usize])),
            "get_universe_size" => answer(format!("cmd=universe_size size={size} rc=0")),
            "get_my_kvsname" => answer(format!("cmd=my_kvsname kvsname={} rc=0", self.name)),
            "put" => answer(self.put(request)),
            "get" => answer(self.get(request)),
            "barrier_in" => self.enter_barrier(rank),
            "publish_name" => answer(self.publish(request)),
            "lookup_name" => answer(self.lookup(request)),
            "unpublish_name" => answer(self.unpublish(request)),
            "abort" => vec![abort(rank, request)],
            "finalize" => vec![Effect::Finalized(rank), Effect::Answer(rank, "cmd=finalize_ack rc=0".to_owned())],
            other => vec![Effect::Broken(rank, format!("`{}` is no command of PMI-1", clipped(other)))],
        }
    }

    fn put(&mut self, request: &Request<'_>) -> String {
        let failed = |why: &str| format!("cmd=put_result rc=-1 msg={why}");
        let (Some(key), Some(value)) = (request.get("key"), request.get("value")) else { return failed("no_key") };
        if request.get("kvsname") != Some(&self.name) {
            return failed("no_such_kvsname");
        }
        self.kept += key.len() + value.len();
        if self.kept > SPACE_PER_RANK * self.apps.len() {
            return failed("no_room");
        }
        self.pairs.insert(key.to_owned(), value.to_owned());
        "cmd=put_result rc=0 msg=success".to_owned()
    }

    fn get(&self, request: &Request<'_>) -> String {
        let ours = request.get("kvsname") == Some(&self.name);
        match request.get("key").filter(|_| ours).and_then(|key| self.pairs.get(key)) {
            Some(value) => format!("cmd=get_result rc=0 msg=success value={value}"),
            None => "cmd=get_result rc=-1 msg=key_not_found value=unknown".to_owned(),
        }
    }

    /// All go on when the last has come.
    fn enter_barrier(&mut self, rank: u32) -> Vec<Effect> {
        self.waiting[rank as usize] = true;
        if !self.waiting.iter().all(|&waits| waits) {
            return Vec::new();
        }
        self.waiting.fill(false);
        (0..self.apps.len() as u32).map(|rank| Effect::Answer(rank, "cmd=barrier_out rc=0".to_owned())).collect()
    }

    /// The ranks that have not come to a barrier for which others wait; none if no rank waits.
    pub(crate) fn awaited(&self) -> Vec<u32> {
        let awaited = self.waiting.iter().zip(0..).filter(|(waits, _)| !**waits).map(|(_, rank)| rank).collect();
        if self.waiting.contains(&true) { awaited } else { Vec::new() }
    }

    fn publish(&mut self, request: &Request<'_>) -> String {
        let (Some(service), Some(port)) = (request.get("service"), request.get("port")) else {
            return "cmd=publish_result rc=-1 info=no_port".to_owned();
        };
        self.kept += service.len() + port.len();
        if self.kept > SPACE_PER_RANK * self.apps.len() || self.published.contains_key(service) {
            return "cmd=publish_result rc=-1 info=name_is_taken".to_owned();
        }
        self.published.insert(service.to_owned(), port.to_owned());
        "cmd=publish_result rc=0 info=ok".to_owned()
    }

    fn lookup(&self, request: &Request<'_>) -> String {
        match request.get("service").and_then(|service| self.published.get(service)) {
            Some(port) => format!("cmd=lookup_result rc=0 info=ok port={port}"),
            None => "cmd=lookup_result rc=-1 info=no_such_name".to_owned(),
        }
    }

    fn unpublish(&mut self, request: &Request<'_>) -> String {
        match request.get("service").and_then(|service| self.published.remove(service)) {
            Some(_) => "cmd=unpublish_result rc=0 info=ok".to_owned(),
            None => "cmd=unpublish_result rc=-1 info=no_such_name".to_owned(),
        }
    }
}

fn abort(rank: u32, request: &Request<'_>) -> Effect {
    let status = request.get("exitcode").and_then(|code| code.parse().ok()).unwrap_or(1);
    Effect::Abort { rank, status, message: request.get("message").unwrap_or_default().to_owned() }
}

/// A line, as pairs.
struct Request<'a>(Vec<(&'a str, &'a str)>);

impl<'a> Request<'a> {
    fn parse(line: &'a str) -> Self {
        Self(line.split_ascii_whitespace().filter_map(|word| word.split_once('=')).collect())
    }

    fn command(&self) -> Option<(&'a str, &'a str)> {
        self.0.first().copied()
    }

    fn get(&self, key: &str) -> Option<&'a str> {
        self.0.iter().find(|(name, _)| *name == key).map(|(_, value)| *value)
    }
}

fn clipped(text: &str) -> String {
    text.chars().take(60).flat_map(char::escape_default).collect()
}

/// `PMI_process_mapping` of ranks by the number of the host each is on: blocks of (first host, hosts, ranks on each).
pub(crate) fn mapping(hosts: &[u32]) -> String {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for &host in hosts {
        match runs.last_mut() {
            Some((last, count)) if *last == host => *count += 1,
            _ => runs.push((host, 1)),
        }
    }
    let mut blocks: Vec<(u32, u32, u32)> = Vec::new();
    for (host, count) in runs {
        match blocks.last_mut() {
            Some((first, many, each)) if *each == count && *first + *many == host => *many += 1,
            _ => blocks.push((host, 1, count)),
        }
    }
    let blocks: Vec<_> = blocks.iter().map(|(first, many, each)| format!("({first},{many},{each})")).collect();
    format!("(vector,{})", blocks.join(","))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn server(size: usize) -> Server {
        Server::new("job".to_owned(), vec![0; size], mapping(&vec![0; size]))
    }

    fn answer(server: &mut Server, rank: u32, line: &str) -> String {
        match server.line(rank, line).pop() {
            Some(Effect::Answer(to, text)) if to == rank => text,
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn what_one_has_put_another_gets_behind_a_barrier() {
        let mut server = server(2);
        let put = answer(&mut server, 1, "cmd=put kvsname=job key=addr value=10.0.0.1:7");
        assert_eq!(put, "cmd=put_result rc=0 msg=success");
        assert_eq!(server.line(0, "cmd=barrier_in"), []);
        assert_eq!(server.awaited(), [1]);
        let out = |rank| Effect::Answer(rank, "cmd=barrier_out rc=0".to_owned());
        assert_eq!(server.line(1, "cmd=barrier_in"), [out(0), out(1)]);
        assert!(server.awaited().is_empty());
        let got = answer(&mut server, 0, "cmd=get kvsname=job key=addr");
        assert_eq!(got, "cmd=get_result rc=0 msg=success value=10.0.0.1:7");
        let missing = answer(&mut server, 0, "cmd=get kvsname=other key=addr");
        assert_eq!(missing, "cmd=get_result rc=-1 msg=key_not_found value=unknown");
    }

    #[test]
    fn an_abort_names_the_status() {
        let abort = Effect::Abort { rank: 1, status: 7, message: "abort".to_owned() };
        assert_eq!(server(2).line(1, "cmd=abort exitcode=7 message=abort"), [abort]);
    }

    #[test]
    fn names_are_published_once() {
        let mut server = server(1);
        assert_eq!(answer(&mut server, 0, "cmd=publish_name service=a port=p"), "cmd=publish_result rc=0 info=ok");
        assert!(answer(&mut server, 0, "cmd=publish_name service=a port=q").contains("rc=-1"));
        assert_eq!(answer(&mut server, 0, "cmd=lookup_name service=a"), "cmd=lookup_result rc=0 info=ok port=p");
        assert_eq!(answer(&mut server, 0, "cmd=unpublish_name service=a"), "cmd=unpublish_result rc=0 info=ok");
        assert!(answer(&mut server, 0, "cmd=lookup_name service=a").contains("rc=-1"));
    }

    #[test]
    fn a_request_of_several_lines_ends_at_its_end() {
        let mut server = server(1);
        for line in ["mcmd=spawn", "nprocs=2", "execname=./child", "cmd=finalize"] {
            assert_eq!(server.line(0, line), []);
        }
        assert_eq!(answer(&mut server, 0, "endcmd"), "cmd=spawn_result rc=-1 errcodes=-1");
    }

    #[test]
    fn ranks_are_mapped_in_blocks() {
        for (hosts, text) in [
            (&[0, 0][..], "(vector,(0,1,2))"),
            (&[0, 1], "(vector,(0,2,1))"),
            (&[0, 0, 1, 1, 2], "(vector,(0,2,2),(2,1,1))"),
            (&[1, 0, 0], "(vector,(1,1,1),(0,1,2))"),
        ] {
            assert_eq!(mapping(hosts), text);
        }
    }

    proptest! {
        /// Whatever ranks send, the server goes on, and answers one rank about itself alone, but for a barrier.
        #[test]
        fn any_lines_are_borne(lines in proptest::collection::vec((0..3u32, "(m?cmd=)?[a-z_=]{0,12}( [a-z]{1,8}=[^\n]{0,20})*"), 0..60)) {
            let mut server = server(3);
            for (rank, line) in lines {
                for effect in server.line(rank, &line) {
                    if let Effect::Answer(to, text) = effect {
                        prop_assert!(to == rank || text == "cmd=barrier_out rc=0");
                        prop_assert!(!text.contains('\n'));
                    }
                }
            }
            prop_assert_eq!(answer_or_open(&mut server), true);
        }
    }

    /// It still answers a rank, whose request may be open.
    fn answer_or_open(server: &mut Server) -> bool {
        server.line(0, "endcmd");
        server.line(0, "cmd=get_appnum") == [Effect::Answer(0, "cmd=appnum appnum=0 rc=0".to_owned())]
    }
}
