//! Ctrl-C and SIGTERM ask for a clean end; a second one insists.

use signal_hook::consts::{SIGINT, SIGTERM};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether a clean end was asked for.
#[derive(Clone)]
pub struct Stop {
    asked: Arc<AtomicBool>,
}

impl Stop {
    /// Listens from now on.
    pub fn listen() -> io::Result<Stop> {
        let asked = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            // Registered first, so it acts only from the second signal on.
            signal_hook::flag::register_conditional_shutdown(signal, 1, asked.clone())?;
            signal_hook::flag::register(signal, asked.clone())?;
        }
        Ok(Stop { asked })
    }

    /// Whether a signal came.
    pub fn is_asked(&self) -> bool {
        self.asked.load(Ordering::Acquire)
    }
}
