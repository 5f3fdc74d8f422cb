//! Log lines on standard error.

use std::io::IsTerminal;
use tracing_subscriber::EnvFilter;

/// Starts logging; `GLINT_LOG` overrides the number of `-v`.
pub fn start(verbose: u8) {
    let default = match verbose {
        0 => "info,fjall=warn,lsm_tree=warn",
        1 => "debug,fjall=info,lsm_tree=info,compio=info",
        _ => "trace",
    };
    let filter = EnvFilter::try_from_env("GLINT_LOG").unwrap_or_else(|_| EnvFilter::new(default));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        .init();
}
