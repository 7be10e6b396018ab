//! The other end is where this one cannot share memory with it: another user's, another namespace's, another host's.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use madrigal_tests::host::{self, How};
use serde_json::Value;

use crate::stage::{
    Actor, CLIENT, ECHO, MESSAGE, Missing, Played, Stage, listening, need, need_root, output_of, played, seen,
};

const ROUNDS: u32 = 200;
const ALL: (u64, u64) = (ROUNDS as u64 * MESSAGE, ROUNDS as u64 * MESSAGE);
/// The user that owns nothing.
const NOBODY: u32 = 65534;

/// A server of another user's, and a client of ours, both wrapped and each with the directory of its user.
struct TwoUsers {
    server: Actor,
    client: Actor,
    /// Files that everybody may read.
    public: PathBuf,
}

impl TwoUsers {
    fn meet(stage: &Stage) -> Result<Self, Missing> {
        need_root()?;
        let public = public(stage);
        let own_dir = public.join("dirs/of-UID");
        let serve = stage.python(How::Plain, ECHO, &[]);
        let mut serve = as_nobody(&serve, &public)?;
        serve.env("LD_PRELOAD", public.join("libmadrigal_syswrap.so")).env("MADRIGAL_DIR", &own_dir);
        let (server, port) = listening(&mut serve);
        let mut connect = stage.python(How::Wrapped, CLIENT, &[&port]);
        let client = played(connect.env("MADRIGAL_DIR", &own_dir), ROUNDS);
        Ok(Self { server, client, public })
    }
}

/// A folder that others may enter, with copies of what they are to run, and one where each makes its own directory.
fn public(stage: &Stage) -> PathBuf {
    let open =
        |path: &Path, mode| std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("a mode");
    let public = stage.scratch.path().join("public");
    std::fs::create_dir_all(public.join("dirs")).expect("folders");
    open(stage.scratch.path(), 0o711);
    open(&public, 0o755);
    open(&public.join("dirs"), 0o1777);
    for (file, name) in [(host::library(), "libmadrigal_syswrap.so"), (host::madrigal(), "madrigal")] {
        host::copy_program(file, &public.join(name));
        open(&public.join(name), 0o755);
    }
    public
}

/// The same command, run by the user that owns nothing.
fn as_nobody(command: &Command, dir: &Path) -> Result<Command, Missing> {
    let mut other = Command::new(need("setpriv")?);
    other.args([&format!("--reuid={NOBODY}"), &format!("--regid={NOBODY}"), "--clear-groups", "--"]);
    other.arg(command.get_program()).args(command.get_args()).current_dir(dir);
    Ok(other)
}

/// The command runs as root, which sees both processes.
pub(crate) fn other_user(stage: &Stage) -> Played {
    let two = TwoUsers::meet(stage)?;
    for (end, peer, user) in [(&two.server, &two.client, 0), (&two.client, &two.server, NOBODY)] {
        let seen = stage.connection(end.pid());
        seen.expect("tcp", Some("other-user"), ALL);
        let told = &seen.0["peer_process"];
        assert_eq!(
            (told["pid"].as_i64(), told["user"].as_u64()),
            (Some(peer.pid().into()), Some(user.into())),
            "{seen:?}"
        );
    }
    Ok(())
}

/// The command runs as the other user, which cannot see the process at the other end, but sees the user of its socket.
pub(crate) fn other_user_asks(stage: &Stage) -> Played {
    let two = TwoUsers::meet(stage)?;
    let mut ask = Command::new(two.public.join("madrigal"));
    ask.args(["why", &two.server.pid().to_string(), "--json"]);
    let (status, json, err) = output_of(as_nobody(&ask, &two.public)?.env("LD_PRELOAD", ""));
    assert_eq!(status, 0, "{err}");
    let all = seen(&json);
    assert_eq!(all.len(), 1, "{json}");
    all[0].expect("tcp", Some("other-user"), ALL);
    assert_eq!(all[0].0["peer_process"], Value::Null);
    Ok(())
}

/// Two network namespaces joined by a pair of interfaces; in the second one processes do not see those outside.
struct Apart {
    near: Actor,
    _far: Actor,
    /// The first process of the far namespace, as seen from outside.
    inside: i32,
}

const NEAR: &str = "10.77.0.1";
const FAR: &str = "10.77.0.2";

impl Apart {
    fn make(stage: &Stage) -> Result<Self, Missing> {
        need_root()?;
        let (unshare, ip) = (need("unshare")?, need("ip")?);
        let wait = "echo up; read line";
        let hold = |args: &[&str]| {
            let mut command = host::command(How::Plain, &unshare, &stage.scratch);
            let actor = Actor::start(command.args(args).args(["sh", "-c", wait]));
            actor.expect_line("up");
            actor
        };
        let near = hold(&["--net"]);
        let far = hold(&["--net", "--pid", "--fork", "--kill-child", "--mount-proc"]);
        let inside = child_of(far.pid());
        let apart = Self { near, _far: far, inside };
        let ip = ip.to_str().expect("a path");
        for (at_far, words) in [
            (false, format!("link add near type veth peer name far netns {inside}")),
            (false, format!("address add {NEAR}/24 dev near")),
            (true, format!("address add {FAR}/24 dev far")),
            (false, "link set near up".to_owned()),
            (true, "link set far up".to_owned()),
        ] {
            let mut command = apart.enter(stage, at_far, How::Plain, ip)?;
            host::run(command.args(words.split(' '))).expect_success();
        }
        Ok(apart)
    }

    /// A command to be run in one of them; the far one has a process of its own before it.
    fn enter(&self, stage: &Stage, far: bool, how: How, program: &str) -> Result<Command, Missing> {
        let mut command = host::command(how, need("nsenter")?, &stage.scratch);
        let target = if far { self.inside } else { self.near.pid() };
        command.args(["--target", &target.to_string(), "--net"]);
        if far {
            command.args(["--pid", "--mount"]);
        }
        command.arg(program);
        Ok(command)
    }

    /// A wrapped server in the near one and a wrapped client in the far one.
    fn meet(&self, stage: &Stage) -> Result<(Actor, Actor), Missing> {
        let python = |far: bool, program: String, args: &[&str]| {
            let shown = stage.python(How::Wrapped, &program, args);
            let mut command = self.enter(stage, far, How::Wrapped, &stage.interpreter().to_string_lossy())?;
            command.args(shown.get_args());
            Ok(command)
        };
        let serve = format!("connection = listen('{NEAR}').accept()[0]\necho(connection); told()");
        let (server, port) = listening(&mut python(false, serve, &[])?);
        let client = played(&mut python(true, format!("rounds(connect('{NEAR}'))"), &[&port])?, ROUNDS);
        Ok((server, client))
    }
}

/// The child of a process, which has one.
fn child_of(pid: i32) -> i32 {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).expect("its child");
    children.trim().parse().expect("one child")
}

/// From outside both are seen.
pub(crate) fn other_namespace(stage: &Stage) -> Played {
    let apart = Apart::make(stage)?;
    let (server, client) = apart.meet(stage)?;
    let client = child_of(client.pid());
    let s = stage.connection(server.pid());
    s.expect("tcp", Some("other-namespace"), ALL).expect_peer(client, true, Some("no-listener"));
    let c = stage.connection(client);
    c.expect("tcp", Some("other-namespace"), ALL).expect_peer(server.pid(), true, Some("unearned"));
    Ok(())
}

/// From inside, the other end is on another host: no process there can be seen, and no socket.
pub(crate) fn other_host(stage: &Stage) -> Played {
    let apart = Apart::make(stage)?;
    let (_server, _client) = apart.meet(stage)?;
    let mut ask = apart.enter(stage, true, How::Plain, &host::madrigal().to_string_lossy())?;
    let (status, json, err) = output_of(ask.args(["why", "--json"]));
    assert_eq!(status, 0, "{err}");
    let all = seen(&json);
    assert_eq!(all.len(), 1, "{json}");
    all[0].expect("tcp", Some("other-host"), ALL);
    assert_eq!(all[0].0["peer_process"], Value::Null);
    Ok(())
}

/// The same host and network, and a process that cannot be seen from here.
pub(crate) fn unseen_process(stage: &Stage) -> Played {
    need_root()?;
    let (_server, port) = stage.server(How::Plain);
    let shown = stage.python(How::Wrapped, CLIENT, &[&port]);
    let mut command = host::command(How::Wrapped, need("unshare")?, &stage.scratch);
    command.args(["--pid", "--fork", "--kill-child", "--mount-proc"]).arg(stage.interpreter()).args(shown.get_args());
    let client = played(&mut command, ROUNDS);
    let inside = child_of(client.pid()).to_string();
    let mut ask = host::command(How::Plain, need("nsenter")?, &stage.scratch);
    ask.args(["--target", &inside, "--pid", "--mount"]).arg(host::madrigal()).args(["why", "--json"]);
    let (status, json, err) = output_of(&mut ask);
    assert_eq!(status, 0, "{err}");
    let all = seen(&json);
    assert_eq!(all.len(), 1, "{json}");
    all[0].expect("tcp", Some("peer-unseen"), ALL);
    Ok(())
}
