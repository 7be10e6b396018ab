//! The table of options.

/// What an option is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    Count,
    Hosts,
    HostFile,
    PerHost,
    PerHostMap,
    /// `NAME`, or `NAME=VALUE`.
    Variable,
    VariablePair,
    Variables,
    AllVariablePair,
    AllVariables,
    Folder,
    Tag,
    Output,
    Files,
    Input,
    Limit,
    Agent,
    Plain,
    Torch,
    Verbose,
    Help,
    /// Taken, and without effect here.
    Nothing,
}

pub(super) struct Known {
    /// Without dashes.
    pub(super) names: &'static [&'static str],
    pub(super) values: &'static [&'static str],
    pub(super) meaning: Meaning,
    pub(super) help: &'static str,
}

impl Known {
    /// As it is shown: names, then values.
    pub(super) fn shown(&self) -> String {
        let dashed = |name: &&str| if name.len() == 1 { format!("-{name}") } else { format!("--{name}") };
        let names: Vec<_> = self.names.iter().map(dashed).collect();
        [names.join(", ")]
            .into_iter()
            .chain(self.values.iter().map(|&value| value.to_owned()))
            .collect::<Vec<_>>()
            .join(" ")
    }
}

const fn option(
    names: &'static [&'static str],
    values: &'static [&'static str],
    meaning: Meaning,
    help: &'static str,
) -> Known {
    Known { names, values, meaning, help }
}

/// Sources: mpirun(1) of Open MPI 4.1 and 5.0, mpiexec(1) of MPICH 4, the manual of Intel MPI.
pub(super) const OPTIONS: &[Known] = &[
    option(&["n", "np", "c"], &["N"], Meaning::Count, "processes of this program; without, one for each slot"),
    option(&["host", "hosts", "H"], &["A:2,B"], Meaning::Hosts, "hosts, and the slots of each"),
    option(
        &["hostfile", "machinefile", "f", "default-hostfile"],
        &["FILE"],
        Meaning::HostFile,
        "the same from a file, a host on a line: A:2, or A slots=2",
    ),
    option(&["ppn", "perhost", "npernode", "N", "ntasks-per-node"], &["N"], Meaning::PerHost, "processes on each host"),
    option(&["map-by"], &["MAP"], Meaning::PerHostMap, "ppr:N:node is the same; others have no effect"),
    option(&["x"], &["NAME[=VALUE]"], Meaning::Variable, "a variable for the processes, on every host"),
    option(&["env"], &["NAME", "VALUE"], Meaning::VariablePair, "the same, for this program"),
    option(&["envlist"], &["NAMES"], Meaning::Variables, "variables as they are here, for this program"),
    option(&["genv"], &["NAME", "VALUE"], Meaning::AllVariablePair, "a variable for all programs"),
    option(&["genvlist"], &["NAMES"], Meaning::AllVariables, "variables as they are here, for all programs"),
    option(&["wdir", "wd"], &["FOLDER"], Meaning::Folder, "where this program runs"),
    option(&["tag-output", "l", "prepend-rank"], &[], Meaning::Tag, "each line begins with its rank"),
    option(&["output"], &["tag | file=NAME"], Meaning::Output, "the same, or files"),
    option(
        &["output-filename", "outfile-pattern"],
        &["NAME"],
        Meaning::Files,
        "output of each rank goes to a file; %r in its name is the rank",
    ),
    option(&["stdin", "s", "input"], &["RANK | all | none"], Meaning::Input, "who gets the standard input: 0 without"),
    option(&["timeout", "t"], &["SECONDS"], Meaning::Limit, "end the job after this time, with status 124"),
    option(
        &["agent"],
        &["COMMAND"],
        Meaning::Agent,
        "what starts an agent on another host, in place of ssh; {host} in it is the host",
    ),
    option(&["plain"], &[], Meaning::Plain, "run this program as it is, not over Madrigal"),
    option(&["torch"], &[], Meaning::Torch, "set RANK, WORLD_SIZE and others, as torchrun does"),
    option(&["v", "verbose"], &[], Meaning::Verbose, "say what is done on each host"),
    option(&["h", "help"], &[], Meaning::Help, "this text"),
    option(&["genvall", "oversubscribe", "allow-run-as-root"], &[], Meaning::Nothing, "taken; always so"),
    option(&["bind-to", "rank-by"], &["WHAT"], Meaning::Nothing, "taken, without effect"),
];

/// The option that is written so; one dash or two.
pub(super) fn find(word: &str) -> Option<&'static Known> {
    let name = word.strip_prefix("--").or_else(|| word.strip_prefix('-'))?;
    OPTIONS.iter().find(|option| option.names.contains(&name))
}
