//! The routes of a router to other sites: over the links with the least total delay.

use super::addresses::{public, whole};
use crate::file::{Grid, WanLink};

/// The packets that the device of a link may hold until they are read: a burst of its process not running is no loss of the link's.
const DEVICE_PACKETS: u32 = 4000;

/// The cost of a link: its delay, and a little for being one.
fn cost(link: &WanLink) -> u64 {
    link.settings.delay.as_nanos() as u64 + 1_000_000
}

/// For each site the cost of the way to it from `from`, and the link it begins with.
fn ways(grid: &Grid, from: usize) -> Vec<Option<(u64, Option<usize>)>> {
    let mut best: Vec<Option<(u64, Option<usize>)>> = vec![None; grid.sites.len()];
    best[from] = Some((0, None));
    // As many rounds as there are sites: the longest way visits each once.
    for _ in 0..grid.sites.len() {
        for (n, link) in grid.links.iter().enumerate() {
            for [here, there] in [link.between, [link.between[1], link.between[0]]] {
                let Some((so_far, first)) = best[here] else { continue };
                let found = (so_far + cost(link), first.or(Some(n)));
                if best[there].is_none_or(|known| found.0 < known.0) {
                    best[there] = Some(found);
                }
            }
        }
    }
    best
}

/// The commands for ip(8) in the router of the site number `here`: its end of each link, and the way to everybody.
pub(super) fn of(grid: &Grid, here: usize) -> Vec<String> {
    let mut lines = Vec::new();
    for link in grid.links.iter().filter(|link| link.between.contains(&here)) {
        let there = if link.between[0] == here { link.between[1] } else { link.between[0] };
        let name = &link.name;
        lines.push(format!("link set dev {name} txqueuelen {DEVICE_PACKETS} up"));
        let ([own, own_six], [peer, _]) = (public(here), public(there));
        lines.push(format!("addr add {own} peer {peer} dev {name}"));
        lines.push(format!("addr add {own_six}/128 dev {name} nodad"));
    }
    for (there, way) in ways(grid, here).into_iter().enumerate() {
        let Some((_, Some(first))) = way else { continue };
        let site = &grid.sites[there];
        let networks = site.networks.iter().copied().filter(|_| !site.nat);
        for net in public(there).map(whole).into_iter().chain(networks) {
            lines.push(format!("route replace {net} dev {}", grid.links[first].name));
        }
    }
    // Packets to unknown networks vanish, as on a real network; an immediate error of the kernel's would be no realistic test.
    lines.push("route add blackhole default metric 9999".to_owned());
    lines.push("route add blackhole ::/0 metric 9999".to_owned());
    lines
}
