//! How much a program is told it may inject.
//!
//! MPICH sends whatever may be injected at once, before it looks at its own eager threshold, and receives no more than that threshold at
//! once: where a user sets it below what a provider injects, messages between the two sizes arrive cut off. So such a user is told of no
//! more than the threshold.

use std::ffi::OsString;

use super::offered::INJECT;

/// The names MPICH knows the threshold by.
const THRESHOLDS: [&str; 3] =
    ["MPICH_CH4_OFI_EAGER_THRESHOLD", "MPIR_PARAM_CH4_OFI_EAGER_THRESHOLD", "MPIR_CVAR_CH4_OFI_EAGER_THRESHOLD"];

/// So many bytes.
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
