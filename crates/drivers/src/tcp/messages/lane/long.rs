//! Long bodies on their way in: read straight to where they go, and with their end the beginning of what follows.

use std::os::fd::{AsFd as _, AsRawFd as _};

use madrigal_progress::message::{LinkError, LinkIndex, MAX_HEAD, Sink};
use madrigal_sys::{piece, raw};

use super::{BULK, Lane, Long, PIECES, SIP, SIPS, Visit};

impl Lane {
    /// Begins a long body, whose first bytes are here; returns what lies behind it if it is here whole.
    pub(super) fn place<'a>(
        &mut self,
        link: LinkIndex,
        head: &[u8],
        len: u64,
        bytes: &'a [u8],
        sink: &mut dyn Sink,
    ) -> Result<Option<&'a [u8]>, LinkError> {
        let Ok(left) = usize::try_from(len) else {
            let what = format!("a body of {len} bytes");
            return Err(LinkError::Corrupt { node: self.node, what });
        };
        self.sips = if len >= BULK { SIPS } else { self.sips.saturating_sub(1) };
        self.placement.clear();
        sink.place(link, head, left, &mut self.placement);
        let (here, behind) = bytes.split_at(left.min(bytes.len()));
        piece::scatter(&self.placement, 0, here);
        if here.len() == left {
            sink.arrived(link, head);
            return Ok(Some(behind));
        }
        let mut long = Long { head: [0; MAX_HEAD], head_len: head.len(), left: left - here.len(), at: here.len() };
        if let Some(place) = long.head.get_mut(..head.len()) {
            place.copy_from_slice(head);
        }
        self.long = Some(long);
        Ok(None)
    }

    /// Reads the rest of a long body, and a little of what comes behind it.
    pub(super) fn read_long(
        &mut self,
        link: LinkIndex,
        mut long: Long,
        buffer: &mut [u8],
        sink: &mut dyn Sink,
        visit: &mut Visit,
    ) -> Result<(usize, usize), LinkError> {
        let room = piece::total(&self.placement).saturating_sub(long.at);
        let tail = buffer.get_mut(..SIP).unwrap_or_default();
        let (asked, read) = if room == 0 {
            // Streams other than TCP discard less per call than asked: 1, so that any count means that more may be there.
            (1, raw::discard(self.socket.as_raw_fd(), long.left))
        } else {
            let limit = room.min(long.left);
            // If the placement is too small, nothing may be read behind it.
            let tail = if limit < long.left { &mut tail[..0] } else { &mut *tail };
            // One call takes only some of so many pieces, so its limit is unknown: 1 means that more may be there.
            let asked = if self.placement.len() > PIECES { 1 } else { limit + tail.len() };
            (asked, piece::receive(self.socket.as_fd(), &self.placement, long.at, limit, tail))
        };
        let came = match read {
            Ok(0) => Err(self.gone("it closed the connection in the middle of a frame")),
            read => self.came(read),
        };
        let got = match came {
            Ok(got) => got,
            Err(why) => {
                // The link may go on over another connection.
                self.long = Some(long);
                return Err(why);
            }
        };
        let body = got.min(long.left);
        (long.left, long.at) = (long.left - body, long.at + body);
        visit.found += usize::from(got > 0);
        if long.left > 0 {
            self.long = Some(long);
            return Ok((asked, got));
        }
        sink.arrived(link, long.head.get(..long.head_len).unwrap_or_default());
        self.cut(link, buffer.get(..got - body).unwrap_or_default(), sink, visit)?;
        Ok((asked, got))
    }
}
