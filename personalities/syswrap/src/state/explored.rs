//! How the larger models of this folder are run.

use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{MaxSteps, Runner};

/// `EXPLORE=300` has three times as many runs.
pub(super) fn explore(random: usize, pct: usize, run: impl Fn() + Send + Sync + Clone + 'static) {
    let percent = std::env::var("EXPLORE").ok().and_then(|text| text.parse().ok()).unwrap_or(100);
    let times = |runs: usize| (runs * percent / 100).max(1);
    let mut config = shuttle::Config::new();
    config.stack_size = 1 << 20;
    config.max_steps = MaxSteps::FailAfter(400_000);
    Runner::new(RandomScheduler::new(times(random)), config.clone()).run(run.clone());
    Runner::new(PctScheduler::new(4, times(pct)), config).run(run);
}
