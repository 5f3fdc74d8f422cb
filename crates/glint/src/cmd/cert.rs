//! `glint cert`: a private certificate authority, and certificates of it for servers and
//! clients.

use crate::CommandResult;
use glint_net::rights::{IdMap, RIGHTS_OID, Rights, Squash};
use glint_net::tls::{CA_FILE, CERT_FILE, KEY_FILE};
use rcgen::{
    BasicConstraints, CertificateParams, CustomExtension, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose,
};
use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use time::{Duration, OffsetDateTime};

/// Key of the authority. It stays where it was made.
const CA_KEY_FILE: &str = "ca-key.pem";
/// Clocks of hosts may differ by so much.
const SKEW: Duration = Duration::hours(1);

/// Make certificates: who may serve a file system, and who may mount it.
///
/// `glint cert init DIR` makes an authority of your own. `glint cert issue DIR NAME` makes a
/// certificate, with all that host NAME needs in DIR/NAME: copy that directory there, and
/// say it with --cert, `-o cert=` or GLINT_CERT. DIR/ca-key.pem makes new certificates; keep it
/// on a host that serves nothing.
#[derive(clap::Subcommand)]
pub(crate) enum CertCommand {
    Init(InitArgs),
    Issue(IssueArgs),
}

/// Make an authority.
#[derive(clap::Args)]
pub(crate) struct InitArgs {
    /// Directory to write to; made if absent.
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// How it is called in certificates [default: Glint authority, and a number of its own].
    #[arg(long)]
    name: Option<String>,
    /// How long it is valid.
    #[arg(long, default_value_t = 3650, value_parser = clap::value_parser!(u16).range(1..))]
    days: u16,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Squashed {
    None,
    Root,
    All,
}

/// Make a certificate for a host, with what it may do when it mounts.
#[derive(clap::Args)]
pub(crate) struct IssueArgs {
    /// Of the authority.
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// Name of the host.
    #[arg(value_name = "NAME")]
    name: String,
    /// Other names and numbers that clients call it by, separated by commas.
    #[arg(long, value_name = "HOST", value_delimiter = ',')]
    host: Vec<String>,
    /// For a client only: it cannot pass for a server.
    #[arg(long)]
    client: bool,
    /// Let the host be a server of OSTs (`glint oss`), which is believed what it says of data.
    #[arg(long, conflicts_with_all = ["client", "subtree", "read_only", "squash", "map_uid", "map_gid"])]
    oss: bool,
    /// Show the host only what is below this directory of the file system, as its root.
    #[arg(long, value_name = "PATH", value_parser = subtree)]
    subtree: Option<String>,
    /// Let the host change nothing.
    #[arg(long)]
    read_only: bool,
    /// Callers whose rights are not taken over: those of the superuser of the client, or anybody's.
    #[arg(long, value_name = "WHOM", default_value = "none")]
    squash: Squashed,
    /// Users of the client and who they are for the servers, each COUNT from there on; who
    /// is not among them is nobody. Can be said several times.
    #[arg(long, value_name = "CLIENT:SERVER[:COUNT]")]
    map_uid: Vec<IdMap>,
    /// Groups of the client and who they are for the servers, as for `--map-uid`.
    #[arg(long, value_name = "CLIENT:SERVER[:COUNT]")]
    map_gid: Vec<IdMap>,
    /// How long it is valid.
    #[arg(long, default_value_t = 825, value_parser = clap::value_parser!(u16).range(1..))]
    days: u16,
    /// Directory to write to [default: DIR/NAME].
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// Runs the command.
pub(crate) fn run(command: CertCommand) -> CommandResult {
    match command {
        CertCommand::Init(args) => init(&args),
        CertCommand::Issue(args) => issue(&args),
    }
}

fn valid_for(params: &mut CertificateParams, days: u16) {
    params.not_before = OffsetDateTime::now_utc() - SKEW;
    params.not_after = OffsetDateTime::now_utc() + Duration::days(days.into());
}

fn init(args: &InitArgs) -> CommandResult {
    make_directory(&args.directory)?;
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::default();
    // Two authorities of one name would be taken for each other, until a signature differs.
    let own = || format!("Glint authority {:016x}", getrandom::u64().unwrap_or_default());
    params.distinguished_name.push(DnType::CommonName, args.name.clone().unwrap_or_else(own));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    valid_for(&mut params, args.days);
    let certificate = params.self_signed(&key)?;
    // The key first: it is what must not be replaced.
    write_new(&args.directory.join(CA_KEY_FILE), &key.serialize_pem(), 0o600)?;
    write_new(&args.directory.join(CA_FILE), &certificate.pem(), 0o644)?;
    crate::say!(
        "{}: an authority; keep {CA_KEY_FILE} to yourself. Next: glint cert issue {0} HOST",
        args.directory.display()
    );
    Ok(ExitCode::SUCCESS)
}

fn issue(args: &IssueArgs) -> CommandResult {
    std::iter::once(&args.name).chain(&args.host).try_for_each(|name| check_name(name))?;
    let read = |name: &str| {
        let path = args.directory.join(name);
        fs::read_to_string(&path).map_err(|error| {
            format!("{}: {error}; `glint cert init` makes an authority", path.display())
        })
    };
    let (authority, authority_key) = (read(CA_FILE)?, read(CA_KEY_FILE)?);
    let issuer = Issuer::from_ca_cert_pem(&authority, KeyPair::from_pem(&authority_key)?)
        .map_err(|error| format!("{}: {error}", args.directory.join(CA_FILE).display()))?;
    let mut names = vec![args.name.clone()];
    names.extend(args.host.iter().filter(|host| **host != args.name).cloned());
    let mut params = CertificateParams::new(names.clone())
        .map_err(|error| format!("names {}: {error}", names.join(", ")))?;
    params.distinguished_name.push(DnType::CommonName, args.name.as_str());
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    if !args.client {
        params.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth);
    }
    params.use_authority_key_identifier_extension = true;
    let rights = Rights {
        subtree: args.subtree.clone(),
        read_only: args.read_only,
        squash: match args.squash {
            Squashed::None => Squash::None,
            Squashed::Root => Squash::Root,
            Squashed::All => Squash::All,
        },
        users: args.map_uid.clone(),
        groups: args.map_gid.clone(),
        oss: args.oss,
    };
    let said = rights.to_string();
    params
        .custom_extensions
        .push(CustomExtension::from_oid_content(&RIGHTS_OID, said.clone().into()));
    valid_for(&mut params, args.days);
    let key = KeyPair::generate()?;
    let certificate = params.signed_by(&key, &issuer)?;
    let out = args.out.clone().unwrap_or_else(|| args.directory.join(&args.name));
    make_directory(&out)?;
    write_new(&out.join(KEY_FILE), &key.serialize_pem(), 0o600)?;
    write_new(&out.join(CERT_FILE), &certificate.pem(), 0o644)?;
    write_new(&out.join(CA_FILE), &authority, 0o644)?;
    crate::say!("{}: for {}, {said}, {} days", out.display(), names.join(", "), args.days);
    Ok(ExitCode::SUCCESS)
}

/// Checks a name that is to name a host in a certificate, and a directory.
fn check_name(name: &str) -> Result<(), String> {
    let is_good = |c: char| c.is_ascii_alphanumeric() || "-_.:".contains(c);
    match !name.is_empty() && name.chars().all(is_good) && !name.starts_with(['.', '-']) {
        true => Ok(()),
        false => Err(format!(
            "name {name:?}: use letters, digits and any of - _ . : as names and numbers of hosts \
             have them, beginning with neither - nor ."
        )),
    }
}

/// A path from the root, in words of a certificate.
fn subtree(text: &str) -> Result<String, String> {
    let strange = |c: char| c.is_whitespace() || c.is_control();
    match text.starts_with('/') && !text.contains(strange) && !text.contains("/..") {
        true => Ok(text.to_owned()),
        false => Err("use a path from the root, without spaces".into()),
    }
}

fn make_directory(path: &Path) -> Result<(), String> {
    fs::create_dir_all(path).map_err(|error| format!("{}: {error}", path.display()))
}

/// Writes a file that must not be there yet.
fn write_new(path: &Path, text: &str, mode: u32) -> Result<(), String> {
    let file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path);
    let written = file.and_then(|mut file| file.write_all(text.as_bytes()));
    written.map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => {
            format!("{}: is there already; remove it to make another", path.display())
        }
        _ => format!("{}: {error}", path.display()),
    })
}
