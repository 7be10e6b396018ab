//! Steps of programs that run freely, as C: those that have an equivalent plain form.

use crate::op::Op;
use crate::program::Program;
use crate::via::Serve;

/// The body of a step.
pub(super) fn body(program: &Program, number: usize, op: &Op) -> Option<String> {
    Some(match op {
        Op::Sleep { us } => format!("usleep({us});"),
        Op::Timer { us } => format!("signal(SIGALRM, handler); timer({us});"),
        Op::Join { actor } => {
            let last = program.steps.iter().rposition(|step| step.actor == *actor)?;
            format!("while (shared->done[{actor}] != FREELY && {last} >= 0) usleep(100);")
        }
        Op::Storm { via, times, gap_us } => {
            format!(
                "for (int i = 0; i < {times}; i++) {{ idle_child(\"{via:?}\"); usleep({gap_us}); }} tell({number}, 0);"
            )
        }
        Op::Server { from, conns, serve, .. } => {
            let serve = match serve {
                Serve::Thread => {
                    "pthread_t t; pthread_create(&t, NULL, echo_thread, (void *)(intptr_t)s); pthread_detach(t);"
                }
                Serve::Fork | Serve::Spread => "if (fork() == 0) { echo(s); _exit(0); } close(s);",
                Serve::Inline => "echo(s);",
            };
            format!(
                "int served = 0; while (served < {conns}) {{ int s = accept(fd[{from}], NULL, NULL); if (s < 0) continue; served++; \
                 setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &(int){{1}}, sizeof(int)); {serve} }} \
                 while (echoing) usleep(100); while (wait(NULL) > 0) {{}} tell({number}, served);"
            )
        }
        Op::Events { from, conns, .. } => format!("tell({number}, echo_all(fd[{from}], {conns}));"),
        Op::Churn { to, conns, requests, size, .. } => {
            format!("churn({number}, actor, {to}, {conns}, {requests}, {size});")
        }
        Op::Crowd { to, conns, requests, size, .. } => {
            format!("churn({number}, actor, {to}, {conns}, {requests}, {size});")
        }
        _ => return None,
    })
}
