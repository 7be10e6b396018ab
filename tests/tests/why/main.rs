//! `madrigal why` about real programs: a table of scenes. Each starts programs and checks the report of each connection, as JSON and as
//! text: path, reason, bytes, and the peer process. docs/why.md has the same table for people; a scene that is missing in one of
//! them fails.
//!
//! Features (docs/features.md): B16.

mod options;
mod pairs;
mod places;
mod processes;
mod servers;
mod stage;

use std::collections::BTreeSet;

use libtest_mimic::{Arguments, Completion, Trial};
use stage::{Scene, Stage};

/// Every scene.
const SCENES: &[(&str, Scene)] = &[
    ("both_wrapped", pairs::both_wrapped),
    ("little_traffic", pairs::little_traffic),
    ("plain_client", pairs::plain_client),
    ("plain_server", pairs::plain_server),
    ("static_server", pairs::static_server),
    ("go_server", pairs::go_server),
    ("not_accepted", pairs::not_accepted),
    ("names", pairs::names),
    ("only_at_the_client", options::only_at_the_client),
    ("only_at_the_server", options::only_at_the_server),
    ("only_while_it_connects", options::only_while_it_connects),
    ("off_at_the_client", options::off_at_the_client),
    ("off_at_the_server", options::off_at_the_server),
    ("other_directory", options::other_directory),
    ("unsafe_directory", options::unsafe_directory),
    ("urgent_data", options::urgent_data),
    ("half_closed", options::half_closed),
    ("standard_input", options::standard_input),
    ("sandbox", options::sandbox),
    ("sandbox_in_a_child", options::sandbox_in_a_child),
    ("sandbox_in_a_child_that_ends", options::sandbox_in_a_child_that_ends),
    ("fork_child_serves", processes::fork_child_serves),
    ("fork_child_is_idle", processes::fork_child_is_idle),
    ("fork_both_hold", processes::fork_both_hold),
    ("exec_as_inetd", processes::exec_as_inetd),
    ("exec_and_parent_holds", processes::exec_and_parent_holds),
    ("posix_spawn", processes::posix_spawn),
    ("descriptor_passed", processes::descriptor_passed),
    ("dup2_and_close", processes::dup2_and_close),
    ("sshd", servers::sshd),
    ("git_daemon", servers::git_daemon),
    ("other_user", places::other_user),
    ("other_user_asks", places::other_user_asks),
    ("other_namespace", places::other_namespace),
    ("other_host", places::other_host),
    ("unseen_process", places::unseen_process),
];

fn main() {
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(2);
    let mut trials: Vec<Trial> = SCENES.iter().map(|(name, scene)| trial(name, *scene)).collect();
    trials.push(Trial::test("the_page_has_every_scene", || {
        same_as_the_page();
        Ok(())
    }));
    libtest_mimic::run(&arguments, trials).exit();
}

fn trial(name: &str, scene: Scene) -> Trial {
    Trial::ignorable_test(name, move || match Stage::new().and_then(|stage| scene(&stage)) {
        Ok(()) => Ok(Completion::Completed),
        Err(missing) => Ok(Completion::ignored_with(missing.0)),
    })
}

/// The last of the five cells of each row of the page's tables names the scene.
fn same_as_the_page() {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/why.md")).expect("docs/why.md");
    let rows = page.lines().filter(|line| line.matches('|').count() == 6);
    let told: BTreeSet<&str> = rows.filter_map(|line| line.strip_suffix("` |")?.rsplit('`').next()).collect();
    let played: BTreeSet<&str> = SCENES.iter().map(|(name, _)| *name).collect();
    assert_eq!(told, played, "rows of docs/why.md and scenes");
}
