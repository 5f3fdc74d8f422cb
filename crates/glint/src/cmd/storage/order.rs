//! Orders about one OST, which the server with the MDS carries out: what they have in common.

use crate::target::{MdsArg, Target};
use glint_proto::Ino;
use serde_json::Value;
use std::error::Error;

/// OST and file system that are meant.
#[derive(clap::Args)]
pub(crate) struct WhichOst {
    /// Number of the OST, as `glint ost list` shows it.
    #[arg(value_name = "N")]
    pub(super) ost: u16,
    #[command(flatten)]
    target: MdsArg,
}

impl WhichOst {
    /// The mount or server to ask.
    pub(super) fn target(&self) -> Result<Target, String> {
        self.target.find()
    }
}

/// Gives an order. Returns what the server says.
pub(super) fn ask(target: &Target, order: &impl ToString) -> Result<Value, Box<dyn Error>> {
    Ok(serde_json::from_str(&target.ask(&order.to_string())?)?)
}

/// Asks for pages, each from the inode on with which the one before it says to go on.
pub(super) fn pages<O: ToString>(
    target: &Target,
    order: impl Fn(Ino) -> O,
) -> impl Iterator<Item = Result<Value, Box<dyn Error>>> {
    let mut from = Some(0);
    std::iter::from_fn(move || {
        let ino = from.take()?;
        let page = ask(target, &order(Ino(ino)));
        if let Ok(page) = &page {
            // A server that does not get on would be asked for ever.
            from = page["next"].as_u64().filter(|next| *next > ino);
        }
        Some(page)
    })
}
