//! `glint setstripe` and `glint getstripe`: layouts, through the attribute
//! `glint.layout`.

use crate::CommandResult;
use glint_proto::limits::REPLICAS_MAX;
use rustix::fs::XattrFlags;
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Wish for a layout; parts of it that are not said stay.
#[derive(clap::Args)]
pub(super) struct Wish {
    /// Stripe count: over how many OSTs a file is spread; 0 for all.
    #[arg(short = 'c', long)]
    count: Option<u16>,
    /// Stripe size: a number of bytes, or with K, M, G (KB and KiB are the same); a power of two
    /// from 64K to 64M.
    #[arg(short = 'S', long, value_parser = stripe_size)]
    size: Option<u64>,
    /// Copies: how many OSTs have each object, of different failure domains (see
    /// `--failure-domain` of `glint oss`); 1 for none but the object itself.
    #[arg(short = 'r', long, value_name = "N",
          value_parser = clap::value_parser!(u8).range(1..=i64::from(REPLICAS_MAX)))]
    replicas: Option<u8>,
}

impl Wish {
    /// The words that the attributes know.
    pub(super) fn words(&self) -> Result<Vec<String>, String> {
        let count = self.count.map(|count| format!("stripe_count={count}"));
        let size = self.size.map(|size| format!("stripe_size={size}"));
        let replicas = self.replicas.map(|replicas| format!("replicas={replicas}"));
        let words: Vec<String> = [count, size, replicas].into_iter().flatten().collect();
        match words.is_empty() {
            true => Err("nothing to set; give -c COUNT, -S SIZE or -r REPLICAS".into()),
            false => Ok(words),
        }
    }
}

/// Set the layout that new files of a directory get, or of a file without data.
#[derive(clap::Args)]
pub(crate) struct SetArgs {
    #[command(flatten)]
    wish: Wish,
    /// Print the layout as JSON.
    #[arg(long)]
    json: bool,
    /// Directory or empty file.
    path: PathBuf,
}

/// Show the layout of files and directories.
#[derive(clap::Args)]
pub(crate) struct GetArgs {
    /// Files or directories.
    #[arg(required = true)]
    paths: Vec<PathBuf>,
    /// Print JSON, one object a line.
    #[arg(long)]
    json: bool,
}

fn stripe_size(text: &str) -> Result<u64, String> {
    let bytes = crate::size::parse(text)?;
    if bytes.is_power_of_two() && (64 << 10..=64 << 20).contains(&bytes) {
        Ok(bytes)
    } else {
        Err("must be a power of two from 64K to 64M".into())
    }
}

/// Words as `getstripe` shows them, as an object.
fn as_json(path: &Path, words: &str) -> Value {
    let pairs = words.split_whitespace().filter_map(|word| word.split_once('='));
    let number = |text: &str| text.parse::<u64>().map_or_else(|_| json!(text), |n| json!(n));
    let mut row: Map<String, Value> =
        pairs.map(|(key, value)| (key.to_owned(), number(value))).collect();
    row.insert("path".into(), json!(path.display().to_string()));
    Value::Object(row)
}

/// How many OSTs the file system has.
pub(super) fn ost_count(path: &Path) -> Option<u64> {
    let status = crate::cmd::ask_mount(path, "glint.status").ok()?;
    serde_json::from_str::<Value>(&status).ok()?["ost_count"].as_u64()
}

/// Why so many copies have no place, and what to do.
pub(super) fn too_few_domains(copies: u64) -> String {
    format!(
        "{copies} copies need {copies} failure domains, and there are fewer (`glint ost list` \
         shows them): add servers of OSTs with `glint oss`, or say with --failure-domain which OSTs \
         of one host do not fail together"
    )
}

/// The number that words of a layout have for a key.
pub(super) fn number_in(words: &str, key: &str) -> Option<u64> {
    let mut pairs = words.split_whitespace().filter_map(|word| word.split_once('='));
    pairs.find(|(of, _)| *of == key)?.1.parse().ok()
}

/// Runs `setstripe`.
pub(crate) fn set(args: SetArgs) -> CommandResult {
    let words = args.wish.words()?;
    let value = words.join(" ");
    let shown = args.path.display();
    rustix::fs::setxattr(&args.path, "glint.layout", value.as_bytes(), XattrFlags::empty())
        .map_err(|e| match e {
            rustix::io::Errno::EXIST => {
                format!("{shown} was written to: its layout cannot be changed any more")
            }
            rustix::io::Errno::INVAL => match ost_count(&args.path) {
                Some(osts) => format!(
                    "{shown}: more stripes than OSTs, of which there are {osts}; say -c {osts} or \
                     less, or -c 0 for all"
                ),
                None => format!("{shown}: more stripes than OSTs; say -c 0 for all of them"),
            },
            rustix::io::Errno::NOSPC => {
                let layout = crate::cmd::ask_mount(&args.path, "glint.layout").unwrap_or_default();
                let copies =
                    number_in(&value, "replicas").or_else(|| number_in(&layout, "replicas"));
                match copies {
                    Some(copies) => format!("{shown}: {}", too_few_domains(copies)),
                    None => format!("{shown}: {e}"),
                }
            }
            rustix::io::Errno::PERM | rustix::io::Errno::ACCESS => {
                format!("{shown}: {e}; only its owner and root may change its layout")
            }
            rustix::io::Errno::OPNOTSUPP => format!("{shown} is not in a Glint mount"),
            e => format!("{shown}: {e}"),
        })?;
    if args.json {
        crate::say!("{}", as_json(&args.path, &crate::cmd::ask_mount(&args.path, "glint.layout")?));
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs `getstripe`.
pub(crate) fn get(args: GetArgs) -> CommandResult {
    for path in &args.paths {
        let layout = crate::cmd::ask_mount(path, "glint.layout")?;
        match args.json {
            true => crate::say!("{}", as_json(path, &layout)),
            false => crate::say!("{}: {layout}", path.display()),
        }
    }
    Ok(ExitCode::SUCCESS)
}
