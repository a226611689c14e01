//! What is going on, for whoever waits: a moving line on a terminal, plain lines elsewhere.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::{IsTerminal as _, Write as _};
use std::time::Duration;

/// Characters of a bar.
const BAR: u64 = 24;

pub(crate) struct Progress {
    /// Absent where standard error is no terminal.
    bar: Option<ProgressBar>,
}

impl Progress {
    pub(crate) fn new() -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
            if let Ok(style) =
                ProgressStyle::with_template("{spinner} {prefix} ({elapsed}) {wide_msg:.dim}")
            {
                bar.set_style(style);
            }
            bar.enable_steady_tick(Duration::from_millis(100));
            bar
        });
        Self { bar }
    }

    /// Begins a step.
    pub(crate) fn step(&self, words: &str) {
        match &self.bar {
            Some(bar) => {
                bar.set_prefix(words.to_owned());
                bar.set_message("");
            }
            None => {
                let _ = writeln!(std::io::stderr(), "{words}");
            }
        }
    }

    /// How much of the step is done, where that is known.
    pub(crate) fn measure(&self, done: u64, all: u64, words: &str) {
        let megabytes = |bytes: u64| bytes as f64 / 1e6;
        match all {
            0 => self.detail(words),
            _ => {
                let bar = done.min(all) * BAR / all;
                let bar: String = (0..BAR)
                    .map(|at| if at < bar { '#' } else { '.' })
                    .collect();
                let (done, all) = (megabytes(done), megabytes(all));
                self.detail(&format!("[{bar}] {done:.1} of {all:.1} MB"));
            }
        }
    }

    /// A detail of the step, seen on a terminal only.
    pub(crate) fn detail(&self, words: &str) {
        if let Some(bar) = &self.bar {
            bar.set_message(words.to_owned());
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// Bytes on their way: a bar on a terminal, a line for each tenth elsewhere where the sum is known.
pub(crate) struct Transfer {
    bar: Option<ProgressBar>,
    words: String,
    total: u64,
    told: u64,
}

impl Transfer {
    /// A total of 0 is one that is not known.
    pub(crate) fn new(words: &str, total: u64) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let length = (total > 0).then_some(total);
            let bar = ProgressBar::with_draw_target(length, ProgressDrawTarget::stderr());
            let template = match total {
                0 => "{spinner} {prefix} {bytes} ({binary_bytes_per_sec})",
                _ => "{prefix} {bar:30} {bytes}/{total_bytes} ({binary_bytes_per_sec})",
            };
            if let Ok(style) = ProgressStyle::with_template(template) {
                bar.set_style(style);
            }
            bar.set_prefix(words.to_owned());
            bar
        });
        Self {
            bar,
            words: words.to_owned(),
            total,
            told: 0,
        }
    }

    pub(crate) fn at(&mut self, bytes: u64) {
        if let Some(bar) = &self.bar {
            bar.set_position(bytes);
            return;
        }
        // The headers of an archive count too, so there can be more than was expected.
        let tenths = (bytes.min(self.total).saturating_mul(10)).checked_div(self.total);
        if let Some(tenths) = tenths.filter(|tenths| *tenths > self.told) {
            self.told = tenths;
            let _ = writeln!(std::io::stderr(), "{} {}0%", self.words, tenths);
        }
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
