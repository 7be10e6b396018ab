//! The target end of a migration: a stream that ends here is resumed by another way.

use crate::daemon::Daemon;
use crate::streams::migrations::NOT_KEPT;
use crate::streams::origin::{Origin, Role};
use crate::streams::pipe::End;
use crate::streams::stream::{Stream, StreamOwner};
use crate::wire::{ConnectReply, ConnectRequest, ResetCause, Resume};

impl Daemon {
    /// A peer requests to resume a stream on the new stream `from`.
    pub(crate) fn handle_resume(&mut self, from: Stream, sender: &str, request: &ConnectRequest, resume: Resume) {
        let by_relay = self.grid.host(sender).is_some_and(|(_, host)| host.relay);
        let token = request.id.as_ref().and_then(|id| self.resumable_pipes.get(id)).copied();
        // Only for the host where it began, and not by a late request.
        let is_theirs = |origin: &Origin| {
            let same = matches!(&origin.role, Role::Target { from } if *from == request.from);
            same && (sender == request.from || by_relay) && resume.epoch > origin.epoch
        };
        let pipe = token.and_then(|token| self.pipes.get_mut(&token));
        let pipe = pipe.filter(|pipe| pipe.origin.as_ref().is_some_and(is_theirs));
        let (Some(token), Some(pipe)) = (token, pipe) else {
            return self.send_reply(from, ConnectReply::Refused, "there is no such stream");
        };
        if let Some(origin) = &mut pipe.origin {
            origin.epoch = resume.epoch;
        }
        let Some(side) = pipe.resumable_side() else { return };
        let (got, acked) = side.resumable.as_ref().map_or((0, 0), |resumable| (resumable.got(), resumable.acked()));
        if resume.got < acked {
            // The request is late: more was acknowledged by the old way meanwhile.
            return self.send_reply(from, ConnectReply::Unavailable, "it is further by now");
        }
        if !side.resumable.as_mut().is_some_and(|resumable| resumable.resume(got, resume.got)) {
            return self.send_reply(from, ConnectReply::Refused, NOT_KEPT);
        }
        let before = std::mem::replace(&mut side.end, End::Stream(from));
        self.cancel_migration(token);
        if let End::Stream(old) = before {
            self.reset_stream_as(old, ResetCause::LinkLost);
        }
        self.send_reply(from, ConnectReply::Connected, &got.to_string());
        self.streams.insert(from, StreamOwner::Pipe(token));
        self.log_line(&format!("moved: a stream of {} to port {}, by {sender} now", request.from, request.port));
        let hops = [std::slice::from_ref(&request.from), request.through.as_slice()].concat();
        self.let_in_migrated(token, from, &hops);
        self.pump(token);
    }
}
