//! The target end of a migration: a stream that ends here is resumed by another way.

use crate::daemon::Daemon;
use crate::streams::origin::{Origin, Role};
use crate::streams::pipe::End;
use crate::streams::stream::{Holder, Stream};
use crate::wire::{Gone, Order, Resume, Verdict};

impl Daemon {
    /// A stream is to go on by another way that ends here.
    pub(crate) fn take_move(&mut self, from: Stream, sender: &str, order: &Order, resume: Resume) {
        let by_relay = self.grid.host(sender).is_some_and(|(_, host)| host.relay);
        let token = order.id.as_ref().and_then(|id| self.movable.get(id)).copied();
        // Only for whom it began, and not by a word that comes late.
        let is_theirs = |origin: &Origin| {
            let same = matches!(&origin.role, Role::Target { from } if *from == order.from);
            same && (sender == order.from || by_relay) && resume.epoch > origin.epoch
        };
        let pipe = token.and_then(|token| self.pipes.get_mut(&token));
        let pipe = pipe.filter(|pipe| pipe.origin.as_ref().is_some_and(is_theirs));
        let (Some(token), Some(pipe)) = (token, pipe) else {
            return self.tell(from, Verdict::Never, "there is no such stream");
        };
        if let Some(origin) = &mut pipe.origin {
            origin.epoch = resume.epoch;
        }
        let Some(far) = pipe.far() else { return };
        let (got, acked) = far.resumable.as_ref().map_or((0, 0), |resumable| (resumable.got(), resumable.acked()));
        if resume.got < acked {
            // It was on its way for so long that more was said meanwhile by the old one.
            return self.tell(from, Verdict::NotNow, "it is further by now");
        }
        if !far.resumable.as_mut().is_some_and(|resumable| resumable.resume(got, resume.got)) {
            return self.tell(from, Verdict::Never, "what it has not got is kept no longer");
        }
        let before = std::mem::replace(&mut far.end, End::Stream(from));
        self.anchor(token);
        if let End::Stream(old) = before {
            self.reset_stream_as(old, Gone::Lost);
        }
        self.tell(from, Verdict::Connected, &got.to_string());
        self.streams.insert(from, Holder::Pipe(token));
        self.note(&format!("moved: a stream of {} to port {}, by {sender} now", order.from, order.port));
        let hops = [std::slice::from_ref(&order.from), order.through.as_slice()].concat();
        self.route_let_in_moved(token, from, &hops);
        self.pump(token);
    }
}
