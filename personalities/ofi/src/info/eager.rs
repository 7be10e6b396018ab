//! The inject size that a program gets.
//!
//! MPICH injects whatever may be injected, before it checks its own eager threshold, and receives no more than that threshold at once. If a
//! user sets the threshold below the inject size, messages between the two sizes arrive truncated. So the reported size is at most the
//! threshold.

use std::ffi::OsString;

use super::offered::INJECT;

/// MPICH's names of the threshold.
const THRESHOLDS: [&str; 3] =
    ["MPICH_CH4_OFI_EAGER_THRESHOLD", "MPIR_PARAM_CH4_OFI_EAGER_THRESHOLD", "MPIR_CVAR_CH4_OFI_EAGER_THRESHOLD"];

/// The inject size to report, in bytes.
pub(super) fn most() -> usize {
    most_of(|name| std::env::var_os(name))
}

fn most_of(variable: impl Fn(&str) -> Option<OsString>) -> usize {
    let number = |name: &&str| variable(name)?.to_str()?.trim().parse::<usize>().ok();
    THRESHOLDS.iter().filter_map(number).fold(INJECT, usize::min)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_than_the_least_threshold() {
        let threshold = |set: &[(&str, &str)]| {
            most_of(|name| set.iter().find(|(known, _)| *known == name).map(|(_, value)| OsString::from(value)))
        };
        assert_eq!(threshold(&[]), INJECT);
        assert_eq!(threshold(&[(THRESHOLDS[2], "16384")]), 16384);
        assert_eq!(threshold(&[(THRESHOLDS[0], "32768"), (THRESHOLDS[1], " 100 ")]), 100);
        assert_eq!(threshold(&[(THRESHOLDS[2], "0")]), 0);
        // Its default is no threshold at all; what it cannot read it refuses itself.
        for none in ["-1", "much", "", "99999999999999999999", "1048576"] {
            assert_eq!(threshold(&[(THRESHOLDS[2], none)]), INJECT, "{none}");
        }
    }
}
