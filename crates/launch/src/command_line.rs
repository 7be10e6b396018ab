//! What users type: the options of both families of launchers (Open MPI's and Hydra's), in one table, for the same meaning.
//!
//! Options stand before the program; the program's own arguments are not parsed; `:` begins another program. An option of one program
//! (`-n`, `-wdir`, `-env`) counts for that one; all others for the job. `--name=value` is as `--name value`, and `-name` as `--name`.

mod error;
mod hosts;
mod table;

use std::time::Duration;

use crate::job::Job;
use crate::words::App;
use error::{number, wrong};
use table::{Meaning, OPTIONS};

pub use error::TypedError;

/// What was typed.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Typed {
    /// What runs where.
    pub job: Job,
    /// A line of a rank begins with the rank.
    pub tagged: bool,
    /// Output and errors of each rank go to files of this name; `%r` is the rank.
    pub files: Option<String>,
    /// Which ranks get the standard input.
    pub input: Input,
    /// The job is ended after this time.
    pub limit: Option<Duration>,
    /// How another host's agent is started: a command in which `{host}` is the host; without, ssh.
    pub agent: Option<String>,
    /// Set what torchrun sets.
    pub torch: bool,
    /// Say what is done.
    pub verbose: bool,
    /// Only explain.
    pub help: bool,
}

/// Which ranks get the launcher's standard input; the others find its end.
#[derive(Debug, Default, PartialEq, Eq, Clone, Copy)]
pub enum Input {
    /// Rank 0.
    #[default]
    First,
    /// That one.
    Rank(u32),
    /// Each gets all of it.
    All,
    /// Nobody.
    None,
}

/// The options, with their meaning, as `--help` shows them.
pub fn help() -> String {
    let width = OPTIONS.iter().map(|option| option.shown().len()).max().unwrap_or(0);
    OPTIONS.iter().map(|option| format!("  {:width$}  {}\n", option.shown(), option.help)).collect()
}

/// Reads the words behind `madrigal run`.
pub fn parse(words: &[String]) -> Result<Typed, TypedError> {
    let mut typed = Typed::default();
    let mut env = Vec::new();
    for words in words.split(|word| word == ":") {
        let mut app = App::default();
        let program = options(words, &mut typed, &mut app, &mut env)?;
        app.argv = program.to_vec();
        typed.job.apps.push(app);
    }
    for app in &mut typed.job.apps {
        // A setting for one program wins over one for all.
        app.env = env.iter().cloned().chain(app.env.drain(..)).collect();
    }
    Ok(typed)
}

/// Takes the options in front of a program; the program is what is left.
fn options<'w>(
    words: &'w [String],
    typed: &mut Typed,
    app: &mut App,
    env: &mut Vec<(String, String)>,
) -> Result<&'w [String], TypedError> {
    let mut rest = words;
    while let Some((word, behind)) = rest.split_first() {
        if word == "--" {
            return Ok(behind);
        }
        if !word.starts_with('-') {
            break;
        }
        let (name, given) = match word.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (word.as_str(), None),
        };
        let option = table::find(name).ok_or_else(|| TypedError::Unknown(name.to_owned()))?;
        let wanted = option.values.len();
        let mut values: Vec<&str> = given.filter(|_| wanted > 0).into_iter().collect();
        let taken = wanted - values.len();
        if behind.len() < taken {
            return Err(TypedError::Missing(name.to_owned(), option.values[behind.len().min(wanted - 1)]));
        }
        values.extend(behind[..taken].iter().map(String::as_str));
        rest = &behind[taken..];
        mean(option.meaning, name, &values, typed, app, env)?;
    }
    Ok(rest)
}

fn mean(
    meaning: Meaning,
    name: &str,
    values: &[&str],
    typed: &mut Typed,
    app: &mut App,
    env: &mut Vec<(String, String)>,
) -> Result<(), TypedError> {
    let value = || values.first().copied().unwrap_or_default();
    let number = || number(name, value());
    match meaning {
        Meaning::Count => app.count = Some(number()?),
        Meaning::Hosts => typed.job.hosts.extend(hosts::list(name, value())?),
        Meaning::HostFile => typed.job.hosts.extend(hosts::file(value())?),
        Meaning::PerHost => typed.job.per_host = Some(number()?),
        Meaning::PerHostMap => typed.job.per_host = per_host(name, value())?.or(typed.job.per_host),
        Meaning::Variable => app.env.extend(variable(value())),
        Meaning::VariablePair => app.env.push((value().to_owned(), values[1].to_owned())),
        Meaning::Variables => app.env.extend(value().split(',').filter_map(inherited)),
        Meaning::AllVariablePair => env.push((value().to_owned(), values[1].to_owned())),
        Meaning::AllVariables => env.extend(value().split(',').filter_map(inherited)),
        Meaning::Folder => app.folder = Some(value().to_owned()),
        Meaning::Tag => typed.tagged = true,
        Meaning::Output => output(name, value(), typed)?,
        Meaning::Files => typed.files = Some(value().to_owned()),
        Meaning::Input => typed.input = input(name, value())?,
        Meaning::Limit => typed.limit = Some(Duration::from_secs(number()?.into())),
        Meaning::Agent => typed.agent = Some(value().to_owned()),
        Meaning::Plain => app.plain = true,
        Meaning::Torch => typed.torch = true,
        Meaning::Verbose => typed.verbose = true,
        Meaning::Help => typed.help = true,
        Meaning::Nothing => {}
    }
    Ok(())
}

/// `ppr:2:node`; other maps are the MPI's own affair, and change nothing here.
fn per_host(option: &str, value: &str) -> Result<Option<u32>, TypedError> {
    match value.split(':').collect::<Vec<_>>()[..] {
        ["ppr", count, "node", ..] => number(option, count).map(Some),
        ["ppr", ..] => Err(wrong(option, value, "only ppr:N:node is understood")),
        _ => Ok(None),
    }
}

/// `NAME=VALUE`, or `NAME`: as it is here.
fn variable(text: &str) -> Option<(String, String)> {
    match text.split_once('=') {
        Some((name, value)) => Some((name.to_owned(), value.to_owned())),
        None => inherited(text),
    }
}

fn inherited(name: &str) -> Option<(String, String)> {
    std::env::var(name).ok().map(|value| (name.to_owned(), value))
}

/// Open MPI 5's `--output tag` and `--output file=NAME`.
fn output(option: &str, value: &str, typed: &mut Typed) -> Result<(), TypedError> {
    match value.split_once('=') {
        None if value == "tag" => typed.tagged = true,
        Some(("file", name)) => typed.files = Some(name.to_owned()),
        _ => return Err(wrong(option, value, "tag and file=NAME are understood")),
    }
    Ok(())
}

fn input(option: &str, value: &str) -> Result<Input, TypedError> {
    match value {
        "all" => Ok(Input::All),
        "none" => Ok(Input::None),
        rank => number(option, rank).map(Input::Rank),
    }
}

#[cfg(test)]
mod tests;
