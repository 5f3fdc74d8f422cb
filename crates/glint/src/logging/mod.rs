//! Log lines on standard error. What repeats is said a few times, and then with growing pauses:
//! nothing can fill a disk with it. Lines about one chain do not repeat those about another.

pub(crate) mod file;

use file::Log;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use tracing::callsite::Identifier;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

/// Target of lines that are all said, because each says something of its own.
pub(crate) const EVERY: &str = "every";
/// Lines of one kind that are logged before more of them count as repetitions.
const BURST: u32 = 20;
/// The first pause, and the longest.
const PAUSE: Duration = Duration::from_secs(2);
const PAUSE_MAX: Duration = Duration::from_secs(600);
/// After so long a silence it is news again.
const NEWS: Duration = Duration::from_secs(1200);

static LOG: OnceLock<Log> = OnceLock::new();

/// Starts logging; `GLINT_LOG` overrides the number of `-v`.
pub(crate) fn start(verbose: u8) {
    let default = match verbose {
        0 => "info,fjall=warn,lsm_tree=warn",
        1 => "debug,fjall=info,lsm_tree=info,compio=info",
        _ => "trace",
    };
    let filter = EnvFilter::try_from_env("GLINT_LOG").unwrap_or_else(|_| EnvFilter::new(default));
    if let Some(path) = crate::daemon::log() {
        let _ = LOG.set(Log::new(path));
    }
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(|| -> Box<dyn Write> {
            match LOG.get() {
                Some(log) => Box::new(log),
                None => Box::new(io::stderr()),
            }
        })
        .with_ansi(io::stderr().is_terminal())
        .with_target(false);
    let quiet = Quiet::default();
    tracing_subscriber::registry().with(filter).with(quiet).with(lines).init();
}

/// Field of a line that says which chain it is about.
const CHAIN: &str = "chain";

/// Lets a line through or not, by where in the code it comes from, and by the chain that it is about.
#[derive(Default)]
struct Quiet {
    /// Few: there are no more chains than the table of the MDS has.
    kinds: Mutex<HashMap<(Identifier, Option<String>), Kind>>,
}

/// The chain that a line is about.
#[derive(Default)]
struct ChainOfLine(Option<String>);

impl ChainOfLine {
    fn of(event: &Event<'_>) -> Option<String> {
        // Most lines are about none, and are not looked through.
        event.metadata().fields().field(CHAIN)?;
        let mut chain = ChainOfLine::default();
        event.record(&mut chain);
        chain.0
    }
}

impl Visit for ChainOfLine {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == CHAIN {
            self.0 = Some(format!("{value:?}"));
        }
    }
}

/// Lines of one kind that were logged.
struct Kind {
    said: u32,
    left_out: u64,
    last: Instant,
    pause: Duration,
}

impl Kind {
    fn new(now: Instant) -> Kind {
        Kind { said: 0, left_out: 0, last: now, pause: PAUSE }
    }

    /// Whether to say one more, and how many were left out before it.
    fn say(&mut self, now: Instant) -> Option<u64> {
        let since = now.saturating_duration_since(self.last);
        if since > NEWS {
            *self = Kind::new(now);
        } else if self.said >= BURST {
            if since < self.pause {
                self.left_out += 1;
                return None;
            }
            self.pause = (2 * self.pause).min(PAUSE_MAX);
        }
        self.said += 1;
        self.last = now;
        Some(std::mem::take(&mut self.left_out))
    }
}

impl<S: Subscriber> Layer<S> for Quiet {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        let meta = event.metadata();
        // Details that were asked for are always logged.
        if *meta.level() > Level::INFO || meta.target() == EVERY {
            return true;
        }
        let now = Instant::now();
        let kind = (meta.callsite(), ChainOfLine::of(event));
        let said = {
            let mut kinds = self.kinds.lock();
            kinds.entry(kind).or_insert_with(|| Kind::new(now)).say(now)
        };
        if let Some(more @ 1..) = said {
            tracing::warn!(target: EVERY, "{more} lines like the next one were left out");
        }
        said.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    /// Counts lines that are let through.
    struct LinesSaid(Arc<AtomicU32>);

    impl<S: Subscriber> Layer<S> for LinesSaid {
        fn on_event(&self, _: &Event<'_>, _: Context<'_, S>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn lines_of_one_chain_leave_out_none_of_another() {
        const CHAINS: u32 = 5;
        let said = Arc::new(AtomicU32::new(0));
        let count = LinesSaid(said.clone());
        let subscriber = tracing_subscriber::registry().with(Quiet::default()).with(count);
        tracing::subscriber::with_default(subscriber, || {
            for line in 0..3 * BURST * CHAINS {
                let chain = format!("2x{}", line % CHAINS);
                tracing::info!(%chain, "it has changed");
            }
        });
        let said = said.load(Ordering::Relaxed);
        // A few more if this took longer than the first pause.
        assert!((BURST * CHAINS..2 * BURST * CHAINS).contains(&said), "{said} lines");
    }

    #[test]
    fn repetitions_become_rare() {
        let start = Instant::now();
        let mut kind = Kind::new(start);
        let (mut said, mut left_out) = (0, 0);
        for second in 0..86_400 {
            if let Some(before) = kind.say(start + Duration::from_secs(second)) {
                said += 1;
                left_out += before;
            }
        }
        assert!((100..250).contains(&said), "{said} lines in a day of one each second");
        assert!(left_out + said > 86_400 - 600, "all others are counted");
        // After a long silence it is news again.
        let later = start + Duration::from_secs(100_000);
        assert!((0..BURST).all(|_| kind.say(later).is_some()));
    }
}
