//! `glint setstripe` and `glint getstripe`: layouts, through the attribute
//! `glint.layout`.

use crate::CommandResult;
use rustix::fs::XattrFlags;
use std::path::PathBuf;
use std::process::ExitCode;

/// Set the layout that new files of a directory get, or of a file without data.
#[derive(clap::Args)]
pub struct SetArgs {
    /// Stripe count: over how many OSTs a file is spread; 0 for all.
    #[arg(short = 'c', long)]
    count: Option<u16>,
    /// Stripe size in bytes, with K or M; a power of two from 64K to 64M.
    #[arg(short = 'S', long, value_parser = parse_size)]
    size: Option<u64>,
    /// Directory or empty file.
    path: PathBuf,
}

/// Show the layout of files and directories.
#[derive(clap::Args)]
pub struct GetArgs {
    /// Files or directories.
    #[arg(required = true)]
    paths: Vec<PathBuf>,
}

fn parse_size(text: &str) -> Result<u64, String> {
    let (digits, factor) = match text.chars().last() {
        Some('K' | 'k') => (&text[..text.len() - 1], 1 << 10),
        Some('M' | 'm') => (&text[..text.len() - 1], 1 << 20),
        _ => (text, 1),
    };
    let size: u64 = digits.parse().map_err(|_| "not a size".to_owned())?;
    let bytes = size.checked_mul(factor).ok_or("too large")?;
    if bytes.is_power_of_two() && (64 << 10..=64 << 20).contains(&bytes) {
        Ok(bytes)
    } else {
        Err("must be a power of two from 64K to 64M".into())
    }
}

/// Runs `setstripe`.
pub fn set(args: SetArgs) -> CommandResult {
    let mut words = Vec::new();
    if let Some(count) = args.count {
        words.push(format!("stripe_count={count}"));
    }
    if let Some(size) = args.size {
        words.push(format!("stripe_size={size}"));
    }
    if words.is_empty() {
        return Err("nothing to set; give -c COUNT, -S SIZE or both".into());
    }
    let value = words.join(" ");
    let shown = args.path.display();
    rustix::fs::setxattr(&args.path, "glint.layout", value.as_bytes(), XattrFlags::empty())
        .map_err(|e| match e {
            rustix::io::Errno::EXIST => {
                format!("{shown} was written to: its layout cannot be changed any more")
            }
            rustix::io::Errno::INVAL => format!("{shown}: more stripes than there are OSTs"),
            rustix::io::Errno::OPNOTSUPP => format!("{shown} is not in a Glint mount"),
            e => format!("{shown}: {e}"),
        })?;
    Ok(ExitCode::SUCCESS)
}

/// Runs `getstripe`.
pub fn get(args: GetArgs) -> CommandResult {
    for path in &args.paths {
        crate::say!("{}: {}", path.display(), super::ask_mount(path, "glint.layout")?);
    }
    Ok(ExitCode::SUCCESS)
}
