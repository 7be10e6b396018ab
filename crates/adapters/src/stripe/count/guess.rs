//! How many streams to begin with, before anything was measured: the rate of one stream as RFC 9438 has it.

use super::super::limits::MOST_STREAMS;

/// How a sender's kernel decides how fast it sends.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Congestion {
    /// CUBIC, which most hosts have; or Reno, or one that is not known: by losses.
    ByLoss,
    /// BBR: by the rate at which bytes come, whatever is lost. One stream is all it needs, if its window and its buffer hold what is in
    /// flight.
    ByRate,
}

impl Congestion {
    /// By its name in the kernel, such as `cubic` or `bbr`.
    pub fn of(name: &str) -> Self {
        if name.starts_with("bbr") { Self::ByRate } else { Self::ByLoss }
    }
}

/// What is known of a way.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Way {
    /// Bytes a second that it carries at most.
    pub rate: f64,
    /// Seconds.
    pub round_trip: f64,
    /// Of how many segments one is lost: 0.001 is one of a thousand.
    pub loss: f64,
    /// Bytes of a segment.
    pub segment: f64,
}

impl Way {
    /// Bytes a second that one stream by losses carries at least; about twice as much has been measured.
    pub fn one_stream(&self) -> f64 {
        let loss = self.loss.clamp(1e-9, 1.0);
        let round_trip = self.round_trip.clamp(1e-6, 60.0);
        // The window of CUBIC, and Reno's where that is larger.
        let window = (1.054 * (round_trip / loss).powf(0.75)).max(1.22 / loss.sqrt());
        window * self.segment / round_trip
    }
}

/// With how many streams of at most `limit` to begin: half of the formula's result, which is too high.
pub fn first_guess(way: &Way, congestion: Congestion, limit: usize) -> usize {
    if congestion == Congestion::ByRate {
        return 1;
    }
    let count = (0.9 * way.rate / way.one_stream()).ceil();
    // Whatever was measured, this is a number from 1 to the most.
    let count = if count.is_finite() { count.clamp(1.0, MOST_STREAMS.into()) as usize } else { 1 };
    (count / 2).clamp(1, limit.clamp(1, MOST_STREAMS.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn way(mbit: f64, round_trip: f64, loss: f64) -> Way {
        Way { rate: mbit * 125_000.0, round_trip, loss, segment: 1448.0 }
    }

    #[test]
    fn one_stream_is_what_the_formula_says() {
        // 100 ms and one of a thousand lost: 38.6 segments by Reno, 33.3 by CUBIC.
        let rate = way(100.0, 0.1, 0.001).one_stream() * 8.0 / 1e6;
        assert!((4.4..4.6).contains(&rate), "{rate} Mbit/s");
        // A longer way: CUBIC's window is larger.
        let rate = way(100.0, 0.2, 0.0001).one_stream();
        assert!((rate * 0.2 / 1448.0 - 315.2).abs() < 1.0, "{}", rate * 0.2 / 1448.0);
    }

    #[test]
    fn the_guess_is_half_of_that_and_bounded() {
        let guess = |way: Way| first_guess(&way, Congestion::of("cubic"), 16);
        assert_eq!(guess(way(100.0, 0.1, 0.001)), 10);
        assert_eq!(guess(way(30.0, 0.1, 0.001)), 3);
        assert_eq!(guess(way(100.0, 0.01, 0.0)), 1);
        assert_eq!(guess(way(100.0, 0.1, 0.05)), 16);
        assert_eq!(first_guess(&way(100.0, 0.1, 0.05), Congestion::ByLoss, 4), 4);
        assert_eq!(first_guess(&way(100.0, 0.1, 0.05), Congestion::of("bbr"), 16), 1);
        for broken in [f64::NAN, f64::INFINITY, -1.0, 0.0] {
            let odd = Way { rate: broken, round_trip: broken, loss: broken, segment: broken };
            assert!((1..=MOST_STREAMS.into()).contains(&guess(odd)));
        }
    }
}
