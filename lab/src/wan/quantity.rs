//! Quantities as people write them: `100M`, `20ms`, `0.5%`, `256KiB`. Reading and writing; no unit is ever guessed.

use std::time::Duration;

/// What is wrong with a quantity, and what would be right.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is no {what}: write {such_as}")]
pub struct BadQuantity {
    text: String,
    what: &'static str,
    such_as: &'static str,
}

/// The number at the front of a text, and its unit.
fn split(text: &str) -> Option<(f64, &str)> {
    let text = text.trim();
    let end = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let (number, unit) = text.split_at_checked(end)?;
    number.parse().ok().map(|number| (number, unit.trim()))
}

/// The value of `text`, whose unit is one of `units`; the result is finite and not negative.
fn read(text: &str, units: &[(&str, f64)], what: &'static str, such_as: &'static str) -> Result<f64, BadQuantity> {
    let known = |unit: &str| units.iter().find(|(name, _)| *name == unit).map(|(_, factor)| *factor);
    let value = split(text).and_then(|(number, unit)| Some(number * known(unit)?)).filter(|value| value.is_finite());
    value.ok_or_else(|| BadQuantity { text: text.to_owned(), what, such_as })
}

const RATES: &[(&str, f64)] = &[
    ("bit", 1.0),
    ("k", 1e3),
    ("K", 1e3),
    ("kbit", 1e3),
    ("M", 1e6),
    ("Mbit", 1e6),
    ("Mbit/s", 1e6),
    ("G", 1e9),
    ("Gbit", 1e9),
    ("Gbit/s", 1e9),
];
const TIMES: &[(&str, f64)] = &[("us", 1e3), ("ms", 1e6), ("s", 1e9)];
const SIZES: &[(&str, f64)] =
    &[("B", 1.0), ("kB", 1e3), ("KB", 1e3), ("MB", 1e6), ("KiB", 1024.0), ("MiB", 1024.0 * 1024.0)];

/// A rate in bits a second; `None` is `unlimited`.
pub fn rate(text: &str) -> Result<Option<u64>, BadQuantity> {
    const SUCH_AS: &str = "bits a second from 1k to 100G such as 100M, 1.5G, 512k, or unlimited";
    if text == "unlimited" {
        return Ok(None);
    }
    let bits = read(text, RATES, "rate", SUCH_AS)?;
    let wrong = || BadQuantity { text: text.to_owned(), what: "rate", such_as: SUCH_AS };
    if (1e3..=1e11).contains(&bits) { Ok(Some(bits as u64)) } else { Err(wrong()) }
}

/// A time of a minute at most.
pub fn time(text: &str) -> Result<Duration, BadQuantity> {
    const SUCH_AS: &str = "a time of at most 60s such as 20ms, 500us, 1.5s";
    let ns = if text.trim() == "0" { 0.0 } else { read(text, TIMES, "time", SUCH_AS)? };
    let wrong = || BadQuantity { text: text.to_owned(), what: "time", such_as: SUCH_AS };
    if ns <= 60e9 { Ok(Duration::from_nanos(ns as u64)) } else { Err(wrong()) }
}

/// A share of packets, in millionths.
pub fn share(text: &str) -> Result<u32, BadQuantity> {
    const SUCH_AS: &str = "a share of packets such as 5%, 0.1%, or 0";
    let percent = if text.trim() == "0" { 0.0 } else { read(text, &[("%", 1.0)], "share", SUCH_AS)? };
    let wrong = || BadQuantity { text: text.to_owned(), what: "share", such_as: SUCH_AS };
    if percent <= 100.0 { Ok((percent * 10_000.0).round() as u32) } else { Err(wrong()) }
}

/// How much may wait for the line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Queue {
    /// So many bytes.
    Bytes(u64),
    /// What the line carries in this time.
    Time(Duration),
}

/// A queue, in bytes or in time.
pub fn queue(text: &str) -> Result<Queue, BadQuantity> {
    const SUCH_AS: &str = "a time or a size with its unit such as 100ms, 256KiB, 64kB";
    let wrong = |_| BadQuantity { text: text.to_owned(), what: "queue", such_as: SUCH_AS };
    if let Ok(bytes) = read(text, SIZES, "queue", SUCH_AS) {
        return if bytes <= 1e9 { Ok(Queue::Bytes(bytes as u64)) } else { Err(wrong(())) };
    }
    time(text).map(Queue::Time).map_err(|_| wrong(()))
}

/// A number with as many digits as it needs.
fn plain(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// A rate as [`rate`] reads it.
pub fn rate_text(rate: Option<u64>) -> String {
    match rate.map(|bits| bits as f64) {
        None => "unlimited".to_owned(),
        Some(bits) if bits >= 1e9 => plain(bits / 1e9) + "G",
        Some(bits) if bits >= 1e6 => plain(bits / 1e6) + "M",
        Some(bits) => plain(bits / 1e3) + "k",
    }
}

/// A time as [`time`] reads it.
pub fn time_text(time: Duration) -> String {
    match time.as_nanos() as f64 {
        0.0 => "0".to_owned(),
        ns if ns >= 1e9 => plain(ns / 1e9) + "s",
        ns if ns >= 1e6 => plain(ns / 1e6) + "ms",
        ns => plain(ns / 1e3) + "us",
    }
}

/// A share as [`share`] reads it.
pub fn share_text(millionths: u32) -> String {
    let digits = format!("{:.4}", f64::from(millionths) / 10_000.0);
    digits.trim_end_matches('0').trim_end_matches('.').to_owned() + "%"
}

/// A queue as [`queue`] reads it.
pub fn queue_text(queue: Queue) -> String {
    match queue {
        Queue::Bytes(bytes) => format!("{bytes}B"),
        Queue::Time(time) if time.is_zero() => "0s".to_owned(),
        Queue::Time(time) => time_text(time),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_reads_back() {
        for (text, bits) in [("100M", 100_000_000), ("1.5G", 1_500_000_000), ("512k", 512_000), ("10Mbit", 10_000_000)]
        {
            assert_eq!(rate(text), Ok(Some(bits)));
            assert_eq!(rate(&rate_text(Some(bits))), Ok(Some(bits)));
        }
        assert_eq!(rate(&rate_text(None)), Ok(None));
        for text in ["20ms", "1.5s", "500us", "0"] {
            assert_eq!(time_text(time(text).unwrap()), text);
        }
        for (text, millionths) in [("5%", 50_000), ("0.1%", 1000), ("0", 0), ("100%", 1_000_000), ("0.0001%", 1)] {
            assert_eq!(share(text), Ok(millionths));
            assert_eq!(share(&share_text(millionths)), Ok(millionths));
        }
        for text in ["64kB", "256KiB", "100ms", "0s"] {
            let read = queue(text).unwrap();
            assert_eq!(queue(&queue_text(read)), Ok(read), "{text}");
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_an_example() {
        for bad in ["", "fast", "100", "0M", "-1M", "1e9", "100Mb", "900G", "NaN", "1.2.3M"] {
            assert!(rate(bad).unwrap_err().to_string().contains("such as 100M"), "{bad}");
        }
        for bad in ["", "20", "ms", "20 minutes", "61s"] {
            assert!(time(bad).unwrap_err().to_string().contains("such as 20ms"), "{bad}");
        }
        for bad in ["5", "101%", "%", "five%"] {
            assert!(share(bad).unwrap_err().to_string().contains("such as 5%"), "{bad}");
        }
        for bad in ["64", "64k", "", "2 GB"] {
            assert!(queue(bad).unwrap_err().to_string().contains("such as 100ms"), "{bad}");
        }
    }
}
